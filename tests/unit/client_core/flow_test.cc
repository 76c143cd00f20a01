// Numbers, credit, and what feedback means for one flow.
#include "client/core/link/flow.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

constexpr TimeNs kNow = 10 * kSecond;
constexpr DurationNs kRoundTrip = 8 * kMillisecond;

// Takes `count` numbers.
void send(Flow& flow, int count, TimeNs now = kNow) {
  for (int i = 0; i < count; ++i) flow.next_header(now);
}

// `arrived_before`: bit i where number highest - 1 - i has arrived.
wire::FeedbackHeader feedback(std::uint32_t number, std::uint32_t received, std::uint32_t highest,
                              std::uint32_t arrived_before = UINT32_MAX) {
  return {.number = number,
          .received_count = received,
          .highest_number = highest,
          .arrived_before = arrived_before,
          .echo_timestamp_us = wire_time_us(kNow - kRoundTrip)};
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

TEST(Flow, AsksForFeedbackAtHalfAWindowAndAtTheLastPacket) {
  Flow flow(64);
  int asked_at = 0;
  for (int i = 1; i <= 24 && asked_at == 0; ++i) {
    flow.next_header(kNow);
    if (flow.take_report_flag(false, kNow)) asked_at = i;
  }
  EXPECT_EQ(asked_at, 24);
  flow.next_header(kNow);
  EXPECT_FALSE(flow.take_report_flag(false, kNow));
  flow.next_header(kNow);
  EXPECT_TRUE(flow.take_report_flag(true, kNow));
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

TEST(Flow, NamesALostPacketOnceItsHoleHasStayedForAQuarterOfARoundTrip) {
  Flow flow(64);
  send(flow, 10);
  flow.on_feedback(feedback(1, 5, 5), kNow);
  EXPECT_TRUE(flow.all_arrived_up_to(5));
  EXPECT_FALSE(flow.all_arrived_up_to(6));
  EXPECT_EQ(flow.next_timeout(), kNever);

  const wire::FeedbackHeader second = feedback(2, 8, 9, UINT32_MAX - 0b10);  // 7 is missing
  EXPECT_FALSE(flow.on_feedback(second, kNow).gap);  // it is known which one
  EXPECT_FALSE(flow.all_arrived_up_to(9));
  const TimeNs lost_ns = kNow + kRoundTrip / 4;
  EXPECT_EQ(flow.next_timeout(), lost_ns);
  EXPECT_EQ(flow.take_lost(lost_ns - 1), std::nullopt);
  EXPECT_EQ(flow.take_lost(lost_ns), 7u);
  EXPECT_EQ(flow.take_lost(lost_ns), std::nullopt);
  flow.on_feedback(feedback(3, 8, 9, UINT32_MAX - 0b10), lost_ns);
  EXPECT_TRUE(flow.all_arrived_up_to(9));  // 7 is accounted for
}

TEST(Flow, DoesNotTakeForLostWhatWasOnlyOvertaken) {
  Flow flow(64);
  send(flow, 10);
  flow.on_feedback(feedback(1, 4, 5, UINT32_MAX - 0b10), kNow);
  EXPECT_NE(flow.next_timeout(), kNever);
  flow.on_feedback(feedback(2, 6, 6, UINT32_MAX), kNow);
  EXPECT_EQ(flow.next_timeout(), kNever);
  EXPECT_TRUE(flow.all_arrived_up_to(6));
}

TEST(Flow, ForgivesAPacketThatWasTakenForLostAndCame) {
  Flow flow(64);
  send(flow, 10);
  flow.on_feedback(feedback(1, 4, 5, UINT32_MAX - 0b10), kNow);
  ASSERT_EQ(flow.take_lost(kNow + kSecond), 3u);
  flow.on_feedback(feedback(2, 6, 6, UINT32_MAX), kNow + kSecond);
  EXPECT_FALSE(flow.has_gap());
  flow.on_feedback(feedback(3, 7, 8, UINT32_MAX - 1), kNow + kSecond);  // 7 is missing
  EXPECT_FALSE(flow.all_arrived_up_to(8));
  EXPECT_EQ(flow.take_lost(kNow + 3 * kSecond), 7u);
}

TEST(Flow, SeesAGapOfWhichNoFeedbackSaysWhatIsMissing) {
  Flow flow(256);
  send(flow, 100);
  EXPECT_FALSE(flow.on_feedback(feedback(1, 5, 5), kNow).gap);
  EXPECT_TRUE(flow.on_feedback(feedback(2, 79, 80), kNow).gap);
  EXPECT_FALSE(flow.all_arrived_up_to(80));
  EXPECT_EQ(flow.next_timeout(), kNever);
  flow.accept_gap();
  EXPECT_FALSE(flow.has_gap());
  EXPECT_FALSE(flow.on_feedback(feedback(3, 80, 81), kNow).gap);
  EXPECT_TRUE(flow.all_arrived_up_to(81));
}

TEST(Flow, AsksAboutATailThatNothingFollows) {
  Flow flow(64);
  send(flow, 10);
  EXPECT_EQ(flow.next_timeout(), kNever);
  ASSERT_TRUE(flow.take_report_flag(true, kNow));
  EXPECT_GT(flow.next_timeout(), kNow);
  EXPECT_LE(flow.next_timeout(), kNow + flow.rtt().smoothed_ns());
  int questions = 0;
  for (; flow.next_timeout() != kNever; ++questions) {
    ASSERT_LT(questions, 10);
    const TimeNs now = flow.next_timeout();
    flow.handle_timeout(now);
    ASSERT_TRUE(flow.asks_about_tail());
    EXPECT_EQ(flow.next_timeout(), kNever);
    send(flow, 1, now);
    flow.asked_about_tail(now);
    EXPECT_EQ(flow.unreported(), 0u) << "it asks for feedback";
  }
  EXPECT_EQ(questions, 3);
  send(flow, 1);
  ASSERT_TRUE(flow.take_report_flag(true, kNow));
  EXPECT_NE(flow.next_timeout(), kNever);
  flow.on_feedback(feedback(1, 14, 14), kNow);
  EXPECT_EQ(flow.next_timeout(), kNever);
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
  EXPECT_EQ(flow.highest_in(), 4u);
  flow.on_feedback(feedback(3, 1, 1), kNow);
  flow.on_feedback(feedback(3, 1, 1), kNow);
  EXPECT_FALSE(flow.all_came(2, 4));
  EXPECT_TRUE(flow.all_came(3, 4));
  flow.on_feedback(feedback(2, 1, 1), kNow);
  EXPECT_TRUE(flow.all_came(2, 4));
  flow.on_feedback(feedback(6, 1, 1), kNow);
  EXPECT_TRUE(flow.all_came(2, 4)) << "5 was skipped later";
  EXPECT_FALSE(flow.all_came(2, 6));
  flow.on_feedback(feedback(5, 1, 1), kNow);
  wire::FeedbackHeader body = feedback(7, 1, 1);
  body.deferred_count = 10;
  const Flow::LossSignals signals = flow.on_feedback(body, kNow);
  EXPECT_TRUE(signals.withheld);
  EXPECT_FALSE(signals.lost);
  EXPECT_TRUE(flow.all_came(2, 7));
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
  EXPECT_FALSE(flow.all_came(2, kLast));
  EXPECT_FALSE(flow.all_came(2, 2));
  EXPECT_TRUE(flow.all_came(kLast - RecentNumbers::kRemembered + 1, kLast));
  constexpr std::uint32_t kFar = kLast + 2 * RecentNumbers::kRemembered;
  flow.on_feedback(feedback(kFar, 1, 1), kNow);
  EXPECT_EQ(flow.newest_gap(), kLast + 1);
  EXPECT_FALSE(flow.all_came(kFar - 1, kFar));
}

// Results wait behind more urgent ones of other jobs, answers do not.
TEST(Flow, WaitsAsLongForWhatWasSkippedAsSuchPacketsWereSeenToTake) {
  Flow flow(64);
  send(flow, 1);
  flow.on_feedback(feedback(1, 1, 1), kNow);
  EXPECT_EQ(flow.patience_ns(), kRoundTrip / 4);
  flow.on_feedback(feedback(3, 1, 1), kNow);
  flow.on_feedback(feedback(2, 1, 1), kNow + 4 * kMillisecond);  // after 12 ms instead of 8
  EXPECT_EQ(flow.patience_ns(), 5 * kMillisecond);
  for (std::uint32_t number = 5; number < 500; number += 2)
    flow.on_feedback(feedback(number, 1, 1), kNow);
  EXPECT_EQ(flow.patience_ns(), kRoundTrip / 4) << "those are lost";
  flow.on_feedback(feedback(4, 1, 1), kNow + kSecond);
  EXPECT_EQ(flow.patience_ns(), kIdleProbeInterval);
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

// Pulled results use up the credit that leaves them out. Half of the block that the appliance may
// send beyond it is always left, so none of them waits there until it is overdue.
TEST(Flow, RenewsTheCreditWhileResultsThatItPullsCome) {
  for (const std::uint32_t buffers : {64u, 100u, 896u}) {
    Flow flow(buffers);
    flow.reserve_pulls(flow.free_pulls());
    std::uint32_t credit = flow.next_header(kNow).credit;
    std::uint32_t renewed = 0;
    for (std::uint32_t number = 1; number <= buffers; ++number) {
      ASSERT_LE(number, credit + kChunksPerBlock / 2) << buffers;
      flow.on_feedback(feedback(number, 1, 1), kNow);
      flow.release_pulls(1);
      if (!flow.credit_due()) continue;
      credit = flow.next_header(kNow).credit;
      ++renewed;
    }
    EXPECT_LE(renewed, 16u) << buffers;
  }
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

// A member keeps asking while its appliance stands still, and each question takes a number.
TEST(Flow, SendsSoonAfterAnApplianceHasStoodStill) {
  Flow flow(64);
  constexpr int kAsked = 400;
  const TimeNs began = kNow - 8 * kSecond;
  for (int i = 0; i < kAsked; ++i) send(flow, 1, began + i * 20 * kMillisecond);
  wire::FeedbackHeader first = feedback(1, 1, 1);
  first.echo_timestamp_us = wire_time_us(began);
  flow.on_feedback(first, kNow);
  for (std::uint32_t i = 1; i < 32; ++i)
    flow.on_feedback(feedback(1 + i, 12 * i, 12 * i), kNow + i * kMillisecond);
  send(flow, 1, kNow + 40 * kMillisecond);
  flow.on_feedback(feedback(40, kAsked, kAsked), kNow + 41 * kMillisecond);
  EXPECT_TRUE(flow.window_open());
  EXPECT_TRUE(flow.on_pace(kNow + 500 * kMillisecond));
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
