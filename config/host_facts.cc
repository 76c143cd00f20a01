// Asks the kernel for facts about the host: interfaces, cards, usable cores, memory, folders.
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
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

std::string first_word(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::uint32_t mtu_of(const std::string& interface) {
  const std::string word = first_word("/sys/class/net/" + interface + "/mtu");
  return static_cast<std::uint32_t>(std::strtoul(word.c_str(), nullptr, 10));
}

std::optional<std::vector<HostFacts::PciDevice>> network_cards() {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<HostFacts::PciDevice> cards;
  fs::directory_iterator entries("/sys/bus/pci/devices", error);
  if (error) return {};
  for (const fs::directory_entry& entry : entries) {
    const fs::path& path = entry.path();
    if (!first_word(path / "class").starts_with("0x02")) continue;
    const fs::path driver = fs::read_symlink(path / "driver", error);
    const fs::path group = path / "iommu_group";
    // A group without an IOMMU has a name that says so.
    cards.push_back({path.filename().string(), error ? "" : driver.filename().string(),
                     fs::exists(group, error) && first_word(group / "name") != "vfio-noiommu"});
  }
  std::ranges::sort(cards, {}, &HostFacts::PciDevice::address);
  return cards;
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  facts.memory = read_memory("");
  facts.pci = network_cards();
  facts.is_folder = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::is_directory(path, error);
  };
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
      found = facts.interfaces.insert(facts.interfaces.end(),
                                      {.name = name, .ipv4 = {}, .ipv6 = {}, .mtu = mtu_of(name)});
    add_address(*entry, *found);
  }
  return facts;
}

}  // namespace sluice::config
