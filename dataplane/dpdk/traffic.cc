#include "dataplane/dpdk/traffic.h"

#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {
namespace {

TrafficRule::Prefix prefix_of(const config::IpPrefix& prefix) {
  if (const auto* ipv4 = std::get_if<config::Ipv4Prefix>(&prefix)) {
    const auto& ip = ipv4->octets;
    return {wire::ipv4_address(ip[0], ip[1], ip[2], ip[3]), ipv4->prefix_length};
  }
  const auto& ipv6 = std::get<config::Ipv6Prefix>(prefix);
  return {{wire::Family::kIpv6, ipv6.octets}, ipv6.prefix_length};
}

}  // namespace

Egress::Options egress_options(const config::PortConfig& config, std::uint32_t max_frame_bytes,
                               const config::Config& appliance) {
  Egress::Options options;
  options.queue.packets = kEgressPackets;
  options.queue.bytes = std::uint64_t{config.queue_kib} << 10;
  options.queue.mark_above_bytes = std::uint64_t{config.mark_above_kib} << 10;
  for (const config::ClassConfig& one : appliance.classes)
    options.queue.shares[one.index] = one.share;
  options.shaper = Egress::shaper_for(std::uint64_t{config.rate_mbps} * 1'000'000, max_frame_bytes);
  options.in_bursts = appliance.appliance.polling == config::Polling::kAdaptive;
  return options;
}

std::vector<TrafficRule> traffic_rules(const std::vector<config::RuleConfig>& configs) {
  std::vector<TrafficRule> rules;
  for (const config::RuleConfig& config : configs) {
    TrafficRule rule{.egress_class = static_cast<ClassIndex>(config.egress_class)};
    if (config.dscp) rule.dscp = static_cast<std::uint8_t>(*config.dscp);
    if (config.pcp) rule.pcp = static_cast<std::uint8_t>(*config.pcp);
    if (config.protocol)
      rule.protocol =
          *config.protocol == config::Protocol::kUdp ? wire::kProtoUdp : wire::kProtoTcp;
    rule.port = config.port;
    if (config.prefix) rule.prefix = prefix_of(*config.prefix);
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace sluice::dataplane
