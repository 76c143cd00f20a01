#include "dataplane/core/forwarding.h"

#include <gtest/gtest.h>

#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

using wire::kAlice;
using wire::kBob;
constexpr wire::Mac kSelf{{0x02, 0x51, 10, 77, 0, 1}};
constexpr PortMask kFourUp = 0b1111;

class Forwarding : public ::testing::Test {
 protected:
  ForwardDecision decide(const wire::Mac& src, const wire::Mac& dst, PortIndex in_port,
                         PortMask up = kFourUp) {
    wire::EthernetView view;
    view.src = src;
    view.dst = dst;
    return decide_forward(view, {.in_port = in_port, .up = up, .own_mac = kSelf}, table_, 0);
  }
  MacTable table_{64};
};

TEST_F(Forwarding, FloodsUnknownDestinationsEverywhereButBack) {
  const auto decision = decide(kAlice, kBob, 1);
  EXPECT_EQ(decision.out, 0b1101u);
  EXPECT_TRUE(decision.flood);
  EXPECT_FALSE(decision.for_self);
}

TEST_F(Forwarding, SendsToTheOnePortBehindWhichTheAddressWasSeen) {
  decide(kBob, kAlice, 2);
  const auto decision = decide(kAlice, kBob, 1);
  EXPECT_EQ(decision.out, port_bit(2));
  EXPECT_FALSE(decision.flood);
}

TEST_F(Forwarding, NeverSendsAFrameBackOutOfItsPort) {
  decide(kBob, kAlice, 1);
  const auto decision = decide(kAlice, kBob, 1);
  EXPECT_EQ(decision.out, 0u);
  EXPECT_TRUE(decision.hairpin);
}

TEST_F(Forwarding, BroadcastsReachAllOthersAndTheApplianceItself) {
  const auto decision = decide(kAlice, wire::kBroadcastMac, 0);
  EXPECT_EQ(decision.out, 0b1110u);
  EXPECT_TRUE(decision.for_self);
}

TEST_F(Forwarding, FramesForTheApplianceGoNowhereElse) {
  const auto decision = decide(kAlice, kSelf, 0);
  EXPECT_TRUE(decision.for_self);
  EXPECT_EQ(decision.out, 0u);
}

TEST_F(Forwarding, OurOwnAddressComingInIsNeitherLearntNorForwarded) {
  const auto decision = decide(kSelf, kBob, 2);
  EXPECT_EQ(decision.out, 0u);
  EXPECT_FALSE(decision.for_self);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(Forwarding, LinkLocalProtocolsStayOnTheirLink) {
  const wire::Mac stp{{0x01, 0x80, 0xc2, 0, 0, 0}};
  const auto decision = decide(kAlice, stp, 0);
  EXPECT_EQ(decision.out, 0u);
}

TEST_F(Forwarding, PortsThatAreDownGetNothing) {
  decide(kBob, kAlice, 2);
  EXPECT_EQ(decide(kAlice, kBob, 1, 0b0011).out, 0u);
  EXPECT_EQ(decide(kAlice, wire::kBroadcastMac, 1, 0b0011).out, 0b0001u);
}

}  // namespace
}  // namespace sluice::dataplane
