#include "dataplane/host/sender.h"

#include <gtest/gtest.h>

namespace sluice::dataplane {
namespace {

TEST(Sender, TellsNeighboursByEthernetAddressAndOthersByIpAddress) {
  wire::Frame frame;
  frame.ethernet.src.bytes = {2, 0, 0, 0, 0, 1};
  frame.src = wire::ipv4_address(10, 0, 0, 1);
  frame.kind = wire::FrameKind::kArp;
  const std::uint64_t neighbour = sender_of(frame);
  frame.src = wire::ipv4_address(10, 0, 0, 2);
  EXPECT_EQ(sender_of(frame), neighbour);
  frame.kind = wire::FrameKind::kUdp;
  const std::uint64_t host = sender_of(frame);
  frame.ethernet.src.bytes[5] = 9;
  EXPECT_EQ(sender_of(frame), host);
  frame.src = wire::ipv4_address(10, 0, 0, 3);
  EXPECT_NE(sender_of(frame), host);
}

}  // namespace
}  // namespace sluice::dataplane
