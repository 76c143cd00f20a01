// Prophet's blocks and its plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/sched/fake_link.h"

namespace sluice::client {
namespace {

constexpr DurationNs ms(double count) { return static_cast<DurationNs>(count * kMillisecond); }

// A packet takes 10 us, a round trip 200 us. Three bursts, 10 ms apart: tensors 3 and 2 (600
// packets each), tensor 1 (400), tensor 0 (500). What is ready at the first would take 12 ms.
const LinkModel kModel{.packet_ns = 10 * kMicrosecond, .round_trip_ns = 200 * kMicrosecond};
const std::vector<ChunkIndex> kChunks{0, 500, 900, 1500, 2100};
const std::vector<Ready> kStep{{0, 3, 3}, {0, 2, 2}, {ms(10), 1, 1}, {ms(20), 0, 0}};

constexpr int kStepsToLearn = ReadinessProfile::kWarmUpSteps + ReadinessProfile::kLearntSteps;

struct Bench {
  explicit Bench(std::uint16_t shards = 1)
      : link(kModel, kChunks, shards), scheduler({.policy = Schedule::kProphet}, link.setup()) {}

  std::vector<Departure> step(const std::vector<Ready>& ready = kStep) {
    link.wait(20 * kMillisecond);  // forward and the first layers of backward
    began = link.now();
    return link.run(scheduler, ready);
  }
  void learn() {
    for (int i = 0; i < kStepsToLearn; ++i) step();
  }

  FakeLink link;
  Scheduler scheduler;
  TimeNs began = 0;
};

TimeNs first_of(const std::vector<Departure>& log, std::uint32_t tensor) {
  const auto at = std::find_if(log.begin(), log.end(), [&](const Departure& departure) {
    return departure.chunk >= kChunks[tensor] && departure.chunk < kChunks[tensor + 1];
  });
  return at == log.end() ? kNever : at->began_at;
}

TEST(BlockRule, FitsPacketsAndTheOverheadIntoTheTimeThatIsLeft) {
  const BlockRule rule{.packets_per_ns = 1e-4, .overhead_ns = 200 * kMicrosecond};
  EXPECT_EQ(rule.packets(ms(10.2)), 1000u);
  EXPECT_EQ(rule.packets(210 * kMicrosecond), 1u);
  // Nothing fits: as long as the overhead, not nothing.
  EXPECT_EQ(rule.packets(209 * kMicrosecond), 20u);
  EXPECT_EQ(rule.packets(0), 20u);
  EXPECT_GT(rule.packets(kNever), 1'000'000u);
}

TEST(ProphetScheduler, IsStrictUntilItHasLearnt) {
  Bench bench;
  Scheduler strict({.policy = Schedule::kStrict}, bench.link.setup());
  FakeLink link(kModel, kChunks);
  for (int i = 0; i < kStepsToLearn - 1; ++i) {
    link.wait(20 * kMillisecond);
    const std::vector<Departure> expected = link.run(strict, kStep);
    const std::vector<Departure> log = bench.step();
    ASSERT_EQ(log.size(), expected.size());
    for (std::size_t at = 0; at < log.size(); ++at) ASSERT_EQ(log[at].chunk, expected[at].chunk);
  }
}

TEST(ProphetScheduler, StopsWhenTheMoreUrgentTensorIsDueAndEverythingHasArrived) {
  Bench bench;
  bench.learn();
  const std::vector<Departure> log = bench.step();
  ASSERT_EQ(log.size(), 2100u);
  // 980 packets of the first burst fit before the second: all of tensor 2 and part of 3.
  std::size_t first_block = 0;
  while (log[first_block].began_at < bench.began + ms(9.85)) ++first_block;
  EXPECT_NEAR(static_cast<double>(first_block), 980, 15);
  EXPECT_LE(log[599].chunk, 1499u);
  // The urgent tensor begins on time, and pre-empts the rest of tensor 3.
  EXPECT_LE(first_of(log, 1), bench.began + ms(10.05));
  // From tensor 0 on it is strict: 500 packets without a stop.
  const TimeNs urgent = first_of(log, 0);
  EXPECT_LE(urgent, bench.began + ms(20.25));
  const auto begin = std::find_if(log.begin(), log.end(),
                                  [&](const Departure& d) { return d.began_at == urgent; });
  EXPECT_EQ((begin + 499)->chunk, 499u);
  EXPECT_EQ((begin + 499)->left_at - urgent, 500 * kModel.packet_ns);
}

TEST(ProphetScheduler, SendsABlockWholeWhenSomethingMoreUrgentComesEarly) {
  Bench bench;
  bench.learn();
  std::vector<Ready> early = kStep;
  early[2].at = ms(4);
  const std::vector<Departure> log = bench.step(early);
  ASSERT_EQ(log.size(), 2100u);
  EXPECT_GE(first_of(log, 1), bench.began + ms(9.8));
  EXPECT_LE(first_of(log, 1), bench.began + ms(10.3));
}

TEST(ProphetScheduler, IsStrictFromTheMostUrgentTensorOnEvenInsideABlock) {
  Bench bench;
  bench.learn();
  std::vector<Ready> early = kStep;
  early[3].at = ms(4);
  std::swap(early[2], early[3]);
  const std::vector<Departure> log = bench.step(early);
  EXPECT_LE(first_of(log, 0), bench.began + ms(4) + kModel.packet_ns);
}

TEST(ProphetScheduler, KeepsTheLinkBusyWhileAPredictedTensorIsLate) {
  Bench bench;
  bench.learn();
  std::vector<Ready> late = kStep;
  late[2].at = ms(16);
  const std::vector<Departure> log = bench.step(late);
  ASSERT_EQ(log.size(), 2100u);
  // All of the first burst is out before it comes, though it was due at 10 ms.
  EXPECT_EQ(log[1199].chunk, 2099u);
  EXPECT_LE(log[1199].left_at, bench.began + ms(16));
}

TEST(ProphetScheduler, LearnsAnewWhenReadinessDrifts) {
  Bench bench;
  bench.learn();
  bench.step();
  std::vector<Ready> slower = kStep;
  slower[2].at = ms(30);
  slower[3].at = ms(60);
  for (std::uint32_t i = 0; i < ReadinessProfile::kDriftSteps; ++i) bench.step(slower);
  bench.step(slower);
  EXPECT_NE(bench.scheduler.describe_plan().find("learning"), std::string::npos);
  for (std::uint32_t i = 0; i < ReadinessProfile::kLearntSteps; ++i) bench.step(slower);
  EXPECT_NE(bench.scheduler.describe_plan().find("burst 3 at 60.000 ms"), std::string::npos);
}

TEST(ProphetScheduler, LearnsAnewWhenItIsTold) {
  Bench bench;
  bench.learn();
  bench.step();
  EXPECT_EQ(bench.scheduler.describe_plan().find("learning"), std::string::npos);
  bench.scheduler.relearn();
  EXPECT_NE(bench.scheduler.describe_plan().find("learning"), std::string::npos);
  EXPECT_EQ(bench.step().size(), 2100u);
}

TEST(ProphetScheduler, SendsLostChunksAgainWithoutWaitingForABlock) {
  Bench bench;
  bench.learn();
  bench.link.wait(20 * kMillisecond);
  bench.scheduler.begin_step(bench.link.now());
  for (ChunkIndex chunk = 900; chunk < 2100; ++chunk)
    bench.scheduler.push(chunk, chunk < 1500 ? 2 : 3, bench.link.now());
  WindowState windows{.open_shards = 1, .now = bench.link.now()};
  Choice choice;
  std::uint32_t sent = 0;
  for (; bench.scheduler.next(windows, choice); ++sent) windows.in_flight_packets = sent + 1;
  ASSERT_GT(sent, 900u);
  ASSERT_LT(sent, 1200u);
  EXPECT_TRUE(choice.last);
  EXPECT_TRUE(bench.scheduler.waits_for_arrival());
  bench.scheduler.push_again(900, 2);
  ASSERT_TRUE(bench.scheduler.next(windows, choice));
  EXPECT_EQ(choice.chunk, 900u);
}

TEST(ProphetScheduler, SendsEverythingOverSeveralShards) {
  Bench bench(4);
  bench.learn();
  const std::vector<Departure> log = bench.step();
  ASSERT_EQ(log.size(), 2100u);
  std::vector<bool> seen(2100);
  for (const Departure& departure : log) seen[departure.chunk] = true;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 2100);
  EXPECT_LE(first_of(log, 1), bench.began + ms(10.05));
}

TEST(ProphetScheduler, PrintsWhatItHasLearntAndItsBlocks) {
  Bench bench;
  bench.learn();
  bench.step();
  const std::string plan = bench.scheduler.describe_plan();
  EXPECT_NE(plan.find("100 packets/ms"), std::string::npos) << plan;
  EXPECT_NE(plan.find("burst 1 at 0.000 ms: 2 tensors, 1200 packets, priority 2 to 3\n"),
            std::string::npos)
      << plan;
  EXPECT_NE(plan.find("burst 2 at 10.000 ms: 1 tensors, 400 packets, priority 1\n"),
            std::string::npos)
      << plan;
  EXPECT_NE(plan.find("block 1 at 0.000 ms: "), std::string::npos) << plan;
  EXPECT_NE(plan.find("something more urgent in 10.000 ms\n"), std::string::npos) << plan;
  EXPECT_NE(plan.find(" on: strict, "), std::string::npos) << plan;
}

}  // namespace
}  // namespace sluice::client
