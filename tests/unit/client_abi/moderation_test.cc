#include "client/transport/udp/moderation.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

// Feeds one packet every `gap_ns` for `duration_ns`; returns the time after the last.
TimeNs stream(Moderation& moderation, TimeNs from, DurationNs gap_ns, DurationNs duration_ns) {
  TimeNs now = from;
  for (; now < from + duration_ns; now += gap_ns) moderation.on_receive(1, now);
  return now;
}

TEST(Moderation, RestsOnceForThePacketsOfAStream) {
  Moderation moderation(3640);
  stream(moderation, kSecond, 10 * kMicrosecond, 5 * kMillisecond);
  EXPECT_EQ(moderation.take_rest(), Moderation::kFastRest);
  EXPECT_EQ(moderation.take_rest(), 0) << "nothing came since: wait for the socket";
}

TEST(Moderation, RestsUntilASlowStreamHasBroughtAsMuchAsAFastOne) {
  Moderation moderation(3640);
  stream(moderation, kSecond, 50 * kMicrosecond, 50 * kMillisecond);
  EXPECT_NEAR(moderation.take_rest(), Moderation::kGathered * 50 * kMicrosecond, kMicrosecond);
  Moderation slower(3640);
  stream(slower, kSecond, 110 * kMicrosecond, 50 * kMillisecond);
  EXPECT_EQ(slower.take_rest(), Moderation::kLongestRest);
}

TEST(Moderation, DelaysTheEndOfAShortStreamByASmallShareOfIt) {
  Moderation moderation(3640);
  TimeNs end = kSecond;
  for (int step = 0; step < 4; ++step) {  // with pauses in between, as training has them
    end = stream(moderation, end + 4 * kMillisecond, 50 * kMicrosecond, 8 * kMillisecond);
    const DurationNs rest_ns = moderation.take_rest();
    EXPECT_GE(rest_ns, Moderation::kFastRest);
    EXPECT_LE(rest_ns, 8 * kMillisecond / Moderation::kShare);
  }
}

TEST(Moderation, DoesNotRestForSinglePackets) {
  Moderation moderation(3640);
  for (int i = 1; i < 20; ++i) {
    moderation.on_receive(1, kSecond + i * 300 * kMicrosecond);  // a ping-pong of small collectives
    EXPECT_EQ(moderation.take_rest(), 0);
  }
}

TEST(Moderation, ForgetsAStreamThatPaused) {
  Moderation moderation(3640);
  const TimeNs end = stream(moderation, kSecond, 50 * kMicrosecond, 5 * kMillisecond);
  moderation.on_receive(1, end + 100 * kMillisecond);
  EXPECT_EQ(moderation.take_rest(), 0);
}

TEST(Moderation, NeverLetsARestUseUpTheCredit) {
  for (const DurationNs gap_ns : {DurationNs{2'000}, DurationNs{5'000}, DurationNs{20'000}}) {
    Moderation moderation(64);
    stream(moderation, kSecond, gap_ns, 5 * kMillisecond);
    EXPECT_LE(moderation.take_rest(), 16 * gap_ns);
  }
  Moderation fast(64);
  stream(fast, kSecond, 1'000, 5 * kMillisecond);
  EXPECT_EQ(fast.take_rest(), 0) << "a million packets a second fill 16 buffers in 16 us";
}

}  // namespace
}  // namespace sluice::client
