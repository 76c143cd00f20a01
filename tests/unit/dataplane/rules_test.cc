#include "dataplane/core/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

using FrameBytes = std::vector<std::uint8_t>;

std::optional<ClassIndex> match(const std::vector<TrafficRule>& rules, const FrameBytes& bytes) {
  wire::EthernetView view;
  EXPECT_EQ(wire::parse_ethernet(bytes, view), Verdict::kAccepted);
  return RuleTable(rules).match(wire::peek_flow(view));
}

// UDP from 10.77.0.11:40000 to 10.77.0.1:7700, DSCP 0, untagged.
FrameBytes udp(const wire::UdpPath& path = wire::alice_to_bob()) {
  return wire::udp_frame(path, {1, 2, 3, 4});
}

FrameBytes as_tcp(FrameBytes bytes) {
  bytes[wire::kEthernetBytes + 9] = wire::kProtoTcp;
  return bytes;
}

TrafficRule::Prefix ipv4_prefix(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d,
                                std::uint8_t length) {
  return {wire::ipv4_address(a, b, c, d), length};
}

TEST(RuleTable, WithoutRulesNothingFits) {
  EXPECT_TRUE(RuleTable().empty());
  EXPECT_EQ(match({}, udp()), std::nullopt);
}

TEST(RuleTable, EachConditionAdmitsItsValueOnly) {
  wire::UdpPath path = wire::alice_to_bob();
  path.traffic_class = 46 << 2;
  path.vlan_tci = 5 << 13 | 7;
  const FrameBytes frame = udp(path);
  EXPECT_EQ(match({{.egress_class = 3, .dscp = 46}}, frame), 3);
  EXPECT_EQ(match({{.egress_class = 3, .dscp = 45}}, frame), std::nullopt);
  EXPECT_EQ(match({{.egress_class = 3, .pcp = 5}}, frame), 3);
  EXPECT_EQ(match({{.egress_class = 3, .pcp = 4}}, frame), std::nullopt);
  EXPECT_EQ(match({{.egress_class = 3, .pcp = 0}}, udp()), std::nullopt) << "untagged";
  EXPECT_EQ(match({{.egress_class = 3, .protocol = wire::kProtoUdp}}, frame), 3);
  EXPECT_EQ(match({{.egress_class = 3, .protocol = wire::kProtoTcp}}, frame), std::nullopt);
  EXPECT_EQ(match({{.egress_class = 3, .protocol = wire::kProtoTcp}}, as_tcp(udp())), 3);
}

TEST(RuleTable, APortIsTheSourcesOrTheDestinations) {
  for (const std::uint16_t port : {40000, 7700})
    EXPECT_EQ(match({{.egress_class = 9, .protocol = wire::kProtoUdp, .port = port}}, udp()), 9);
  EXPECT_EQ(match({{.egress_class = 9, .protocol = wire::kProtoUdp, .port = 80}}, udp()),
            std::nullopt);
  EXPECT_EQ(match({{.egress_class = 9, .protocol = wire::kProtoTcp, .port = 7700}}, udp()),
            std::nullopt);
}

TEST(RuleTable, APrefixHoldsTheSourceOrTheDestination) {
  const auto in = [](const TrafficRule::Prefix& prefix, const FrameBytes& frame) {
    return match({{.egress_class = 1, .prefix = prefix}}, frame).has_value();
  };
  EXPECT_TRUE(in(ipv4_prefix(10, 77, 0, 11, 32), udp()));
  EXPECT_TRUE(in(ipv4_prefix(10, 77, 0, 1, 32), udp()));
  EXPECT_FALSE(in(ipv4_prefix(10, 77, 0, 2, 32), udp()));
  EXPECT_TRUE(in(ipv4_prefix(10, 77, 0, 0, 28), udp()));
  EXPECT_TRUE(in(ipv4_prefix(10, 77, 0, 8, 30), udp()));  // .8 to .11
  EXPECT_FALSE(in(ipv4_prefix(10, 77, 0, 4, 30), udp()));
  EXPECT_TRUE(in(ipv4_prefix(0, 0, 0, 0, 0), udp()));
  wire::UdpPath path = wire::alice_to_bob();
  path.src = wire::ipv6_of(11);
  path.dst = wire::ipv6_of(1);
  EXPECT_FALSE(in(ipv4_prefix(0, 0, 0, 0, 0), udp(path))) << "another family";
  EXPECT_TRUE(in({wire::ipv6_of(11), 128}, udp(path)));
  EXPECT_TRUE(in({wire::ipv6_of(0), 124}, udp(path)));
  EXPECT_FALSE(in({wire::ipv6_of(0x20), 124}, udp(path)));
  EXPECT_FALSE(in({wire::ipv6_of(0), 64}, udp()));
}

TEST(RuleTable, FramesThatAreNotIpFitPriorityRulesOnly) {
  FrameBytes frame(64, 0);
  frame[5] = frame[11] = 2;
  const FrameBytes tail{0x81, 0x00, 0xe0, 0x05, 0x88, 0xb5};
  std::copy(tail.begin(), tail.end(), frame.begin() + 12);
  EXPECT_EQ(match({{.egress_class = 1, .dscp = 0},
                   {.egress_class = 2, .prefix = ipv4_prefix(0, 0, 0, 0, 0)},
                   {.egress_class = 3, .prefix = TrafficRule::Prefix{wire::ipv6_of(0), 0}},
                   {.egress_class = 4, .pcp = 7}},
                  frame),
            4);
}

TEST(RuleTable, TheFirstRuleThatFitsDecides) {
  const TrafficRule by_port{.egress_class = 1, .protocol = wire::kProtoUdp, .port = 7700};
  const TrafficRule by_prefix{.egress_class = 2, .prefix = ipv4_prefix(10, 77, 0, 0, 16)};
  const TrafficRule by_dscp{.egress_class = 3, .dscp = 0};
  EXPECT_EQ(match({by_port, by_prefix, by_dscp}, udp()), 1);
  EXPECT_EQ(match({by_prefix, by_port, by_dscp}, udp()), 2);
  EXPECT_EQ(match({by_dscp, by_prefix, by_port}, udp()), 3);
  EXPECT_EQ(match({by_port, by_prefix, by_dscp}, as_tcp(udp())), 2);
}

// What the table must compute, written without a table.
bool fits(const TrafficRule& rule, const wire::FlowView& flow) {
  if (rule.dscp && (flow.family == wire::Family::kNone || *rule.dscp != flow.traffic_class >> 2))
    return false;
  if (rule.pcp && *rule.pcp != flow.pcp) return false;
  if (rule.protocol && *rule.protocol != flow.protocol) return false;
  if (rule.port && !(flow.has_ports() && (*rule.port == wire::load_be16(&flow.l4[0]) ||
                                          *rule.port == wire::load_be16(&flow.l4[2]))))
    return false;
  if (!rule.prefix) return true;
  if (rule.prefix->network.family != flow.family) return false;
  const std::size_t bytes = rule.prefix->network.size();
  const auto inside = [&](const std::uint8_t* address) {
    for (std::size_t bit = 0; bit < rule.prefix->length; ++bit) {
      const unsigned mask = 0x80u >> bit % 8;
      if (((address[bit / 8] ^ rule.prefix->network.bytes[bit / 8]) & mask) != 0) return false;
    }
    return true;
  };
  return inside(&flow.addresses[0]) || inside(&flow.addresses[bytes]);
}

TEST(RuleTable, AgreesWithAListOfRulesReadOneByOne) {
  std::mt19937 random(1);
  const auto below = [&](unsigned bound) { return random() % bound; };
  int fitting = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<TrafficRule> rules(1 + below(RuleTable::kMaxRules));
    for (TrafficRule& rule : rules) {
      rule.egress_class = static_cast<ClassIndex>(below(64));
      const unsigned conditions = 1 + below(31);
      if (conditions & 1) rule.dscp = static_cast<std::uint8_t>(below(4));
      if (conditions & 2) rule.pcp = static_cast<std::uint8_t>(below(3));
      if (conditions & 4) rule.protocol = below(2) ? wire::kProtoUdp : wire::kProtoTcp;
      if ((conditions & 12) == 12) rule.port = static_cast<std::uint16_t>(1 + below(200));
      if (conditions & 16) {
        rule.prefix = ipv4_prefix(10, 77, static_cast<std::uint8_t>(below(2)),
                                  static_cast<std::uint8_t>(below(256)),
                                  static_cast<std::uint8_t>(below(33)));
        if (below(2)) rule.prefix = {wire::ipv6_of(3), static_cast<std::uint8_t>(below(129))};
      }
    }
    const RuleTable table(rules);
    for (int frames = 0; frames < 50; ++frames) {
      wire::UdpPath path = wire::alice_to_bob();
      path.traffic_class = static_cast<std::uint8_t>(below(16));
      if (below(2)) path.vlan_tci = static_cast<std::uint16_t>(below(4) << 13 | 1);
      path.src_port = static_cast<std::uint16_t>(1 + below(200));
      path.dst_port = static_cast<std::uint16_t>(1 + below(200));
      path.dst = wire::ipv4_address(10, 77, 0, static_cast<std::uint8_t>(below(256)));
      if (below(2)) {
        path.src = wire::ipv6_of(static_cast<std::uint8_t>(below(256)));
        path.dst = wire::ipv6_of(2);
      }
      const FrameBytes bytes = udp(path);
      wire::EthernetView view;
      ASSERT_EQ(wire::parse_ethernet(bytes, view), Verdict::kAccepted);
      const wire::FlowView flow = wire::peek_flow(view);
      const auto first =
          std::ranges::find_if(rules, [&](const TrafficRule& rule) { return fits(rule, flow); });
      const auto found = table.match(flow);
      ASSERT_EQ(found.has_value(), first != rules.end());
      if (found) {
        EXPECT_EQ(*found, first->egress_class);
      }
      fitting += found.has_value();
    }
  }
  EXPECT_GT(fitting, 1000);
  EXPECT_LT(fitting, 14900);
}

}  // namespace
}  // namespace sluice::dataplane
