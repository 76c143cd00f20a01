// Schedules of jobs whose steps one rank completes alone (k = 1). That rank runs ahead of the
// others and may die at any moment. One death never takes the job's state with it.
#include <tuple>

#include "tests/unit/schedules/straggling.h"

namespace sluice::sim {
namespace {

class Runner : public Straggling {
 protected:
  // Rank 0 takes a step in 5 ms, the others in `slow_ns`.
  static JobPlan with_a_runner(std::uint16_t workers, Step steps, DurationNs slow_ns,
                               LateMode late) {
    JobPlan plan = fastest(workers, 1, steps, {64 * 20, 300}, late);
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = slow_ns;
    plan.ranks[0].step_delay_ns = 5 * kMillisecond;
    return plan;
  }
};

using Death = std::tuple<LateMode, int>;
class RunnerDies : public Runner, public testing::WithParamInterface<Death> {};

TEST_P(RunnerDies, and_the_others_go_on) {
  const auto [late, at_ms] = GetParam();
  JobPlan plan = with_a_runner(5, 60, 60 * kMillisecond, late);
  plan.ranks[2].step_delay_ns = 90 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().at(at_ms * kMillisecond, [&] { world().kill(world().worker(run, 0), false); });
  expect_same_replicas(run, 20 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Moments, RunnerDies,
                         testing::Combine(testing::Values(LateMode::kDrop, LateMode::kRequeue),
                                          testing::Values(190, 207, 223, 240, 256, 271)));

// A rank at half the pace is never more than two steps behind: the window of four holds it.
TEST_F(Runner, is_not_held_by_a_rank_at_half_its_pace) {
  JobPlan plan = with_a_runner(2, 200, 20 * kMillisecond, LateMode::kDrop);
  plan.ranks[0].step_delay_ns = 10 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {0}, 200); }, 10 * kSecond));
  EXPECT_LT(world().now(), 2100 * kMillisecond);
  expect_same_replicas(run, 10 * kSecond);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 0u);
}

// The step waits for a rank that is about to leave the window. Otherwise that rank would need
// another's state, and the transfer would hold the window for longer.
TEST_F(Runner, waits_for_the_last_other_rank_that_is_about_to_leave_the_window) {
  const RunIndex run = world().add_run(with_a_runner(2, 40, 60 * kMillisecond, LateMode::kDrop));
  expect_same_replicas(run, 10 * kSecond);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 0u);
}

// What the runner left of the step that waits for a second rank must not close that step when it
// dies, or the one that still computes falls out of the window and nobody has the state.
TEST_F(Runner, that_dies_leaves_the_one_that_computes_inside_the_window) {
  JobPlan plan = with_a_runner(2, 40, 10 * kMillisecond, LateMode::kDrop);
  plan.ranks[1].hiccup_step = 12;
  plan.ranks[1].hiccup_ns = 10 * kSecond;
  const RunIndex run = world().add_run(plan);
  world().at(kSecond, [&] { world().kill(world().worker(run, 0), true); });
  expect_same_replicas(run, 30 * kSecond);
  EXPECT_EQ(world().worker(run, 1).steps_done(), 40u);
}

// It neither computes nor dies: the job waits no longer than for any rank that falls silent.
TEST_F(Runner, goes_on_alone_when_the_other_rank_falls_silent) {
  const RunIndex run = world().add_run(with_a_runner(2, 100, 10 * kMillisecond, LateMode::kDrop));
  world().at(300 * kMillisecond, [&] { world().kill(world().worker(run, 1), true); });
  EXPECT_TRUE(world().run_until([&] { return steps_done(run, {0}, 100); }, 5 * kSecond));
}

}  // namespace
}  // namespace sluice::sim
