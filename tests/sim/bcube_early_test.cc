// Boxes and cables of a BCube that are not there before the first step: done without, named where
// that can't be, and used when they come.
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
    expect_clean(world, 60 * kSecond);
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const bool expected = std::ranges::find(moved, server) != moved.end();
      EXPECT_EQ(world.failure(server).text, "") << server;
      EXPECT_EQ(world.relay(server).detours(), expected ? 1u : 0u) << server;
      if (!expected) continue;
      ASSERT_EQ(world.moves(server).size(), 1u) << server;
      EXPECT_EQ(world.moves(server)[0].step, 1u);
      EXPECT_THAT(world.moves(server)[0].status.message(), testing::HasSubstr("stands in"));
    }
    if (HasFailure()) FAIL() << world.describe_stall();
  }
};

TEST_P(BcubeEarlyLosses, ABoxThatIsNotThereIsDoneWithout) {
  BcubeOptions options = options_of_joins();
  const auto bcube = client::Bcube::create(options.switch_ports, options.levels).value();
  for (std::uint32_t level = 0; level < bcube.levels(); ++level)
    for (options.seed = 1; options.seed <= 4; ++options.seed) {
      options.start_max_ns = options.seed % 2 == 0 ? 8 * kSecond : 0;  // longer than one knocks
      options.link.loss_ppm = options.seed > 2 ? 10'000 : 0;
      BcubeWorld world(options);
      world.kill(
          {.part = {.kind = Kind::kBox, .index = level * bcube.switches_per_level() + 1}, .at = 0});
      expect_done_without(world, servers_of(bcube, level, 1));
    }
}

// The others at the switch reach it.
TEST_P(BcubeEarlyLosses, ACableThatIsNotThereIsDoneWithout) {
  BcubeOptions options = options_of_joins();
  for (options.seed = 1; options.seed <= 4; ++options.seed) {
    options.start_max_ns = options.seed % 2 == 0 ? 8 * kSecond : 0;
    options.in_place = options.seed % 3 == 0;
    BcubeWorld world(options);
    world.kill({.part = {.kind = Kind::kCable, .index = 1, .level = 1}, .at = 0});
    expect_done_without(world, servers_of(world.bcube(), 1, world.bcube().switch_of(1, 1)));
  }
}

// Whatever a join is just doing.
TEST_P(BcubeEarlyLosses, WhatDiesWhileTheyJoinIsDoneWithout) {
  BcubeOptions options = options_of_joins();
  for (options.seed = 1; options.seed <= 40; ++options.seed) {
    options.start_max_ns = 2 * kMillisecond;
    BcubeWorld world(options);
    const bool box = options.seed % 2 == 0;
    world.kill({.part = {.kind = box ? Kind::kBox : Kind::kCable, .index = 1, .level = 0},
                .at = static_cast<TimeNs>(options.seed) * 100 * kMicrosecond});
    expect_clean(world, 60 * kSecond);
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
      EXPECT_EQ(world.failure(server).text, "") << server;
    if (HasFailure()) FAIL() << "seed " << options.seed << world.describe_stall();
  }
}

// It has moved and is back before it is given up, while the others are still where it was lost, and
// wait for it there. Swarm seed 40: it met them, and waited for them at the other switch.
TEST_P(BcubeEarlyLosses, WhoIsBackBeforeItIsGivenUpDoesNotGoAlone) {
  BcubeOptions options = options_of_joins();
  options.member_timeout_ns = 8 * kSecond;
  options.compute_max_ns = 0;
  for (options.seed = 1; options.seed <= 40; ++options.seed) {
    options.start_max_ns = 20 * kMillisecond;
    BcubeWorld world(options);
    world.kill({.part = {.kind = Kind::kCable, .index = 1, .level = 1},
                .at = static_cast<TimeNs>(options.seed) * 250 * kMicrosecond,
                .for_ns = 5500 * kMillisecond});
    expect_clean(world, 60 * kSecond);
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
      EXPECT_EQ(world.failure(server).text, "") << server;
    if (HasFailure()) FAIL() << "seed " << options.seed << world.describe_stall();
  }
}

TEST_P(BcubeEarlyLosses, ABoxThatIsStartedLateIsUsedFromThenOn) {
  BcubeOptions options = options_of_joins();
  options.compute_max_ns = 200 * kMillisecond;
  options.steps = 110;
  BcubeWorld world(options);
  world.kill({.part = {.kind = Kind::kBox, .index = 1}, .at = 0, .for_ns = 8 * kSecond});
  expect_clean(world, 100 * kSecond);
  for (const std::uint32_t server : servers_of(world.bcube(), 0, 1)) {
    EXPECT_EQ(world.relay(server).counters().detours, 1u);
    EXPECT_EQ(world.relay(server).counters().detoured_lanes, 0u);
  }
}

// A server that never comes is missing where lanes would move to as well, and named; so is a box
// where nothing stands in.
TEST_P(BcubeEarlyLosses, WithoutAnotherWayTheJoinEndsAndSaysWhy) {
  BcubeOptions options = options_of_joins();
  BcubeWorld world(options);
  world.kill({.part = {.kind = Kind::kServer, .index = 1}, .at = 0});
  world.interrupt({.part = {.kind = Kind::kBox, .index = 0}, .until = 90 * kSecond});
  EXPECT_TRUE(world.run(60 * kSecond)) << world.describe_stall();
  std::string texts;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    texts += world.failure(server).text + "\n";
  EXPECT_THAT(texts, testing::HasSubstr("missing: rank 1"));
  EXPECT_THAT(texts, testing::HasSubstr("; and where its lanes move to, "));
}

INSTANTIATE_TEST_SUITE_P(Some, BcubeEarlyLosses,
                         testing::Values(Shape{2, 2, BcubeMode::kAggregated},
                                         Shape{3, 2, BcubeMode::kAggregated},
                                         Shape{2, 3, BcubeMode::kAggregated}),
                         name_of);

}  // namespace
}  // namespace sluice::sim
