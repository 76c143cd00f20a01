// Deaths in the middle of a job over a BCube, in every shape. The step under way ends with exact
// sums and equal replicas, or all live servers name the dead part.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

using client::BcubeMode;
using Kind = BcubeWorld::Part::Kind;

class BcubeAnyDeath : public testing::TestWithParam<BcubeShape> {
 protected:
  // Steps of up to 600 ms, so that a silence lasts some of them.
  BcubeOptions options_of_deaths() const {
    BcubeOptions options = options_of(GetParam());
    options.elem_counts = {2'000, 7};
    options.member_timeout_ns = 2 * kSecond;
    options.compute_max_ns = 600 * kMillisecond;
    options.steps = 36;
    return options;
  }
  client::Bcube bcube() const {
    return client::Bcube::create(GetParam().switch_ports, GetParam().levels).value();
  }
  // The last level's, where the last server is.
  std::uint32_t level() const { return GetParam().levels - 1; }
  std::uint32_t last() const { return bcube().servers() - 1; }
  std::uint32_t last_switch() const { return bcube().switch_of(last(), level()); }
  std::vector<std::uint32_t> concerned() const {
    return servers_of(bcube(), level(), last_switch());
  }
  // All finish all steps; of those concerned, and of no others, lanes have moved, and are still
  // away, or not.
  void expect_moved(BcubeWorld& world, bool still_away) {
    expect_survived(world, 100 * kSecond);
    const std::vector<std::uint32_t> moved = concerned();
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const bool expected = std::ranges::find(moved, server) != moved.end();
      EXPECT_EQ(world.relay(server).counters().detours, expected ? 1u : 0u) << server;
      EXPECT_EQ(world.relay(server).detours(), expected && still_away ? 1u : 0u) << server;
    }
  }
  // All who live end within this time, and somebody names who is dead.
  void expect_named(const BcubeWorld& world, std::uint32_t dead, DurationNs within_ns) {
    bool named = false;
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const BcubeWorld::Failure& failure = world.failure(server);
      if (server == dead) continue;
      EXPECT_NE(failure.text, "") << "server " << server;
      EXPECT_LE(failure.after_ns, within_ns) << "server " << server << failure.text;
      for (std::uint32_t at = 0; at < world.bcube().levels(); ++at) {
        const std::string place = "(level " + std::to_string(at) + ", switch " +
                                  std::to_string(world.bcube().switch_of(dead, at));
        const std::string rank = "rank " + std::to_string(world.bcube().digit(dead, at));
        const std::size_t found = failure.text.find(place);
        named |= found != std::string::npos && failure.text.find(rank, found) != std::string::npos;
      }
    }
    EXPECT_TRUE(named);
  }
};

TEST_P(BcubeAnyDeath, OfASwitchIsSurvived) {
  BcubeOptions options = options_of_deaths();
  options.compute_max_ns = 0;
  options.steps = 10;
  options.elem_counts = {4'000, 7};
  BcubeWorld world(options);
  world.kill({.parts = parts_of_switch(GetParam(), level(), last_switch()),
              .after_ns = 60 * kMicrosecond});
  expect_moved(world, true);
}

TEST_P(BcubeAnyDeath, OfAPortOrItsCableIsSurvivedAndItIsUsedAgain) {
  BcubeWorld world(options_of_deaths());
  world.kill({.parts = {{.kind = Kind::kCable, .index = last(), .level = level()}},
              .after_ns = 130 * kMillisecond,
              .for_ns = 5500 * kMillisecond});
  expect_moved(world, false);
}

class BcubeOneWayDeath : public BcubeAnyDeath {};

// What the server sends is lost, or what it is sent.
TEST_P(BcubeOneWayDeath, OfOneWayOfACableIsSurvivedAndItIsUsedAgain) {
  for (const Kind way : {Kind::kOut, Kind::kIn}) {
    BcubeWorld world(options_of_deaths());
    world.kill({.parts = {{.kind = way, .index = last(), .level = level()}},
                .after_ns = 130 * kMillisecond,
                .for_ns = 5500 * kMillisecond});
    expect_moved(world, false);
    if (HasFailure()) FAIL() << (way == Kind::kOut ? "out" : "in");
  }
}

class BcubePlainDeath : public BcubeAnyDeath {};

// And the rest of the server lives.
TEST_P(BcubePlainDeath, OfABoxIsSurvived) {
  BcubeOptions options = options_of_deaths();
  options.compute_max_ns = 0;
  options.steps = 10;
  BcubeWorld world(options);
  world.kill({.parts = {{.kind = Kind::kBox, .index = last()}}, .after_ns = 60 * kMicrosecond});
  expect_survived(world, 100 * kSecond);
  EXPECT_GT(world.relay(last()).detours(), 0u);
}

TEST_P(BcubeAnyDeath, OfAWorkerIsNamed) {
  BcubeOptions options = options_of_deaths();
  options.compute_max_ns = kMillisecond;
  options.steps = 1'000;
  BcubeWorld world(options);
  world.kill({.parts = {{.kind = Kind::kServer, .index = last()}}, .after_ns = 20 * kMillisecond});
  expect_clean(world);
  expect_named(world, last(), 10 * kSecond);
}

class BcubeWait : public BcubeAnyDeath {};

// Long before a worker's own appliance gives it up: by each of its neighbours, who ask for a survey
// without it, and not one of those who wait for them.
TEST_P(BcubeWait, ForADeadWorkerNamesIt) {
  BcubeOptions options = options_of_deaths();
  options.compute_max_ns = kMillisecond;
  options.steps = 1'000;
  options.elem_counts = {40'000, 7};
  options.member_timeout_ns = BcubeOptions().member_timeout_ns;
  BcubeWorld world(options);
  world.kill({.parts = {{.kind = Kind::kServer, .index = last()}}, .after_ns = 20 * kMillisecond});
  world.run(10 * kSecond);
  for (std::uint32_t at = 0; at < world.bcube().levels(); ++at)
    for (const std::uint32_t server :
         servers_of(world.bcube(), at, world.bcube().switch_of(last(), at))) {
      if (server == last()) continue;
      const client::Stall stall = world.relay(server).stall(world.now());
      EXPECT_TRUE(stall.missing[last() / 64] >> (last() % 64) & 1)
          << "server " << server << ": " << stall.text;
    }
}

// Who forwards the datagrams of lanes that have moved dies too. They find no other way.
TEST_P(BcubeAnyDeath, OfAForwarderIsNamed) {
  const std::uint32_t forwarder = bcube().detour_neighbour(last(), level());
  BcubeWorld world(options_of_deaths());
  world.kill({.parts = parts_of_switch(GetParam(), level(), last_switch()),
              .after_ns = 130 * kMillisecond,
              .then_server = forwarder,
              .then_after_ns = 8 * kSecond});
  world.run(8 * kSecond);
  for (const std::uint32_t server : concerned()) EXPECT_EQ(world.relay(server).detours(), 1u);
  expect_clean(world, 100 * kSecond);
  expect_named(world, forwarder, (8 + 10) * kSecond);
}

class BcubeDelay : public BcubeAnyDeath {};

// The last server computes for long. Who meets it at a switch names it alone, whichever switch is
// lost, before that step or within it.
TEST_P(BcubeDelay, OfAWorkerIsNamedWhereverLanesHaveMoved) {
  BcubeOptions options = options_of_deaths();
  options.compute_max_ns = 0;
  options.steps = 5;
  options.elem_counts = {4'000, 7};
  options.late_step = 5;
  options.late_ns = 10 * kSecond;
  const auto meets_last = [&](std::uint32_t server, std::uint32_t at) {
    return bcube().switch_of(server, at) == bcube().switch_of(last(), at);
  };
  const std::uint32_t switches = GetParam().levels * bcube().switches_per_level();
  for (std::uint32_t lost = 0; lost < 2 * switches; lost += seed_stride()) {
    const std::uint32_t at = lost / 2 / bcube().switches_per_level();
    const std::uint32_t index = lost / 2 % bcube().switches_per_level();
    BcubeWorld world(options);
    world.kill({.parts = parts_of_switch(GetParam(), at, index),
                .after_ns = lost % 2 == 0 ? 60 * kMicrosecond : kSecond});
    world.run(9 * kSecond);
    EXPECT_EQ(world.relay(servers_of(bcube(), at, index).front()).detours(), 1u);
    for (std::uint32_t server = 0; server < last(); ++server) {
      const client::Stall stall = world.relay(server).stall(world.now());
      bool meets = false;
      for (std::uint32_t level = 0; level < GetParam().levels; ++level)
        meets |= meets_last(server, level);
      if (meets) {
        EXPECT_EQ(stall.missing[0], std::uint64_t{1} << last()) << stall.text;
      }
      EXPECT_NE(stall.missing[0], 0u) << stall.text;
    }
    expect_survived(world, 100 * kSecond);
    if (HasFailure()) FAIL() << "level " << at << ", switch " << index << ", " << lost % 2;
  }
}

INSTANTIATE_TEST_SUITE_P(All, BcubeAnyDeath, testing::ValuesIn(shapes_with_detours()), name_of);
INSTANTIATE_TEST_SUITE_P(Some, BcubeDelay, testing::ValuesIn(kFewBcubeShapes), name_of);
INSTANTIATE_TEST_SUITE_P(Some, BcubeOneWayDeath, testing::ValuesIn(kFewBcubeShapes), name_of);
INSTANTIATE_TEST_SUITE_P(All, BcubePlainDeath,
                         testing::ValuesIn(shapes_with_detours(BcubeMode::kPlain)), name_of);
INSTANTIATE_TEST_SUITE_P(Some, BcubeWait,
                         testing::Values(BcubeShape{2, 2, BcubeMode::kPlain},
                                         BcubeShape{2, 3, BcubeMode::kPlain}),
                         name_of);

}  // namespace
}  // namespace sluice::sim
