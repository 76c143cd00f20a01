#include "config/checks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "aggregator/base/policy_text.h"
#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "config/host_checks.h"
#include "config/text.h"
#include "config/traffic_checks.h"

namespace sluice::config {
namespace {

std::string number(std::size_t value) { return std::to_string(value); }

// The address as a number, and the host bits of its network.
std::uint32_t as_number(const Ipv4Prefix& prefix) {
  std::uint32_t value = 0;
  for (const std::uint8_t octet : prefix.octets) value = value << 8 | octet;
  return value;
}

std::uint32_t host_mask(const Ipv4Prefix& prefix) {
  return prefix.prefix_length == 0
             ? ~0u
             : static_cast<std::uint32_t>(~0ull >> 32 >> prefix.prefix_length);
}

void check_address(const Config& config, Report& report) {
  const Ipv4Prefix& address = config.appliance.address;
  const std::uint32_t value = as_number(address);
  const std::uint32_t hosts = host_mask(address);
  const char* problem = nullptr;
  if (address.octets[0] == 0)
    problem = "is not a host's address";
  else if (address.octets[0] == 127)
    problem = "is a loopback address";
  else if (address.octets[0] >= 224)
    problem = "is a multicast or reserved address";
  else if (hosts > 1 && (value & hosts) == 0)
    problem = "is the name of its network";
  else if (hosts > 1 && (value & hosts) == hosts)
    problem = "is its network's broadcast address";
  if (problem)
    report.conflict({"appliance.address"},
                    std::string("address ") + problem + ": " + to_text(address) +
                        "; give an unused host address of the workers' network");
  if (const auto& mac = config.appliance.mac; mac && ((*mac)[0] & 1 || *mac == MacAddress{}))
    report.conflict({"appliance.mac"},
                    "mac is a group address or zero: " + to_text(*mac) +
                        "; give one whose first byte is even, such as " +
                        to_text(effective_mac(ApplianceConfig{.address = address})));
  if (const auto& address6 = config.appliance.address6) {
    const auto& octets = address6->octets;
    const bool loopback_or_none =
        std::all_of(octets.begin(), octets.end() - 1, [](auto octet) { return octet == 0; }) &&
        octets[15] <= 1;
    if (octets[0] == 0xff || loopback_or_none)
      report.conflict({"appliance.address6"},
                      "address6 is not a host's address: " + to_text(*address6) +
                          "; give a unicast address such as \"fd00::1/64\"");
  }
}

void check_appliance(const Config& config, const HostFacts& host, Report& report) {
  const ApplianceConfig& appliance = config.appliance;
  // Two spinning threads on one core alternate at the scheduler's tick, which is worse than one
  // shard.
  if (appliance.polling == Polling::kBusy && appliance.shards > host.cpu_count)
    report.conflict({"appliance.shards", "appliance.polling"},
                    "more busy-polling shards than cores: " + number(appliance.shards) + " on " +
                        number(host.cpu_count) + "; lower shards or set polling = \"adaptive\"");
  if (!appliance.secret.empty() && !appliance.secret_file.empty())
    report.conflict({"appliance.secret_file", "appliance.secret"},
                    "secret and secret_file are both set: " + in_quotes(appliance.secret_file) +
                        "; keep one of them");
}

void check_limits(const Config& config, Report& report) {
  const std::size_t chunk_bytes = config.limits.chunk_bytes_max;
  if (chunk_bytes % kChunkAlignBytes != 0)
    report.conflict(
        {"limits.chunk_bytes_max"},
        "chunk_bytes_max is not a multiple of " + number(kChunkAlignBytes) + ": " +
            number(chunk_bytes) + "; give " +
            number(std::max(chunk_bytes / kChunkAlignBytes * kChunkAlignBytes, kMinChunkBytes)));
}

// The setting that names the device of each port type.
struct DeviceKey {
  const char* key;
  const std::string& value;
  bool used;
};

std::array<DeviceKey, 3> device_keys(const PortConfig& port) {
  const bool kernel = port.type == PortType::kAfPacket || port.type == PortType::kAfXdp ||
                      port.type == PortType::kTap;
  return {DeviceKey{"path", port.path, port.type == PortType::kVhostUser},
          DeviceKey{"interface", port.interface, kernel},
          DeviceKey{"pci", port.pci, port.type == PortType::kPci}};
}

void check_port(const Config& config, std::size_t index, Report& report) {
  const PortConfig& port = config.ports[index];
  const std::string place = "port[" + number(index) + "]";
  const std::string type(label_of(port.type));
  if (port.name.empty())
    report.conflict({place + ".name"}, "port without a name: number " + number(index + 1) +
                                           "; add name = \"port" + number(index) + "\"");
  for (const DeviceKey& device : device_keys(port)) {
    const std::string where = place + "." + device.key;
    if (device.used && device.value.empty())
      report.conflict({where, place + ".type"}, type + " port without " + device.key + ": " +
                                                    in_quotes(port.name) + "; add " + device.key +
                                                    " = \"...\"");
    if (!device.used && !device.value.empty())
      report.conflict({where, place + ".type"}, std::string(device.key) + " does not go with a " +
                                                    type + " port: " + in_quotes(device.value) +
                                                    "; remove it or change type");
  }
  // A result to the largest job is the longest packet of the protocol.
  const std::size_t overhead = wire::kUdpBytes +
                               (config.appliance.address6 ? wire::kIpv6Bytes : wire::kIpv4Bytes) +
                               wire::result_overhead_bytes(config.limits.workers_per_job);
  const std::size_t needed = config.limits.chunk_bytes_max + overhead;
  if (config.limits.chunk_bytes_max != 0 && port.mtu < needed) {
    const std::size_t fitting = (port.mtu - overhead) / kChunkAlignBytes * kChunkAlignBytes;
    report.conflict({place + ".mtu", "limits.chunk_bytes_max", "limits.workers_per_job"},
                    "mtu does not carry chunk_bytes_max: " + number(port.mtu) +
                        " bytes for chunks of " + number(config.limits.chunk_bytes_max) +
                        " and headers of " + number(overhead) + "; raise mtu to " + number(needed) +
                        " or lower chunk_bytes_max to " + number(fitting));
  }
}

// The kernel fills AF_XDP's buffers in place and lets none cross a page; all ports share them.
void check_xdp(const Config& config, Report& report) {
  constexpr std::uint16_t kMaxMtu = 3360;
  if (std::ranges::count(config.ports, PortType::kAfXdp, &PortConfig::type) == 0) return;
  const auto largest = std::ranges::max_element(config.ports, {}, &PortConfig::mtu);
  if (largest->mtu <= kMaxMtu) return;
  const std::string place =
      "port[" + number(static_cast<std::size_t>(largest - config.ports.begin())) + "]";
  report.conflict({place + ".mtu"},
                  "mtu does not go with af_xdp ports, whose frames must fit into a page: " +
                      number(largest->mtu) + "; lower mtu to at most " + number(kMaxMtu) +
                      " or use other port types");
}

// Two ports can't share a name or a device.
void check_twins(const Config& config, Report& report) {
  std::map<std::pair<std::string, std::string>, std::size_t> first_with;
  for (std::size_t i = 0; i < config.ports.size(); ++i) {
    const PortConfig& port = config.ports[i];
    const std::pair<const char*, const std::string*> values[] = {{"name", &port.name},
                                                                 {"path", &port.path},
                                                                 {"interface", &port.interface},
                                                                 {"pci", &port.pci}};
    for (const auto& [key, value] : values) {
      if (value->empty()) continue;
      const auto [entry, is_new] = first_with.try_emplace({key, *value}, i);
      if (!is_new)
        report.conflict({"port[" + number(i) + "]." + key},
                        "two ports have the same " + std::string(key) + ": " + in_quotes(*value) +
                            "; ports " + number(entry->second + 1) + " and " + number(i + 1) +
                            " need different ones");
    }
  }
}

// Checks the options that the policy of a table needs; options that it does not read count as left
// out.
void check_policy(const Config& config, const PolicyOptions& policy, const std::string& place,
                  Report& report) {
  const PolicyField* field = wrong_field(policy, config.limits.workers_per_job);
  if (policy.kind == PolicyKind::kFixed && !report.has(place + ".k") && !report.has("policy.k"))
    report.conflict({place + ".policy", place + ".k", "policy.policy"},
                    "policy fixed without k: steps would end with " + number(policy.k) +
                        " contribution; add k = an integer from 1 to " +
                        number(config.limits.workers_per_job));
  if (field == nullptr) return;
  const std::string key(field->name);
  if (field->is_k())
    report.conflict({place + ".k", "policy.k", "limits.workers_per_job"},
                    "k is more than the largest job has workers: " + number(policy.k) + " of " +
                        number(config.limits.workers_per_job) +
                        "; lower k or raise limits.workers_per_job");
  else  // the reader takes nothing else that a policy refuses
    report.conflict({place + "." + key, place + ".policy", "policy.policy"},
                    std::string("policy ") + name_of(policy.kind) + " without " + key + ": " +
                        policy_text(*field, field->get(policy)) + "; add " + key + " = " +
                        policy_range(*field, 0, false));
}

// Warns about a key whose value no policy here reads: `policy` was forgotten, or is the wrong one.
void check_unread(const Config& config, const PolicyOptions& policy, const std::string& place,
                  Report& report) {
  const auto reads = [](const PolicyField& field, const PolicyOptions& one) {
    return is_read(field, one.kind, one.late);
  };
  for (const PolicyField& field : kPolicyFields.subspan(1)) {
    const std::string key(field.name);
    bool read = reads(field, policy);
    if (place == "policy")  // job tables take its keys over
      for (const JobConfig& job : config.jobs) read |= reads(field, job.policy);
    if (read || !report.has(place + "." + key) || field.get(policy) == field.get(PolicyOptions{}))
      continue;
    std::string readers;
    for (int kind = 0; kind < kPolicyKindCount; ++kind)
      if ((field.kinds >> kind & 1) != 0)
        readers += (readers.empty() ? "" : ", ") + std::string(name_of(PolicyKind(kind)));
    report.warn({place + "." + key}, key + " is given and policy " + name_of(policy.kind) +
                                         " does not read it; remove it, or set policy to one of " +
                                         readers +
                                         (field.only_requeue ? " and late to requeue" : ""));
  }
}

void check_policies(const Config& config, Report& report) {
  check_policy(config, config.policy, "policy", report);
  check_unread(config, config.policy, "policy", report);
  std::map<std::string, std::size_t> first_with;
  for (std::size_t i = 0; i < config.jobs.size(); ++i) {
    const JobConfig& job = config.jobs[i];
    const std::string place = "job[" + number(i) + "]";
    if (job.name.empty())
      report.conflict({place + ".name"}, "job without a name: number " + number(i + 1) +
                                             "; add name = \"...\" as the workers give it");
    const auto [twin, is_new] = first_with.try_emplace(job.name, i);
    if (!job.name.empty() && !is_new)
      report.conflict({place + ".name"},
                      "two job tables have the same name: " + in_quotes(job.name) + "; tables " +
                          number(twin->second + 1) + " and " + number(i + 1) + " must become one");
    // A table that only repeats [policy] would only repeat its errors.
    if (job.policy != config.policy) check_policy(config, job.policy, place, report);
    check_unread(config, job.policy, place, report);
    if (job.reproducible && job.policy.tolerates_stragglers())
      report.conflict({place + ".reproducible", place + ".policy", "policy.policy"},
                      "reproducible sums do not go with policy " +
                          std::string(name_of(job.policy.kind)) + ": " + in_quotes(job.name) +
                          ", who is in a sum of k < n is a matter of time; set policy = \"sync\" " +
                          "in this table or remove reproducible");
  }
}

}  // namespace

void check_combinations(const Config& config, const HostFacts& host, Report& report) {
  check_address(config, report);
  check_appliance(config, host, report);
  check_limits(config, report);
  check_policies(config, report);
  check_traffic(config, report);
  if (config.ports.empty())
    report.conflict({"port"}, "no ports: 0; add a [[port]] table with name, type and its device");
  for (std::size_t i = 0; i < config.ports.size(); ++i) check_port(config, i, report);
  check_host(config, host, report);
  check_xdp(config, report);
  check_twins(config, report);
}

}  // namespace sluice::config
