// The window and its pace over paths of many kinds, and round trips.
#include "client/core/link/congestion.h"

#include <gtest/gtest.h>

#include "tests/unit/client_core/path_model.h"

namespace sluice::client {
namespace {

// The share of the bottleneck that arrives in `duration_ns`, after `settle_ns`.
double share(Path& path, Source& source, DurationNs settle_ns, DurationNs duration_ns) {
  path.run_for(settle_ns);
  path.take_longest_queue();
  const std::uint64_t before = source.arrived;
  path.run_for(duration_ns);
  return static_cast<double>(source.arrived - before) /
         (path.options.packets_per_second * static_cast<double>(duration_ns) / kSecond);
}

TEST(RttEstimator, FollowsRfc6298) {
  RttEstimator rtt;
  EXPECT_EQ(rtt.timeout_ns(), RttEstimator::kFirstTimeout);
  rtt.sample(8 * kMillisecond);
  EXPECT_EQ(rtt.smoothed_ns(), 8 * kMillisecond);
  EXPECT_EQ(rtt.timeout_ns(), 8 * kMillisecond + 4 * 4 * kMillisecond);
  rtt.sample(16 * kMillisecond);
  EXPECT_EQ(rtt.smoothed_ns(), 9 * kMillisecond);
  EXPECT_EQ(rtt.timeout_ns(), 9 * kMillisecond + 4 * 5 * kMillisecond);
}

TEST(RttEstimator, KeepsItsTimeoutWithinBounds) {
  RttEstimator rtt;
  for (int i = 0; i < 100; ++i) rtt.sample(50 * kMicrosecond);
  EXPECT_EQ(rtt.timeout_ns(), RttEstimator::kMinTimeout);
  EXPECT_LE(rtt.confirm_ns(), 100 * kMicrosecond);  // nobody else is waited for
  for (int i = 0; i < 100; ++i) rtt.sample(10 * kSecond);
  EXPECT_EQ(rtt.timeout_ns(), RttEstimator::kMaxTimeout);
  EXPECT_EQ(rtt.confirm_ns(), RttEstimator::kMaxTimeout);
}

TEST(Congestion, FillsPathsOfEveryLengthAndRateWithASmallQueue) {
  for (const double rate : {2'000.0, 16'000.0, 160'000.0, 800'000.0})
    for (const DurationNs round_trip_ns :
         {50 * kMicrosecond, 200 * kMicrosecond, 2 * kMillisecond, 30 * kMillisecond,
          100 * kMillisecond, 300 * kMillisecond}) {
      if (rate * static_cast<double>(round_trip_ns) / kSecond > 30'000) continue;
      Path path({.packets_per_second = rate, .round_trip_ns = round_trip_ns});
      SluiceSource& source = path.add<SluiceSource>();
      const double found = share(path, source, 40 * round_trip_ns + kSecond, kSecond);
      EXPECT_GE(found, 0.97) << rate << " packets/s, " << round_trip_ns << " ns";
      const double of_path = rate * static_cast<double>(round_trip_ns) / kSecond;
      EXPECT_LE(path.take_longest_queue(), std::max(64.0 + rate * 300e-6, 1.5 * of_path))
          << rate << " packets/s, " << round_trip_ns << " ns";
    }
}

TEST(Congestion, ReachesTheRateInRoundsNotInSeconds) {
  Path path({});
  SluiceSource& source = path.add<SluiceSource>();
  EXPECT_GE(share(path, source, 8 * path.options.round_trip_ns, 100 * kMillisecond), 0.9);
}

TEST(Congestion, TakesALossOfUpToAPercentForNoSignal) {
  for (const double loss : {0.0001, 0.001, 0.01})
    for (const DurationNs round_trip_ns : {200 * kMicrosecond, 30 * kMillisecond}) {
      Path path({.round_trip_ns = round_trip_ns, .loss = loss});
      SluiceSource& source = path.add<SluiceSource>();
      EXPECT_GE(share(path, source, 2 * kSecond, 5 * kSecond), 0.97 * (1 - loss))
          << loss << ", " << round_trip_ns;
    }
}

TEST(Congestion, FitsAQueueOfAFewPackets) {
  for (const DurationNs round_trip_ns : {200 * kMicrosecond, 30 * kMillisecond}) {
    Path path({.round_trip_ns = round_trip_ns, .queue = 32});
    SluiceSource& source = path.add<SluiceSource>();
    EXPECT_GE(share(path, source, 4 * kSecond, 4 * kSecond), 0.9) << round_trip_ns;
  }
}

TEST(Congestion, FollowsARateThatChangesTenfold) {
  for (const double factor : {10.0, 0.1}) {
    Path path({});
    SluiceSource& source = path.add<SluiceSource>();
    path.run_for(3 * kSecond);
    path.options.packets_per_second *= factor;
    EXPECT_GE(share(path, source, 3 * kSecond, kSecond), 0.95) << factor;
    EXPECT_LE(path.take_longest_queue(), 1.5 * 0.03 * path.options.packets_per_second + 64);
  }
}

TEST(Congestion, FollowsARouteThatBecomesLonger) {
  Path path({.round_trip_ns = 2 * kMillisecond});
  SluiceSource& source = path.add<SluiceSource>();
  path.run_for(3 * kSecond);
  path.options.round_trip_ns = 40 * kMillisecond;
  EXPECT_GE(share(path, source, 15 * kSecond, kSecond), 0.95);
}

TEST(Congestion, KnowsThePathAfterAnIdleHour) {
  Path path({});
  SluiceSource& source = path.add<SluiceSource>();
  path.run_for(3 * kSecond);
  source.stopped = true;
  path.run_for(3600 * kSecond);
  source.stopped = false;
  EXPECT_GE(share(path, source, 0, 2 * kSecond), 0.9);
  EXPECT_LE(path.take_longest_queue(), 720u);
}

TEST(Congestion, SharesWithAnotherOfItsKind) {
  for (const DurationNs round_trip_ns : {200 * kMicrosecond, 30 * kMillisecond}) {
    Path path({.round_trip_ns = round_trip_ns});
    SluiceSource& first = path.add<SluiceSource>();
    path.run_for(2 * kSecond);
    path.add<SluiceSource>();
    const double found = share(path, first, 20 * kSecond, 30 * kSecond);
    EXPECT_GE(found, 0.4) << round_trip_ns;
    EXPECT_LE(found, 0.6) << round_trip_ns;
  }
}

TEST(Congestion, SharesWithTcp) {
  for (const DurationNs round_trip_ns : {2 * kMillisecond, 30 * kMillisecond})
    for (const std::uint32_t queue : {250u, 500u, 1000u}) {
      Path path({.round_trip_ns = round_trip_ns, .queue = queue});
      SluiceSource& source = path.add<SluiceSource>();
      path.add<CubicSource>();
      const double found = share(path, source, 20 * kSecond, 60 * kSecond);
      EXPECT_GE(found, 0.3) << round_trip_ns << ", queue of " << queue;
      EXPECT_LE(found, 0.7) << round_trip_ns << ", queue of " << queue;
    }
}

// What the appliance sends is paced by what it is sent.
TEST(Congestion, HalvesItsQueueWhenMuchOfWhatComesBackIsLost) {
  for (const bool back : {false, true}) {
    Congestion congestion(1 << 20);
    TimeNs now = kSecond;
    const auto round = [&](std::uint32_t back_arrived) {
      const std::uint32_t sent = congestion.window();
      congestion.on_sent(sent - 1, now);
      const DurationNs took_ns = std::max<DurationNs>(10 * kMillisecond, sent * 25 * kMicrosecond);
      now += took_ns;
      congestion.on_arrived({.now = now,
                             .advanced = sent,
                             .arrived = sent,
                             .back_advanced = 100,
                             .back_arrived = back_arrived,
                             .rtt_ns = took_ns});
    };
    for (int i = 0; i < 20; ++i) round(100);
    const std::uint32_t before = congestion.window();
    for (int i = 0; i < 20; ++i) {
      round(back ? 90 : 99);
      if (!back) continue;
      congestion.on_late();  // overtaken, and not lost
    }
    EXPECT_EQ(congestion.window() < before, back);
  }
}

TEST(Congestion, KeepsTheQueueNearWhereMarksBegin) {
  Path path({.mark_above = 20});
  SluiceSource& source = path.add<SluiceSource>();
  EXPECT_GE(share(path, source, 5 * kSecond, 5 * kSecond), 0.9);
  EXPECT_LE(path.take_longest_queue(), 64u);
}

TEST(Congestion, StaysWithinItsBounds) {
  for (const std::uint32_t cap : {1u, 16u, 48u, 500u}) {
    Path path({.loss = 0.3});
    SluiceSource& source = path.add<SluiceSource>(cap);
    for (int i = 0; i < 1000; ++i) {
      path.run_for(5 * kMillisecond);
      EXPECT_GE(source.congestion().window(), Congestion::kFloor);
      EXPECT_LE(source.congestion().window(), std::max(cap, Congestion::kFloor));
    }
    EXPECT_GT(source.arrived, 1000u);  // never starves
  }
}

TEST(Congestion, KnowsThatTheCapAndNotThePathSetsTheRate) {
  for (const std::uint32_t cap : {64u, 200u, 700u, 5000u}) {
    Path path({});  // holds 480 packets
    SluiceSource& source = path.add<SluiceSource>(cap);
    path.run_for(3 * kSecond);
    EXPECT_EQ(source.congestion().capped(), cap < 480) << cap;
  }
}

TEST(Congestion, NeedsNoFeedbackForEachPacket) {
  for (const std::uint32_t reported : {4u, 64u}) {
    Path path({.loss = 0.001, .jitter_ns = 3 * kMillisecond});
    SluiceSource& source = path.add<SluiceSource>();
    source.reported = reported;
    EXPECT_GE(share(path, source, 3 * kSecond, 5 * kSecond), 0.95) << reported;
  }
}

// A progress thread that did not run hears a round's feedback in no time at all: the path is not as
// fast as that.
TEST(Congestion, IsNotFooledByFeedbackThatIsHeardAtOnce) {
  for (const std::uint32_t reported : {1u, 8u}) {
    Path path({.packets_per_second = 4'000, .round_trip_ns = 200 * kMicrosecond});
    SluiceSource& source = path.add<SluiceSource>();
    source.reported = reported;
    path.run_for(2 * kSecond);
    path.take_longest_queue();
    path.options.wake_ns = 40 * kMillisecond;
    path.run_for(2 * kSecond);
    path.options.wake_ns = 1;
    EXPECT_GE(share(path, source, 100 * kMillisecond, kSecond), 0.97) << reported;
    EXPECT_LE(path.take_longest_queue(), 80u) << reported;
    EXPECT_EQ(path.dropped(), 0u) << reported;
  }
}

// The same of feedback that waited in a queue, while the next one, right behind it, did not.
TEST(Congestion, IsNotFooledByFeedbackThatWaited) {
  constexpr DurationNs kRoundTrip = 100 * kMicrosecond;
  Congestion congestion(1 << 20);
  TimeNs now = kSecond;
  const auto hear = [&](DurationNs sent_before_ns, std::uint32_t marked) {
    congestion.on_arrived({.now = now,
                           .advanced = 50,
                           .arrived = 50,
                           .marked = marked,
                           .rtt_ns = kRoundTrip,
                           .sent_ns = now - sent_before_ns});
  };
  for (int i = 0; i < 100; ++i) congestion.on_sent(i, now + i * kMicrosecond);
  now += 200 * kMicrosecond;
  hear(150 * kMicrosecond, 0);
  congestion.on_sent(49, now);
  now += kMicrosecond;
  hear(101 * kMicrosecond, 1);  // the mark ends slow start
  congestion.on_sent(0, now);
  EXPECT_LE(congestion.pace(), 1.25e6) << "100 packets left in 100 us";
  EXPECT_LE(congestion.window(), 400u);
}

// A host that sums a million packets a second wakes up for many at a time.
TEST(Congestion, KeepsAFastPathBusyWhileAThreadSleeps) {
  for (const DurationNs wake_ns : {100 * kMicrosecond, 200 * kMicrosecond, 280 * kMicrosecond}) {
    Path path(
        {.packets_per_second = 1'000'000, .round_trip_ns = 50 * kMicrosecond, .wake_ns = wake_ns});
    SluiceSource& source = path.add<SluiceSource>();
    EXPECT_GE(share(path, source, 100 * kMillisecond, 100 * kMillisecond), 0.9) << wake_ns;
  }
}

TEST(Pacer, LetsABurstLeaveAndThenKeepsThePace) {
  Pacer pacer;
  const double pace = 1000;
  int sent = 0;
  TimeNs now = kSecond;
  for (; pacer.may_send(pace, now); ++sent) pacer.sent(1);
  EXPECT_EQ(sent, static_cast<int>(Pacer::kBurst) + 1);
  const TimeNs end_ns = now + kSecond;
  while (pacer.next_ns() < end_ns) {
    EXPECT_GT(pacer.next_ns(), now);
    now = pacer.next_ns();
    for (; pacer.may_send(pace, now); ++sent) pacer.sent(1);
  }
  EXPECT_NEAR(sent, 1001 + static_cast<int>(Pacer::kBurst), 2);
  EXPECT_TRUE(pacer.may_send(0, now));  // nothing is known: at once
}

}  // namespace
}  // namespace sluice::client
