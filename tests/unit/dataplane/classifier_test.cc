#include "dataplane/core/classifier.h"

#include <gtest/gtest.h>

#include "aggregator/wire/packet.h"
#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

ClassIndex class_of(const Classifier& classifier, std::uint8_t dscp, std::uint16_t tci) {
  wire::UdpPath path = wire::alice_to_bob();
  path.traffic_class = static_cast<std::uint8_t>(dscp << 2 | 1);
  path.vlan_tci = tci;
  const auto bytes = wire::udp_frame(path, {1});
  wire::EthernetView view;
  EXPECT_EQ(wire::parse_ethernet(bytes, view), Verdict::kAccepted);
  return classifier.of_frame(view);
}

TEST(Classifier, OrdersClassSelectorsByUrgency) {
  const Classifier classifier;
  ClassIndex previous = class_of(classifier, 56, wire::kNoVlan);
  for (const std::uint8_t dscp : {48, 40, 32, 24, 16, 0, 8}) {
    const ClassIndex next = class_of(classifier, dscp, wire::kNoVlan);
    EXPECT_GT(next, previous) << "DSCP " << int{dscp};
    previous = next;
  }
  EXPECT_EQ(previous, kClassCount - 1) << "CS1 is the least urgent";
  EXPECT_EQ(class_of(classifier, 1, wire::kNoVlan), kClassCount - 1) << "LE";
}

TEST(Classifier, TakesTheDscpOfIpFramesEvenWhenTagged) {
  const Classifier classifier;
  EXPECT_EQ(class_of(classifier, 46, 0x2001), class_of(classifier, 46, wire::kNoVlan));
}

TEST(Classifier, TakesTheTagOfOtherFrames) {
  const Classifier classifier;
  wire::EthernetView view;
  view.ethertype = 0x88b5;
  view.vlan_tci = 7 << 13 | 5;
  const ClassIndex urgent = classifier.of_frame(view);
  view.vlan_tci = 0 << 13 | 5;
  EXPECT_LT(urgent, classifier.of_frame(view));
}

TEST(Classifier, SpreadsChunkPrioritiesOverTheirBandInOrder) {
  const Classifier classifier;
  EXPECT_EQ(classifier.of_chunk(0), 16);
  EXPECT_EQ(classifier.of_chunk(255), 47);
  for (int priority = 1; priority < 256; ++priority)
    EXPECT_LE(classifier.of_chunk(static_cast<Priority>(priority - 1)),
              classifier.of_chunk(static_cast<Priority>(priority)));
}

ClassIndex class_of_bytes(const Classifier& classifier, const std::vector<std::uint8_t>& bytes) {
  wire::EthernetView view;
  EXPECT_EQ(wire::parse_ethernet(bytes, view), Verdict::kAccepted);
  return classifier.of_frame(view);
}

std::vector<std::uint8_t> contribution_frame(Priority priority, std::uint8_t dscp) {
  std::vector<std::uint8_t> packet(256);
  const wire::Contribution body{.flow = {.priority = priority}, .elem_count = 2};
  packet.resize(wire::encode(packet, {}, body, {}, std::vector<std::uint8_t>(8)));
  wire::UdpPath path = wire::alice_to_bob();
  path.traffic_class = static_cast<std::uint8_t>(dscp << 2);
  return wire::udp_frame(path, packet);
}

TEST(Classifier, QueuesChunksForAnotherApplianceByTheirPriority) {
  const Classifier classifier;
  for (const int priority : {0, 100, 255})
    EXPECT_EQ(class_of_bytes(classifier, contribution_frame(static_cast<Priority>(priority), 8)),
              classifier.of_chunk(static_cast<Priority>(priority)));
}

TEST(Classifier, AsksTheOperatorsRulesFirst) {
  const TrafficRule rules[] = {{.egress_class = 5, .dscp = 8}, {.egress_class = 63, .pcp = 7}};
  const Classifier classifier(rules);
  EXPECT_EQ(class_of_bytes(classifier, contribution_frame(0, 8)), 5);
  EXPECT_EQ(class_of_bytes(classifier, contribution_frame(0, 0)), classifier.of_chunk(0));
  EXPECT_EQ(class_of(classifier, 8, wire::kNoVlan), 5);
  EXPECT_EQ(class_of(classifier, 0, 7 << 13), 63);
  EXPECT_EQ(class_of(classifier, 0, wire::kNoVlan), class_of(Classifier(), 0, wire::kNoVlan));
}

TEST(Classifier, PutsArpAndNeighbourDiscoveryFirst) {
  const Classifier classifier;
  wire::UdpPath path = wire::alice_to_bob();
  path.src = wire::ipv6_of(11);
  path.dst = wire::ipv6_of(1);
  std::vector<std::uint8_t> icmp(24);
  for (int type = 133; type <= 137; ++type) {
    icmp[0] = static_cast<std::uint8_t>(type);
    EXPECT_EQ(class_of_bytes(classifier, wire::icmp_frame(path, icmp)), 0) << type;
  }
  icmp[0] = 128;
  EXPECT_EQ(class_of_bytes(classifier, wire::icmp_frame(path, icmp)), 56) << "a ping is no more";
  wire::EthernetView arp;
  arp.ethertype = wire::kEtherArp;
  EXPECT_EQ(classifier.of_frame(arp), 0);
}

TEST(Classifier, PutsTheAppliancesControlTrafficFirst) {
  const Classifier classifier;
  EXPECT_EQ(classifier.of_control(), 0);
  EXPECT_LT(classifier.of_control(), classifier.of_chunk(0));
}

}  // namespace
}  // namespace sluice::dataplane
