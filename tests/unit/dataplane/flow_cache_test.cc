// The flow cache gives the same answer for a frame as the full look-up, or none.
#include "dataplane/core/flow_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>

#include "dataplane/core/forwarding.h"
#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

using wire::UdpChecksums;
using wire::UdpPath;

constexpr std::uint16_t kShards = 2;

struct Verdicts {
  ShardId shard;
  std::vector<std::uint8_t> payload;
  bool marked = false;
  friend bool operator==(const Verdicts&, const Verdicts&) = default;
};

Verdicts verdicts_of(const wire::Datagram& datagram, ShardId shard) {
  return {shard, {datagram.payload.begin(), datagram.payload.end()}, datagram.marked};
}

// Bob is the appliance.
class FlowCacheTest : public testing::Test {
 protected:
  UdpPath path(std::uint16_t shard, bool ipv6 = false, std::uint16_t vlan = wire::kNoVlan) {
    UdpPath made = wire::alice_to_bob();
    made.vlan_tci = vlan;
    made.dst_port = static_cast<std::uint16_t>(own_.port + 1 + shard);
    if (ipv6) made.src = wire::ipv6_of(0xa1), made.dst = own_.ipv6;
    return made;
  }
  static std::vector<std::uint8_t> frame(const UdpPath& path, std::size_t payload_bytes = 100) {
    std::vector<std::uint8_t> payload(payload_bytes);
    for (std::size_t i = 0; i < payload_bytes; ++i) payload[i] = static_cast<std::uint8_t>(3 * i);
    return wire::udp_frame(path, payload);
  }

  // What a worker does with a frame that the cache does not know; nothing if it is not a shard's.
  std::optional<Verdicts> long_way(wire::Bytes bytes, PortIndex port, bool remember,
                                   UdpChecksums checksums = UdpChecksums::kVerify) {
    wire::Frame parsed;
    if (!ok(wire::parse_ethernet(bytes, parsed.ethernet))) return std::nullopt;
    const ForwardContext context{.in_port = port, .up = 0b111, .own_mac = own_.mac};
    const ForwardDecision decision = decide_forward(parsed.ethernet, context, macs_, now_);
    if (!decision.for_self || !ok(wire::parse_content(checksums, parsed))) return std::nullopt;
    const Steering steering = steer(parsed, own_);
    if (steering.service != Service::kShard) return std::nullopt;
    if (remember)
      flows_.remember(bytes, parsed, port, steering.shard, decision.learned, macs_, now_);
    return verdicts_of(wire::datagram_of(parsed), steering.shard);
  }
  std::optional<Verdicts> short_way(wire::Bytes bytes, PortIndex port,
                                    UdpChecksums checksums = UdpChecksums::kVerify) {
    wire::Datagram datagram;
    ShardId shard;
    if (!flows_.find(bytes, port, checksums, macs_, now_, datagram, shard)) return std::nullopt;
    return verdicts_of(datagram, shard);
  }

  const OwnAddress own_{.mac = wire::kBob,
                        .ipv4 = wire::kBobIp,
                        .ipv6 = wire::ipv6_of(0xb0),
                        .port = 7700,
                        .shard_count = kShards};
  MacTable macs_{64, 80 * kSecond};
  FlowCache flows_;
  TimeNs now_ = kSecond;
};

TEST_F(FlowCacheTest, FindsTheNextFrameOfAFlow) {
  for (const bool ipv6 : {false, true}) {
    for (const std::uint16_t vlan : {wire::kNoVlan, std::uint16_t{0x2005}}) {
      const UdpPath flow = path(1, ipv6, vlan);
      EXPECT_FALSE(short_way(frame(flow), 0));
      ASSERT_TRUE(long_way(frame(flow), 0, true));
      UdpPath marked = flow;
      marked.traffic_class = wire::kEcnCongested;
      for (const auto& next : {frame(flow, 30), frame(flow, 1400), frame(marked)}) {
        ASSERT_TRUE(short_way(next, 0)) << "IPv6 " << ipv6 << ", tag " << vlan;
        EXPECT_EQ(short_way(next, 0), long_way(next, 0, false));
      }
    }
  }
}

TEST_F(FlowCacheTest, ForgetsWhenTheSourceMoves) {
  const auto bytes = frame(path(0));
  long_way(bytes, 0, true);
  ASSERT_TRUE(short_way(bytes, 0));
  EXPECT_FALSE(short_way(bytes, 1)) << "this port has not learnt it";
  long_way(bytes, 1, true);
  EXPECT_FALSE(short_way(bytes, 0)) << "it is to be learnt again";
  macs_.forget_port(1);
  EXPECT_FALSE(short_way(bytes, 1));
}

TEST_F(FlowCacheTest, LetsAMoveBeTold) {
  const auto bytes = frame(path(0));
  for (const PortIndex port : {0, 1, 0}) long_way(bytes, port, true);
  EXPECT_FALSE(short_way(bytes, 0)) << "its last move was held back";
  now_ += MacTable::kMoveInterval;
  long_way(bytes, 0, true);
  EXPECT_TRUE(short_way(bytes, 0));
}

TEST_F(FlowCacheTest, RefreshesTheSourceLongBeforeItIsForgotten) {
  const auto bytes = frame(path(0));
  long_way(bytes, 0, true);
  for (int round = 0; round < 100; ++round, now_ += kSecond) {
    if (!short_way(bytes, 0)) long_way(bytes, 0, true);
    ASSERT_EQ(macs_.lookup({wire::kAlice, 0}, now_), PortIndex{0}) << round;
  }
}

// Frames of eight flows with up to three bytes changed or cut off, checksums sometimes mended.
TEST_F(FlowCacheTest, AgreesWithTheLongWayOnBrokenFrames) {
  std::mt19937 random(7);
  int found = 0;
  int unusual = 0;
  for (int round = 0; round < 200'000; ++round) {
    const UdpPath flow = path(random() % kShards, random() % 2, random() % 2 ? 5 : wire::kNoVlan);
    std::vector<std::uint8_t> bytes = frame(flow, random() % 200);
    for (auto changes = random() % 2 * (random() % 4); changes != 0; --changes) {
      if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
      if (bytes.empty()) break;
      const std::size_t at =
          random() % (random() % 2 ? std::min<std::size_t>(70, bytes.size()) : bytes.size());
      bytes[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
    }
    constexpr std::array kAll{UdpChecksums::kVerify, UdpChecksums::kVerified, UdpChecksums::kTrust};
    const auto checksums = kAll[random() % kAll.size()];
    if (random() % 64 == 0 && bytes.size() > 50) bytes[40] = bytes[41] = 0;  // none, over IPv4
    const auto port = static_cast<PortIndex>(random() % 64 == 0);
    const auto quick = short_way(bytes, port, checksums);
    const auto learned_before = macs_.version();
    const auto full = long_way(bytes, port, true, checksums);
    if (quick) {
      ++found;
      ASSERT_EQ(quick, full);
      ASSERT_EQ(macs_.version(), learned_before) << "there was something to learn";
    }
    unusual += full && !quick;
    now_ += kMillisecond;
  }
  EXPECT_GT(found, 10'000);
  EXPECT_GT(unusual, 1000);
}

}  // namespace
}  // namespace sluice::dataplane
