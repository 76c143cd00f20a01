// What the first packet of a collective may fix: nothing before all of it has been checked.
#include <gmock/gmock.h>

#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using ::testing::ElementsAre;

DataOptions barrier() {
  return {.stream = StreamId::kCollectives,
          .weight = wire::pack_collective(CollectiveKind::kBarrier, 0),
          .nil = true};
}

DataOptions broadcast(std::uint16_t root, std::uint32_t size_bytes) {
  return {.stream = StreamId::kCollectives,
          .weight = wire::pack_collective(CollectiveKind::kBroadcast, root),
          .base_step = size_bytes,
          .dtype = Dtype::kBytes};
}

// Ranks 0 and 1 hold a barrier in step 1 as if nothing had come before.
void expect_a_barrier_of_two(Harness& harness) {
  EXPECT_EQ(harness.contribute<char>(0, 1, 0, {}, barrier()), Verdict::kNilFolded);
  EXPECT_EQ(harness.contribute<char>(1, 1, 0, {}, barrier()), Verdict::kCompleted);
  ShardEvent event;
  EXPECT_FALSE(harness.shards[0]->poll_event(event)) << "nobody disagrees";
}

TEST(Collective, IsNotFixedByAChunkBeyondItsSize) {
  Harness harness;
  EXPECT_EQ(harness.contribute<char>(1, 1, 1, std::vector<char>(8), broadcast(1, 8)),
            Verdict::kBadChunk);
  expect_a_barrier_of_two(harness);
}

TEST(Collective, IsNotFixedByAPayloadOfTheWrongSize) {
  Harness harness;
  EXPECT_EQ(harness.contribute<char>(1, 1, 0, std::vector<char>(7), broadcast(1, 8)),
            Verdict::kShapeMismatch);
  expect_a_barrier_of_two(harness);
}

TEST(Collective, IsNotFixedByARootOutsideTheRecord) {
  Harness harness({.world_size = 3});
  harness.kill(2);
  EXPECT_EQ(harness.contribute<char>(2, 1, 0, std::vector<char>(8), broadcast(2, 8)),
            Verdict::kNotAllowed);
  expect_a_barrier_of_two(harness);
}

TEST(Collective, IsNotFixedByARankOutsideTheRecord) {
  Harness harness({.world_size = 3});
  harness.kill(2);
  EXPECT_EQ(harness.contribute<char>(2, 1, 0, {}, barrier()), Verdict::kNotAllowed);
  EXPECT_EQ(harness.contribute<char>(1, 1, 0, std::vector<char>(8), broadcast(1, 8)),
            Verdict::kCompleted);
  ShardEvent event;
  EXPECT_FALSE(harness.shards[0]->poll_event(event)) << "nobody disagrees";
}

TEST(Collective, ARankOutsideTheRecordCannotEndTheJobByDisagreeing) {
  Harness harness({.world_size = 3});
  harness.kill(2);
  EXPECT_EQ(harness.contribute<char>(0, 1, 0, {}, barrier()), Verdict::kNilFolded);
  EXPECT_EQ(harness.contribute<char>(2, 1, 0, std::vector<char>(8), broadcast(2, 8)),
            Verdict::kNotAllowed);
  ShardEvent event;
  EXPECT_FALSE(harness.shards[0]->poll_event(event));
  EXPECT_EQ(harness.contribute<char>(1, 1, 0, {}, barrier()), Verdict::kCompleted);
}

TEST(Collective, AReaderOfABroadcastThatMeantABarrierStillDisagrees) {
  Harness harness;
  harness.contribute<char>(1, 1, 0, std::vector<char>(64), broadcast(1, 65));
  EXPECT_EQ(harness.contribute<char>(0, 1, 1, {}, barrier()), Verdict::kCollectiveMismatch);
  ShardEvent event;
  ASSERT_TRUE(harness.shards[0]->poll_event(event));
  EXPECT_EQ(event.kind, ShardEvent::Kind::kCollectiveMismatch);
  EXPECT_THAT(event.expected,
              ElementsAre(wire::pack_collective(CollectiveKind::kBroadcast, 1), 65));
}

}  // namespace
}  // namespace sluice::agg
