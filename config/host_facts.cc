// The one part of config/ that asks the kernel: interfaces, their addresses, usable cores.
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "config/machine.h"

namespace sluice::config {
namespace {

template <std::size_t N>
std::array<std::uint8_t, N> octets_of(const void* address) {
  std::array<std::uint8_t, N> octets;
  std::memcpy(octets.data(), address, N);
  return octets;
}

void add_address(const ifaddrs& entry, HostFacts::Interface& interface) {
  if (!entry.ifa_addr) return;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    interface.ipv4.push_back(octets_of<4>(&address->sin_addr));
  } else if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    interface.ipv6.push_back(octets_of<16>(&address->sin6_addr));
  }
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  facts.memory = read_memory("");
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
    facts.cpu_count = static_cast<std::size_t>(CPU_COUNT(&cpus));

  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return facts;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    // An address's label may be "eth0:1"; the interface is the part before the colon.
    std::string name(entry->ifa_name);
    name = name.substr(0, name.find(':'));
    auto found = std::ranges::find(facts.interfaces, name, &HostFacts::Interface::name);
    if (found == facts.interfaces.end())
      found =
          facts.interfaces.insert(facts.interfaces.end(), {.name = name, .ipv4 = {}, .ipv6 = {}});
    add_address(*entry, *found);
  }
  return facts;
}

}  // namespace sluice::config
