// Boxes and cables of a BCube that are lost in the middle of a job, come back, and are used again.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

using client::BcubeMode;
using Shape = BcubeShape;

// They are lost for a while, come back, and are used again.
class BcubeReturns : public testing::TestWithParam<Shape> {
 protected:
  // Steps take long enough for joins and silences to pass within them.
  BcubeOptions options_of_returns() const {
    BcubeOptions options = options_of(GetParam());
    options.elem_counts = {1'500, 7};
    options.member_timeout_ns = 3 * kSecond;
    options.compute_max_ns = 200 * kMillisecond;
    options.steps = 110;
    return options;
  }
  // An appliance that was away has forgotten all; cables are missed after a silence.
  static DurationNs missed_after(DurationNs ns) {
    return ns + (GetParam().mode == BcubeMode::kPlain ? 5 * kSecond : 0);
  }
  // The job is finished with exact sums. Of the servers that `moved` names lanes have moved so
  // often, none are away any more, and what was lost carries gradients again.
  void expect_back(BcubeWorld& world, const std::vector<std::uint32_t>& moved,
                   std::uint64_t detours) {
    expect_survived(world, 100 * kSecond);
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const client::Counters counters = world.relay(server).counters();
      const bool expected = std::ranges::find(moved, server) != moved.end();
      EXPECT_EQ(counters.detours, expected ? detours : 0u) << "server " << server;
      EXPECT_EQ(counters.detoured_lanes, 0u) << "server " << server;
      EXPECT_EQ(world.relay(server).detours(), 0u) << "server " << server;
    }
    if (HasFailure()) FAIL() << world.describe_stall() << world.relay(moved[0]).describe_plan();
  }
};

TEST_P(BcubeReturns, ASwitchThatWasStartedAgainIsUsedAgain) {
  BcubeOptions options = options_of_returns();
  for (options.seed = 1; options.seed <= 4; ++options.seed) {
    options.in_place = options.seed % 2 == 0;
    options.pipelined = options.seed % 3 == 0;  // without pauses: its steps take round trips
    options.link.delay_ns = options.pipelined ? 30 * kMillisecond : 2 * kMicrosecond;
    options.link.loss_ppm = options.seed % 2 == 0 ? 10'000 : 0;
    BcubeWorld world(options);
    const auto wait = static_cast<DurationNs>(options.seed);
    world.kill({.parts = parts_of_switch(GetParam(), 0, 1),
                .after_ns = wait * 70 * kMillisecond,
                .for_ns = missed_after(wait * wait * 400 * kMillisecond)});
    expect_back(world, servers_of(world.bcube(), 0, 1), 1);
  }
}

// One slice passes few switches; the others have a meeting and nothing else. A barrier needs it.
// Swarm seed 1060014160: they were never used again.
TEST_P(BcubeReturns, SoIsOneThatNoSlicePasses) {
  BcubeOptions options = options_of_returns();
  options.elem_counts = {7};
  options.steps = 160;
  options.link.delay_ns = 20 * kMillisecond;  // with one tensor there are no pauses
  options.collectives = {{.before_step = 4, .kind = CollectiveKind::kBarrier}};
  for (std::uint32_t level = 0; level < GetParam().levels; ++level) {
    BcubeWorld world(options);
    const std::uint32_t last = world.bcube().switches_per_level() - 1;
    world.kill({.parts = parts_of_switch(GetParam(), level, last),
                .after_ns = 200 * kMillisecond,
                .for_ns = missed_after(2 * kSecond)});
    expect_back(world, servers_of(world.bcube(), level, last), 1);
  }
}

TEST_P(BcubeReturns, CollectivesFollow) {
  BcubeOptions options = options_of_returns();
  for (Step step = 2; step < options.steps; ++step)
    options.collectives.push_back(
        {.before_step = step,
         .kind = step % 3 != 0 ? CollectiveKind::kBarrier : CollectiveKind::kBroadcast,
         .root = Rank{static_cast<std::uint16_t>(step % 4)},
         .size_bytes = 3'000});
  for (options.seed = 1; options.seed <= 2; ++options.seed) {
    BcubeWorld world(options);
    world.kill({.parts = parts_of_switch(GetParam(), 0, 1),
                .after_ns = static_cast<DurationNs>(options.seed) * 130 * kMillisecond,
                .for_ns = missed_after(kSecond)});
    expect_back(world, servers_of(world.bcube(), 0, 1), 1);
  }
}

// Some are in a collective while the survey is under way, others come to it later and vote first.
// Swarm seed 91600685: those in it did not vote, and waited for the others.
TEST_P(BcubeReturns, WhoIsInACollectiveVotesToo) {
  BcubeOptions options = options_of_returns();
  options.elem_counts = {112};
  options.compute_max_ns = kMillisecond;
  options.steps = 6;
  for (Step step = 1; step <= options.steps; ++step)
    options.collectives.push_back({.before_step = step, .kind = CollectiveKind::kBarrier});
  for (options.seed = 1; options.seed <= 200; options.seed += seed_stride()) {
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = BcubeWorld::Part::Kind::kCable, .index = 1, .level = 0}},
                .after_ns = static_cast<DurationNs>(options.seed) * 20 * kMicrosecond});
    expect_clean(world);
    if (HasFailure()) FAIL() << "seed " << options.seed << world.describe_stall();
  }
}

// A loss that finds some in a collective which is over for others, who may be in the next one, at
// another level: their switch tells nobody of a silent server that nobody there waits for.
TEST_P(BcubeReturns, WhatIsOverForSomeIsOverForAll) {
  BcubeOptions options = options_of_returns();
  options.compute_max_ns = 100 * kMicrosecond;
  options.steps = 12;
  for (Step step = 1; step <= options.steps; ++step) {
    options.collectives.push_back({.before_step = step, .kind = CollectiveKind::kBarrier});
    options.collectives.push_back({.before_step = step,
                                   .kind = CollectiveKind::kBroadcast,
                                   .root = Rank{static_cast<std::uint16_t>(step % 4)},
                                   .size_bytes = 3'000});
  }
  for (options.seed = 1; options.seed <= 40; options.seed += seed_stride()) {
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = BcubeWorld::Part::Kind::kCable,
                           .index = static_cast<std::uint32_t>(options.seed % 4),
                           .level = static_cast<std::uint32_t>(options.seed / 4 % options.levels)}},
                .after_ns = static_cast<DurationNs>(options.seed) * 25 * kMicrosecond});
    SCOPED_TRACE(options.seed);
    expect_survived(world);
    if (HasFailure()) return;
  }
}

TEST_P(BcubeReturns, TheWayToOneIsUsedAgain) {
  BcubeOptions options = options_of_returns();
  for (options.seed = 1; options.seed <= 2; ++options.seed) {
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = BcubeWorld::Part::Kind::kCable, .index = 1, .level = 1}},
                .after_ns = static_cast<DurationNs>(options.seed) * 70 * kMillisecond,
                .for_ns = 6 * kSecond});
    expect_back(world, servers_of(world.bcube(), 1, world.bcube().switch_of(1, 1)), 1);
  }
}

// Its switch still waits for it there, and so do the others, who hear of the loss when it is back:
// what they have there is of other steps than the newcomer's first. It was given results of those.
TEST_P(BcubeReturns, WhoIsBackBeforeItIsGivenUpIsNoMemberOfTheOldJobs) {
  BcubeOptions options = options_of_returns();
  options.member_timeout_ns = 30 * kSecond;
  for (options.seed = 1; options.seed <= 4; ++options.seed) {
    if (options.seed % 2 == 0) {
      options.compute_max_ns = 3 * kSecond;
      options.steps = 20;
    }
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = BcubeWorld::Part::Kind::kCable, .index = 1, .level = 1}},
                .after_ns = static_cast<DurationNs>(options.seed) * 70 * kMillisecond,
                .for_ns = 4500 * kMillisecond + static_cast<DurationNs>(options.seed) * kSecond});
    SCOPED_TRACE(options.seed);
    expect_survived(world, 500 * kSecond);
    if (HasFailure()) return;
  }
}

TEST_P(BcubeReturns, ASecondLossIsAsTheFirst) {
  BcubeOptions options = options_of_returns();
  options.steps = 260;
  for (options.seed = 1; options.seed <= 2; ++options.seed) {
    BcubeWorld world(options);
    world.kill({.parts = parts_of_switch(GetParam(), 0, 1),
                .after_ns = 100 * kMillisecond,
                .for_ns = missed_after(kSecond)});
    const TimeNs from = (13 + 2 * static_cast<TimeNs>(options.seed)) * kSecond;
    for (const BcubeWorld::Part& part : parts_of_switch(GetParam(), 0, 1))
      world.interrupt(
          {part, from, from + missed_after(kSecond), part.kind == BcubeWorld::Part::Kind::kBox});
    expect_back(world, servers_of(world.bcube(), 0, 1), 2);
  }
}

// Each box is started again, one after the other: of those at the first, the other one stands in,
// and when that one dies it is not needed, but will be.
TEST_P(BcubeReturns, WhatStoodInMayDieAndComeBackToo) {
  BcubeOptions options = options_of_returns();
  options.steps = 200;
  BcubeWorld world(options);
  const client::Bcube& bcube = world.bcube();
  const std::uint32_t other =
      bcube.switch_of(bcube.detour_neighbour(bcube.server_at(0, 1, 0), 0), 0);
  world.kill({.parts = parts_of_switch(GetParam(), 0, other),
              .after_ns = 100 * kMillisecond,
              .for_ns = missed_after(kSecond)});
  for (const BcubeWorld::Part& part : parts_of_switch(GetParam(), 0, 1))
    world.interrupt({part, 18 * kSecond, missed_after(19 * kSecond),
                     part.kind == BcubeWorld::Part::Kind::kBox});
  expect_clean(world, 100 * kSecond);
  for (const std::uint32_t server : servers_of(bcube, 0, 1)) {
    EXPECT_EQ(world.failure(server).text, "");
    EXPECT_EQ(world.relay(server).counters().detours, 1u);
    EXPECT_EQ(world.relay(server).counters().detoured_lanes, 0u);
  }
}

// All are at rest when it dies, and when its silence is noticed; in `plain` nobody moves then, as
// its server may have left.
TEST_P(BcubeReturns, WhatDiesAtRestIsMissedWithTheNextStep) {
  BcubeOptions options = options_of_returns();
  options.compute_max_ns = 0;
  options.pause_ns = 6 * kSecond;
  options.steps = 9;
  options.elem_counts = {7, 5};  // so that some have no lane there that is not lost
  const std::vector<std::uint32_t> moved =
      servers_of(client::Bcube::create(options.switch_ports, options.levels).value(), 0, 1);
  BcubeWorld world(options);
  world.kill({.parts = parts_of_switch(GetParam(), 0, 1),
              .after_ns = options.pause_ns + 10 * kMillisecond,
              .for_ns = missed_after(kSecond)});
  expect_back(world, moved, 1);
}

// What could stand in is lost at rest and found again before it is needed.
TEST_P(BcubeReturns, WhatStandsInMayDieAtRest) {
  BcubeOptions options = options_of_returns();
  options.compute_max_ns = 0;
  options.pause_ns = 6 * kSecond;
  options.steps = 14;
  BcubeWorld world(options);
  const client::Bcube& bcube = world.bcube();
  const std::vector<std::uint32_t> moved = servers_of(bcube, 0, 1);
  const std::uint32_t other = bcube.switch_of(bcube.detour_neighbour(moved[0], 0), 0);
  world.kill({.parts = parts_of_switch(GetParam(), 0, other),
              .after_ns = options.pause_ns + 10 * kMillisecond,
              .for_ns = missed_after(kSecond)});
  for (const BcubeWorld::Part& part : parts_of_switch(GetParam(), 0, 1))
    world.interrupt({part, 38 * kSecond, missed_after(39 * kSecond),
                     part.kind == BcubeWorld::Part::Kind::kBox});
  expect_survived(world, 100 * kSecond);
  for (const std::uint32_t server : moved) {
    EXPECT_EQ(world.relay(server).counters().detours, 1u);
    EXPECT_EQ(world.relay(server).counters().detoured_lanes, 0u);
  }
}

// A worker that is done leaves. A cable that dies just then leaves another worker without the last
// averages, which are lost at the switches that its lanes move to. That worker does not wait, and
// its error names the one that left. Workers that have their averages are not concerned.
TEST_P(BcubeReturns, WhoLacksWhatALeaverHadIsToldSo) {
  BcubeOptions options = options_of_returns();
  options.compute_max_ns = 0;
  options.steps = 1;
  BcubeWorld whole(options);
  expect_clean(whole);
  int lacking = 0;
  for (DurationNs before_ns = 100 * kMicrosecond; before_ns > 0; before_ns -= 2 * kMicrosecond) {
    SCOPED_TRACE(before_ns);
    BcubeWorld world(options);
    world.kill({.parts = {{.kind = BcubeWorld::Part::Kind::kCable, .index = 1, .level = 0}},
                .after_ns = whole.step_ns(1) - before_ns});
    expect_clean(world, 30 * kSecond);
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const BcubeWorld::Failure& failure = world.failure(server);
      if (failure.text.empty()) continue;
      ++lacking;
      EXPECT_FALSE(world.is_through(server)) << server;
      EXPECT_NE(failure.text.find("ended in order"), std::string::npos) << failure.text;
      EXPECT_LT(failure.after_ns, options.member_timeout_ns + 5 * kSecond);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(lacking, 0);  // of these deaths some come just then
}

// Each tensor of each step has one record of its own and one of each of its parts, wherever these
// went; those of the lost switch's level went elsewhere between the two reports, and the others at
// home all the time.
TEST_P(BcubeReturns, TheTraceShowsWhichWayEachPartWent) {
  BcubeOptions options = options_of_returns();
  options.trace = true;
  BcubeWorld world(options);
  world.kill({.parts = parts_of_switch(GetParam(), 0, 1),
              .after_ns = 130 * kMillisecond,
              .for_ns = missed_after(kSecond)});
  const client::Bcube& bcube = world.bcube();
  const std::vector<std::uint32_t> moved = servers_of(bcube, 0, 1);
  expect_back(world, moved, 1);
  for (std::uint32_t server = 0; server < bcube.servers(); ++server) {
    SCOPED_TRACE("server " + std::to_string(server));
    const std::span<const client::TracePart> parts = world.relay(server).trace_parts();
    ASSERT_FALSE(parts.empty());
    const std::vector<client::Event>& moves = world.moves(server);
    const bool moves_expected = std::ranges::find(moved, server) != moved.end();
    ASSERT_EQ(moves.size(), moves_expected ? 2u : 0u);
    const Step from = moves_expected ? moves[0].step : kLastStep;
    const Step until = moves_expected ? moves[1].step : kLastStep;
    if (moves_expected) {
      EXPECT_EQ(moves[0].kind, client::Event::Kind::kDetoured);
      EXPECT_EQ(moves[1].kind, client::Event::Kind::kReturned);
      EXPECT_LT(from + 2, until);
    }
    std::size_t detoured = 0;
    for (const client::TensorTimes& times : world.traces(server)) {
      EXPECT_LE(times.ready_ns, times.result_ns);
      if (times.part == 0) continue;
      const client::TracePart& part = parts[times.part - 1];
      EXPECT_EQ(times.tensor, part.tensor);
      const bool same = times.switch_index == bcube.switch_of(server, part.level);
      EXPECT_NE(times.detoured, same);
      const bool away = part.level == 0 && times.step > from && times.step < until;
      const bool in_between = part.level == 0 && times.step == from;  // some of it is done before
      EXPECT_TRUE(in_between || times.detoured == away) << "step " << times.step;
      // A packet that says of many tensors that there is no data counts for one of them.
      EXPECT_TRUE(times.packets == 0 || times.queued_ns <= times.first_sent_ns);
      EXPECT_LE(times.last_sent_ns, times.result_ns);
      EXPECT_LE(times.kth_contribution_ns, times.result_ns);
      detoured += times.detoured;
    }
    EXPECT_EQ(detoured != 0, moves_expected);
    EXPECT_EQ(world.traces(server).size(), options.steps * (2 + parts.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Some, BcubeReturns,
                         testing::Values(Shape{2, 2, BcubeMode::kAggregated},
                                         Shape{3, 2, BcubeMode::kAggregated},
                                         Shape{2, 3, BcubeMode::kAggregated},
                                         Shape{3, 2, BcubeMode::kPlain}),
                         name_of);

}  // namespace
}  // namespace sluice::sim
