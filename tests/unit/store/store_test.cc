// One shard of a store, packet by packet: clocks, updates, pulls.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>

#include "tests/unit/store/subject.h"

namespace sluice::test {
namespace {

using agg::StoreAnswer;
using agg::StoreSpec;

StoreSpec spec_of(std::uint16_t workers, Step bound) {
  return {.world_size = workers, .block_count = 1, .max_elems = 16, .bound = bound};
}

TEST(StoreSpec, WithABoundTheStoreRefusesWhatCountsIterationsAndSaysWhy) {
  StoreSpec spec = spec_of(2, 1);
  spec.update = {.rule = UpdateRule::kAdam};
  EXPECT_NE(check_store(spec).message().find("Adam"), std::string::npos);
  spec.update = {.rule = UpdateRule::kSgd, .momentum = 0.9, .nesterov = true};
  EXPECT_FALSE(check_store(spec).ok());
  spec.update = {.rule = UpdateRule::kSgd, .momentum = 0.9};
  EXPECT_TRUE(check_store(spec).ok());
  spec.in_rank_order = true;
  EXPECT_NE(check_store(spec).message().find("order of ranks"), std::string::npos);
  spec.bound = 0;
  EXPECT_TRUE(check_store(spec).ok());
  spec.update = {.rule = UpdateRule::kAdam};
  EXPECT_TRUE(check_store(spec).ok());
  spec.update.beta1 = 1;
  EXPECT_FALSE(check_store(spec).ok());
  spec.update = {};
  EXPECT_TRUE(check_store(spec).ok());
  spec.block_count = 0;
  EXPECT_FALSE(check_store(spec).ok());
  spec = spec_of(2, 0);
  spec.max_elems = 0;
  EXPECT_FALSE(check_store(spec).ok());
}

// Joins hear how far it is, and a job that nobody wants any more costs little.
TEST(Store, ItsMemoryIsMadeInPiecesThatAreCounted) {
  StoreSpec spec = spec_of(4, 0);
  spec.block_count = 300;
  spec.max_elems = 512;
  BuildProgress made;
  const agg::StoreShard shard(spec, ShardId{0}, 2, &made);
  EXPECT_EQ(made.bytes, agg::StoreShard::memory_bytes(spec, ShardId{0}, 2));
  BuildProgress left;
  left.unwanted = true;
  EXPECT_THROW(agg::StoreShard(spec, ShardId{0}, 2, &left), std::bad_alloc);
  EXPECT_LT(left.bytes, made.bytes);
  EXPECT_EQ(left.bytes, std::size_t{16} << 20);
}

TEST(Store, ADeltaCountsAnNthAndIsAppliedAtOnceWhereThereIsABound) {
  StoreSubject store(spec_of(4, 3), {1}, 10.0f);
  EXPECT_EQ(store.push(2, 1, 0, 8), Verdict::kFolded);
  EXPECT_EQ(store.value(0), 12);
  EXPECT_EQ(store.shard(0).clock(0), 0u);
  EXPECT_EQ(store.shard(0).at_clock(0), 3);
}

TEST(Store, WithoutABoundOnStalenessBetweenIterationsDeltasAreAppliedTogetherOnce) {
  StoreSubject store(spec_of(2, 0), {2}, 10.0f);
  EXPECT_EQ(store.push(0, 1, 0, 4), Verdict::kFolded);
  EXPECT_EQ(store.value(0), 10);
  EXPECT_EQ(store.push(1, 1, 0, 8), Verdict::kFolded);
  EXPECT_EQ(store.value(0), 16);
  EXPECT_EQ(store.shard(0).clock(0), 0u);  // the other chunk is to come
  EXPECT_EQ(store.push(0, 1, 1, 4), Verdict::kFolded);
  EXPECT_EQ(store.push(1, 1, 1, 4), Verdict::kCompleted);
  EXPECT_EQ(store.shard(0).clock(0), 1u);
  EXPECT_EQ(store.shard(0).at_clock(0), 2);
}

TEST(Store, APushIsAppliedOnceAndInOrderWhateverTheNetworkDoes) {
  StoreSubject store(spec_of(2, 3), {2});
  EXPECT_EQ(store.push(0, 2, 0, 2), Verdict::kTooNew);
  EXPECT_EQ(store.push(0, 1, 0, 2), Verdict::kFolded);
  EXPECT_EQ(store.push(0, 1, 0, 2), Verdict::kDuplicate);
  EXPECT_EQ(store.push(0, 2, 0, 2), Verdict::kTooNew);  // chunk 1 of the first is missing
  EXPECT_EQ(store.push(0, 1, 1, 2), Verdict::kFolded);
  EXPECT_EQ(store.push(0, 2, 1, 2), Verdict::kFolded);
  EXPECT_EQ(store.push(0, 1, 1, 2), Verdict::kDuplicate);
  EXPECT_EQ(store.value(0), 1);
  EXPECT_EQ(store.value(1), 2);
}

TEST(Store, NobodyRunsAheadOfTheBound) {
  StoreSubject store(spec_of(2, 1), {1});
  EXPECT_EQ(store.push(0, 1, 0, 1), Verdict::kFolded);
  EXPECT_EQ(store.push(0, 2, 0, 1), Verdict::kFolded);
  EXPECT_EQ(store.push(0, 3, 0, 1), Verdict::kTooNew);
  EXPECT_EQ(store.push(1, 1, 0, 1), Verdict::kCompleted);
  EXPECT_EQ(store.push(0, 3, 0, 1), Verdict::kFolded);
  StoreSubject free(spec_of(2, kNoBound), {1});
  for (Step iteration = 1; iteration <= 100; ++iteration)
    EXPECT_EQ(free.push(0, iteration, 0, 1), Verdict::kFolded);
}

TEST(Store, WhatDoesNotFitIsRefusedUnderItsName) {
  StoreSubject store(spec_of(2, 1), {1, 1}, 0.0f, 2);
  EXPECT_EQ(store.push(0, 1, 5, 1), Verdict::kBadChunk);
  EXPECT_EQ(store.push(2, 1, 0, 1), Verdict::kBadRank);
  EXPECT_EQ(store.pull(0, 0, 1, 0, 0b10), Verdict::kBadChunk);
  const std::uint8_t byte = 0;
  EXPECT_EQ(store.shard(0).push({.rank = Rank{0}, .iteration = 1, .values = {&byte, 1}}),
            Verdict::kShapeMismatch);
  EXPECT_EQ(store.shard(1).push({.rank = Rank{0}, .iteration = 1}), Verdict::kWrongShard);
}

TEST(Store, NothingIsReadOrPushedBeforeTheInitialValuesAreThere) {
  StoreSubject store(spec_of(1, 0), {2}, std::nullopt);
  EXPECT_EQ(store.push(0, 1, 0, 1), Verdict::kNotStarted);
  EXPECT_EQ(store.pull(0, 0, 0), Verdict::kProbe);
  EXPECT_EQ(store.push(0, 0, 0, 5), Verdict::kFolded);
  EXPECT_TRUE(store.answers().empty());
  EXPECT_EQ(store.push(0, 0, 1, 6), Verdict::kCompleted);
  EXPECT_EQ(store.push(0, 0, 1, 7), Verdict::kDuplicate);
  const auto answers = store.answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1].values[0], 6);
}

TEST(Store, TheInitialValuesSayWhatTheBlockIs) {
  StoreSubject store(spec_of(1, 0), {2}, std::nullopt);
  std::vector<float> values(17);
  const auto initialise = [&](ChunkIndex chunk, std::uint32_t block_chunks, std::size_t elems) {
    return store.shard(0).push(
        {.chunk = chunk,
         .block_chunks = block_chunks,
         .values = {reinterpret_cast<const std::uint8_t*>(values.data()), elems * 4}});
  };
  EXPECT_EQ(initialise(0, 0, 16), Verdict::kBadChunk);
  EXPECT_EQ(initialise(0, 65, 16), Verdict::kBadChunk);
  EXPECT_EQ(initialise(2, 2, 16), Verdict::kBadChunk);
  EXPECT_EQ(initialise(0, 2, 17), Verdict::kShapeMismatch);
  EXPECT_EQ(initialise(0, 2, 16), Verdict::kFolded);
  EXPECT_EQ(initialise(1, 3, 16), Verdict::kShapeMismatch);
  EXPECT_EQ(initialise(1, 2, 3), Verdict::kCompleted);  // the last of a tensor may be shorter
  EXPECT_EQ(store.shard(0).parameters(1).size(), 3u);
  EXPECT_EQ(store.push(0, 1, 1, 1), Verdict::kShapeMismatch);
  EXPECT_EQ(store.push(0, 1, 2, 1), Verdict::kBadChunk);
}

TEST(Store, WhoseWordsWereLostIsToldWhatHasCome) {
  StoreSubject store(spec_of(2, 0), {2});
  agg::StoreShard& shard = store.shard(0);
  EXPECT_EQ(shard.counted(0, Rank{0}, 0), 0b11u);
  store.push(0, 1, 1, 2);
  EXPECT_EQ(shard.counted(0, Rank{0}, 1), 0b10u);
  EXPECT_EQ(shard.counted(0, Rank{0}, 2), 0u);
  EXPECT_EQ(shard.pull_state(0, Rank{0}, 1).taken, 0u);
  store.pull(0, 0, 1, 1);
  EXPECT_EQ(shard.pull_state(0, Rank{0}, 0).taken, 0u);
  EXPECT_EQ(shard.pull_state(0, Rank{0}, 1).taken, 0b11u);
  EXPECT_EQ(shard.pull_state(0, Rank{0}, 1).ready, 0u);
  StoreAnswer answer;
  EXPECT_FALSE(shard.read(0, Rank{0}, answer));
  std::uint64_t missing = 0;
  shard.find_missing(0, Rank{0}, {&missing, 1});
  EXPECT_EQ(missing, 0b11u);
  store.push(0, 1, 0, 2);
  EXPECT_EQ(shard.counted(0, Rank{0}, 1), 0b11u);
  missing = 0;
  shard.find_missing(0, Rank{0}, {&missing, 1});
  EXPECT_EQ(missing, 0b10u);  // whose push is in is not waited for
  for (const ChunkIndex chunk : {0, 1}) store.push(1, 1, chunk, 4);
  EXPECT_EQ(shard.pull_state(0, Rank{0}, 1).ready, 0u);  // on their way
  EXPECT_EQ(store.answers().size(), 2u);
  EXPECT_EQ(shard.pull_state(0, Rank{0}, 1).ready, 0b11u);
  ASSERT_TRUE(shard.read(1, Rank{0}, answer));
  EXPECT_EQ(answer.values[0], 3);
}

TEST(Store, APullIsParkedUntilItsClockComesAndThenAnsweredOnce) {
  StoreSubject store(spec_of(2, 0), {2});
  EXPECT_EQ(store.pull(0, 0, 1), Verdict::kProbe);
  EXPECT_TRUE(store.answers().empty());
  EXPECT_EQ(store.shard(0).parked(0), 1);
  for (std::uint16_t rank : {0, 1})
    for (ChunkIndex chunk : {0, 1}) store.push(rank, 1, chunk, 2);
  const auto answers = store.answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].clock, 1u);
  EXPECT_EQ(answers[0].values[0], 2);
  EXPECT_EQ(store.shard(0).parked(0), 0);
  EXPECT_TRUE(store.answers().empty());
}

TEST(Store, APullWaitsForThePullersOwnPush) {
  StoreSubject store(spec_of(2, 5), {1});
  store.pull(0, 0, 0, 1);
  EXPECT_TRUE(store.answers().empty());
  store.push(0, 1, 0, 4);
  const auto answers = store.answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].values[0], 2);
  EXPECT_EQ(answers[0].own, 1u);
}

TEST(Store, AnOlderPullThatComesLateChangesNothingAndALostAnswerIsPulledAgain) {
  StoreSubject store(spec_of(1, 0), {2});
  store.pull(0, 0, 0);
  EXPECT_EQ(store.answers().size(), 2u);
  EXPECT_EQ(store.pull(0, 0, 0, 0, 0b10), Verdict::kProbe);
  const auto again = store.answers();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].chunk, 1u);
  store.pull(0, 0, 1);
  EXPECT_EQ(store.pull(0, 0, 0), Verdict::kDuplicate);
  EXPECT_TRUE(store.answers().empty());
  EXPECT_EQ(store.shard(0).parked(0), 1);
}

TEST(Store, WaitersAreServedFirstThenBlocksThatFewHoldBackThenTheFront) {
  StoreSubject store(spec_of(3, 5), {1, 1, 1});
  constexpr ChunkIndex kSecond = kChunksPerBlock, kThird = 2 * kChunksPerBlock;
  store.push(1, 1, kThird, 1);
  store.pull(0, 0, 0);
  store.pull(0, 1, 0);
  store.pull(0, 2, 0);     // two hold its clock back, three the others'
  store.pull(1, 1, 1, 1);  // waits for the pushes of all, so all hold back the next clock
  for (const std::uint16_t rank : {0, 1, 2}) store.push(rank, 1, kSecond, 1);
  const auto answers = store.answers();
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[0].chunk, kSecond);
  EXPECT_EQ(answers[0].rank, Rank{1});
  EXPECT_EQ(answers[1].chunk, kThird);
  EXPECT_EQ(answers[2].chunk, 0u);
  EXPECT_EQ(answers[3].chunk, kSecond);
}

TEST(Store, TheFrontIsWhatThePullersSay) {
  StoreSubject store(spec_of(1, 5), {1, 1, 1});
  const std::array<Priority, 3> priorities{1, 2, 0};
  for (std::uint32_t block : {0u, 1u, 2u})
    store.shard(block).pull(
        {.rank = Rank{0}, .block = block, .chunks = 1, .priority = priorities[block]});
  std::vector<ChunkIndex> chunks;
  for (const StoreAnswer& answer : store.answers()) chunks.push_back(answer.chunk);
  EXPECT_EQ(chunks, (std::vector<ChunkIndex>{2 * kChunksPerBlock, 0, kChunksPerBlock}));
}

TEST(Store, SumsInRankOrderDoNotDependOnTheOrderOfArrival) {
  StoreSpec spec = spec_of(3, 0);
  spec.in_rank_order = true;
  const std::vector<float> values{1e8f, -1e8f, 3.0f};
  std::vector<float> found;
  for (const auto& order : {std::vector<std::uint16_t>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    StoreSubject store(spec, {1});
    for (const std::uint16_t rank : order) store.push(rank, 1, 0, values[rank]);
    found.push_back(store.value(0));
  }
  EXPECT_EQ(found, std::vector<float>(3, 1.0f));
}

TEST(Store, TheOptimizerAtTheStoreTakesTheMeanOnceAClock) {
  StoreSpec spec = spec_of(2, 0);
  spec.update = {.rule = UpdateRule::kSgd, .momentum = 0.5};
  StoreSubject store(spec, {1}, 10.0f);
  store.push(0, 1, 0, 2, 0.5);
  store.push(1, 1, 0, 6, 0.5);
  EXPECT_EQ(store.value(0), 8);  // 10 - 0.5 * 4
  store.push(0, 2, 0, 2, 0.25);
  store.push(1, 2, 0, 2, 0.25);
  EXPECT_EQ(store.value(0), 7);  // momentum 0.5 * 4 + 2
}

TEST(Store, AClocksRateIsThatOfTheFirstPushInTheBlockAndTheNextClockHasItsOwn) {
  StoreSpec spec = spec_of(2, 0);
  spec.update = {.rule = UpdateRule::kSgd};
  StoreSubject store(spec, {2}, 10.0f);
  store.push(0, 1, 1, 4, 0.5);
  for (const std::uint16_t rank : {1, 0}) store.push(rank, 1, 0, 4, 0.25);
  store.push(1, 1, 1, 4, 0.25);
  EXPECT_EQ(store.value(0), 8);  // 10 - 0.5 * 4
  EXPECT_EQ(store.value(1), 8);
  for (const std::uint16_t rank : {1, 0}) store.push(rank, 2, 0, 4, 0.25);
  EXPECT_EQ(store.value(0), 7);
}

// The kernel gives a page at its first use, which takes longer than a packet may.
// As many come in days from a thousand workers, and in an hour from one that means no good.
TEST(Store, AChunkIsUpdatedOnAfterMoreUpdatesThan32BitsCount) {
  StoreSpec spec = spec_of(1, 1);
  spec.max_elems = 1;
  agg::StoreShard store(spec, ShardId{0}, 1, nullptr, UINT32_MAX);
  const float delta = 1;
  const auto push = [&](Step iteration) {
    return store.push({.rank = Rank{0},
                       .iteration = iteration,
                       .rate = 1,
                       .block_chunks = 1,
                       .values = {reinterpret_cast<const std::uint8_t*>(&delta), sizeof delta}});
  };
  ASSERT_EQ(push(0), Verdict::kCompleted);
  EXPECT_EQ(push(1), Verdict::kCompleted);
  EXPECT_EQ(push(2), Verdict::kCompleted);
  EXPECT_EQ(store.parameters(0)[0], 3);
}

TEST(Store, AllOfItsMemoryIsTouchedBeforeTheFirstPacket) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "what the sanitizer notes of memory has pages of its own";
#endif
  constexpr std::uint16_t kWorkers = 64;
  constexpr std::uint32_t kBlocks = 512;
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  for (const Step bound : {0u, 2u}) {
    StoreSubject store(spec_of(kWorkers, bound), std::vector<std::uint32_t>(kBlocks, 1),
                       std::nullopt);
    for (const Step iteration : {0u, 1u}) {
      const auto before = faults();
      for (std::uint32_t block = 0; block < kBlocks; ++block) {
        const std::uint16_t pushers = iteration == 0 ? 1 : kWorkers;
        for (std::uint16_t rank = 0; rank < pushers; ++rank)
          store.push(rank, iteration, block * kChunksPerBlock, 1);
        for (std::uint16_t rank = 0; rank < kWorkers; ++rank)
          store.pull(rank, block, iteration, iteration);
      }
      EXPECT_TRUE(store.shard(0).has_answers());
      EXPECT_LT(faults() - before, 16);  // of pages of code
    }
  }
}

TEST(Store, MemoryIsWhatItsBlocksAndItsOptimizerNeed) {
  StoreSpec spec = spec_of(2, 3);
  const auto bytes = [&] { return agg::StoreShard::memory_bytes(spec, ShardId{0}, 1); };
  const std::size_t plain = bytes();
  EXPECT_GE(plain, 64u * 16 * 4);
  spec.bound = 0;  // what is gathered, which places for it are free, and no masks of ranks
  EXPECT_EQ(bytes() - plain, 64u * (16 * 4 + 4 - 8));
  spec.update.rule = UpdateRule::kAdam;
  EXPECT_EQ(bytes() - plain, 64u * (3 * 16 * 4 + 4 - 8));
}

}  // namespace
}  // namespace sluice::test
