// The send order: most urgent first, first come first served inside a priority.
#include <gtest/gtest.h>

#include <vector>

#include "client/sched/scheduler.h"

namespace sluice::client {
namespace {

constexpr WindowState kAllOpen{.open_shards = ~std::uint64_t{0}};

struct Bench {
  explicit Bench(Schedule schedule, std::uint16_t shards = 1)
      : scheduler({.policy = schedule},
                  {.shard_count = shards, .chunk_count = 1024, .chunk_bytes = 1344}) {}

  void push(ChunkIndex chunk, Priority priority) { scheduler.push(chunk, priority, 0); }
  std::vector<ChunkIndex> drain(WindowState windows = kAllOpen) {
    std::vector<ChunkIndex> order;
    Choice choice;
    while (scheduler.next(windows, choice)) order.push_back(choice.chunk);
    return order;
  }

  Scheduler scheduler;
};

TEST(StrictScheduler, HandsOutTheMostUrgentFirstAndFifoInsideAPriority) {
  Bench bench(Schedule::kStrict);
  bench.push(0, 200);
  bench.push(1, 0);
  bench.push(2, 200);
  bench.push(3, 64);
  bench.push(4, 0);
  bench.push(5, 255);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{1, 4, 3, 0, 2, 5}));
}

TEST(StrictScheduler, TakesAChunkBackAtItsOwnPriority) {
  Bench bench(Schedule::kStrict);
  bench.push(0, 1);
  bench.push(1, 1);
  bench.push(2, 5);
  Choice choice;
  ASSERT_TRUE(bench.scheduler.next(kAllOpen, choice));
  EXPECT_EQ(choice.chunk, 0u);
  bench.scheduler.push_again(0, 1);  // lost: again behind the others of its priority
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{1, 0, 2}));
}

TEST(StrictScheduler, IsEmptyAfterClear) {
  Bench bench(Schedule::kStrict);
  bench.push(0, 1);
  bench.push(1, 130);
  bench.scheduler.clear();
  EXPECT_TRUE(bench.drain().empty());
  bench.push(1, 130);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{1}));
}

TEST(StrictScheduler, PassesOverAShardThatMayNotSend) {
  Bench bench(Schedule::kStrict, 2);
  bench.push(0, 0);                // shard 0
  bench.push(kChunksPerBlock, 9);  // shard 1
  EXPECT_EQ(bench.drain({.open_shards = 0b10}), (std::vector<ChunkIndex>{kChunksPerBlock}));
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{0}));
}

TEST(StrictScheduler, ServesEquallyUrgentShardsInTurn) {
  Bench bench(Schedule::kStrict, 2);
  bench.push(0, 3);
  bench.push(1, 3);
  bench.push(kChunksPerBlock, 3);
  bench.push(kChunksPerBlock + 1, 3);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{0, kChunksPerBlock, 1, kChunksPerBlock + 1}));
}

TEST(StrictScheduler, SaysWhichChunkIsTheLastOfItsShard) {
  Bench bench(Schedule::kStrict, 2);
  bench.push(0, 3);
  bench.push(1, 4);
  bench.push(kChunksPerBlock, 3);
  std::vector<bool> last;
  Choice choice;
  while (bench.scheduler.next(kAllOpen, choice)) last.push_back(choice.last);
  EXPECT_EQ(last, (std::vector<bool>{false, true, true}));
}

TEST(StrictScheduler, LetsOnlyWhatIsMoreUrgentThanWhatFillsTheWindowUseItsReserve) {
  constexpr WindowState kReserve{.urgent_shards = 1};
  Bench bench(Schedule::kStrict);
  bench.push(0, 100);
  bench.drain();  // now the window is full
  bench.push(1, 100);
  bench.push(2, 101);
  EXPECT_TRUE(bench.drain(kReserve).empty());
  bench.push(3, 99);
  bench.push(4, 5);
  bench.push(5, 99);
  EXPECT_EQ(bench.drain(kReserve), (std::vector<ChunkIndex>{4, 3, 5}));
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{1, 2}));
}

TEST(FifoScheduler, OvertakesNothingWhenTheWindowIsFull) {
  Bench bench(Schedule::kFifo);
  bench.push(0, 100);
  bench.drain();
  bench.push(1, 0);
  EXPECT_TRUE(bench.drain({.urgent_shards = 1}).empty());
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{1}));
}

TEST(FifoScheduler, IgnoresPriority) {
  Bench bench(Schedule::kFifo);
  bench.push(2, 9);
  bench.push(0, 0);
  bench.push(1, 5);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{2, 0, 1}));
}

}  // namespace
}  // namespace sluice::client
