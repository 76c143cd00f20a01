#include "dataplane/core/rules.h"

#include <bit>
#include <cstring>

#include "aggregator/base/check.h"

namespace sluice::dataplane {

RuleTable::RuleTable(std::span<const TrafficRule> rules) noexcept {
  CHECK(rules.size() <= kMaxRules);
  for (std::size_t at = 0; at < rules.size(); ++at) {
    const TrafficRule& rule = rules[at];
    const Mask bit = Mask{1} << at;
    all_ |= bit;
    classes_[at] = rule.egress_class;
    // A condition admits its own value only; without one the rule admits every value, and "none".
    for (std::size_t dscp = 0; dscp < by_dscp_.size(); ++dscp)
      if (!rule.dscp || *rule.dscp == dscp) by_dscp_[dscp] |= bit;
    for (std::size_t pcp = 0; pcp < by_pcp_.size(); ++pcp)
      if (!rule.pcp || *rule.pcp == pcp) by_pcp_[pcp] |= bit;
    if (!rule.protocol || *rule.protocol == wire::kProtoUdp) for_udp_ |= bit;
    if (!rule.protocol || *rule.protocol == wire::kProtoTcp) for_tcp_ |= bit;
    if (!rule.protocol) for_other_protocols_ |= bit;
    if (rule.port) {
      has_port_ |= bit;
      add_port(*rule.port, bit);
    }
    if (rule.prefix) {
      has_prefix_ |= bit;
      add_prefix(at, *rule.prefix);
    }
  }
}

RuleTable::Words RuleTable::load_words(const std::uint8_t* at, std::size_t bytes) noexcept {
  Words words;
  std::memcpy(words.word, at, bytes);
  return words;
}

std::size_t RuleTable::first_bucket(std::uint16_t port) noexcept {
  return std::uint16_t(port * 40503u) >> 8;  // Knuth's multiplier for 16 bits
}

void RuleTable::add_port(std::uint16_t port, Mask rule) noexcept {
  std::size_t at = first_bucket(port);
  while (ports_[at].rules != 0 && ports_[at].port != port) at = (at + 1) % kPortBuckets;
  ports_[at].port = port;
  ports_[at].rules |= rule;
}

void RuleTable::add_prefix(std::size_t rule, const TrafficRule::Prefix& prefix) noexcept {
  std::array<std::uint8_t, 16> mask{};
  for (std::size_t bit = 0; bit < prefix.length; ++bit)
    mask[bit / 8] |= static_cast<std::uint8_t>(0x80u >> bit % 8);
  CompiledPrefix& compiled = prefixes_[rule];
  compiled.mask = load_words(mask.data(), mask.size());
  compiled.network = load_words(prefix.network.bytes.data(), prefix.network.size());
  for (int half = 0; half < 2; ++half) compiled.network.word[half] &= compiled.mask.word[half];
  if (prefix.network.family == wire::Family::kIpv4) prefix_is_ipv4_ |= Mask{1} << rule;
}

RuleTable::Mask RuleTable::with_port(std::uint16_t port) const noexcept {
  // Ends because most buckets are free.
  for (std::size_t at = first_bucket(port); ports_[at].rules != 0; at = (at + 1) % kPortBuckets)
    if (ports_[at].port == port) return ports_[at].rules;
  return 0;
}

RuleTable::Mask RuleTable::keep_ports(Mask candidates, const wire::FlowView& flow) const noexcept {
  Mask fitting = ~has_port_;
  if (flow.has_ports())
    fitting |= with_port(wire::load_be16(&flow.l4[0])) | with_port(wire::load_be16(&flow.l4[2]));
  return candidates & fitting;
}

bool RuleTable::in_prefix(std::size_t rule, const Words& address) const noexcept {
  const CompiledPrefix& prefix = prefixes_[rule];
  return (((address.word[0] & prefix.mask.word[0]) ^ prefix.network.word[0]) |
          ((address.word[1] & prefix.mask.word[1]) ^ prefix.network.word[1])) == 0;
}

std::optional<ClassIndex> RuleTable::match(const wire::FlowView& flow) const noexcept {
  const bool is_ip = flow.family != wire::Family::kNone;
  Mask candidates = by_dscp_[is_ip ? flow.traffic_class >> 2 : kNotIp] & by_pcp_[flow.pcp] &
                    (flow.protocol == wire::kProtoUdp   ? for_udp_
                     : flow.protocol == wire::kProtoTcp ? for_tcp_
                                                        : for_other_protocols_);
  if ((candidates & has_port_) != 0) candidates = keep_ports(candidates, flow);
  if ((candidates & has_prefix_) != 0) {
    Words source;
    Words destination;
    if (is_ip) {
      const std::size_t bytes = flow.addresses.size() / 2;
      source = load_words(flow.addresses.data(), bytes);
      destination = load_words(flow.addresses.data() + bytes, bytes);
    }
    const Mask of_family = flow.family == wire::Family::kIpv4   ? prefix_is_ipv4_
                           : flow.family == wire::Family::kIpv6 ? ~prefix_is_ipv4_
                                                                : 0;
    candidates &= ~has_prefix_ | of_family;
    while (candidates != 0) {
      const auto first = static_cast<std::size_t>(std::countr_zero(candidates));
      if ((has_prefix_ >> first & 1) == 0 || in_prefix(first, source) ||
          in_prefix(first, destination))
        break;
      candidates &= candidates - 1;
    }
  }
  if (candidates == 0) return std::nullopt;
  return classes_[static_cast<std::size_t>(std::countr_zero(candidates))];
}

}  // namespace sluice::dataplane
