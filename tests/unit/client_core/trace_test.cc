// A session's notes about its tensors, for the Chrome trace.
#include "client/core/calls/trace.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

constexpr TimeNs kNow = 10 * kSecond;
constexpr DurationNs kRoundTrip = 100 * kMicrosecond;

TensorTrace trace_of(std::uint32_t tensors) {
  TensorTrace trace;
  trace.enable(tensors);
  return trace;
}

TEST(TensorTrace, NotesNothingUntilItIsSwitchedOn) {
  TensorTrace trace;
  EXPECT_FALSE(trace.on());
  trace.queued(7, 1, 0, true, kNow, kNow);
  trace.sent(7, 1, false, kNow);
  trace.result(7, 1, {}, kRoundTrip, kNow);
  trace.done(7, 1, kNow);
  TensorTimes times;
  EXPECT_FALSE(trace.poll(times));
  EXPECT_EQ(trace.lost_count(), 0u);
}

TEST(TensorTrace, NotesWhenATensorPassedEachPlace) {
  TensorTrace trace = trace_of(2);
  trace.queued(1, 5, 9, true, kNow - kMillisecond, kNow);
  trace.sent(1, 5, false, kNow + 1);
  trace.sent(1, 5, false, kNow + 2);
  trace.sent(1, 5, true, kNow + 3);
  trace.result(1, 5, {.k = 4, .first_us = 500, .complete_us = 20}, kRoundTrip,
               kNow + 10 * kMillisecond);
  trace.done(1, 5, kNow + 10 * kMillisecond);
  TensorTimes times;
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.tensor, 1u);
  EXPECT_EQ(times.step, 5u);
  EXPECT_EQ(times.priority, 9);
  EXPECT_TRUE(times.contributes);
  EXPECT_EQ(times.k, 4);
  EXPECT_EQ(times.packets, 3u);
  EXPECT_EQ(times.sent_again, 1u);
  EXPECT_EQ(times.ready_ns, kNow - kMillisecond);
  EXPECT_EQ(times.queued_ns, kNow);
  EXPECT_EQ(times.first_sent_ns, kNow + 1);
  EXPECT_EQ(times.last_sent_ns, kNow + 3);
  EXPECT_EQ(times.first_contribution_ns, kNow + 10 * kMillisecond - 550 * kMicrosecond);
  EXPECT_EQ(times.kth_contribution_ns, kNow + 10 * kMillisecond - 70 * kMicrosecond);
  EXPECT_EQ(times.result_ns, kNow + 10 * kMillisecond);
  EXPECT_EQ(times.applied_ns, 0);
  EXPECT_FALSE(trace.poll(times));
}

TEST(TensorTrace, TakesTheFirstContributionOfAnyChunkAndTheOneThatCompletedTheLast) {
  TensorTrace trace = trace_of(1);
  trace.queued(0, 1, 0, true, kNow, kNow);
  const TimeNs arrival_ns = kNow + kSecond;
  trace.result(0, 1, {.k = 3, .first_us = 300, .complete_us = 200}, 0, arrival_ns);
  trace.result(0, 1, {.k = 2, .first_us = 900, .complete_us = 700}, 0, arrival_ns);
  trace.result(0, 1, {.k = 4, .first_us = 100, .complete_us = 50}, 0, arrival_ns);
  trace.done(0, 1, arrival_ns);
  TensorTimes times;
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.first_contribution_ns, arrival_ns - 900 * kMicrosecond);
  EXPECT_EQ(times.kth_contribution_ns, arrival_ns - 50 * kMicrosecond);
  EXPECT_EQ(times.k, 2);
}

TEST(TensorTrace, KeepsResultsThatCameBeforeTheTensorWasSubmitted) {
  TensorTrace trace = trace_of(1);
  trace.result(0, 3, {.k = 1, .first_us = 10, .complete_us = 5}, 0, kNow);
  trace.queued(0, 3, 0, true, kNow + kSecond, kNow + kSecond);
  trace.done(0, 3, kNow + kSecond);
  TensorTimes times;
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.kth_contribution_ns, kNow - 5 * kMicrosecond);
  EXPECT_EQ(times.ready_ns, kNow + kSecond);
  EXPECT_EQ(times.packets, 0u);
}

TEST(TensorTrace, MixesNothingOfOneStepIntoTheNext) {
  TensorTrace trace = trace_of(1);
  trace.queued(0, 1, 0, true, kNow, kNow);
  trace.sent(0, 1, true, kNow);
  trace.result(0, 1, {.k = 1, .first_us = 1, .complete_us = 1}, 0, kNow);
  trace.done(0, 1, kNow);
  trace.queued(0, 2, 3, false, kNow + 1, kNow + 1);  // before anybody took step 1's
  trace.done(0, 2, kNow + 2);
  TensorTimes times;
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.step, 1u);
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.step, 2u);
  EXPECT_EQ(times.packets, 0u);
  EXPECT_EQ(times.kth_contribution_ns, 0);
  EXPECT_FALSE(times.contributes);
}

TEST(TensorTrace, AddsUpWhatWasNotedOfSlicesOfAPart) {
  TensorTrace trace = trace_of(2);
  const TensorTimes first{.tensor = 9,
                          .step = 4,
                          .k = 3,
                          .packets = 2,
                          .ready_ns = kNow,
                          .queued_ns = kNow + 1,
                          .first_sent_ns = kNow + 2,
                          .last_sent_ns = kNow + 8,
                          .first_contribution_ns = kNow + 5,
                          .kth_contribution_ns = kNow + 9,
                          .result_ns = kNow + 12,
                          .smallest_round_trip_ns = kRoundTrip,
                          .part = 2,
                          .switch_index = 1};
  // Sent again where another switch stands in, and no result is wanted of it.
  const TensorTimes second{.tensor = 9,
                           .step = 4,
                           .packets = 3,
                           .sent_again = 1,
                           .ready_ns = kNow + 3,
                           .queued_ns = kNow + 4,
                           .first_sent_ns = kNow + 6,
                           .last_sent_ns = kNow + 20,
                           .result_ns = kNow + 30,
                           .part = 2,
                           .switch_index = 0,
                           .detoured = true};
  trace.part_done(first);
  trace.part_done(second);
  trace.close_part(0, 4);  // nothing of it was noted
  trace.close_part(1, 4);
  TensorTimes times;
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.tensor, 9u);
  EXPECT_EQ(times.part, 2u);
  EXPECT_EQ(times.step, 4u);
  EXPECT_EQ(times.k, 3);
  EXPECT_EQ(times.packets, 5u);
  EXPECT_EQ(times.sent_again, 1u);
  EXPECT_EQ(times.ready_ns, kNow);
  EXPECT_EQ(times.queued_ns, kNow + 1);
  EXPECT_EQ(times.first_sent_ns, kNow + 2);
  EXPECT_EQ(times.last_sent_ns, kNow + 20);
  EXPECT_EQ(times.first_contribution_ns, kNow + 5);
  EXPECT_EQ(times.kth_contribution_ns, kNow + 9);
  EXPECT_EQ(times.result_ns, kNow + 30);
  EXPECT_EQ(times.smallest_round_trip_ns, kRoundTrip);
  EXPECT_EQ(times.switch_index, 0u);
  EXPECT_TRUE(times.detoured);
  EXPECT_FALSE(trace.poll(times));
  trace.close_part(1, 5);  // of the next step there is nothing yet
  EXPECT_FALSE(trace.poll(times));
}

TEST(TensorTrace, LosesAndCountsTheNewestWhenNobodyTakesThem) {
  TensorTrace trace = trace_of(1);
  for (Step step = 1; step <= 5; ++step) trace.done(0, step, kNow);
  EXPECT_EQ(trace.lost_count(), 3u);
  TensorTimes times;
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.step, 1u);
  trace.done(0, 6, kNow);  // there is room again
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.step, 2u);
  ASSERT_TRUE(trace.poll(times));
  EXPECT_EQ(times.step, 6u);
  EXPECT_FALSE(trace.poll(times));
}

}  // namespace
}  // namespace sluice::client
