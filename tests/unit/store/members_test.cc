// Members of a store that die, leave, return and join.
#include <gtest/gtest.h>

#include "tests/unit/store/subject.h"

namespace sluice::test {
namespace {

using agg::StoreShard;
using agg::StoreSpec;
using State = StoreShard::MemberState;

StoreSpec spec_of(std::uint16_t workers, Step bound) {
  return {.world_size = workers, .bound = bound};
}

TEST(StoreMembers, WhoeverWaitedForADeadMemberIsWoken) {
  for (const Step bound : {0u, 2u}) {
    StoreSubject store(spec_of(3, bound), {1, 1}, 0.0f, 2);
    for (const ChunkIndex chunk : {0u, kChunksPerBlock}) {
      store.push(0, 1, chunk, 6);
      store.push(1, 1, chunk, 6);
    }
    store.pull(0, 0, 1, 1);
    store.pull(1, 1, 1, 1);
    EXPECT_TRUE(store.answers().empty());
    store.remove(2);
    const auto answers = store.answers();
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_EQ(answers[0].clock, 1u);
    EXPECT_EQ(answers[0].values[0], bound == 0 ? 6 : 4);  // of two gathered; of three live ones
  }
}

TEST(StoreMembers, WhatADeadMemberPushedCountsInTheChunksThatHaveIt) {
  StoreSubject store(spec_of(2, 0), {2});
  store.push(1, 1, 0, 4);
  store.remove(1);
  EXPECT_EQ(store.push(0, 1, 0, 8), Verdict::kFolded);
  EXPECT_EQ(store.push(0, 1, 1, 8), Verdict::kCompleted);
  EXPECT_EQ(store.value(0), 6);
  EXPECT_EQ(store.value(1), 8);
}

// A process may join, push and die any number of times while another member holds the clock.
TEST(StoreMembers, APlaceThatIsTakenAgainAndAgainAtOneClockLeavesTheMeanThatOfAllPushes) {
  for (const bool in_rank_order : {false, true}) {
    StoreSpec spec = spec_of(2, 0);
    spec.in_rank_order = in_rank_order;
    StoreSubject store(spec, {1});
    constexpr int kPushes = 65'536;
    for (int i = 0; i < kPushes; ++i) {
      ASSERT_EQ(store.push(0, 1, 0, 3), Verdict::kFolded);
      store.remove(0);
      ASSERT_EQ(store.join(0), 1u);
    }
    ASSERT_EQ(store.push(1, 1, 0, 0), Verdict::kFolded);
    ASSERT_EQ(store.push(0, 1, 0, 3), Verdict::kCompleted);
    EXPECT_EQ(store.value(0), 3.0f * (kPushes + 1) / (kPushes + 2));
  }
}

TEST(StoreMembers, TheDeadPushAndPullNothingMore) {
  StoreSubject store(spec_of(2, 1), {1});
  store.pull(1, 0, 0);
  store.shard(0).remove(Rank{1});
  EXPECT_EQ(store.push(1, 1, 0, 4), Verdict::kNotAllowed);
  EXPECT_EQ(store.pull(1, 0, 0), Verdict::kNotAllowed);
  store.work();
  EXPECT_TRUE(store.answers().empty());
}

TEST(StoreMembers, ALastMemberThatDiesLeavesTheStoreToThoseWhoCome) {
  StoreSubject store(spec_of(2, 0), {1}, 1.0f);
  store.push(0, 1, 0, 2);
  store.push(1, 1, 0, 2);
  store.push(0, 2, 0, 6);  // and the other dies before its own
  store.remove(1);
  EXPECT_EQ(store.shard(0).clock(0), 2u);
  store.remove(0);
  EXPECT_EQ(store.value(0), 9);
  EXPECT_EQ(store.join(1), 3u);
  store.pull(1, 0, 2, 2);
  ASSERT_EQ(store.answers().size(), 1u);
  EXPECT_EQ(store.push(1, 3, 0, 1), Verdict::kCompleted);
  EXPECT_EQ(store.value(0), 10);
}

TEST(StoreMembers, AJoinerStartsBehindTheGreatestClockOfAllShardsAndHoldsUpNobodyBefore) {
  StoreSubject store(spec_of(2, 3), {1, 1}, 0.0f, 2);
  store.remove(1);
  for (Step iteration = 1; iteration <= 4; ++iteration) store.push(0, iteration, 0, 1);
  store.push(0, 1, kChunksPerBlock, 1);
  EXPECT_EQ(store.join(1), 5u);
  EXPECT_EQ(store.shard(1).pushed(1, Rank{1}), 4u);
  EXPECT_EQ(store.shard(1).clock(1), 1u);
  for (Step iteration = 2; iteration <= 4; ++iteration)
    EXPECT_EQ(store.push(0, iteration, kChunksPerBlock, 1), Verdict::kCompleted);
  EXPECT_EQ(store.push(1, 4, 0, 1), Verdict::kDuplicate);
  EXPECT_EQ(store.push(1, 5, 0, 2), Verdict::kFolded);
  EXPECT_EQ(store.value(0), 5);
}

TEST(StoreMembers, WhileAMemberHoldsTheClocksNoneOfThemMoves) {
  StoreSubject store(spec_of(2, 0), {1});
  store.remove(1);
  store.push(0, 1, 0, 2);
  StoreShard& shard = store.shard(0);
  shard.hold(Rank{1});
  EXPECT_EQ(shard.state(Rank{1}), State::kHolding);
  store.work();
  EXPECT_EQ(shard.state(Rank{1}), State::kHeld);
  EXPECT_EQ(store.push(0, 2, 0, 4), Verdict::kFolded);
  EXPECT_EQ(store.value(0), 2);
  EXPECT_EQ(store.push(1, 2, 0, 4), Verdict::kNotAllowed);
  shard.start(Rank{1}, 3);  // as if another shard were at 2
  store.work();
  EXPECT_EQ(shard.clock(0), 2u);
  EXPECT_EQ(store.value(0), 6);
}

TEST(StoreMembers, AClockOfWhichAChunkIsAppliedIsOverForAJoiner) {
  StoreSubject store(spec_of(2, 0), {2});
  store.remove(1);
  store.push(0, 1, 0, 2);  // alone, so applied at once
  EXPECT_EQ(store.join(1), 2u);
  EXPECT_EQ(store.push(0, 1, 1, 2), Verdict::kCompleted);
  EXPECT_EQ(store.push(0, 2, 0, 4), Verdict::kFolded);
  EXPECT_EQ(store.push(1, 2, 0, 8), Verdict::kFolded);
  EXPECT_EQ(store.value(0), 8);
}

TEST(StoreMembers, AMemberThatDiesWhileItJoinsIsForgotten) {
  StoreSubject store(spec_of(2, 1), {1});
  store.remove(1);
  StoreShard& shard = store.shard(0);
  shard.hold(Rank{1});
  shard.remove(Rank{1});
  EXPECT_EQ(shard.state(Rank{1}), State::kLeaving);
  store.work();
  EXPECT_EQ(shard.state(Rank{1}), State::kGone);
  EXPECT_EQ(store.push(0, 1, 0, 2), Verdict::kCompleted);
  EXPECT_EQ(store.join(1), 2u);
  EXPECT_EQ(shard.state(Rank{1}), State::kLive);
}

TEST(StoreMembers, AProcessMayTakeTheRankBeforeTheOneBeforeItIsOut) {
  StoreSubject store(spec_of(2, 1), std::vector<std::uint32_t>(600, 1));
  StoreShard& shard = store.shard(0);
  for (int processes = 0; processes < 5; ++processes) {  // none lives long enough to begin
    shard.remove(Rank{1});
    shard.hold(Rank{1});
    shard.poll_work();
  }
  EXPECT_EQ(shard.state(Rank{1}), State::kHolding);
  store.work();
  EXPECT_EQ(shard.state(Rank{1}), State::kHeld);
  shard.start(Rank{1}, 1);
  store.work();
  EXPECT_EQ(shard.state(Rank{1}), State::kLive);
  EXPECT_EQ(shard.at_clock(599), 2);
}

TEST(StoreMembers, ManyBlocksAreChangedAFewAtATime) {
  StoreSubject store(spec_of(2, 0), std::vector<std::uint32_t>(600, 1));
  store.shard(0).remove(Rank{1});
  int rounds = 1;
  while (store.shard(0).poll_work()) ++rounds;
  EXPECT_EQ(rounds, 3);
  EXPECT_EQ(store.shard(0).at_clock(599), 1);
}

// One change is one row a block and, where pushes are gathered, that row's bits: whatever the
// world.
TEST(StoreMembers, AChangeCostsTheOneRanksRowsAndBits) {
  for (const Step bound : {0u, 2u}) {
    for (const std::uint16_t workers : {4, 400}) {
      StoreSubject store(spec_of(workers, bound), std::vector<std::uint32_t>(10, 2));
      store.remove(1);
      EXPECT_EQ(store.shard(0).rows_swept(), bound == 0 ? 10 * (1 + kChunksPerBlock) : 10)
          << workers;
    }
  }
}

TEST(StoreMembers, ClocksThatMoveAreSweptAFewAtATime) {
  constexpr std::uint16_t kWorkers = 1000;
  constexpr std::uint32_t kBlocks = 40;
  StoreSubject store(spec_of(kWorkers, 0), std::vector<std::uint32_t>(kBlocks, 1));
  for (std::uint16_t rank = 1; rank < kWorkers; ++rank)
    for (std::uint32_t block = 0; block < kBlocks; ++block)
      store.push(rank, 1, block * kChunksPerBlock, 1);
  StoreShard& shard = store.shard(0);
  shard.remove(Rank{0});
  const std::uint64_t a_block = 1 + kChunksPerBlock + 2 * kWorkers;
  for (bool more = true; more;) {
    const std::uint64_t before = shard.rows_swept();
    more = shard.poll_work();
    EXPECT_LE(shard.rows_swept() - before, 16'384 + a_block);
  }
  EXPECT_EQ(shard.rows_swept(), kBlocks * a_block);
  EXPECT_EQ(shard.clock(kBlocks - 1), 1u);
}

}  // namespace
}  // namespace sluice::test
