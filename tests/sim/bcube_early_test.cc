// Switches and cables of a BCube that are absent before the first step. The job does without them
// or names them, and uses them when they come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

using client::BcubeMode;
using Kind = BcubeWorld::Part::Kind;
using Shape = BcubeShape;

class BcubeEarlyLosses : public testing::TestWithParam<Shape> {
 protected:
  BcubeOptions options_of_joins() const {
    BcubeOptions options = options_of(GetParam());
    options.elem_counts = {1'500, 7};
    options.member_timeout_ns = 3 * kSecond;
    options.join_timeout_ns = 20 * kSecond;
    options.steps = 5;
    return options;
  }
  // Exact sums all the same; of the servers that `moved` names, and of no others, lanes are away.
  static void expect_done_without(BcubeWorld& world, const std::vector<std::uint32_t>& moved) {
    expect_survived(world, 60 * kSecond);
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const bool expected = std::ranges::find(moved, server) != moved.end();
      EXPECT_EQ(world.relay(server).detours(), expected ? 1u : 0u) << server;
      if (!expected) continue;
      ASSERT_EQ(world.moves(server).size(), 1u) << server;
      EXPECT_EQ(world.moves(server)[0].step, 1u);
      EXPECT_THAT(world.moves(server)[0].status.message(), testing::HasSubstr("stands in"));
    }
    // 4 s to be missed, or at most 8 s until the last one starts.
    EXPECT_LT(world.started_ns(), 14 * kSecond);
    if (HasFailure()) FAIL() << world.describe_stall();
  }
};

TEST_P(BcubeEarlyLosses, ASwitchThatIsNotThereIsDoneWithout) {
  BcubeOptions options = options_of_joins();
  const auto bcube = client::Bcube::create(options.switch_ports, options.levels).value();
  for (std::uint32_t level = 0; level < bcube.levels(); ++level)
    for (options.seed = 1; options.seed <= 4; ++options.seed) {
      SCOPED_TRACE(options.seed);
      options.start_max_ns =
          options.seed % 2 == 0 ? 8 * kSecond : 0;  // longer than a join is tried
      options.link.loss_ppm = options.seed > 2 ? 10'000 : 0;
      BcubeWorld world(options);
      world.kill({.parts = parts_of_switch(GetParam(), level, 1), .at = 0});
      expect_done_without(world, servers_of(bcube, level, 1));
      if (HasFailure()) return;
    }
}

// The others at the switch reach it.
TEST_P(BcubeEarlyLosses, ACableThatIsNotThereIsDoneWithout) {
  BcubeOptions options = options_of_joins();
  for (options.seed = 1; options.seed <= 4; ++options.seed) {
    SCOPED_TRACE(options.seed);
    options.start_max_ns = options.seed % 2 == 0 ? 8 * kSecond : 0;
    options.in_place = options.seed % 3 == 0;
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = Kind::kCable, .index = 1, .level = 1}}, .at = 0});
    expect_done_without(world, servers_of(world.bcube(), 1, world.bcube().switch_of(1, 1)));
    if (HasFailure()) return;
  }
}

// Whatever a join is just doing.
TEST_P(BcubeEarlyLosses, WhatDiesWhileTheyJoinIsDoneWithout) {
  BcubeOptions options = options_of_joins();
  options.start_max_ns = 2 * kMillisecond;
  for (options.seed = 1; options.seed <= 16; options.seed += seed_stride()) {
    SCOPED_TRACE(options.seed);
    BcubeWorld world(options);
    const bool whole = options.seed % 2 == 0;
    world.kill({.parts = whole ? parts_of_switch(GetParam(), 0, 1)
                               : std::vector<BcubeWorld::Part>{{Kind::kCable, 1, 0}},
                .at = static_cast<TimeNs>(options.seed) * 250 * kMicrosecond});
    expect_survived(world, 60 * kSecond);
    if (HasFailure()) return;
  }
}

// It has moved and is back before it is given up, while the others are still where it was lost, and
// wait for it there. Swarm seed 40: it met them, and waited for them at the other switch.
TEST_P(BcubeEarlyLosses, WhoIsBackBeforeItIsGivenUpDoesNotGoAlone) {
  BcubeOptions options = options_of_joins();
  options.member_timeout_ns = 8 * kSecond;
  options.start_max_ns = 20 * kMillisecond;
  for (options.seed = 1; options.seed <= 12; options.seed += seed_stride()) {
    SCOPED_TRACE(options.seed);
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = Kind::kCable, .index = 1, .level = 1}},
                .at = static_cast<TimeNs>(options.seed) * 800 * kMicrosecond,
                .for_ns = 5500 * kMillisecond});
    expect_survived(world, 60 * kSecond);
    if (HasFailure()) return;
  }
}

// It was accepted and did not hear so, and asks once more just after it was given up: the run that
// has ended is no mistake, the level is lost. Swarm seed 970008760.
TEST_P(BcubeEarlyLosses, WhoIsBackJustAfterItWasGivenUpMovesWithTheOthers) {
  BcubeOptions options = options_of_joins();
  options.start_max_ns = 2 * kMillisecond;
  options.link.delay_ns = 500 * kMicrosecond;
  for (options.seed = 1; options.seed <= 16; options.seed += seed_stride()) {
    SCOPED_TRACE(options.seed);
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = Kind::kCable, .index = 1, .level = 1}},
                .at = static_cast<TimeNs>(options.seed) * 250 * kMicrosecond,
                .for_ns = 2900 * kMillisecond});
    expect_survived(world, 60 * kSecond);
    if (HasFailure()) return;
  }
}

// Some have joined without it, others are about to.
TEST_P(BcubeEarlyLosses, WhatIsStartedLateIsUsedFromThenOn) {
  BcubeOptions options = options_of_joins();
  options.compute_max_ns = 200 * kMillisecond;
  options.steps = 110;
  for (options.seed = 1; options.seed <= 4; ++options.seed) {
    SCOPED_TRACE(options.seed);
    options.start_max_ns = options.seed % 2 == 0 ? 8 * kSecond : 0;
    BcubeWorld world(options);
    world.kill({.parts = parts_of_switch(GetParam(), 0, 1),
                .at = 0,
                .for_ns = static_cast<DurationNs>(4 + options.seed) * kSecond});
    expect_survived(world, 100 * kSecond);
    for (const std::uint32_t server : servers_of(world.bcube(), 0, 1))
      EXPECT_EQ(world.relay(server).counters().detoured_lanes, 0u);
    if (HasFailure()) return;
  }
}

// A server that never comes is missing where lanes would move to as well, and named; so is a switch
// where nothing stands in.
TEST_P(BcubeEarlyLosses, WithoutAnotherWayTheJoinEndsAndSaysWhy) {
  const BcubeOptions options = options_of_joins();
  BcubeWorld world(options);
  world.kill({.parts = {{.kind = Kind::kServer, .index = 1}}, .at = 0});
  for (const BcubeWorld::Part& part : parts_of_switch(GetParam(), 0, 0))
    world.interrupt({.part = part, .until = 90 * kSecond});
  EXPECT_TRUE(world.run(60 * kSecond)) << world.describe_stall();
  std::string texts;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    texts += world.failure(server).text + "\n";
  EXPECT_THAT(texts, testing::HasSubstr("missing: rank 1"));
  EXPECT_THAT(texts, testing::HasSubstr("; and where its lanes move to, "));
}

// Of a job that has begun: what could not be joined in time is not waited for when it is needed.
TEST_P(BcubeEarlyLosses, WhatIsNotThereDoesNotStandInLater) {
  BcubeOptions options = options_of_joins();
  options.compute_max_ns = 200 * kMillisecond;
  options.steps = 200;
  options.join_timeout_ns = 60 * kSecond;
  BcubeWorld world(options);
  world.kill({.parts = {{.kind = Kind::kCable, .index = 1, .level = 1}}, .at = 0});
  for (const BcubeWorld::Part& part : parts_of_switch(GetParam(), 0, 0))
    world.interrupt({.part = part, .from = 12 * kSecond, .until = 900 * kSecond});
  EXPECT_TRUE(world.run(60 * kSecond)) << world.describe_stall();
  EXPECT_THAT(world.failure(1).text, testing::HasSubstr("level 0, switch 0"));
  EXPECT_LT(world.failure(1).after_ns, 25 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Some, BcubeEarlyLosses, testing::ValuesIn(kFewBcubeShapes), name_of);

}  // namespace
}  // namespace sluice::sim
