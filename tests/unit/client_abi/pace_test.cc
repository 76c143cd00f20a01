// The amount of data that the UDP transport hands over at once.
#include "client/transport/udp/pace.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

constexpr std::size_t kDatagram = 1400;

// A link of so many bytes a second behind a buffer that is always full.
std::size_t limit_of(double bytes_per_second, DurationNs duration_ns = 50 * kMillisecond) {
  Pace pace;
  double credit = 0;
  const DurationNs look_ns = 20 * kMicrosecond;
  for (TimeNs now = kSecond; now < kSecond + duration_ns; now += look_ns) {
    credit += bytes_per_second * static_cast<double>(look_ns) / kSecond;
    std::size_t taken = 0;
    while (credit >= kDatagram) {
      credit -= kDatagram;
      taken += kDatagram;
    }
    pace.on_send(taken, true, now);
  }
  return pace.limit_bytes();
}

TEST(Pace, IsWhatTheLinkMovesIn200Microseconds) {
  EXPECT_NEAR(static_cast<double>(limit_of(200e6 / 8)), 5'000, 1'500);
  EXPECT_NEAR(static_cast<double>(limit_of(1e9 / 8)), 25'000, 3'000);
  EXPECT_NEAR(static_cast<double>(limit_of(10e9 / 8)), 250'000, 10'000);
}

TEST(Pace, LetsADatagramLeaveHoweverSlowTheLinkIs) {
  EXPECT_EQ(limit_of(1e6 / 8, kSecond), Pace::kLeastBytes);
}

TEST(Pace, GrowsWhileNothingIsRefused) {
  Pace pace;
  EXPECT_EQ(pace.limit_bytes(), Pace::kFirstBytes);
  for (TimeNs now = 0; now < kSecond; now += kMillisecond)
    pace.on_send(pace.limit_bytes(), false, now);
  EXPECT_EQ(pace.limit_bytes(), Pace::kMostBytes);
}

TEST(Pace, DoesNotTakeARestForASlowLink) {
  Pace pace;
  pace.on_send(100'000, true, kSecond);
  pace.on_rest();
  pace.on_send(kDatagram, true, 2 * kSecond);  // the application had nothing to send meanwhile
  EXPECT_EQ(pace.limit_bytes(), Pace::kFirstBytes);
}

// A train of 64 KB stands in front, for which a link of 200 Mb/s needs 2.6 ms.
TEST(Pace, DoesNotTakeAFullBufferForALinkThatMovesNothing) {
  Pace pace;
  TimeNs now = kSecond;
  pace.on_send(100'000, true, now);
  pace.on_send(50'000, true, now += 2 * kMillisecond);
  EXPECT_EQ(pace.limit_bytes(), 5'000u);
  for (const TimeNs end = now + 4 * kMillisecond; now < end;) {
    pace.on_send(0, true, now += 500 * kMicrosecond);
    EXPECT_EQ(pace.limit_bytes(), 5'000u);
  }
  pace.on_send(100'000, true, now);
  EXPECT_EQ(pace.limit_bytes(), 5'000u);
}

TEST(Pace, FollowsALinkThatHasBecomeFaster) {
  Pace pace;
  TimeNs now = kSecond;
  pace.on_send(0, true, now);
  pace.on_send(kDatagram, true, now += 10 * kMillisecond);
  EXPECT_EQ(pace.limit_bytes(), Pace::kLeastBytes);
  pace.on_send(2'500'000, true, now += 2 * kMillisecond);
  EXPECT_EQ(pace.limit_bytes(), 250'000u);
}

}  // namespace
}  // namespace sluice::client
