#include "dataplane/core/shaper.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::dataplane {
namespace {

// Bytes sent until `end` by a sender that always has a packet and looks every `poll_ns`.
std::uint64_t sent_bytes(TokenBucket bucket, std::uint32_t packet_bytes, TimeNs end,
                         DurationNs poll_ns) {
  std::uint64_t bytes = 0;
  for (TimeNs now = 0; now < end; now += poll_ns) {
    bucket.refill(now);
    while (bucket.ready()) {
      bucket.spend(packet_bytes);
      bytes += packet_bytes;
    }
  }
  return bytes;
}

TEST(TokenBucket, KeepsTheRateForAnyPacketSizeAndPollingInterval) {
  for (const std::uint32_t packet_bytes : {64u, 1078u, 9014u}) {
    for (const DurationNs poll_ns : {700, 10'000, 100'000}) {
      const TokenBucket bucket({.rate_bps = 200'000'000, .burst_bytes = 16'384}, 0);
      const double sent = static_cast<double>(sent_bytes(bucket, packet_bytes, kSecond, poll_ns));
      EXPECT_NEAR(sent, 25e6, 25e6 * 0.002) << packet_bytes << " bytes every " << poll_ns << " ns";
    }
  }
}

TEST(TokenBucket, AllowsOneBurstAfterAnyPause) {
  TokenBucket bucket({.rate_bps = 1'000'000, .burst_bytes = 10'000}, 0);
  bucket.refill(3600 * kSecond);
  int packets = 0;
  for (; bucket.ready(); ++packets) bucket.spend(1000);
  EXPECT_EQ(packets, 10);
}

TEST(TokenBucket, PaysAnOverdraftBeforeTheNextPacket) {
  TokenBucket bucket({.rate_bps = 8'000'000, .burst_bytes = 1000}, 0);  // one byte a microsecond
  bucket.spend(3000);
  EXPECT_FALSE(bucket.ready());
  bucket.refill(2000 * kMicrosecond);
  EXPECT_FALSE(bucket.ready()) << "exactly zero tokens";
  bucket.refill(2001 * kMicrosecond);
  EXPECT_TRUE(bucket.ready());
}

TEST(TokenBucket, SaysWhenHalfOfWhatWaitsOrOfABurstIsEarned) {
  TokenBucket bucket({.rate_bps = 8'000'000, .burst_bytes = 1000}, 0);  // one byte a microsecond
  EXPECT_LE(bucket.half_earned_at(1'000'000), 0) << "a full bucket";
  bucket.spend(1200);
  for (const std::uint64_t bytes : {100u, 800u, 5000u}) {
    const TimeNs when = bucket.half_earned_at(bytes);
    EXPECT_EQ(when, (200 + std::min<std::int64_t>(bytes, 1000) / 2) * kMicrosecond + 1);
    TokenBucket then = bucket;
    then.refill(when);
    EXPECT_TRUE(then.ready());
    EXPECT_LE(then.half_earned_at(bytes), when);
  }
  EXPECT_GT(bucket.half_earned_at(UINT64_MAX), 0) << "no overflow";
  EXPECT_EQ(TokenBucket().half_earned_at(1500), 0) << "no rate";
}

TEST(TokenBucket, WithoutARateIsAlwaysReady) {
  TokenBucket bucket;
  bucket.spend(1u << 30);
  bucket.refill(1);
  EXPECT_TRUE(bucket.unlimited());
  EXPECT_TRUE(bucket.ready());
}

TEST(TokenBucket, DoesNotOverflowAtATerabitAfterAYear) {
  TokenBucket bucket({.rate_bps = 1'000'000'000'000, .burst_bytes = 64u << 20}, 0);
  bucket.spend(128u << 20);
  bucket.refill(365 * 86400 * kSecond);
  EXPECT_TRUE(bucket.ready());
  bucket.spend(64u << 20);
  EXPECT_FALSE(bucket.ready());
}

}  // namespace
}  // namespace sluice::dataplane
