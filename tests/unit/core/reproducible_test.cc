// Sums in the order of ranks: the same bits for every order of arrival.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "aggregator/core/fold.h"
#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using wire::PacketType;

// Their sum is another one in nearly every order.
constexpr float kValues[] = {1e8F, 1.3F, -1e8F, 0.7F};

std::vector<std::uint8_t> payload_of(const Sent& sent) {
  return {sent.packet.payload().begin(), sent.packet.payload().end()};
}

// The results of all orders in which the ranks can come; of ranks in `nil` without data.
std::set<std::vector<std::uint8_t>> all_orders(bool reproducible,
                                               std::set<std::uint16_t> nil = {}) {
  std::set<std::vector<std::uint8_t>> results;
  std::vector<std::uint16_t> order(std::size(kValues));
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  Harness harness({.world_size = 4, .chunk_count = 1, .reproducible = reproducible});
  Step step = 1;
  do {
    for (const std::uint16_t rank : order) {
      const bool absent = nil.contains(rank);
      std::vector<float> values;
      if (!absent) values = {kValues[rank], -kValues[rank]};
      harness.contribute<float>(rank, step, 0, values, {.nil = absent});
    }
    results.insert(payload_of(harness.drain(PacketType::kResult).at(0)));
    ++step;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(step, 25u);
  return results;
}

TEST(Reproducible, AllOrdersOfArrivalGiveTheSumInTheOrderOfRanks) {
  EXPECT_GT(all_orders(false).size(), 1u) << "the values prove nothing";
  const auto results = all_orders(true);
  ASSERT_EQ(results.size(), 1u);
  const float sum = ((kValues[0] + kValues[1]) + kValues[2]) + kValues[3];
  const float wanted[] = {sum, -sum};
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(wanted);
  EXPECT_EQ(*results.begin(), std::vector<std::uint8_t>(bytes, bytes + sizeof wanted));
}

TEST(Reproducible, MoreRanksThanOnePassTakesAreSummedInTheirOrder) {
  constexpr std::uint16_t kRanks = 2 * kAddendsPerPass + 3;
  const auto value = [](int rank) {
    return std::ldexp(1.3F + static_cast<float>(rank), rank % 30);
  };
  Harness harness({.world_size = kRanks, .chunk_count = 2, .reproducible = true});
  float sum = value(0);
  for (int rank = 1; rank < kRanks; ++rank) sum += value(rank);
  for (Step step = 1; step <= 3; ++step) {  // places are used again
    for (int rank = kRanks - 1; rank >= 0; --rank)
      for (const ChunkIndex chunk : {0u, 1u})
        harness.contribute<float>(static_cast<std::uint16_t>(rank), step, chunk, {value(rank)});
    const auto sent = harness.drain(PacketType::kResult);
    ASSERT_EQ(sent.size(), 2u * kRanks);
    for (const Sent& result : sent) EXPECT_THAT(floats_of(result), testing::ElementsAre(sum));
  }
}

TEST(Reproducible, RanksWithoutDataAreNotWaitedForInTheSum) {
  for (const std::set<std::uint16_t>& nil :
       {std::set<std::uint16_t>{0}, {1}, {3}, {0, 2}, {0, 1, 2}})
    EXPECT_EQ(all_orders(true, nil).size(), 1u) << *nil.begin();
}

TEST(Reproducible, ARankThatGoesInMidStepLetsTheOthersBeSummed) {
  Harness harness({.world_size = 4, .chunk_count = 1, .reproducible = true});
  for (const std::uint16_t rank : {3, 0, 2})
    EXPECT_EQ(harness.contribute<float>(rank, 1, 0, {kValues[rank]}), Verdict::kFolded);
  harness.kill(1);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_FALSE(sent.empty());
  EXPECT_THAT(floats_of(sent[0]), testing::ElementsAre((kValues[0] + kValues[2]) + kValues[3]));
}

TEST(Reproducible, DuplicatesAndOtherShapesOfWaitingPayloadsAreRefused) {
  Harness harness({.world_size = 3, .chunk_count = 1, .reproducible = true});
  EXPECT_EQ(harness.contribute<float>(2, 1, 0, {5}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(2, 1, 0, {6}), Verdict::kDuplicate);
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {1, 2}), Verdict::kShapeMismatch);
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {7}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, {1}), Verdict::kCompleted);
  EXPECT_THAT(floats_of(harness.drain(PacketType::kResult).at(0)), testing::ElementsAre(13));
}

TEST(Reproducible, CostsTheMemoryOfTheOtherRanksPayloads) {
  JobSpec spec{.world_size = 8, .chunk_bytes = 64};
  spec.chunk_counts = {1000, kCollectiveChunks, 0};
  spec.max_elems = {16, 0, 0};
  spec.windows = {kSyncWindow, kMaxWindow, 0};
  const std::size_t without = Job::memory_bytes(spec);
  spec.reproducible = true;
  EXPECT_EQ(Job::memory_bytes(spec) - without, Job::reproducible_bytes(spec));
  EXPECT_EQ(Job::reproducible_bytes(spec), 1000u * (7 * (64 + 8) + 2));
}

}  // namespace
}  // namespace sluice::agg
