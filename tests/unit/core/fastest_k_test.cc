// Steps that complete without all ranks: the members of a result, the fate of late contributions,
// and members that die, return, and fetch another rank's state meanwhile.
#include <gmock/gmock.h>

#include <random>

#include "aggregator/core/shard.h"
#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;
using wire::PacketType;

const wire::ResultHeader& result(const Sent& sent) {
  return sent.packet.body<wire::ResultHeader>();
}

TEST(FastestK, TheFirstTwoStepsWaitForEveryone) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(1)});
  for (const Step step : {1, 2}) {
    EXPECT_EQ(harness.contribute<float>(0, step, 0, {1}), Verdict::kFolded);
    EXPECT_EQ(harness.contribute<float>(1, step, 0, {1}), Verdict::kFolded);
    EXPECT_EQ(harness.contribute<float>(2, step, 0, {1}), Verdict::kCompleted);
  }
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {1}), Verdict::kCompleted);
}

TEST(FastestK, TheResultIsTheSumOfTheFastestAndSaysWhoTheyAre) {
  Harness harness({.world_size = 4, .chunk_count = 1, .policy = fixed_k(2)});
  harness.pass_full_steps();
  EXPECT_EQ(harness.contribute<float>(3, 3, 0, {10}, {.weight = 7}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {20}, {.weight = 5}), Verdict::kCompleted);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 4u) << "stragglers get it too";
  for (const Sent& each : sent) {
    EXPECT_THAT(floats_of(each), ElementsAre(30));
    EXPECT_EQ(result(each).k, 2);
    EXPECT_EQ(std::uint16_t{result(each).may_count}, 4);
    EXPECT_EQ(std::uint64_t{result(each).weight}, 12u);
    EXPECT_EQ(each.packet.mask_word(0), 0b1010u);
    EXPECT_EQ(std::uint32_t{result(each).feedback.open_step}, 4u) << "the step is closed by then";
  }
}

TEST(FastestK, ALateContributionIsCountedAndChangesNothing) {
  Harness harness({.world_size = 3, .chunk_count = 2, .policy = fixed_k(1)});
  harness.pass_full_steps();
  harness.contribute<float>(0, 3, 0, {5});
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {9}), Verdict::kLate) << "while its step is open";
  harness.contribute<float>(0, 3, 1, {5});
  EXPECT_EQ(harness.contribute<float>(1, 3, 1, {9}), Verdict::kLate) << "when it is closed";
  EXPECT_EQ(harness.job->slices[0].flows[1].late.read(), 2u);
  for (const Sent& each : harness.drain(PacketType::kResult)) {
    EXPECT_THAT(floats_of(each), ElementsAre(5));
    EXPECT_EQ(each.packet.mask_word(0), 0b001u);
  }
}

TEST(FastestK, AStragglerPullsWStepsBackAndNoFurther) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(1)});
  harness.pass_full_steps();
  for (Step step = 3; step <= 7; ++step) {
    harness.contribute<float>(0, step, 0, {static_cast<float>(step)});
    harness.contribute<float>(2, step, 0, {0});
  }
  harness.drain();
  ASSERT_EQ(harness.open_step(), 8u);
  harness.probe(1, 5, 0, 1);  // three closed steps and the open one are kept
  auto sent = harness.drain();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].packet.body<wire::Answer>().status, wire::AnswerStatus::kOpen);
  EXPECT_THAT(floats_of(sent[1]), ElementsAre(5));
  harness.probe(1, 4, 0, 1);
  sent = harness.drain();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.body<wire::Answer>().status, wire::AnswerStatus::kGone);
  EXPECT_EQ(harness.contribute<float>(1, 4, 0, {1}), Verdict::kTooOld);
}

// A step waits for two ranks, whatever the policy says, when fewer than two are known to have the
// results of all steps that are gone once it is closed.
TEST(FastestK, AStepWaitsForASecondRankBeforeAllOthersLeaveTheWindow) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(1)});
  harness.pass_full_steps();
  const auto k_of = [&](Step step) { return harness.job->windows[0].records[step % 4].k; };
  for (Step step = 3; step <= 4; ++step)
    EXPECT_EQ(harness.contribute<float>(0, step, 0, {1}), Verdict::kCompleted);
  EXPECT_EQ(k_of(4), 1) << "all have been at step 2, which is kept until 6 opens";
  ASSERT_EQ(harness.open_step(), 5u);
  EXPECT_EQ(k_of(5), 2) << "nobody else is known to have been at step 3";
  EXPECT_EQ(harness.contribute<float>(0, 5, 0, {1}), Verdict::kFolded);
  // One that probes for a step has the results of all before.
  harness.probe(2, 5, 0, 0);
  EXPECT_EQ(harness.contribute<float>(1, 5, 0, {1}), Verdict::kCompleted);
  EXPECT_EQ(k_of(6), 1);
  EXPECT_EQ(harness.contribute<float>(0, 6, 0, {1}), Verdict::kCompleted);
  EXPECT_EQ(k_of(7), 1);
  harness.contribute<float>(0, 7, 0, {1});
  EXPECT_EQ(k_of(8), 2);
  // Death lowers it as it lowers any k.
  EXPECT_EQ(harness.contribute<float>(0, 8, 0, {1}), Verdict::kFolded);
  harness.kill(1);
  harness.kill(2);
  harness.shard(0).poll_work(harness.now);
  EXPECT_EQ(harness.open_step(), 9u);
  EXPECT_EQ(k_of(9), 1);
}

TEST(FastestK, ALateGradientIsRequeuedOnceIntoTheOpenStep) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(2, LateMode::kRequeue)});
  harness.pass_full_steps();
  harness.contribute<float>(0, 3, 0, {1});
  harness.contribute<float>(1, 3, 0, {1});
  EXPECT_EQ(harness.contribute<float>(2, 3, 0, {8}), Verdict::kLate);
  EXPECT_EQ(harness.contribute<float>(2, 4, 0, {8}, {.base_step = 3}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(2, 4, 0, {8}, {.base_step = 3}), Verdict::kDuplicate);
  EXPECT_EQ(harness.contribute<float>(0, 4, 0, {16}), Verdict::kCompleted);
  const auto sent = harness.drain(PacketType::kResult);
  EXPECT_THAT(floats_of(sent.back()), ElementsAre(24));
  EXPECT_EQ(sent.back().packet.mask_word(0), 0b101u);
  EXPECT_EQ(harness.job->slices[0].flows[2].requeued.read(), 1u);
}

TEST(FastestK, AGradientIsRequeuedOnlyWhereTheJobSaysSoAndWithinItsStaleness) {
  Harness dropping({.world_size = 2, .chunk_count = 1, .policy = fixed_k(1)});
  dropping.pass_full_steps();
  EXPECT_EQ(dropping.contribute<float>(0, 3, 0, {1}, {.base_step = 2}), Verdict::kStale);

  Harness bounded({.world_size = 2, .chunk_count = 1, .policy = fixed_k(1, LateMode::kRequeue, 2)});
  bounded.pass_full_steps(4);
  for (Step step = 3; step < 6; ++step) bounded.contribute<float>(0, step, 0, {1});
  ASSERT_EQ(bounded.open_step(), 6u);
  EXPECT_EQ(bounded.contribute<float>(1, 6, 0, {1}, {.base_step = 3}), Verdict::kStale);
  EXPECT_EQ(bounded.contribute<float>(1, 6, 0, {1}, {.base_step = 7}), Verdict::kBadField);
  EXPECT_EQ(bounded.contribute<float>(1, 6, 0, {1}, {.base_step = 4}), Verdict::kCompleted);
}

// Rank 0's gradient of step 2 was late in chunk 1 only: it waits for step 3 and has nothing for
// chunk 0 there.
TEST(FastestK, AWorkerThatWaitsForAStepPassesTheChunksItHasNothingFor) {
  Harness harness({.world_size = 3,
                   .chunk_count = 2,
                   .allow_nil = false,
                   .policy = fixed_k(3, LateMode::kRequeue)});
  harness.pass_full_steps();
  const auto pass = [&](std::uint16_t rank, ChunkIndex chunk) {
    return harness.contribute<float>(rank, 3, chunk, {},
                                     {.weight = 0, .base_step = 2, .nil = true});
  };
  EXPECT_EQ(harness.contribute<float>(0, 3, 0, {}, {.nil = true}), Verdict::kShapeMismatch);
  EXPECT_EQ(pass(0, 0), Verdict::kPassed);
  EXPECT_EQ(pass(0, 0), Verdict::kDuplicate);
  EXPECT_EQ(harness.contribute<float>(0, 3, 0, {4}), Verdict::kDuplicate) << "it has passed";
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {4}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(2, 3, 0, {8}), Verdict::kCompleted) << "k = 3, one passed";
  const auto sent = harness.drain(PacketType::kResult);
  EXPECT_EQ(result(sent.back()).k, 2);
  EXPECT_EQ(sent.back().packet.mask_word(0), 0b110u);
  EXPECT_EQ(std::uint64_t{result(sent.back()).weight}, 2u);

  for (const std::uint16_t rank : {0, 1}) EXPECT_EQ(pass(rank, 1), Verdict::kPassed);
  EXPECT_EQ(pass(2, 1), Verdict::kCompleted) << "nobody has anything";
  const auto empty = harness.drain(PacketType::kResult);
  EXPECT_EQ(empty.back().packet.mask_word(0), 0u);
  EXPECT_TRUE(result(empty.back()).feedback.flags & wire::kFlagNil);
}

TEST(FastestK, GivesNoResultsTogetherThatDifferInWhoIsIn) {
  Harness harness({.world_size = 3, .chunk_count = 4, .policy = fixed_k(2)});
  harness.pass_full_steps();
  const DataOptions all{.nil = true, .nil_too = 0b1110};
  harness.contribute<float>(0, 3, 0, {}, all);
  harness.contribute<float>(2, 3, 1, {}, {.nil = true});
  harness.contribute<float>(1, 3, 0, {}, all);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 3u * 2);
  EXPECT_EQ(sent[0].packet.chunks(), 0b0010u);
  EXPECT_EQ(sent[0].packet.mask_word(0), 0b101u);
  EXPECT_EQ(sent[3].packet.chunks(), 0b1101u);
  EXPECT_EQ(sent[3].packet.mask_word(0), 0b011u);
}

TEST(FastestK, APassAndAStragglerDoNotStopAStepThatToleratesOne) {
  Harness harness({.world_size = 4, .chunk_count = 1, .policy = fixed_k(3, LateMode::kRequeue)});
  harness.pass_full_steps();
  EXPECT_EQ(harness.contribute<float>(2, 3, 0, {}, {.weight = 0, .base_step = 2, .nil = true}),
            Verdict::kPassed);
  EXPECT_EQ(harness.contribute<float>(0, 3, 0, {4}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {8}), Verdict::kCompleted) << "rank 3 is stopped";
  EXPECT_EQ(result(harness.drain(PacketType::kResult).back()).k, 2);
}

TEST(FastestK, APassNeverTakesTheLastPlaceAmongTheFastest) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(1, LateMode::kRequeue)});
  harness.pass_full_steps();
  const DataOptions pass{.weight = 0, .base_step = 2, .nil = true};
  EXPECT_EQ(harness.contribute<float>(0, 3, 0, {}, pass), Verdict::kPassed);
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {4}), Verdict::kCompleted);
  EXPECT_THAT(floats_of(harness.drain(PacketType::kResult).back()), ElementsAre(4));
}

TEST(FastestK, DeathShrinksWhatAStepWaitsForAndTheJobGoesOn) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(3)});
  harness.pass_full_steps();
  harness.contribute<float>(0, 3, 0, {1});
  harness.contribute<float>(1, 3, 0, {1});
  harness.kill(2);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(result(sent[0]).k, 2);
  EXPECT_EQ(std::uint16_t{result(sent[0]).may_count}, 2);
  EXPECT_EQ(sent[0].packet.mask_word(0), 0b011u);
}

TEST(FastestK, ASumIsOfTheRanksThatLiveAndOfThoseThatAreInIt) {
  Harness harness({.world_size = 4, .chunk_count = 1, .policy = fixed_k(3)});
  harness.pass_full_steps();
  harness.contribute<float>(3, 3, 0, {1});
  harness.kill(3);
  harness.kill(2);
  harness.contribute<float>(0, 3, 0, {1});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].packet.mask_word(0), 0b1001u);
  EXPECT_EQ(std::uint16_t{result(sent[0]).may_count}, 3) << "ranks 0, 1 and what 3 has left";
}

TEST(FastestK, AMemberThatReturnsCountsFromAStepThatWasNotPublishedYet) {
  Harness harness({.world_size = 2, .chunk_count = 130, .shard_count = 2, .policy = fixed_k(2)});
  harness.pass_full_steps();
  harness.kill(1);
  harness.drain();
  harness.bring_back(1);
  ShardEvent event;
  ASSERT_TRUE(harness.poll_event(event));
  EXPECT_EQ(event.kind, ShardEvent::Kind::kMemberAdmitted);
  EXPECT_EQ(event.rank, Rank{1});
  const Step first = harness.job->members[1].joined_from[0];
  ASSERT_EQ(first, 5u);
  for (Step step = 3; step < first; ++step)
    for (ChunkIndex chunk = 0; chunk < 130; ++chunk) {
      EXPECT_EQ(harness.contribute<float>(1, step, chunk, {1}), Verdict::kNotAllowed);
      EXPECT_EQ(harness.contribute<float>(0, step, chunk, {1}), Verdict::kCompleted);
    }
  EXPECT_EQ(harness.contribute<float>(0, first, 0, {1}), Verdict::kFolded) << "k = 2 again";
  EXPECT_EQ(harness.contribute<float>(1, first, 0, {1}), Verdict::kCompleted);
}

TEST(FastestK, AReturningMemberTakesPartInTheNextCollective) {
  Harness harness({.world_size = 3, .chunk_count = 1, .policy = fixed_k(1)});
  const auto enter = [&](std::uint16_t rank, Step step) {
    return harness.piece(rank, step, 0, kBarrier);
  };
  harness.kill(2);
  enter(0, 1);
  harness.bring_back(2);  // others wait in the first barrier: it is not for this process
  EXPECT_EQ(harness.job->members[2].joined_from[1], 2u);
  EXPECT_EQ(enter(1, 1), Verdict::kCompleted);
  harness.kill(2);
  harness.bring_back(2);  // nobody has begun the second one
  EXPECT_EQ(harness.job->members[2].joined_from[1], 2u);
  enter(0, 2);
  enter(1, 2);
  EXPECT_EQ(enter(2, 2), Verdict::kCompleted);
}

TEST(FastestK, AHeldWindowWaitsForItsMemberUntilTheHoldIsReleased) {
  Harness harness({.world_size = 3, .chunk_count = 70, .shard_count = 2, .policy = fixed_k(1)});
  harness.pass_full_steps();
  harness.job->members[2].hold_from = 4;
  const auto contribute_all = [&](Step step) {
    for (ChunkIndex chunk = 0; chunk < 70; ++chunk) harness.contribute<float>(0, step, chunk, {1});
  };
  contribute_all(3);
  ASSERT_EQ(harness.open_step(), 4u);
  contribute_all(4);
  harness.drain();
  EXPECT_EQ(harness.open_step(), 4u) << "k = 1 is met, and the window waits";
  harness.job->members[2].hold_from = kNoStep;
  harness.command(ShardCommand::Kind::kHoldReleased, 2);
  EXPECT_THAT(harness.drain(PacketType::kResult), SizeIs(3 * 70));
  EXPECT_EQ(harness.open_step(), 5u);
}

TEST(FastestK, DurationsCountFromTheReleaseOfTheStepAGradientWasComputedOn) {
  Harness harness({.world_size = 2, .chunk_count = 1, .policy = fixed_k(1)});
  harness.pass_full_steps();
  harness.now += 3 * kMillisecond;
  EXPECT_EQ(harness.finished(0, 3), Verdict::kFinished);
  EXPECT_EQ(harness.finished(0, 3), Verdict::kDuplicate);
  EXPECT_EQ(harness.finished(0, 4), Verdict::kTooNew);
  harness.contribute<float>(0, 3, 0, {1});
  harness.now += 2 * kMillisecond;
  EXPECT_EQ(harness.finished(1, 3), Verdict::kFinished) << "late, and still told";
  EXPECT_EQ(harness.job->members[0].finished.load(), std::uint64_t{3} << 32 | 3000);
  EXPECT_EQ(harness.job->members[1].finished.load(), std::uint64_t{3} << 32 | 5000);
}

// Four workers, one of them ten times slower, gradients of noise: three of four is what goodput
// must find, and keep although the slow one reports only now and then.
TEST(FastestK, GoodputLeavesAPersistentStragglerBehind) {
  constexpr std::uint16_t kSlow = 3;
  constexpr ChunkIndex kChunks = 8;
  Harness harness(
      {.world_size = 4, .chunk_count = kChunks, .policy = {.kind = PolicyKind::kGoodput}});
  std::mt19937 random(7);
  std::normal_distribution<float> noise;
  const auto contribute = [&](std::uint16_t rank, Step base) {
    harness.finished(rank, base);
    for (ChunkIndex chunk = 0; chunk < kChunks; ++chunk) {
      std::vector<float> values(16);
      for (float& value : values) value = noise(random);
      harness.contribute<float>(rank, base, chunk, values);
    }
  };
  Step slow_base = 1;
  TimeNs slow_ready = harness.now + 10 * kSecond;
  std::vector<std::uint32_t> ks;
  for (Step step = 1; step <= 60; ++step) {
    harness.now += kSecond;
    for (std::uint16_t rank = 0; rank < kSlow; ++rank) contribute(rank, step);
    if (harness.open_step() == step) harness.now = std::max(harness.now, slow_ready);
    if (harness.now >= slow_ready) {
      contribute(kSlow, slow_base);
      if (harness.open_step() == step) contribute(kSlow, step);  // k = n: its next gradient
      slow_base = harness.open_step();
      slow_ready = harness.now + 10 * kSecond;
    }
    harness.drain();
    ASSERT_EQ(harness.open_step(), step + 1);
    if (step > 20) ks.push_back(harness.job->gauges.k);
  }
  EXPECT_THAT(ks, Each(3));
  EXPECT_TRUE(harness.job->gauges.noise_scale_valid);
}

// Results carry the k that they were summed with, in all shards alike, also when it changes with
// every step.
TEST(FastestK, AllShardsUseOneKWhenItChangesEveryStep) {
  Harness harness({.world_size = 4,
                   .chunk_count = 256,
                   .shard_count = 4,
                   .policy = {.kind = PolicyKind::kSaina,
                              .k = 1,
                              .sign_threshold_permille = 0,
                              .count_threshold = 1,
                              .round_steps = 1}});
  harness.pass_full_steps();
  std::vector<std::uint16_t> seen;
  for (Step step = 3; step <= 6; ++step) {
    for (ChunkIndex chunk = 0; chunk < 256; ++chunk)
      for (std::uint16_t rank = 0; rank < 4; ++rank)
        harness.contribute<float>(rank, step, chunk, {1});
    std::uint16_t k = 0;
    for (const Sent& each : harness.drain(PacketType::kResult)) {
      if (k == 0) k = result(each).k;
      EXPECT_EQ(result(each).k, k);
      EXPECT_EQ(result(each).step, step);
    }
    seen.push_back(k);
  }
  EXPECT_THAT(seen, ElementsAre(2, 3, 4, 4)) << "rises with every compared round, never above n";
}

}  // namespace
}  // namespace sluice::agg
