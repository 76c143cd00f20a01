#include "client/core/handover/resumption.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::client {
namespace {

constexpr ChunkIndex kChunks = 70;

using Words = std::vector<std::uint64_t>;

Words bits(const std::vector<ChunkIndex>& chunks) {
  Words words(Resumption::words(kChunks));
  for (const ChunkIndex chunk : chunks) words[chunk / 64] |= chunk_bit(chunk);
  return words;
}

// All members of a job, each of which hears all states.
struct Members {
  std::vector<Resumption> all;
  bool ok = true;

  Members(Step first_step, const std::vector<Resumption::State>& states) {
    const auto count = static_cast<std::uint16_t>(states.size());
    for (std::uint16_t self = 0; self < count; ++self)
      all.emplace_back(count, Rank{self}, kChunks, first_step, states[self]);
    for (std::uint16_t rank = 0; rank < count && ok; ++rank) {
      const std::span<const std::uint8_t> sent = all[rank].buffer();
      for (Resumption& one : all) {
        EXPECT_EQ(one.next(), Rank{rank});
        if (&one != &all[rank]) std::ranges::copy(sent, one.buffer().begin());
      }
      for (Resumption& one : all) ok &= one.take();
    }
  }
  std::vector<std::uint16_t> givers(ChunkIndex chunk) const {
    std::vector<std::uint16_t> found;
    for (std::uint16_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].gives(chunk)) found.push_back(rank);
    return found;
  }
};

TEST(Resumption, TheFirstMemberThatHasAResultGivesIt) {
  const Members members(7, {{.step = 7, .results = bits({0, 65})},
                            {.step = 7, .results = bits({})},
                            {.step = 7, .results = bits({0, 64})}});
  ASSERT_TRUE(members.ok);
  EXPECT_EQ(members.givers(0), std::vector<std::uint16_t>{0});
  EXPECT_EQ(members.givers(64), std::vector<std::uint16_t>{2});
  EXPECT_EQ(members.givers(65), std::vector<std::uint16_t>{0});
  EXPECT_TRUE(members.givers(1).empty());
  for (const Resumption& one : members.all) {
    EXPECT_TRUE(one.is_over());
    EXPECT_TRUE(one.is_held(0) && one.is_held(64) && one.is_held(65));
    EXPECT_FALSE(one.is_held(1) || one.is_ahead());
  }
  EXPECT_TRUE(members.all[0].has(0));
  EXPECT_FALSE(members.all[1].has(0));
}

TEST(Resumption, WhoHasEndedTheStepHasAllOfItsResults) {
  const Members members(7, {{.step = 7, .results = bits({3})}, {.step = 8, .results = bits({})}});
  ASSERT_TRUE(members.ok);
  for (ChunkIndex chunk = 0; chunk < kChunks; ++chunk) {
    const bool all_have = chunk == 3;
    EXPECT_EQ(members.givers(chunk),
              all_have ? std::vector<std::uint16_t>{} : std::vector<std::uint16_t>{1});
    EXPECT_TRUE(members.all[0].is_held(chunk));
    EXPECT_TRUE(members.all[1].has(chunk));
  }
  EXPECT_TRUE(members.all[1].is_ahead());
}

TEST(Resumption, ThatAllHaveEndedTheStepMakesNobodyGive) {
  const Members members(7, {{.step = 8, .results = bits({})}, {.step = 8, .results = bits({})}});
  ASSERT_TRUE(members.ok);
  for (ChunkIndex chunk = 0; chunk < kChunks; ++chunk) EXPECT_TRUE(members.givers(chunk).empty());
}

TEST(Resumption, ACollectiveThatIsOverForOneIsOverForAll) {
  const Members members(1, {{.step = 1, .calls = 4, .results = bits({})},
                            {.step = 1, .calls = 5, .results = bits({})}});
  ASSERT_TRUE(members.ok);
  EXPECT_TRUE(members.all[0].is_call_over());
  EXPECT_FALSE(members.all[1].is_call_over());
}

TEST(Resumption, AMemberOfAnotherHistoryIsRefused) {
  EXPECT_FALSE(Members(7, {{.step = 7, .results = bits({})}, {.step = 9, .results = bits({})}}).ok);
  EXPECT_FALSE(Members(7, {{.step = 7, .results = bits({})}, {.step = 6, .results = bits({})}}).ok);
  EXPECT_FALSE(Members(7, {{.step = 7, .calls = 1, .results = bits({})},
                           {.step = 7, .calls = 3, .results = bits({})}})
                   .ok);
}

}  // namespace
}  // namespace sluice::client
