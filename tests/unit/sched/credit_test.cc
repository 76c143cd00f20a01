// Units and credit.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/sched/fake_link.h"

namespace sluice::client {
namespace {

constexpr std::uint64_t kAllOpen = ~std::uint64_t{0};

// Tensors of 8, 4 and 200 chunks of 1,000 bytes; the priority is the tensor's number.
const std::vector<ChunkIndex> kChunks{0, 8, 12, 212};

struct Bench {
  Bench(std::uint64_t unit_packets, std::uint64_t credit_packets, std::uint16_t shards = 1)
      : scheduler({.policy = Schedule::kCredit,
                   .unit_bytes = 1000 * unit_packets,
                   .credit_bytes = 1000 * credit_packets},
                  FakeLink({}, kChunks, shards).setup()) {}

  void push(std::uint32_t tensor) {
    for (ChunkIndex chunk = kChunks[tensor]; chunk < kChunks[tensor + 1]; ++chunk)
      scheduler.push(chunk, static_cast<Priority>(tensor), 0);
  }
  // What leaves now, each packet being in flight from then on.
  std::vector<ChunkIndex> drain(std::uint64_t open_shards = kAllOpen) {
    std::vector<ChunkIndex> chunks;
    while (scheduler.next({.open_shards = open_shards, .in_flight_packets = in_flight}, choice)) {
      chunks.push_back(choice.chunk);
      ++in_flight;
    }
    return chunks;
  }

  Scheduler scheduler;
  Choice choice;
  std::uint32_t in_flight = 0;
};

TEST(CreditScheduler, SendsAUnitThatHasBegunWholeAndTheMostUrgentOneNext) {
  Bench bench(4, 1);  // stop and wait
  bench.push(2);
  ASSERT_EQ(bench.drain(), (std::vector<ChunkIndex>{12, 13, 14, 15}));
  EXPECT_TRUE(bench.choice.last);  // so that the flow asks for feedback
  EXPECT_TRUE(bench.scheduler.waits_for_arrival());
  bench.push(0);
  bench.in_flight = 1;
  EXPECT_TRUE(bench.drain().empty());
  bench.in_flight = 0;
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{0, 1, 2, 3}));
  bench.in_flight = 0;
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{4, 5, 6, 7}));
  bench.in_flight = 0;
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{16, 17, 18, 19}));
}

TEST(CreditScheduler, DoesNotInterruptAUnitForAMoreUrgentOne) {
  Bench bench(4, 1);
  bench.push(2);
  ASSERT_TRUE(bench.scheduler.next({.open_shards = kAllOpen}, bench.choice));
  EXPECT_FALSE(bench.choice.last);
  bench.in_flight = 1;
  bench.push(0);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{13, 14, 15}));
}

TEST(CreditScheduler, BeginsUnitsWhileLessThanTheCreditIsInFlight) {
  Bench bench(4, 6);
  bench.push(2);
  EXPECT_EQ(bench.drain().size(), 8u);  // the second began at 4 in flight, a third would at 8
  bench.in_flight = 5;
  EXPECT_EQ(bench.drain().size(), 4u);
}

TEST(CreditScheduler, NeverCutsAcrossTensors) {
  Bench bench(100, 1);
  bench.push(0);
  bench.push(1);
  EXPECT_EQ(bench.drain().size(), 8u);
  bench.in_flight = 0;
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{8, 9, 10, 11}));
}

TEST(CreditScheduler, SendsLostChunksAgainWithoutCredit) {
  Bench bench(4, 1);
  bench.push(2);
  ASSERT_EQ(bench.drain().size(), 4u);
  bench.scheduler.push_again(13, 2);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{13}));
  EXPECT_TRUE(bench.choice.last);
}

TEST(CreditScheduler, AsksForFeedbackInEveryShardThatHasPartOfAUnit) {
  Bench bench(200, 1, 2);
  bench.push(2);  // chunks 12 to 63 and 128 to 191 are shard 0's, the others shard 1's
  std::vector<ChunkIndex> last;
  Choice choice;
  while (bench.scheduler.next({.open_shards = kAllOpen}, choice))
    if (choice.last) last.push_back(choice.chunk);
  std::sort(last.begin(), last.end());
  EXPECT_EQ(last, (std::vector<ChunkIndex>{191, 211}));
}

TEST(CreditScheduler, IsNotHeldUpByAShardWhoseWindowIsClosed) {
  Bench bench(200, 1000, 2);
  bench.push(2);
  const std::vector<ChunkIndex> second = bench.drain(0b10);
  EXPECT_EQ(second.size(), 84u);  // shard 1's part
  bench.push(0);                  // all of it in shard 0
  bench.push(1);
  EXPECT_TRUE(bench.drain(0b10).empty());
  const std::vector<ChunkIndex> first = bench.drain(0b01);
  EXPECT_EQ(first.size(), 116u + 12u);
  // The begun unit goes first, then what is more urgent.
  EXPECT_EQ(first.front(), 12u);
  EXPECT_EQ(first[116], 0u);
}

TEST(CreditScheduler, GoesOnAfterClearInTheMiddleOfAUnit) {
  Bench bench(4, 1);
  bench.push(2);
  ASSERT_TRUE(bench.scheduler.next({.open_shards = kAllOpen}, bench.choice));
  bench.scheduler.clear();
  EXPECT_TRUE(bench.drain().empty());
  bench.push(1);
  EXPECT_EQ(bench.drain(), (std::vector<ChunkIndex>{8, 9, 10, 11}));
}

TEST(CreditScheduler, FillsTheLinkWhenTheCreditCoversIt) {
  // 4 tensors of 1,000 packets of 1 us, 200 us round trip: 200 packets are the product.
  FakeLink link({.packet_ns = 1'000, .round_trip_ns = 200'000}, {0, 1000, 2000, 3000, 4000});
  Scheduler wide({.policy = Schedule::kCredit, .unit_bytes = 50'000, .credit_bytes = 300'000},
                 link.setup());
  std::vector<Ready> all;
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor)
    all.push_back({0, tensor, static_cast<Priority>(tensor)});
  const TimeNs began = link.now();
  std::vector<Departure> log = link.run(wide, all);
  ASSERT_EQ(log.size(), 4000u);
  EXPECT_LE(log.back().left_at - began, 4'000'000 + 20'000);
  // Stop and wait with units of 50 packets uses a fifth of it.
  FakeLink same({.packet_ns = 1'000, .round_trip_ns = 200'000}, {0, 1000, 2000, 3000, 4000});
  Scheduler narrow({.policy = Schedule::kCredit, .unit_bytes = 50'000, .credit_bytes = 1},
                   same.setup());
  log = same.run(narrow, all);
  ASSERT_EQ(log.size(), 4000u);
  EXPECT_GE(log.back().left_at - began, 79 * 250'000);
}

}  // namespace
}  // namespace sluice::client
