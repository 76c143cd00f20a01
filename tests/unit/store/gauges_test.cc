// A store's gauges for operators.
#include <gtest/gtest.h>

#include "tests/unit/store/subject.h"

namespace sluice::test {
namespace {

using agg::StoreGauges;
using agg::StoreSpec;

StoreSpec spec_of(std::uint16_t workers, Step bound) {
  return {.world_size = workers, .block_count = 1, .max_elems = 16, .bound = bound};
}

Step clock_of(StoreSubject& store, std::uint16_t rank, std::uint32_t block = 0) {
  return store.shard(block).gauges().clocks[rank].load();
}

TEST(StoreGauges, ARanksClockIsThatOfItsLastBlock) {
  StoreSubject store(spec_of(2, 3), {1, 2, 1});
  store.push(0, 1, 0, 1);
  store.push(0, 1, 64, 1);
  store.push(0, 1, 128, 1);
  EXPECT_EQ(clock_of(store, 0), 0u);
  store.push(0, 1, 65, 1);
  EXPECT_EQ(clock_of(store, 0), 1u);
  EXPECT_EQ(clock_of(store, 1), 0u);
}

TEST(StoreGauges, LayersMayBePushedAsFarAheadOfOneAnotherAsTheBoundAllows) {
  StoreSubject store(spec_of(2, kNoBound), {1, 1});
  for (Step iteration = 1; iteration <= 3; ++iteration) store.push(0, iteration, 0, 1);
  EXPECT_EQ(clock_of(store, 0), 0u);
  store.push(0, 1, 64, 1);
  EXPECT_EQ(clock_of(store, 0), 1u);
  store.push(0, 2, 64, 1);
  EXPECT_EQ(clock_of(store, 0), 2u);
  store.push(0, 4, 0, 1);
  store.push(0, 3, 64, 1);
  EXPECT_EQ(clock_of(store, 0), 3u);
  store.push(0, 4, 64, 1);
  EXPECT_EQ(clock_of(store, 0), 4u);
}

TEST(StoreGauges, WhoIsGoneHasNoClockAndWhoJoinsBeginsWithThatOfItsFirstIteration) {
  StoreSubject store(spec_of(2, 3), {1, 1});
  for (const ChunkIndex chunk : {0u, 64u}) store.push(0, 1, chunk, 1);
  store.remove(1);
  EXPECT_EQ(clock_of(store, 1), StoreGauges::kNoClock);
  EXPECT_EQ(store.join(1), 2u);
  EXPECT_EQ(clock_of(store, 1), 1u);
  for (const ChunkIndex chunk : {0u, 64u}) store.push(1, 2, chunk, 1);
  EXPECT_EQ(clock_of(store, 1), 2u);
}

TEST(StoreGauges, PullsThatWaitShowHowManyOfWhichLayerAndSinceWhen) {
  StoreSubject store(spec_of(3, 0), {1, 1});
  const StoreGauges& gauges = store.shard(0).gauges();
  EXPECT_EQ(gauges.oldest_parked_ns.load(), 0);
  store.now = 1000;
  store.pull(0, 1, 1);
  store.now = 2000;
  store.pull(0, 0, 1);
  store.now = 3000;
  store.pull(1, 0, 1);
  store.pull(1, 0, 1);  // a copy
  EXPECT_EQ(gauges.parked[0].now.read(), 2u);
  EXPECT_EQ(gauges.parked[1].now.read(), 1u);
  EXPECT_EQ(gauges.oldest_parked_ns.load(), 1000);
  store.now = 21'000;
  for (std::uint16_t rank = 0; rank < 3; ++rank) store.push(rank, 1, 64, 1);
  EXPECT_EQ(gauges.parked[1].now.read(), 0u);
  EXPECT_EQ(gauges.parked[1].ever.read(), 1u);
  EXPECT_EQ(gauges.oldest_parked_ns.load(), 2000);
  EXPECT_EQ(gauges.waits.sum_ns(), 20'000u);
  store.remove(0);  // the rank of the oldest one
  EXPECT_EQ(gauges.oldest_parked_ns.load(), 3000);
  store.pull(1, 0, 2);  // another one in its place waits anew
  EXPECT_EQ(gauges.oldest_parked_ns.load(), 21'000);
  EXPECT_EQ(gauges.parked[0].now.read(), 1u);
  for (Step iteration = 1; iteration <= 2; ++iteration)
    for (const std::uint16_t rank : {1, 2}) store.push(rank, iteration, 0, 1);
  EXPECT_EQ(gauges.parked[0].now.read(), 0u);
  EXPECT_EQ(gauges.oldest_parked_ns.load(), 0);
}

TEST(StoreGauges, StalenessAtReadIsWhatTheReadersOwnIterationsAreAheadOncePull) {
  StoreSubject store(spec_of(2, 3), {2});
  const agg::StalenessHistogram& staleness = store.shard(0).gauges().staleness;
  store.pull(0, 0, 0);
  EXPECT_EQ(store.answers().size(), 2u);
  EXPECT_EQ(staleness.bucket(0), 1u);
  for (Step iteration = 1; iteration <= 3; ++iteration)
    for (const ChunkIndex chunk : {0u, 1u}) store.push(0, iteration, chunk, 1);
  store.pull(0, 0, 0, 3);
  EXPECT_EQ(store.answers().size(), 2u);
  EXPECT_EQ(staleness.bucket(3), 1u);
  EXPECT_EQ(staleness.sum(), 3u);
  agg::StalenessHistogram wide;
  for (const std::uint32_t iterations : {7u, 100u, 101u}) wide.observe(iterations);
  EXPECT_EQ(wide.bucket(7), 1u);
  EXPECT_EQ(wide.bucket(agg::StalenessHistogram::kBuckets - 2), 1u);
  EXPECT_EQ(wide.bucket(agg::StalenessHistogram::kBuckets - 1), 1u);
}

}  // namespace
}  // namespace sluice::test
