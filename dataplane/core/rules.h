// The operator's classification rules: which frames belong to which egress class.
//
// The rules are compiled once at start into a bit mask of rules for each value of each field, so
// that a frame costs a few loads and ANDs, however many rules there are. Only prefixes are compared
// one by one, and only those of rules whose other conditions hold. Constant afterwards, read by
// every lcore.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "aggregator/wire/peek.h"
#include "dataplane/core/egress_queue.h"

namespace sluice::dataplane {

// All conditions that are set must hold.
struct TrafficRule {
  struct Prefix {
    wire::IpAddress network;  // host bits are ignored
    std::uint8_t length = 0;
  };
  ClassIndex egress_class = 0;
  std::optional<std::uint8_t> dscp;
  std::optional<std::uint8_t> pcp;
  std::optional<std::uint8_t> protocol;  // kProtoUdp or kProtoTcp
  std::optional<std::uint16_t> port;     // source or destination, of UDP or TCP
  std::optional<Prefix> prefix;          // source or destination
};

class RuleTable {
 public:
  static constexpr std::size_t kMaxRules = 64;

  RuleTable() noexcept = default;
  // At most kMaxRules.
  explicit RuleTable(std::span<const TrafficRule> rules) noexcept;

  bool empty() const noexcept { return all_ == 0; }
  // The class of the first rule that fits, if any.
  std::optional<ClassIndex> match(const wire::FlowView& flow) const noexcept;

 private:
  using Mask = std::uint64_t;  // bit r: rule r, in the order of the configuration
  static constexpr std::size_t kNotIp = 64;
  static constexpr std::size_t kPortBuckets = 256;  // at most a quarter in use

  struct PortRules {
    std::uint16_t port = 0;
    Mask rules = 0;  // 0: a free bucket
  };
  // An address as two words in wire order; an IPv4 address is in the first.
  struct Words {
    std::uint64_t word[2] = {0, 0};
  };
  struct CompiledPrefix {
    Words network;
    Words mask;
  };

  static Words load_words(const std::uint8_t* at, std::size_t bytes) noexcept;
  static std::size_t first_bucket(std::uint16_t port) noexcept;
  void add_port(std::uint16_t port, Mask rule) noexcept;
  void add_prefix(std::size_t rule, const TrafficRule::Prefix& prefix) noexcept;
  Mask with_port(std::uint16_t port) const noexcept;
  Mask keep_ports(Mask candidates, const wire::FlowView& flow) const noexcept;
  bool in_prefix(std::size_t rule, const Words& address) const noexcept;

  Mask all_ = 0;
  std::array<Mask, kNotIp + 1> by_dscp_{};
  std::array<Mask, wire::kNoPcp + 1> by_pcp_{};
  Mask for_udp_ = 0;
  Mask for_tcp_ = 0;
  Mask for_other_protocols_ = 0;
  Mask has_port_ = 0;
  Mask has_prefix_ = 0;
  Mask prefix_is_ipv4_ = 0;
  std::array<PortRules, kPortBuckets> ports_{};
  std::array<CompiledPrefix, kMaxRules> prefixes_{};
  std::array<ClassIndex, kMaxRules> classes_{};
};

}  // namespace sluice::dataplane
