// A store that goes on from an appliance that is lost: which values it begins with, and what of its
// members' pushes counts again.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "aggregator/core/mask.h"
#include "aggregator/store/store.h"

namespace sluice::test {
namespace {

using agg::StoreShard;
using Stated = StoreShard::Awaited::Stated;

constexpr std::uint32_t kElems = 4;

// A block of two chunks. Rank 3 of four is away.
class Resuming : public testing::Test {
 protected:
  explicit Resuming(Step bound = 2)
      : shard({.world_size = 4,
               .block_count = 1,
               .max_elems = kElems,
               .bound = bound,
               .update = {},
               .resumes = true},
              ShardId{0}, 1) {
    const std::uint64_t ranks = 0b0111;
    shard.resume({&ranks, 1});
  }

  Verdict state(std::uint16_t rank, Step pushed, bool pushes, StoreVersion first,
                StoreVersion second) {
    agg::StoreCopies copies{
        .rank = Rank{rank}, .pushed = pushed, .pushes = pushes, .chunk_count = 2};
    copies.versions[0] = first;
    copies.versions[1] = second;
    return shard.state(copies);
  }
  Verdict give(std::uint16_t rank, ChunkIndex chunk, StoreVersion version, float value,
               std::uint64_t odd, Step clock = 0) {
    const std::vector<float> values(kElems, value);
    return shard.give({.rank = Rank{rank},
                       .chunk = chunk,
                       .clock = clock,
                       .version = version,
                       .odd = {&odd, gathers ? 0u : 1u},
                       .values = bytes(values)});
  }
  Verdict push(std::uint16_t rank, Step iteration, ChunkIndex chunk, float value) {
    const std::vector<float> values(kElems, value);
    return shard.push({.rank = Rank{rank},
                       .iteration = iteration,
                       .chunk = chunk,
                       .rate = 1,
                       .block_chunks = 2,
                       .values = bytes(values)});
  }
  static std::span<const std::uint8_t> bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)};
  }

  StoreShard shard;
  bool gathers = false;
};

TEST_F(Resuming, TheFirstMemberWithTheNewestVersionOfAChunkIsAskedForIt) {
  EXPECT_EQ(shard.awaited(0, Rank{0}).stated, Stated::kNothing);
  EXPECT_EQ(state(1, 4, false, 9, 12), Verdict::kFolded);
  EXPECT_EQ(state(2, 4, false, 9, 11), Verdict::kFolded);
  EXPECT_EQ(shard.awaited(0, Rank{1}).stated, Stated::kByThisMember);
  EXPECT_EQ(give(1, 0, 9, 1, 0), Verdict::kNotAllowed) << "another one may have a newer version";
  EXPECT_EQ(state(0, 4, false, 9, 10), Verdict::kFolded);
  EXPECT_EQ(state(0, 4, false, 9, 10), Verdict::kDuplicate);
  EXPECT_EQ(state(3, 4, false, 99, 99), Verdict::kNotAllowed) << "it is no member";
  EXPECT_EQ(shard.awaited(0, Rank{0}).chunks, 0b01u);
  EXPECT_EQ(shard.awaited(0, Rank{1}).chunks, 0b10u);
  EXPECT_EQ(shard.awaited(0, Rank{2}).chunks, 0u);

  EXPECT_EQ(give(2, 0, 9, 1, 0), Verdict::kNotAllowed) << "it was not asked";
  EXPECT_EQ(give(0, 0, 8, 1, 0), Verdict::kNotAllowed) << "it was asked for another version";
  EXPECT_EQ(give(0, 0, 9, 1.5, 0), Verdict::kFolded);
  EXPECT_EQ(push(0, 5, 0, 1), Verdict::kNotStarted);
  EXPECT_TRUE(shard.resumes());
  EXPECT_EQ(give(1, 1, 12, 2.5, 0), Verdict::kFolded);
  EXPECT_FALSE(shard.resumes());
  EXPECT_EQ(shard.parameters(0)[0], 1.5f);
  EXPECT_EQ(shard.parameters(1)[0], 2.5f);
  EXPECT_EQ(shard.clock(0), 4u);
}

TEST_F(Resuming, WhatIsStatedOrGivenTooLateChangesNothing) {
  for (std::uint16_t rank = 0; rank < 3; ++rank) state(rank, 4, false, 9, 0);
  give(0, 0, 9, 1.5, 0);
  EXPECT_FALSE(shard.resumes());
  EXPECT_EQ(state(0, 4, false, 99, 99), Verdict::kNotAllowed);
  EXPECT_EQ(give(0, 0, 9, 3, 0), Verdict::kDuplicate);
  EXPECT_EQ(give(0, 1, 9, 3, 0), Verdict::kDuplicate);
  shard.hold(Rank{3});
  while (shard.poll_work()) continue;
  shard.start(Rank{3}, 5);
  while (shard.poll_work()) continue;
  EXPECT_EQ(state(3, 4, false, 99, 99), Verdict::kNotAllowed) << "it came behind the exchange";
  EXPECT_EQ(shard.awaited(0, Rank{3}).stated, Stated::kNothing);
  EXPECT_EQ(shard.parameters(0)[0], 1.5f);
}

TEST_F(Resuming, APushThatIsInTheNewestValuesCountsNoSecondTime) {
  // Ranks 0 and 1 have pushed iteration 5 after 4; in chunk 0 is that of rank 0 alone.
  state(0, 4, true, 7, 7);
  state(1, 4, true, 8, 7);
  state(2, 4, false, 7, 7);
  give(1, 0, 8, 0, 0b0001);
  give(0, 1, 7, 0, 0b0000);
  EXPECT_EQ(shard.counted(0, Rank{0}, 5), 0b01u);
  EXPECT_EQ(shard.counted(0, Rank{1}, 5), 0b00u);
  EXPECT_EQ(push(0, 5, 0, 3), Verdict::kDuplicate);
  EXPECT_EQ(push(0, 5, 1, 3), Verdict::kFolded);
  EXPECT_EQ(push(1, 5, 0, 3), Verdict::kFolded);
  EXPECT_EQ(shard.pushed(0, Rank{0}), 5u);
  EXPECT_EQ(shard.clock(0), 4u) << "rank 2 has not pushed";
  EXPECT_EQ(shard.parameters(0)[0], 1.0f) << "a third of the push of rank 1";
}

TEST_F(Resuming, InitialValuesThatNobodyHasComeAnew) {
  for (std::uint16_t rank = 0; rank < 3; ++rank) state(rank, 0, false, rank == 1 ? 1 : 0, 0);
  EXPECT_EQ(shard.awaited(0, Rank{1}).chunks, 0b01u);
  EXPECT_EQ(give(1, 0, kUnseenVersion, 1, 0), Verdict::kFolded);
  EXPECT_FALSE(shard.resumes());
  EXPECT_FALSE(shard.has_initial_values());
  EXPECT_EQ(push(0, 0, 0, 8), Verdict::kDuplicate);
  EXPECT_EQ(push(0, 0, 1, 8), Verdict::kCompleted);
  EXPECT_TRUE(shard.has_initial_values());
  EXPECT_EQ(shard.parameters(0)[0], 1.0f);
}

class ResumingAtBound0 : public Resuming {
 protected:
  ResumingAtBound0() : Resuming(0) { gathers = true; }
};

// The clock of a chunk's values says whose pushes are in them.
TEST_F(ResumingAtBound0, ChunksOfTwoClocksGoOnWithTheLesserOne) {
  state(0, 6, true, 9, 8);
  state(1, 6, true, 8, 8);
  state(2, 6, true, 8, 8);
  give(0, 0, 9, 1, 0, 7);
  give(0, 1, 8, 1, 0, 6);
  EXPECT_EQ(shard.clock(0), 6u);
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(push(rank, 7, 0, 3), Verdict::kDuplicate);
    EXPECT_EQ(push(rank, 7, 1, 3), rank == 2 ? Verdict::kCompleted : Verdict::kFolded);
  }
  EXPECT_EQ(shard.clock(0), 7u);
  EXPECT_EQ(shard.parameters(1)[0], 4.0f) << "the mean of what was gathered";
}

// What a member alone can break is its own job.
TEST_F(ResumingAtBound0, ClocksThatNoStoreCanHaveHarmNobodyElse) {
  state(0, 2, true, 9, 8);
  state(1, 60, true, 8, 8);
  state(2, 6, false, 8, 8);
  give(0, 0, 9, 1, 0, 70);
  give(0, 1, 8, 1, 0, 3);
  EXPECT_FALSE(shard.resumes());
  for (Step iteration = 0; iteration < 100; ++iteration)
    for (std::uint16_t rank = 0; rank < 3; ++rank) push(rank, iteration, iteration % 2, 1);
}

}  // namespace
}  // namespace sluice::test
