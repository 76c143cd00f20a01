// Round trips, the congestion window, and what feedback means for one flow.
#include "client/core/link/flow.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

constexpr TimeNs kNow = 10 * kSecond;

// Takes `count` numbers.
void send(Flow& flow, int count, TimeNs now = kNow) {
  for (int i = 0; i < count; ++i) flow.next_header(now);
}

wire::FeedbackHeader feedback(std::uint32_t number, std::uint32_t received, std::uint32_t highest) {
  return {.number = number, .received_count = received, .highest_number = highest};
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

TEST(Congestion, GrowsByOnePacketAWindowUpToItsCap) {
  Congestion congestion(66);
  congestion.end_slow_start();
  EXPECT_EQ(congestion.window(), 64u);
  congestion.on_arrived(63, 0);
  EXPECT_EQ(congestion.window(), 64u);
  congestion.on_arrived(1, 0);
  EXPECT_EQ(congestion.window(), 65u);
  for (int i = 0; i < 10; ++i) congestion.on_arrived(100, 0);
  EXPECT_EQ(congestion.window(), 66u);
}

TEST(Congestion, DoublesItsWindowEachRoundTripUntilSomethingSaysThatItIsEnough) {
  const auto grown = [](auto&& enough) {
    Congestion congestion(1000);
    congestion.on_arrived(64, 0);
    EXPECT_EQ(congestion.window(), 128u);
    enough(congestion);
    const std::uint32_t before = congestion.window();
    congestion.on_arrived(before, 0);
    congestion.on_arrived(before, 0);
    return congestion.window() - before;
  };
  EXPECT_EQ(grown([](Congestion&) {}), 256u);  // 128, two windows of arrivals later
  EXPECT_LE(grown([](Congestion& congestion) { congestion.on_loss(kSecond, kMillisecond); }), 2u);
  EXPECT_LE(grown([](Congestion& congestion) { congestion.on_arrived(10, 1); }), 2u);
  EXPECT_LE(grown([](Congestion& congestion) { congestion.end_slow_start(); }), 2u);
}

TEST(Congestion, DoesNotDoubleAWindowThatIsNotInUse) {
  Congestion congestion(1000);
  for (int i = 0; i < 60; ++i) congestion.on_arrived(1, 0, false);
  EXPECT_EQ(congestion.window(), 64u);
  congestion.on_arrived(64, 0, true);
  EXPECT_EQ(congestion.window(), 128u);
}

TEST(RttEstimator, SeesAStandingQueueInALongerRoundTrip) {
  RttEstimator rtt;
  rtt.sample(kMillisecond);
  EXPECT_FALSE(rtt.queueing());
  rtt.sample(kMillisecond + 400 * kMicrosecond);
  EXPECT_FALSE(rtt.queueing());
  rtt.sample(kMillisecond + 600 * kMicrosecond);
  EXPECT_TRUE(rtt.queueing());
  rtt.sample(20 * kMicrosecond);
  rtt.sample(110 * kMicrosecond);  // 90 us are a wake-up
  EXPECT_FALSE(rtt.queueing());
}

TEST(Congestion, HalvesOnLossOnceARoundTripDownToItsFloor) {
  Congestion congestion(1000);
  congestion.on_loss(kNow, kMillisecond);
  EXPECT_EQ(congestion.window(), 32u);
  congestion.on_loss(kNow + kMillisecond / 2, kMillisecond);
  EXPECT_EQ(congestion.window(), 32u);
  congestion.on_loss(kNow + kMillisecond, kMillisecond);
  EXPECT_EQ(congestion.window(), 16u);
  congestion.on_loss(kNow + 2 * kMillisecond, kMillisecond);
  EXPECT_EQ(congestion.window(), 16u);
}

TEST(Congestion, ShrinksLessForFewMarksThanForMany) {
  // After many rounds with one packet in 64 marked, the fraction is small and so is the cut.
  const auto steady_window = [](std::uint32_t marked) {
    Congestion congestion(1000);
    for (int round = 0; round < 300; ++round) congestion.on_arrived(congestion.window(), marked);
    return congestion.window();
  };
  const std::uint32_t few = steady_window(1), all = steady_window(1000);
  EXPECT_LE(all, Congestion::kFloor + 1);
  EXPECT_GT(few, 4 * all);
}

TEST(Congestion, CutsOnceAWindowHoweverManyFeedbacksCarryMarks) {
  Congestion congestion(1000);
  congestion.on_arrived(1, 1);
  EXPECT_EQ(congestion.window(), 32u);  // the fraction starts at 1: half
  congestion.on_arrived(1, 1);
  EXPECT_EQ(congestion.window(), 32u);
}

TEST(Flow, NumbersPacketsFromOneAndAdvertisesCredit) {
  Flow flow(64);
  const wire::FlowHeader first = flow.next_header(kNow);
  EXPECT_EQ(first.number, 1u);
  EXPECT_EQ(first.credit, 64u);
  EXPECT_EQ(first.timestamp_us, wire_time_us(kNow));
  flow.on_feedback(feedback(7, 1, 1), kNow);
  EXPECT_EQ(flow.next_header(kNow).credit, 71u);
}

TEST(Flow, WindowClosesWhenItIsFullAndOpensWithFeedback) {
  Flow flow(64);
  ASSERT_EQ(flow.window(), 48u);  // bounded by what the results need
  send(flow, 48);
  EXPECT_FALSE(flow.window_open());
  flow.on_feedback(feedback(1, 40, 40), kNow);
  EXPECT_TRUE(flow.window_open());
  EXPECT_EQ(flow.in_flight(), 8u);
}

TEST(Flow, KeepsAFewPacketsOfTheCreditForWhatIsUrgent) {
  Flow flow(64);
  send(flow, 48);
  EXPECT_FALSE(flow.window_open());
  EXPECT_TRUE(flow.window_open_for_urgent());
  send(flow, 7);
  EXPECT_TRUE(flow.window_open_for_urgent());
  send(flow, 1);
  EXPECT_FALSE(flow.window_open_for_urgent());
  Flow wide(4096);
  send(wide, 64 + 15);
  EXPECT_TRUE(wide.window_open_for_urgent());
  send(wide, 1);
  EXPECT_FALSE(wide.window_open_for_urgent());
}

TEST(Flow, DoublesItsWindowUntilARoundTripShowsAQueue) {
  Flow flow(4096);
  TimeNs now = kNow;
  std::uint32_t sent = 0;
  const auto round = [&](DurationNs round_trip_ns) {
    const std::uint32_t count = flow.window();
    const TimeNs began = now;
    send(flow, static_cast<int>(count), began);
    sent += count;
    now += round_trip_ns;
    wire::FeedbackHeader body = feedback(sent, sent, sent);
    body.echo_timestamp_us = wire_time_us(began);
    flow.on_feedback(body, now);
    return flow.window();
  };
  EXPECT_EQ(round(kMillisecond), 128u);
  EXPECT_EQ(round(kMillisecond), 256u);
  EXPECT_EQ(round(2 * kMillisecond), 257u);  // 256 packets stand somewhere
  EXPECT_EQ(round(kMillisecond), 258u);
}

TEST(Flow, AsksForFeedbackAtHalfAWindowAndAtTheLastPacket) {
  Flow flow(64);
  int asked_at = 0;
  for (int i = 1; i <= 24 && asked_at == 0; ++i) {
    flow.next_header(kNow);
    if (flow.take_report_flag(false)) asked_at = i;
  }
  EXPECT_EQ(asked_at, 24);
  flow.next_header(kNow);
  EXPECT_FALSE(flow.take_report_flag(false));
  flow.next_header(kNow);
  EXPECT_TRUE(flow.take_report_flag(true));
}

TEST(Flow, MeasuresRoundTripsWithoutTheTimeThatTheApplianceHeldThePacket) {
  Flow flow(64);
  flow.next_header(kNow);
  wire::FeedbackHeader body = feedback(1, 1, 1);
  body.echo_timestamp_us = wire_time_us(kNow);
  body.hold_us = 9'000;
  flow.on_feedback(body, kNow + 10 * kMillisecond);
  EXPECT_EQ(flow.rtt().smoothed_ns(), kMillisecond);
}

TEST(Flow, SeesAGapAndConfirmsNothingBeyondIt) {
  Flow flow(64);
  send(flow, 10);
  EXPECT_FALSE(flow.on_feedback(feedback(1, 5, 5), kNow).gap);
  EXPECT_TRUE(flow.all_arrived_up_to(5));
  EXPECT_FALSE(flow.all_arrived_up_to(6));
  EXPECT_TRUE(flow.on_feedback(feedback(2, 8, 9), kNow).gap);
  EXPECT_FALSE(flow.all_arrived_up_to(9));
  flow.accept_gap();
  EXPECT_FALSE(flow.has_gap());
  send(flow, 1);
  EXPECT_FALSE(flow.on_feedback(feedback(3, 9, 10), kNow).gap);
  EXPECT_TRUE(flow.all_arrived_up_to(10));
}

TEST(Flow, ConfirmsNothingOnceDuplicatesCouldHideALoss) {
  Flow flow(64);
  send(flow, 10);
  flow.on_feedback(feedback(1, 6, 5), kNow);
  EXPECT_FALSE(flow.all_arrived_up_to(5));
}

TEST(Flow, RefusesFeedbackAboutNumbersThatWereNeverSent) {
  Flow flow(64);
  send(flow, 3);
  EXPECT_FALSE(flow.on_feedback(feedback(1, 4, 4), kNow).valid);
  EXPECT_TRUE(flow.on_feedback(feedback(1, 3, 3), kNow).valid);
}

TEST(Flow, KnowsWhetherWhatWasSkippedHasComeSince) {
  Flow flow(64);
  send(flow, 1);
  EXPECT_FALSE(flow.on_feedback(feedback(1, 1, 1), kNow).lost);
  EXPECT_TRUE(flow.on_feedback(feedback(4, 1, 1), kNow).lost);
  EXPECT_EQ(flow.newest_gap(), 2u);
  flow.on_feedback(feedback(3, 1, 1), kNow);
  flow.on_feedback(feedback(3, 1, 1), kNow);
  EXPECT_FALSE(flow.all_came_from(2));
  EXPECT_TRUE(flow.all_came_from(3));
  flow.on_feedback(feedback(2, 1, 1), kNow);
  EXPECT_TRUE(flow.all_came_from(2));
  wire::FeedbackHeader body = feedback(5, 1, 1);
  body.deferred_count = 10;
  const Flow::LossSignals signals = flow.on_feedback(body, kNow);
  EXPECT_TRUE(signals.withheld);
  EXPECT_FALSE(signals.lost);
  EXPECT_TRUE(flow.all_came_from(2));
}

TEST(Flow, TakesForMissingWhatItDoesNotRememberAnyMore) {
  constexpr std::uint32_t kLast = 3 + RecentNumbers::kRemembered;
  Flow flow(64);
  send(flow, 1);
  flow.on_feedback(feedback(1, 1, 1), kNow);
  for (std::uint32_t number = 3; number <= kLast; ++number)
    flow.on_feedback(feedback(number, 1, 1), kNow);
  EXPECT_EQ(flow.newest_gap(), 2u);
  flow.on_feedback(feedback(2, 1, 1), kNow);  // too late to be remembered
  EXPECT_FALSE(flow.all_came_from(2));
  EXPECT_TRUE(flow.all_came_from(kLast - RecentNumbers::kRemembered + 1));
  flow.on_feedback(feedback(kLast + 2 * RecentNumbers::kRemembered, 1, 1), kNow);
  EXPECT_EQ(flow.newest_gap(), kLast + 1);
  EXPECT_FALSE(flow.all_came_from(kLast + 2 * RecentNumbers::kRemembered - 1));
}

TEST(Flow, OwesACreditUpdateWhenHalfOfTheCreditIsUsed) {
  Flow flow(64);
  EXPECT_TRUE(flow.credit_due());  // nothing was advertised yet
  flow.next_header(kNow);
  EXPECT_FALSE(flow.credit_due());
  flow.on_feedback(feedback(31, 1, 1), kNow);
  EXPECT_FALSE(flow.credit_due());
  flow.on_feedback(feedback(32, 1, 1), kNow);
  EXPECT_TRUE(flow.credit_due());
  flow.next_header(kNow);
  EXPECT_FALSE(flow.credit_due());
}

TEST(Flow, PullsNoMoreThanItHasBuffersFor) {
  Flow flow(64);
  EXPECT_EQ(flow.free_pulls(), 64u);
  flow.reserve_pulls(40);
  EXPECT_EQ(flow.free_pulls(), 24u);
  send(flow, 10);  // whose results need room as well
  EXPECT_EQ(flow.free_pulls(), 14u);
  flow.release_pulls(40);
  EXPECT_EQ(flow.free_pulls(), 54u);
}

TEST(Flow, NumbersMayWrap) {
  EXPECT_GT(ahead(2, UINT32_MAX), 0);
  EXPECT_LT(ahead(UINT32_MAX, 2), 0);
  Flow flow(64);
  send(flow, 1);
  flow.on_feedback(feedback(0x7FFFFFFF, 1, 1), kNow);
  flow.next_header(kNow);
  flow.on_feedback(feedback(0xFFFFFFF0, 1, 1), kNow);
  const std::uint32_t credit = flow.next_header(kNow).credit;
  EXPECT_EQ(credit, 0xFFFFFFF0u + 64);
  flow.on_feedback(feedback(5, 1, 1), kNow);  // 21 further on
  EXPECT_EQ(flow.next_header(kNow).credit, 5u + 64);
}

}  // namespace
}  // namespace sluice::client
