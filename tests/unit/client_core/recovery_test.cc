// The bookkeeping of blocks, where a session's packets cannot show it directly.
#include "client/core/link/recovery.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

TEST(Recovery, KeepsProbingOneBlockWhenAResultReachesAnotherThatWasClosed) {
  constexpr ChunkIndex kOtherBlock = kChunksPerBlock;
  Recovery recovery(2 * kChunksPerBlock, 1);
  Flow flow(64);
  TimeNs now = kSecond;
  const auto send = [&](ChunkIndex chunk) {
    recovery.expect(chunk);
    ASSERT_TRUE(recovery.take(chunk));
    recovery.sent(chunk, flow.next_header(now).number, now, flow);
  };
  send(0);
  // The answer says that it was lost: the block has nothing on the wire and is closed.
  const wire::Answer answer{.step = 1, .block = 0, .probe_number = 1};
  EXPECT_EQ(recovery.answer(answer, now, flow), 1u);
  send(kOtherBlock);
  // A copy of the contribution had arrived after all.
  EXPECT_TRUE(recovery.result(0, now, flow));

  now += kSecond;
  recovery.work(0, now, flow);
  Recovery::ProbePlan plan;
  ASSERT_TRUE(recovery.plan_probe(0, flow, plan));
  EXPECT_EQ(plan.block, 1u);
}

TEST(Recovery, TakesChunksWithoutDataAndTheirResultsByBlock) {
  Recovery recovery(2 * kChunksPerBlock, 1);
  Flow flow(64);
  EXPECT_EQ(recovery.expect_absent(1, 0xF0), 0x10u) << "it stands with the scheduler for all";
  EXPECT_EQ(recovery.expect_absent(1, 0x0F), 0u) << "another one stands for them";
  EXPECT_EQ(recovery.take(kChunksPerBlock + 4), 0xFFu);
  recovery.sent(1, 0xFF, flow.next_header(kSecond).number, kSecond, flow);
  EXPECT_FALSE(recovery.nothing_outstanding(0));
  EXPECT_EQ(recovery.results(1, 0x11F, kSecond, flow), 0x1Fu) << "nobody asked for the ninth";
  EXPECT_EQ(recovery.results(1, 0xFF, kSecond, flow), 0xE0u);
  EXPECT_TRUE(recovery.nothing_outstanding(0));
}

// A result may wait for other workers, or in a queue; that a chunk was counted waits for nobody.
TEST(Recovery, AsksAboutWhatGetsNoResultARoundTripLater) {
  Recovery recovery(2 * kChunksPerBlock, 1);
  Flow flow(64);
  (void)flow.next_header(kSecond);
  TimeNs now = kSecond + 50 * kMicrosecond;
  const wire::FeedbackHeader feedback{.number = 1,
                                      .received_count = 1,
                                      .highest_number = 1,
                                      .echo_timestamp_us = wire_time_us(kSecond)};
  ASSERT_TRUE(flow.on_feedback(feedback, now).valid);
  for (const ChunkIndex chunk : {ChunkIndex{0}, kChunksPerBlock}) {
    recovery.expect(chunk);
    if (chunk != 0) recovery.want_no_result(chunk);
    ASSERT_TRUE(recovery.take(chunk));
    recovery.sent(chunk, flow.next_header(now).number, now, flow);
  }
  now += kMillisecond;
  recovery.work(0, now, flow);
  Recovery::ProbePlan plan;
  ASSERT_TRUE(recovery.plan_probe(0, flow, plan));
  EXPECT_EQ(plan.block, 1u);
  recovery.probe_sent(0, plan, now, flow);
  EXPECT_FALSE(recovery.plan_probe(0, flow, plan));
}

TEST(Recovery, ABlockThatIsDoneCanBeExpectedAnew) {
  Recovery recovery(kChunksPerBlock, 1);
  Flow flow(64);
  for (int round = 0; round < 2; ++round) {
    recovery.expect(3);
    ASSERT_TRUE(recovery.take(3));
    EXPECT_FALSE(recovery.sent(3, flow.next_header(kSecond).number, kSecond, flow));
    EXPECT_FALSE(recovery.nothing_outstanding(0));
    ASSERT_TRUE(recovery.result(3, kSecond, flow));
    recovery.renew(0, flow);
    EXPECT_FALSE(recovery.wants(3));
    EXPECT_TRUE(recovery.nothing_outstanding(0));
  }
}

TEST(Recovery, ARunIsEveryChunkOfItWhereverBlocksEnd) {
  constexpr ChunkIndex kChunks = 4 * kChunksPerBlock;
  struct Run {
    ChunkIndex first, end;
  };
  for (const Run run : {Run{0, 1}, Run{5, 64}, Run{63, 65}, Run{64, 128}, Run{3, 200}, Run{9, 9}}) {
    Recovery recovery(kChunks, 1);
    recovery.expect_run(run.first, run.end);
    for (ChunkIndex chunk = 0; chunk < kChunks; ++chunk) {
      const bool inside = run.first <= chunk && chunk < run.end;
      ASSERT_EQ(recovery.wants(chunk), inside) << chunk << " of " << run.first << ".." << run.end;
      if (!inside) continue;
      ASSERT_EQ(recovery.take(chunk), chunk_bit(chunk));
    }
  }
}

// Sent again and again, it would put off for ever what was pulled and did not come (swarm seed
// 20318).
TEST(Recovery, SendsNoChunkAgainThatIsCompleteWithoutIt) {
  Recovery recovery(2, 1);
  Flow flow(64);
  recovery.expect(0);
  ASSERT_TRUE(recovery.take(0));
  recovery.sent(0, flow.next_header(kSecond).number, kSecond, flow);
  recovery.await(1, kSecond);
  const wire::Answer answer{.step = 1, .block = 0, .complete = 0b11, .probe_number = 1};
  EXPECT_EQ(recovery.answer(answer, kSecond, flow), 0u);
  EXPECT_TRUE(recovery.nothing_outstanding(0));
  Recovery::ProbePlan plan;
  ASSERT_TRUE(recovery.plan_probe(0, flow, plan));
  EXPECT_EQ(plan.want, 0b11u);
}

// Results that were asked for follow the answer, perhaps behind many others: what the answer shows
// beyond them is asked for meanwhile, and they themselves only when they are overdue.
TEST(Recovery, AsksForAResultOnceUntilItIsOverdue) {
  Recovery recovery(kChunksPerBlock, 1);
  Flow flow(16);  // as many results may be on their way
  TimeNs now = kSecond;
  for (ChunkIndex chunk = 0; chunk < 32; ++chunk) recovery.await(chunk, now);
  Recovery::ProbePlan plan;
  const auto probe = [&] {
    recovery.work(0, now, flow);
    if (!recovery.plan_probe(0, flow, plan)) return false;
    recovery.probe_sent(0, plan, now, flow);
    return true;
  };
  const auto answer = [&] {
    recovery.answer({.complete = 0xFFFFFFFF, .probe_number = 1}, now, flow);
  };
  ASSERT_TRUE(probe());
  EXPECT_EQ(plan.want, 0u);
  answer();
  ASSERT_TRUE(probe());
  EXPECT_EQ(plan.want, 0xFFFFu);
  answer();
  for (ChunkIndex chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(recovery.result(chunk, now, flow));
  ASSERT_TRUE(probe());
  EXPECT_EQ(plan.want, 0xFF0000u) << "8 to 15 are on their way";
  answer();
  now += kSecond;
  ASSERT_TRUE(probe());
  EXPECT_EQ(plan.want, 0xFFFF00u);
}

// Answers that overtake results skip their numbers all the time: that is no reason to ask anew.
TEST(Recovery, AsksAboutSkippedResultsOnlyOnceTheyAreOverdue) {
  for (const bool lost : {false, true}) {
    Recovery recovery(8 * kChunksPerBlock, 1);
    Flow flow(64);
    TimeNs now = kSecond;
    const auto hear = [&](std::uint32_t number, DurationNs took_ns) {
      const wire::FeedbackHeader feedback{.number = number,
                                          .received_count = 1,
                                          .highest_number = 1,
                                          .echo_timestamp_us = wire_time_us(now - took_ns)};
      recovery.hint(0, flow.on_feedback(feedback, now), now, flow);
      recovery.work(0, now, flow);
    };
    recovery.expect(0);
    (void)recovery.take(0);
    recovery.sent(0, flow.next_header(now).number, now, flow);
    for (std::uint32_t block = 1; block < 8; ++block)
      recovery.await(block * kChunksPerBlock, kNever);
    now += 400 * kMicrosecond;
    hear(1, 400 * kMicrosecond);
    ASSERT_EQ(flow.patience_ns(), 100 * kMicrosecond);
    // Each second packet comes 90 us behind the one that has overtaken it.
    std::uint32_t asked = 0;
    for (std::uint32_t number = 3; number < 100; number += 2) {
      now += 30 * kMicrosecond;
      hear(number, 400 * kMicrosecond);
      now += 30 * kMicrosecond;
      if (number > 3 && !(lost && number == 51)) hear(number - 3, 490 * kMicrosecond);
      Recovery::ProbePlan plan;
      while (recovery.plan_probe(0, flow, plan)) {
        recovery.probe_sent(0, plan, now, flow);
        ++asked;
      }
    }
    EXPECT_EQ(asked != 0, lost);
  }
}

// A block of which one chunk after the other completes is asked about all the time. That must not
// put off what was asked for before and was lost on its way.
TEST(Recovery, AsksAgainForALostResultInTimeWhateverElseIsAskedOfItsBlock) {
  constexpr DurationNs kBetween = 5 * kMillisecond;
  constexpr std::uint64_t kLost = 0xFF;
  Recovery recovery(kChunksPerBlock, 1);
  Flow flow(64);
  TimeNs now = kSecond;
  for (ChunkIndex chunk = 0; chunk < kChunksPerBlock; ++chunk) recovery.await(chunk, now);
  std::uint64_t complete = kLost;
  Recovery::ProbePlan plan;
  const auto ask = [&] {
    recovery.work(0, now, flow);
    if (!recovery.plan_probe(0, flow, plan)) return false;
    recovery.probe_sent(0, plan, now, flow);
    recovery.answer({.complete = complete, .probe_number = 1}, now, flow);
    return true;
  };
  ASSERT_TRUE(ask());
  ASSERT_TRUE(ask());
  ASSERT_EQ(plan.want, kLost);
  const TimeNs due_ns = now + flow.rtt().timeout_ns();
  ASSERT_GT(due_ns, now + 4 * kBetween) << "nothing would be asked in between";
  std::uint32_t asked_between = 0;
  for (ChunkIndex chunk = 8; chunk < kChunksPerBlock; ++chunk) {
    now += kBetween;
    complete |= std::uint64_t{1} << chunk;
    // The idle timer asks without knowing of the chunk, the answer tells, and it is asked for.
    while (ask()) {
      if (plan.want & kLost) {
        EXPECT_EQ(plan.want & kLost, kLost);
        EXPECT_GE(now, due_ns) << "it may still stand in a queue";
        EXPECT_LE(now, due_ns + 2 * kBetween);
        EXPECT_GE(asked_between, 3u);
        return;
      }
      ++asked_between;
      if (plan.want != 0) {
        EXPECT_TRUE(recovery.result(chunk, now, flow));
      }
    }
  }
  FAIL() << "asked for others " << asked_between << " times and never again for what was lost";
}

}  // namespace
}  // namespace sluice::client
