#include "config/machine.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <string>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace sluice::config {
namespace {

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnknownTotalMib = 2048;  // where the machine does not tell its memory
constexpr std::uint64_t kLeastTotalMib = 64;
constexpr std::uint64_t kMostMib = 1 << 20;  // of the schema

std::string number(std::uint64_t value) { return std::to_string(value); }

// The file's first line as bytes; `fallback` when there is no such file or no number ("max").
std::uint64_t read_number(const std::string& path, std::uint64_t fallback) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : fallback;
}

// The smallest memory limit from the group `path` of a hierarchy at `mount` up to its root.
std::uint64_t group_limit(const std::string& mount, std::string path, const char* file) {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t limit = kNone;
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    limit = std::min(limit, read_number(mount + path + "/" + file, kNone));
    if (path.empty()) return limit;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

// Of the control group that this process is in, either version; the largest number: none.
std::uint64_t control_group_limit(const std::string& root) {
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "ID:CONTROLLERS:/PATH"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      limit = std::min(limit, group_limit(root + "/sys/fs/cgroup", path, "memory.max"));
    else if (controllers.find(",memory,") != std::string::npos)
      limit = std::min(limit,
                       group_limit(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"));
  }
  return limit;
}

std::uint64_t packet_memory_mib(const Config& config) {
  return config.appliance.hugepages ? 0 : config.appliance.memory_mib;
}

// Three quarters of the memory that is free beside the packet buffers; the rest is for other
// programs.
std::uint64_t total_by_machine(const Config& config, const HostFacts& host) {
  const std::uint64_t free_mib = host.memory.available_mib;
  if (free_mib == 0) return kUnknownTotalMib;
  const std::uint64_t packets_mib = std::min(packet_memory_mib(config), free_mib);
  return std::clamp((free_mib - packets_mib) / 4 * 3, kLeastTotalMib, kMostMib);
}

// The chunk size that every port carries for a job of up to 64 workers. Whether a port carries the
// results of a larger job is checked when that job is joined.
std::uint16_t chunk_bytes_by_ports(const Config& config) {
  std::uint16_t least_mtu = config.ports.empty() ? PortConfig{}.mtu : UINT16_MAX;
  for (const PortConfig& port : config.ports) least_mtu = std::min(least_mtu, port.mtu);
  const std::size_t workers = std::min<std::size_t>(config.limits.workers_per_job, 64);
  const std::size_t overhead = wire::kUdpBytes +
                               (config.appliance.address6 ? wire::kIpv6Bytes : wire::kIpv4Bytes) +
                               wire::result_overhead_bytes(workers);
  const std::size_t carried = least_mtu > overhead ? least_mtu - overhead : 0;
  return static_cast<std::uint16_t>(
      std::clamp(carried / kChunkAlignBytes * kChunkAlignBytes, kMinChunkBytes, kMaxChunkBytes));
}

}  // namespace

MemoryFacts read_memory(const std::string& root) {
  std::uint64_t total_mib = 0, available_mib = 0;
  std::optional<std::uint64_t> hugepages_mib;
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  for (std::string rest; file >> key >> kib && std::getline(file, rest);) {
    if (key == "MemTotal:") total_mib = kib / 1024;
    if (key == "MemAvailable:") available_mib = kib / 1024;
    if (key == "Hugetlb:") hugepages_mib = kib / 1024;
  }
  const std::uint64_t limit_mib = control_group_limit(root) / kMib;
  const std::uint64_t usable_mib =
      std::min(total_mib - std::min(hugepages_mib.value_or(0), total_mib), limit_mib);
  return {.usable_mib = usable_mib,
          .available_mib = std::min(available_mib, usable_mib),
          .hugepages_mib = hugepages_mib};
}

LimitsConfig resolved_limits(const Config& config, const HostFacts& host) {
  LimitsConfig limits = config.limits;
  if (limits.total_memory_mib == 0)
    limits.total_memory_mib = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(total_by_machine(config, host), limits.job_memory_mib));
  if (limits.job_memory_mib == 0) limits.job_memory_mib = limits.total_memory_mib;
  if (limits.chunk_bytes_max == 0) limits.chunk_bytes_max = chunk_bytes_by_ports(config);
  return limits;
}

void check_memory(const Config& config, const HostFacts& host, Report& report) {
  const LimitsConfig limits = resolved_limits(config, host);
  if (limits.job_memory_mib > limits.total_memory_mib)
    report.conflict(
        {"limits.job_memory_mib", "limits.total_memory_mib"},
        "one job may take more memory than all together: " + number(limits.job_memory_mib) +
            " MiB of " + number(limits.total_memory_mib) +
            "; lower job_memory_mib or raise total_memory_mib");
  const std::uint64_t usable_mib = host.memory.usable_mib;
  const std::uint64_t packets_mib = packet_memory_mib(config);
  if (usable_mib == 0 || packets_mib + limits.total_memory_mib <= usable_mib) return;
  // The key that the file gives; without either the packets alone are too much.
  const bool by_total = config.limits.total_memory_mib != 0;
  const bool by_job = !by_total && config.limits.job_memory_mib != 0;
  const char* key = by_total ? "limits.total_memory_mib"
                    : by_job ? "limits.job_memory_mib"
                             : "appliance.memory_mib";
  const std::uint64_t kept_mib = by_total || by_job ? packets_mib : limits.total_memory_mib;
  report.conflict({key, "appliance.memory_mib"},
                  "the limits allow more memory than this machine has: " + number(packets_mib) +
                      " MiB for packets and " + number(limits.total_memory_mib) + " for jobs, of " +
                      number(usable_mib) + "; lower " + key + " to " +
                      number(usable_mib - std::min(usable_mib, kept_mib)) + " at most");
}

}  // namespace sluice::config
