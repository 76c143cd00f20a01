// Schedules in which the appliance is away: its control thread or an lcore does not run for a
// while, for any cause, and its queue waits.
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
  // Many ranks, so that more waits for the control thread than one burst; the clients are patient,
  // since this is about what the appliance decides when it is back.
  static JobPlan crowd(std::uint64_t run_id = 1) {
    JobPlan plan = make_plan(40, 2, {64});
    plan.run_id = run_id;
    plan.session.silence_timeout_ns = 30 * kSecond;
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 6 * kSecond;
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

// A question about the tail asks for feedback on all before it. If it did not count as that, the
// wait for arrivals would ask once more for each question: 1,600 times in this second.
TEST_F(Absence, of_a_shard_is_asked_about_a_few_times_by_who_waits_for_arrivals) {
  JobPlan plan = slow_job(1, 10, 50 * kMillisecond);
  plan.session.schedule = {
      .policy = client::Schedule::kCredit, .unit_bytes = 256, .credit_bytes = 1};
  const RunIndex run = world().add_run(plan);
  const TimeNs gone = 220 * kMillisecond;
  std::uint32_t asked = 0;
  world().set_filter([&](Passing& passing) {
    asked += passing.now > gone && passing.now < gone + kSecond &&
             passing.packet.type() == PacketType::kCredit;
  });
  world().at(gone, [&] { world().appliance().pause_shard(1, gone + kSecond); });
  expect_completed(run, 5 * kSecond);
  EXPECT_GT(asked, 0u);
  EXPECT_LT(asked, 40u);
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

TEST_F(Absence, keepalives_that_wait_for_the_control_thread_are_no_silence) {
  const RunIndex run = world().add_run(crowd());
  world().at(kSecond, [&] { world().appliance().pause_control(6 * kSecond); });
  expect_completed(run, 20 * kSecond);
}

// Found by the swarm (seeds 25, 1012, 1229, 1708 and 1990 of their time): those who wait for the
// others were lost, and nobody was left to be told.
TEST_F(Absence, of_the_control_thread_while_a_job_forms_loses_nobody_who_waits) {
  JobPlan plan = make_plan(3, 2, {64});
  plan.session.silence_timeout_ns = 30 * kSecond;
  plan.ranks[2].start_at = 8 * kSecond;
  const RunIndex run = world().add_run(plan);
  world().at(kSecond, [&] { world().appliance().pause_control(6 * kSecond); });
  expect_completed(run, 12 * kSecond);
}

TEST_F(Absence, a_suspect_whose_answers_wait_for_the_control_thread_is_not_dead) {
  const RunIndex run = world().add_run(crowd());
  const Worker& suspect = world().worker(run, 39);
  // Its answer to the first ping and two keepalives are lost; the others wait behind those of all
  // other ranks.
  world().set_filter([&](Passing& passing) {
    const bool lossy = passing.now > kSecond && passing.now < 1600 * kMillisecond;
    if (lossy && passing.worker == &suspect) passing.drop = true;
  });
  world().at(kSecond, [&] {
    world().appliance().unreachable(suspect.identity.port, world().now());
    world().appliance().pause_control(3 * kSecond);
  });
  expect_completed(run, 20 * kSecond);
}

TEST_F(Absence, a_join_of_another_run_takes_no_name_whose_members_could_not_be_heard) {
  const RunIndex run = world().add_run(crowd(0xAAAA));
  JobPlan other = make_plan(40, 1, {64});
  other.run_id = 0xBBBB;
  for (RankPlan& rank : other.ranks) rank.start_at = 2 * kSecond;
  const RunIndex thief = world().add_run(other);
  bool gone = false;
  world().set_filter([&](Passing& passing) {
    if (gone || passing.packet.type() != PacketType::kJoin || passing.now < 2 * kSecond) return;
    if (passing.packet.body<wire::Join>().has_proof == 0) return;
    gone = true;
    world().appliance().pause_control(passing.now + 3300 * kMillisecond);
  });
  expect_failed(thief, Rank{99}, 8 * kSecond, {"aaaa", "bbbb"});
  EXPECT_TRUE(gone);
  expect_completed(run, 20 * kSecond);
}

// Slots of a job of `chunks` chunks take about 800 bytes a chunk. Made at 100 kB/s, 6.4 MB stand
// for 64 GiB at 1 GiB/s: 64 s in which the appliance has other jobs.
class Preparing : public Absence {
 protected:
  Preparing() {
    options.appliance.memory_bytes_per_second = 100'000;
    options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  }
  // Its steps are the members' keepalives, and now and then a chunk.
  RunIndex add_idle_job(Step steps) {
    JobPlan plan = make_plan(3, steps, {64});
    plan.name = "idle";
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 10 * kSecond;
    return world().add_run(plan);
  }
  static JobPlan big_job() {
    JobPlan plan = make_plan(2, 1, {64 * 9000});
    plan.name = "big";
    for (RankPlan& rank : plan.ranks) rank.start_at = 5 * kSecond;
    return plan;
  }
};

TEST_F(Preparing, a_job_of_64_gib_is_joined_and_no_other_job_notices) {
  const RunIndex idle = add_idle_job(8);
  const RunIndex big = world().add_run(big_job());
  world().run_until(40 * kSecond);
  EXPECT_TRUE(world().appliance().jobs().views()[1].preparing);
  const std::string said = world().worker(big, 0).session().describe_stall(world().now());
  expect_words(said, {"'big' rank 0", "preparing the job's memory", " %"});
  EXPECT_GT(world().appliance().jobs().memory_bytes(), std::size_t{6'000'000});
  expect_completed(big, 90 * kSecond);
  EXPECT_GT(world().now(), 60 * kSecond);
  expect_completed(idle, 90 * kSecond);
}

TEST_F(Preparing, a_job_whose_joiners_died_is_not_made_and_its_memory_comes_back) {
  const RunIndex big = world().add_run(big_job());
  world().run_until(10 * kSecond);
  EXPECT_GT(world().appliance().jobs().memory_bytes(), std::size_t{6'000'000});
  world().kill(world().worker(big, 0), false);
  world().kill(world().worker(big, 1), false);
  world().run_until(17 * kSecond);
  EXPECT_EQ(world().appliance().jobs().memory_bytes(), 0u);
}

TEST_F(Preparing, another_run_takes_the_name_only_when_nobody_asks_for_the_job_any_more) {
  const RunIndex first = world().add_run(big_job());
  JobPlan plan = big_job();
  plan.run_id = 2;
  for (RankPlan& rank : plan.ranks) rank.start_at = 8 * kSecond;
  const RunIndex refused = world().add_run(plan);
  expect_failed(refused, Rank{99}, 10 * kSecond, {"being prepared", "stop the other run"});
  world().kill(world().worker(first, 0), false);
  world().kill(world().worker(first, 1), false);
  plan.run_id = 3;
  for (RankPlan& rank : plan.ranks) rank.start_at = 14 * kSecond;
  expect_completed(world().add_run(plan), 120 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
