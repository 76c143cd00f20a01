// Schedules of a job with two appliances that are the same for steps, with k < n too, and for
// operations.
#include "tests/unit/schedules/moving.h"

namespace sluice::sim {
namespace {

enum class Kind : std::uint8_t { kSteps, kLate, kOperations };

class StandbyOfKinds : public Moving, public testing::WithParamInterface<Kind> {
 protected:
  static JobPlan plan_of(Step steps) {
    switch (GetParam()) {
      case Kind::kSteps: return plan_of_many_steps(steps);
      case Kind::kLate: return plan_of_late_steps(steps);
      case Kind::kOperations: return plan_of_rounds(steps);
    }
    return {};
  }
  // A step ends by itself; operations are given a second for that.
  static DurationNs drained_within() {
    return GetParam() == Kind::kOperations ? 1500 * kMillisecond : kSecond;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, StandbyOfKinds,
                         testing::Values(Kind::kSteps, Kind::kLate, Kind::kOperations));

TEST_P(StandbyOfKinds, a_job_moves_within_a_second_and_a_half_of_the_death) {
  const RunIndex run = begin(plan_of(40));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  expect_completed(run, 20 * kSecond);
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(world().worker(run, rank).session().counters().appliance_restarts, 1u);
}

// Everybody hears that one has left.
TEST_P(StandbyOfKinds, one_rank_that_loses_the_first_takes_all_along) {
  const RunIndex run = begin(plan_of(40));
  cut(run, 1, kA, true);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  expect_completed(run, 20 * kSecond);
}

TEST_P(StandbyOfKinds, a_rank_that_cannot_reach_the_second_is_waited_for_and_named) {
  const RunIndex run = begin(plan_of(40));
  cut(run, 1, kB, true);
  world().stop_appliance(kA);
  world().run_until(world().now() + 7 * kSecond);
  for (const std::uint16_t rank : {0, 2})
    expect_words(world().worker(run, rank).session().describe_stall(world().now()),
                 {"10.255.0.2:7700", "2 of 3 ranks here", "rank 1"});
  cut(run, 1, kB, false);
  expect_completed(run, 30 * kSecond);
}

TEST_P(StandbyOfKinds, what_an_appliance_sends_that_was_left_counts_for_nothing) {
  const RunIndex run = begin(plan_of(600));
  stop(kA, 10 * kSecond);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  world().run_until(world().now() + 12 * kSecond);  // it has been back for a while
  EXPECT_TRUE(all_at(run, 1));
  EXPECT_TRUE(world().appliance(kA).jobs().is_empty()) << "the ranks have told it, as it finds out";
  world().stop_appliance(kB);
  expect_moved(run, 2, world().now() + 1500 * kMillisecond);
  expect_completed(run, 60 * kSecond);
}

// A worker's packets come late: the appliance that was left completes a sum of its own.
TEST_P(StandbyOfKinds, an_appliance_that_was_left_completes_sums_of_its_own) {
  JobPlan plan = plan_of(20);
  plan.ranks[2].step_delay_ns = 400 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  bool away = false;
  world().set_filter([&](Passing& passing) {
    if (passing.box != kA || !away) return;
    if (passing.direction == Direction::kToWorker) passing.delay_ns = 2 * kSecond;
  });
  world().run_until(world().now() + 700 * kMillisecond);
  away = true;
  expect_moved(run, 1, world().now() + 2 * kSecond);
  expect_completed(run, 60 * kSecond);
}

TEST_P(StandbyOfKinds, both_die_and_the_first_comes_back) {
  const RunIndex run = begin(plan_of(40));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  world().stop_appliance(kB);
  world().run_until(world().now() + 3 * kSecond);
  world().start_appliance(7, kA);
  expect_moved(run, 2, world().now() + kSecond);
  expect_completed(run, 30 * kSecond);
}

TEST_P(StandbyOfKinds, both_are_upgraded_one_after_the_other) {
  const RunIndex run = begin(plan_of(200));
  for (const std::size_t box : {kA, kB}) {
    world().appliance(box).drain(world().now());
    expect_moved(run, static_cast<std::uint32_t>(box + 1), world().now() + drained_within());
    world().run_until(world().now() + 200 * kMillisecond);
    EXPECT_TRUE(world().appliance(box).jobs().is_empty());
    world().stop_appliance(box);
    world().run_until(world().now() + kSecond);
    world().start_appliance(50 + box, box);
    world().run_until(world().now() + 500 * kMillisecond);
  }
  expect_completed(run, 60 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
