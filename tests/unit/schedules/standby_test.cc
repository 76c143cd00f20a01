// Schedules of a job with two appliances, of which one is lost, left, cut off, stopped or drained.
#include <algorithm>
#include <regex>

#include "tests/unit/schedules/moving.h"

namespace sluice::sim {
namespace {

using Standby = Moving;

TEST_F(Standby, the_first_dies_at_every_packet_of_a_job) {
  const JobPlan plan = plan_of_steps();
  for (std::uint32_t at = 0; at < 160 && !HasFailure(); ++at) {
    SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
    expect_survives(plan, {.after = {at}, .down_ns = 100 * kSecond});
  }
  EXPECT_GT(handed_over, 10u);
}

// It is back before anybody has noticed, while the ranks vote, and after they have left.
TEST_F(Standby, the_first_comes_back_while_members_move) {
  const JobPlan plan = plan_of_steps();
  for (const DurationNs down : {400, 700, 800, 900, 1000, 1500})
    for (std::uint32_t at = 0; at < 150 && !HasFailure(); at += 11) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams for " + std::to_string(down) +
                   " ms");
      expect_survives(plan, {.after = {at}, .down_ns = down * kMillisecond});
    }
}

// While the ranks join the second, state what they know, hand over; the first is back by then.
TEST_F(Standby, the_second_dies_at_every_packet_after_the_move) {
  const JobPlan plan = plan_of_steps();
  for (const std::uint32_t first : {20u, 95u, 120u})
    for (std::uint32_t second = 0; second < 130 && !HasFailure(); second += 3) {
      SCOPED_TRACE("killed after " + std::to_string(first) + " and " + std::to_string(second));
      expect_survives_two(plan, first, second);
    }
}

TEST_F(Standby, a_rank_that_reaches_only_the_first_holds_the_job_there) {
  const RunIndex run = begin(plan_of_many_steps(200));
  cut(run, 1, kB, true);
  world().run_until(world().now() + 7 * kSecond);
  EXPECT_TRUE(all_at(run, 0));
  const Worker& worker = world().worker(run, 1);
  const auto warned = std::ranges::find(worker.log(), Kind::kStalled, &LoggedEvent::kind);
  ASSERT_NE(warned, worker.log().end());
  expect_words(warned->status.message(), {"10.255.0.2:7700", "has not answered", "cannot move"});
  // Another one loses the first for a moment and votes. The job comes back to where all can be.
  cut(run, 0, kA, true);
  world().run_until(world().now() + 1500 * kMillisecond);
  cut(run, 0, kA, false);
  world().run_until(world().now() + 2 * kSecond);
  expect_words(world().worker(run, 0).session().describe_stall(world().now()),
               {"10.255.0.2:7700", "rank 1"});
  expect_moved(run, 2, world().now() + 5 * kSecond);
  expect_completed(run, 60 * kSecond);
}

TEST_F(Standby, both_die_at_once_and_the_second_comes_back) {
  const RunIndex run = begin(plan_of_many_steps());
  world().stop_appliance(kA);
  world().stop_appliance(kB);
  world().run_until(world().now() + 3 * kSecond);
  world().start_appliance(7, kB);
  expect_completed(run, 30 * kSecond);
}

TEST_F(Standby, both_die_for_good_and_are_named_after_restart_timeout) {
  JobPlan plan = plan_of_many_steps();
  plan.session.restart_timeout_ns = 6 * kSecond;
  const RunIndex run = begin(plan);
  world().stop_appliance(kA);
  world().run_until(world().now() + 1500 * kMillisecond);
  world().stop_appliance(kB);
  expect_failed(run, Rank{99}, world().now() + 8 * kSecond, {"10.255.0.2:7700"});
}

// The others are at the second when it stands still, and at the first when that does: a move that
// begins when restart_timeout has passed could not be answered.
TEST_F(Standby, a_rank_that_is_lost_with_the_first_is_named_wherever_the_others_end) {
  JobPlan plan = plan_of_many_steps();
  plan.session.restart_timeout_ns = 4 * kSecond;
  for (DurationNs after = 0; after < 1000 && !HasFailure(); after += 20) {
    SCOPED_TRACE("the second stands still after " + std::to_string(after) + " ms");
    World own(options);
    const RunIndex run = own.add_run(plan);
    own.run_until(kSecond);
    own.stop_appliance(kA);
    own.kill(own.worker(run, 1), false);
    own.run_until(2 * kSecond);
    own.start_appliance(5, kA);
    own.run_until(3800 * kMillisecond + after * kMillisecond);
    stop(own, kB, kSecond);
    own.run_until(own.now() + 900 * kMillisecond);
    stop(own, kA, 2 * kSecond);
    own.run_until(own.now() + 10 * kSecond);
    for (const std::uint16_t rank : {0, 2}) {
      ASSERT_TRUE(own.worker(run, rank).failed());
      const std::string& why = own.worker(run, rank).failure().message();
      EXPECT_TRUE(std::regex_search(why, std::regex("ranks? (0, )?1"))) << why;
    }
  }
}

TEST_F(Standby, a_drained_appliance_is_empty_and_no_step_is_lost) {
  const RunIndex run = begin(plan_of_many_steps());
  const TimeNs from = world().now();
  world().appliance(kA).drain(from);
  expect_moved(run, 1, from + 200 * kMillisecond);
  world().run_until(world().now() + 100 * kMillisecond);
  EXPECT_TRUE(world().appliance(kA).jobs().is_empty());
  world().stop_appliance(kA);
  expect_completed(run, 20 * kSecond);
  EXPECT_EQ(world().oracle().totals().handed_over, 0u) << "they moved between two steps";
}

TEST_F(Standby, a_rank_in_the_middle_of_a_step_follows_at_once_when_another_has_moved) {
  JobPlan plan = plan_of_many_steps();
  for (const std::uint16_t rank : {1, 2}) plan.ranks[rank].step_delay_ns = 0;
  const RunIndex run = begin(plan);
  const TimeNs from = world().now();
  world().appliance(kA).drain(from);  // 1 and 2 wait for 0, which is between two steps
  expect_moved(run, 1, from + 20 * kMillisecond);
  expect_completed(run, 20 * kSecond);
}

TEST_F(Standby, a_job_begins_at_the_second_while_the_first_is_away_or_drains) {
  world().stop_appliance(kA);
  const RunIndex first = world().add_run(plan_of_many_steps(150));
  world().run_until(5 * kSecond);
  EXPECT_TRUE(all_at(first, 1));
  world().start_appliance(7, kA);
  world().appliance(kA).drain(world().now());
  JobPlan plan = plan_of_many_steps();
  plan.name = "second";
  plan.run_id += 1;
  const RunIndex second = world().add_run(plan);
  expect_completed(first, 30 * kSecond);
  expect_completed(second, 30 * kSecond);
}

class Drain : public Standby {
 protected:
  Drain() { options.standby = false; }
};

TEST_F(Drain, without_a_standby_a_job_goes_on_until_the_appliance_ends_and_waits_for_the_next) {
  const RunIndex run = begin(plan_of_many_steps(100));
  world().appliance().drain(world().now());
  world().run_until(world().now() + 2 * kSecond);
  EXPECT_TRUE(all_at(run, 0));
  EXPECT_FALSE(world().appliance().jobs().is_empty());
  world().appliance().shutdown(world().now());
  world().run_until(world().now() + 50 * kMillisecond);
  world().stop_appliance();
  world().run_until(world().now() + kSecond);
  world().start_appliance(7);
  expect_completed(run, 20 * kSecond);
}

TEST_F(Drain, a_job_that_cannot_move_is_waited_for) {
  JobPlan plan = plan_of_many_steps(20);
  plan.session.restart_timeout_ns = 0;
  const RunIndex run = begin(plan);
  world().appliance().drain(world().now());
  world().run_until(world().now() + 200 * kMillisecond);
  EXPECT_FALSE(world().appliance().jobs().is_empty());
  expect_completed(run, 20 * kSecond);
  world().run_until(world().now() + kSecond);
  EXPECT_TRUE(world().appliance().jobs().is_empty());
}

TEST_F(Drain, an_appliance_that_is_stopped_for_10_s_declares_nobody_dead) {
  const RunIndex run = begin(plan_of_many_steps());
  stop(kA, 10 * kSecond);
  expect_completed(run, 30 * kSecond);
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(world().worker(run, rank).session().counters().appliance_restarts, 0u);
}

}  // namespace
}  // namespace sluice::sim
