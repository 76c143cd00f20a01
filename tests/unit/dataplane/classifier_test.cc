#include "dataplane/core/classifier.h"

#include <gtest/gtest.h>

#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

ClassIndex class_of(const Classifier& classifier, std::uint8_t dscp, std::uint16_t tci) {
  wire::UdpPath path = wire::alice_to_bob();
  path.traffic_class = static_cast<std::uint8_t>(dscp << 2 | 1);
  path.vlan_tci = tci;
  const auto bytes = wire::udp_frame(path, {1});
  wire::EthernetView view;
  EXPECT_EQ(wire::parse_ethernet(bytes, view), std::nullopt);
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

TEST(Classifier, PutsTheAppliancesControlTrafficFirst) {
  const Classifier classifier;
  EXPECT_EQ(classifier.of_control(), 0);
  EXPECT_LT(classifier.of_control(), classifier.of_chunk(0));
}

}  // namespace
}  // namespace sluice::dataplane
