// The appliance's configuration as plain values, with the defaults as initialisers.
//
// schema.cc has the file format: keys, units, ranges and help; loader.h reads the file. The main
// thread fills a Config once at start. It is constant afterwards, so every thread may read it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/time.h"

namespace sluice::config {

// An address with the length of its network prefix, octets in network order.
struct Ipv4Prefix {
  std::array<std::uint8_t, 4> octets{};
  std::uint8_t prefix_length = 0;
  friend bool operator==(const Ipv4Prefix&, const Ipv4Prefix&) = default;
};

struct Ipv6Prefix {
  std::array<std::uint8_t, 16> octets{};
  std::uint8_t prefix_length = 0;
  friend bool operator==(const Ipv6Prefix&, const Ipv6Prefix&) = default;
};

// A prefix of either family; its host bits are zero.
using IpPrefix = std::variant<Ipv4Prefix, Ipv6Prefix>;

inline constexpr std::size_t kMaxPorts = 32;  // DPDK's own limit on ethernet devices

using MacAddress = std::array<std::uint8_t, 6>;

// Adaptive: workers sleep until a packet comes. Busy: workers always spin, for boxes with a core
// for each shard.
enum class Polling : std::uint8_t { kAdaptive, kBusy };
enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarning, kError };
enum class PortType : std::uint8_t { kVhostUser, kAfPacket, kAfXdp, kTap, kPci };
enum class Protocol : std::uint8_t { kUdp, kTcp };

struct ApplianceConfig {
  Ipv4Prefix address{{10, 77, 0, 1}, 24};
  std::optional<Ipv6Prefix> address6;
  std::optional<MacAddress> mac;      // unset: see effective_mac()
  std::uint16_t port = kDefaultPort;  // of joins; data of shard s is on port + 1 + s
  std::uint16_t shards = 1;
  std::string secret;       // HMAC secret of the jobs; read from secret_file if that is set
  std::string secret_file;  // empty: the file has `secret` itself
  std::vector<std::string> older_secrets;  // good too; from the later lines of secret_file
  Polling polling = Polling::kAdaptive;
  LogLevel log_level = LogLevel::kInfo;
  std::uint32_t memory_mib = 512;  // of DPDK: packet buffers and rings
  bool hugepages = false;
  friend bool operator==(const ApplianceConfig&, const ApplianceConfig&) = default;
};

// Faults that the port injects on purpose: probabilities for each frame, drawn with `seed`.
struct FaultConfig {
  double rx_drop = 0;
  double tx_drop = 0;
  double duplicate = 0;
  double reorder = 0;
  std::uint64_t seed = 1;
  bool any() const noexcept { return rx_drop > 0 || tx_drop > 0 || duplicate > 0 || reorder > 0; }
  friend bool operator==(const FaultConfig&, const FaultConfig&) = default;
};

struct PortConfig {
  std::string name;
  PortType type = PortType::kVhostUser;
  std::string path;       // vhost-user: the socket that the port creates
  std::string interface;  // af_packet, af_xdp: a network interface of this host; tap: the one that
                          // the port creates
  std::string pci;        // pci: an address such as 0000:01:00.0
  std::uint16_t mtu = 1500;
  std::uint32_t rate_mbps = 0;       // of the egress shaper; 0: unshaped
  std::uint32_t queue_kib = 6072;    // 4096 frames of MTU 1500
  std::uint32_t mark_above_kib = 0;  // 0: never
  FaultConfig fault;
  friend bool operator==(const PortConfig&, const PortConfig&) = default;
};

inline constexpr std::uint16_t kClasses = 64;  // egress classes of a port; 0 is the most urgent

// A class with a guaranteed share of every port's bytes. Indices are distinct, and the shares of
// all classes sum to less than 1.
struct ClassConfig {
  std::uint16_t index = 0;
  double share = 1.0 / 32;
  friend bool operator==(const ClassConfig&, const ClassConfig&) = default;
};

// A frame that fulfils all conditions that are set belongs to egress_class. At least one is set,
// and the first rule that fits decides.
struct RuleConfig {
  std::uint16_t egress_class = 0;
  std::optional<std::uint16_t> dscp;
  std::optional<std::uint16_t> pcp;
  std::optional<Protocol> protocol;
  std::optional<std::uint16_t> port;  // source or destination; only beside `protocol`
  std::optional<IpPrefix> prefix;     // source or destination
  friend bool operator==(const RuleConfig&, const RuleConfig&) = default;
};

inline constexpr std::size_t kMaxRules = 64;

struct LimitsConfig {
  std::uint16_t jobs = 16;
  std::uint16_t workers_per_job = 64;
  // 0: as much as the machine's memory and the ports' MTU allow. The loader replaces 0 by that
  // number.
  std::uint32_t job_memory_mib = 0;
  std::uint32_t total_memory_mib = 0;
  std::uint16_t chunk_bytes_max = 0;
  // Limits of the jobs that one host's workers create, and of jobs whose names are equal up to a
  // slash. 0: only the limits of all jobs apply.
  std::uint16_t address_jobs = 0;
  std::uint32_t address_memory_mib = 0;
  std::uint16_t prefix_jobs = 0;
  std::uint32_t prefix_memory_mib = 0;
  double member_timeout_s = 30;
  double resync_hold_s = 30;
  double store_keep_s = 300;
  DurationNs member_timeout_ns() const noexcept {
    return static_cast<DurationNs>(member_timeout_s * static_cast<double>(kSecond));
  }
  DurationNs resync_hold_ns() const noexcept {
    return static_cast<DurationNs>(resync_hold_s * static_cast<double>(kSecond));
  }
  DurationNs store_keep_ns() const noexcept {
    return static_cast<DurationNs>(store_keep_s * static_cast<double>(kSecond));
  }
  friend bool operator==(const LimitsConfig&, const LimitsConfig&) = default;
};

// How jobs with this name are summed. Options of the policy that its table leaves out are those of
// [policy].
struct JobConfig {
  std::string name;
  PolicyOptions policy;
  bool reproducible = false;
  friend bool operator==(const JobConfig&, const JobConfig&) = default;
};

inline constexpr std::size_t kMaxJobTables = 1024;

struct MetricsConfig {
  std::string address = "127.0.0.1:9464";  // empty: no endpoint
  std::string certificate;                 // PEM; empty: HTTP without TLS
  std::string password_file;               // empty: for everybody
  std::string password;                    // "USER:PASSWORD", from password_file
  friend bool operator==(const MetricsConfig&, const MetricsConfig&) = default;
};

// The local socket for sluicectl.
struct ControlConfig {
  std::string socket;  // empty: control.sock in the folder that a service manager gives
  std::string owner;   // names of this host; empty: the process's own
  std::string group;
  std::string mode = "0600";  // octal
  friend bool operator==(const ControlConfig&, const ControlConfig&) = default;
};

struct ForwardingConfig {
  bool enabled = true;
  std::uint32_t mac_table_entries = 4096;
  std::uint32_t mac_age_s = 300;
  friend bool operator==(const ForwardingConfig&, const ForwardingConfig&) = default;
};

struct Config {
  ApplianceConfig appliance;
  std::vector<PortConfig> ports;
  std::vector<ClassConfig> classes;
  std::vector<RuleConfig> rules;
  LimitsConfig limits;
  PolicyOptions policy;  // of jobs whose ranks leave it to the appliance
  std::vector<JobConfig> jobs;
  MetricsConfig metrics;
  ControlConfig control;
  ForwardingConfig forwarding;
  friend bool operator==(const Config&, const Config&) = default;
};

// The configured MAC address, or one in the locally administered range made from the IPv4 address,
// so that it survives a restart and two appliances on one network differ.
inline MacAddress effective_mac(const ApplianceConfig& appliance) noexcept {
  if (appliance.mac) return *appliance.mac;
  const auto& ip = appliance.address.octets;
  return {0x02, 0x51, ip[0], ip[1], ip[2], ip[3]};
}

}  // namespace sluice::config
