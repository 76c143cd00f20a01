#include "dataplane/core/steer.h"

#include <gtest/gtest.h>

#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

OwnAddress bob() {
  return {.mac = wire::kBob,
          .ipv4 = wire::kBobIp,
          .ipv6 = wire::ipv6_of(1),
          .port = 7700,
          .shard_count = 4};
}

Steering steer_udp(const wire::UdpPath& path) {
  const auto bytes = wire::udp_frame(path, {1, 2});
  wire::Frame frame;
  EXPECT_EQ(wire::parse_frame(bytes, wire::UdpChecksums::kVerify, frame), Verdict::kAccepted);
  return steer(frame, bob());
}

Steering steer_port(std::uint16_t port) {
  wire::UdpPath path = wire::alice_to_bob();
  path.dst_port = port;
  return steer_udp(path);
}

TEST(Steer, SendsJoinsToControlAndDataToTheShardOfItsPort) {
  EXPECT_EQ(steer_port(7700).service, Service::kControl);
  for (std::uint16_t shard = 0; shard < 4; ++shard) {
    const Steering steering = steer_port(static_cast<std::uint16_t>(7701 + shard));
    EXPECT_EQ(steering.service, Service::kShard);
    EXPECT_EQ(steering.shard.value, shard);
  }
  EXPECT_EQ(steer_port(7705).service, Service::kNone);
  EXPECT_EQ(steer_port(7699).service, Service::kNone);
  EXPECT_EQ(steer_port(0).service, Service::kNone);
}

TEST(Steer, KnowsBothOfItsAddressesAndNoOther) {
  wire::UdpPath path = wire::alice_to_bob();
  path.src = wire::ipv6_of(11);
  path.dst = wire::ipv6_of(1);
  EXPECT_EQ(steer_udp(path).service, Service::kControl);
  path.dst = wire::ipv6_of(2);
  EXPECT_EQ(steer_udp(path).service, Service::kNotOurs);
}

TEST(Steer, WithoutIpv6AddressOwnsNoIpv6Address) {
  OwnAddress own = bob();
  own.ipv6 = wire::IpAddress{};
  EXPECT_FALSE(own.is_own(wire::IpAddress{}));
  EXPECT_FALSE(own.is_own(wire::ipv6_of(1)));
}

TEST(Steer, AnswersNothingFromSourcesThatCannotBeHonest) {
  wire::UdpPath path = wire::alice_to_bob();
  path.src = wire::ipv4_address(224, 0, 0, 1);
  EXPECT_EQ(steer_udp(path).service, Service::kNone);
  path.src = wire::kBobIp;
  EXPECT_EQ(steer_udp(path).service, Service::kNone);
}

TEST(Steer, TakesNoDatagramFromAGroupFrame) {
  wire::UdpPath path = wire::alice_to_bob();
  path.dst_mac = wire::kBroadcastMac;
  EXPECT_EQ(steer_udp(path).service, Service::kNone);
}

}  // namespace
}  // namespace sluice::dataplane
