// Schedules in which the appliance itself is away: its control thread or an lcore does not run for
// a while, whatever the cause, and what was meant for it waits.
#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

class Absence : public Schedule {
 protected:
  Absence() {
    options.appliance.jobs.member_timeout_ns = 3 * kSecond;
    options.appliance.jobs.shard_count = 2;
  }
  // A job that computes for `step_ns` before each of its steps.
  static JobPlan slow_job(std::uint16_t workers, Step steps, DurationNs step_ns) {
    JobPlan plan = make_plan(workers, steps, {64 * 200});
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = step_ns;
    return plan;
  }
};

TEST_F(Absence, of_a_shard_delays_its_steps_and_harms_nobody) {
  const RunIndex run = world().add_run(slow_job(3, 10, 50 * kMillisecond));
  const TimeNs gone = 220 * kMillisecond;
  world().at(gone, [&] { world().appliance().pause_shard(1, gone + 2 * kSecond); });
  world().run_until(gone + 1900 * kMillisecond);
  EXPECT_LT(world().worker(run, 0).steps_done(), 6u) << "no step is complete without that shard";
  expect_completed(run, 5 * kSecond);
}

TEST_F(Absence, of_the_control_thread_stops_no_data) {
  const RunIndex run = world().add_run(slow_job(3, 10, 50 * kMillisecond));
  const TimeNs gone = 220 * kMillisecond;
  world().at(gone, [&] { world().appliance().pause_control(gone + 2 * kSecond); });
  world().run_until(gone + 1900 * kMillisecond);
  EXPECT_EQ(world().worker(run, 0).steps_done(), 10u);
  EXPECT_GT(world().appliance().waiting_frames(), 20u) << "keepalives wait for the control thread";
  expect_completed(run, 5 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
