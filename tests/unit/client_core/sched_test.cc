// The send order: most urgent first, first come first served inside a priority.
#include <gtest/gtest.h>

#include <vector>

#include "client/sched/scheduler.h"

namespace sluice::client {
namespace {

std::vector<ChunkIndex> drain(Scheduler& queue) {
  std::vector<ChunkIndex> order;
  while (!queue.empty()) order.push_back(queue.pop());
  return order;
}

TEST(StrictScheduler, HandsOutTheMostUrgentFirstAndFifoInsideAPriority) {
  std::vector<ChunkIndex> links(8);
  Scheduler queue(Schedule::kStrict, links);
  queue.push(0, 200);
  queue.push(1, 0);
  queue.push(2, 200);
  queue.push(3, 64);
  queue.push(4, 0);
  queue.push(5, 255);
  EXPECT_EQ(queue.top(), 0);
  EXPECT_EQ(drain(queue), (std::vector<ChunkIndex>{1, 4, 3, 0, 2, 5}));
}

TEST(StrictScheduler, TakesAChunkBackAtItsOwnPriority) {
  std::vector<ChunkIndex> links(4);
  Scheduler queue(Schedule::kStrict, links);
  queue.push(0, 1);
  queue.push(1, 1);
  queue.push(2, 5);
  EXPECT_EQ(queue.pop(), 0u);
  queue.push(0, 1);  // lost: again behind the others of its priority
  EXPECT_EQ(drain(queue), (std::vector<ChunkIndex>{1, 0, 2}));
}

TEST(StrictScheduler, IsEmptyAfterClear) {
  std::vector<ChunkIndex> links(2);
  Scheduler queue(Schedule::kStrict, links);
  queue.push(0, 1);
  queue.push(1, 130);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  queue.push(1, 130);
  EXPECT_EQ(drain(queue), (std::vector<ChunkIndex>{1}));
}

TEST(FifoScheduler, IgnoresPriority) {
  std::vector<ChunkIndex> links(3);
  Scheduler queue(Schedule::kFifo, links);
  queue.push(2, 9);
  queue.push(0, 0);
  queue.push(1, 5);
  EXPECT_EQ(queue.top(), 0);
  EXPECT_EQ(drain(queue), (std::vector<ChunkIndex>{2, 0, 1}));
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace sluice::client
