// Schedules of members that die, leave, come back or come twice, and the notices to the others.

#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

class Members : public Schedule {
 protected:
  // Kills `rank` when its contribution number `count` of step 2 is out; the next ones never are.
  void kill_after(RunIndex run, std::uint16_t rank, std::uint32_t count, bool host_too) {
    Worker* victim = &world().worker(run, rank);
    world().set_filter([this, victim, count, host_too](Passing& passing) {
      if (passing.direction != Direction::kToAppliance || passing.worker != victim) return;
      if (struck_at != 0) passing.drop = true;
      if (passing.drop || !is_contribution(passing)) return;
      if (passing.packet.body<wire::Contribution>().step != 2 || ++passed < count) return;
      struck_at = passing.now;
      world().at(struck_at, [this, victim, host_too] { world().kill(*victim, host_too); });
    });
  }
  std::uint32_t passed = 0;
  TimeNs struck_at = 0;
};

TEST_F(Members, a_worker_killed_before_its_chunks_were_counted_is_named_within_5_s) {
  JobPlan plan = make_plan(4, 3, {64 * 40});
  plan.ranks[2].step_delay_ns = 500 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().at(800 * kMillisecond, [&] { world().kill(world().worker(run, 2), false); });
  expect_failed(run, Rank{2}, 800 * kMillisecond + 5 * kSecond, {"rank 2", "10.1.0.3", "died"});
  EXPECT_EQ(world().worker(run, 0).steps_done(), 1u);
}

TEST_F(Members, a_worker_killed_while_its_chunks_are_counted_is_named_within_5_s) {
  const RunIndex run = world().add_run(make_plan(4, 3, {64 * 40}));
  kill_after(run, 2, 20, false);
  expect_failed(run, Rank{2}, 6 * kSecond, {"rank 2", "10.1.0.3", "died"});
  EXPECT_LE(world().now(), struck_at + 5 * kSecond);
}

TEST_F(Members, a_worker_killed_after_its_chunks_were_counted_still_gives_its_step) {
  JobPlan plan = make_plan(4, 3, {64 * 40});
  plan.ranks[0].step_delay_ns = 300 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  kill_after(run, 2, 40, false);
  expect_failed(run, Rank{2}, 6 * kSecond, {"rank 2", "10.1.0.3"});
  for (const std::uint16_t rank : {0, 1, 3})
    EXPECT_EQ(world().worker(run, rank).steps_done(), 2u) << "step 2 was complete without it";
}

TEST_F(Members, a_host_that_falls_silent_is_named_after_the_member_timeout) {
  const RunIndex run = world().add_run(make_plan(4, 3, {64 * 40}));
  kill_after(run, 1, 20, true);
  expect_failed(run, Rank{1}, 8 * kSecond, {"rank 1", "10.1.0.2", "silent", "3.0"});
  EXPECT_GE(world().now(), struck_at + 3 * kSecond);
  EXPECT_LE(world().now(), struck_at + 4 * kSecond);
}

TEST_F(Members, other_jobs_do_not_notice_a_death) {
  const RunIndex run = world().add_run(make_plan(3, 3, {64 * 40}));
  JobPlan other = make_plan(3, 50, {64 * 40});
  other.name = "other";
  for (RankPlan& rank : other.ranks) rank.step_delay_ns = 10 * kMillisecond;
  const RunIndex unharmed = world().add_run(other);
  kill_after(run, 1, 20, false);
  expect_completed(unharmed, 2 * kSecond);
  expect_failed(run, Rank{1}, 6 * kSecond, {"rank 1"});
}

TEST_F(Members, leaving_where_uneven_ends_are_meant_lets_the_others_go_on) {
  JobPlan plan = make_plan(4, 6, {64 * 40});
  plan.ranks[1].last_step = 2;
  plan.ranks[3].last_step = 4;
  plan.ranks[1].ending = plan.ranks[3].ending = Ending::kUneven;
  expect_completed(world().add_run(plan), 3 * kSecond);
}

TEST_F(Members, leaving_in_the_middle_of_a_step_completes_what_waits_for_nobody_else) {
  // Ranks 0 and 1 have contributed to step 2 when rank 2 leaves after step 1: nothing else will
  // arrive that could complete their slots.
  JobPlan plan = make_plan(3, 2, {64 * 700});
  plan.ranks[2].last_step = 1;
  plan.ranks[2].ending = Ending::kUneven;
  const RunIndex run = world().add_run(plan);
  world().set_filter([](Passing& passing) {
    if (passing.packet.type() == PacketType::kLeave && rank_of(passing) == 2 &&
        passing.now < 200 * kMillisecond)
      passing.drop = true;
  });
  expect_completed(run, 3 * kSecond);
}

TEST_F(Members, an_abnormal_leave_fails_the_others_with_the_rank) {
  JobPlan plan = make_plan(3, 5, {64 * 40});
  plan.ranks[1].last_step = 2;
  plan.ranks[1].ending = Ending::kAbnormal;
  const RunIndex run = world().add_run(plan);
  expect_failed(run, Rank{1}, 2 * kSecond, {"rank 1", "10.1.0.2"});
}

TEST_F(Members, the_same_rank_twice_is_refused_with_address_and_age) {
  JobPlan plan = make_plan(3, 10, {64 * 40});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  Worker& first = world().worker(run, 1);
  Worker& second = world().add_worker(run, Rank{1}, 300 * kMillisecond);
  ASSERT_TRUE(world().run_until([&] { return second.failed(); }, 2 * kSecond));
  EXPECT_EQ(second.failure().code(), StatusCode::kRefused);
  expect_words(second.failure().message(),
               {"rank 1", "10.1.0.2:" + std::to_string(first.identity.port), "heard",
                "10.1.0.2:" + std::to_string(second.identity.port)});
  ASSERT_TRUE(world().run_until([&] { return first.done(); }, 4 * kSecond));
  EXPECT_FALSE(first.failed()) << first.failure().message();
  EXPECT_EQ(first.steps_done(), 10u);
}

TEST_F(Members, a_restart_with_the_same_rank_is_refused_before_3_s_and_taken_after) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  options.unreachable_hints = false;
  JobPlan plan = make_plan(3, 3, {64 * 40});
  plan.ranks[1].step_delay_ns = 500 * kMillisecond;  // dies in step 1
  const RunIndex run = world().add_run(plan);
  world().at(300 * kMillisecond, [&] { world().kill(world().worker(run, 1), false); });
  world().run_until(400 * kMillisecond);
  Worker& early = world().add_worker(run, Rank{1}, 2 * kSecond);
  ASSERT_TRUE(world().run_until([&] { return early.failed(); }, 3 * kSecond));
  expect_words(early.failure().message(), {"rank 1", "heard", "3 s"});

  Worker& late = world().add_worker(run, Rank{1}, 5 * kSecond);
  expect_completed(run, 9 * kSecond);
  EXPECT_FALSE(late.failed()) << late.failure().message();
  EXPECT_EQ(late.steps_done(), 3u);
}

TEST_F(Members, a_process_whose_rank_was_taken_over_is_told_and_changes_nothing) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  JobPlan plan = make_plan(3, 4, {64 * 40});
  plan.ranks[1].step_delay_ns = 500 * kMillisecond;  // frozen in step 1
  const RunIndex run = world().add_run(plan);
  Worker& frozen = world().worker(run, 1);
  world().at(300 * kMillisecond, [&] { world().pause(frozen); });
  world().run_until(400 * kMillisecond);
  world().add_worker(run, Rank{1}, 5 * kSecond);
  world().at(5200 * kMillisecond, [&] { world().resume(frozen); });
  ASSERT_TRUE(world().run_until([&] { return frozen.failed(); }, 8 * kSecond));
  expect_words(frozen.failure().message(), {"rank 1", "held by", "10.1.0.2"});
  EXPECT_GT(world().appliance().count(Verdict::kStaleCookie), 0u);
  expect_completed(run, 9 * kSecond);
}

TEST_F(Members, a_restart_in_mid_run_ends_the_job_instead_of_mixing_parameters) {
  // Nobody could give the new process the parameters of step 2.
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  options.unreachable_hints = false;
  const RunIndex run = world().add_run(make_plan(3, 3, {64 * 40}));
  kill_after(run, 1, 20, false);
  world().run_until(400 * kMillisecond);
  ASSERT_NE(struck_at, 0);
  Worker& late = world().add_worker(run, Rank{1}, 4 * kSecond);
  expect_failed(run, Rank{1}, 6 * kSecond, {"rank 1", "10.1.0.2"});
  ASSERT_TRUE(late.failed());
  expect_words(late.failure().message(), {"step 2", "mid-run"});
}

// The first collectives are over or under way, step 1 is not over: a process that takes a rank then
// repeats them.
class RestartedEarly : public Members, public testing::WithParamInterface<std::uint16_t> {
 protected:
  RestartedEarly() {
    options.appliance.jobs.member_timeout_ns = 30 * kSecond;
    options.unreachable_hints = false;
  }
  // Another process takes the rank when this one has been silent for 3 s.
  Worker& restart(RunIndex run, std::uint16_t rank) {
    world().kill(world().worker(run, rank), false);
    world().run_until(world().now() + 10 * kMillisecond);
    Worker& late = world().add_worker(run, Rank{rank}, world().now() + 4 * kSecond);
    EXPECT_TRUE(world().run_until([&] { return late.started(); }, world().now() + 5 * kSecond));
    return late;
  }
  void broadcast(Worker& worker, std::vector<std::uint8_t>& buffer) {
    Status status =
        worker.session().broadcast(Rank{0}, buffer.data(), buffer.size(), world().now());
    ASSERT_TRUE(status.ok()) << status.message();
    worker.pump(world().now());
  }
};

TEST_P(RestartedEarly, a_root_that_broadcasts_other_bytes_ends_the_job_instead_of_mixing_them) {
  JobPlan plan = make_plan(3, 1, {64});
  plan.manual = true;
  plan.chunk_bytes = 64;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().set_filter([&](Passing& passing) {  // the rest of its chunks never arrive
    passing.drop = is_piece(passing, StreamId::kCollectives) && rank_of(passing) == 0 &&
                   !passing.packet.payload().empty() && passed++ >= GetParam();
  });
  std::vector<std::vector<std::uint8_t>> buffers(3, std::vector<std::uint8_t>(4 * 64, 1));
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    broadcast(world().worker(run, rank), buffers[rank]);
  world().run_until(world().now() + 50 * kMillisecond);
  Worker& root = restart(run, 0);
  world().set_filter({});
  std::vector<std::uint8_t> other(4 * 64, 2);
  broadcast(root, other);
  expect_failed(run, Rank{0}, world().now() + 2 * kSecond, {"rank 0"});
  ASSERT_TRUE(root.failed());
  expect_words(root.failure().message(), {"collective step 1", "other bytes", "mid-run"});
}

INSTANTIATE_TEST_SUITE_P(Chunks, RestartedEarly, testing::Values(1, 3, 4));

TEST_F(RestartedEarly, a_process_repeats_what_it_only_received_and_goes_on_with_the_others) {
  JobPlan plan = make_plan(3, 3, {64 * 40});
  plan.collectives = {{1, CollectiveKind::kBroadcast, Rank{0}, 500}, {1, CollectiveKind::kBarrier}};
  plan.ranks[1].step_delay_ns = 500 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  Worker& first = world().worker(run, 1);
  ASSERT_TRUE(
      world().run_until([&] { return first.count(Kind::kCollectiveDone) == 2; }, 2 * kSecond));
  const Worker& late = restart(run, 1);
  expect_completed(run, world().now() + 5 * kSecond);
  EXPECT_EQ(late.count(Kind::kCollectiveDone), 2u);
}

TEST_F(Members, a_rank_whose_acceptance_was_lost_may_find_the_first_broadcast_over) {
  JobPlan plan = make_plan(3, 2, {64 * 40});
  plan.collectives = {{1, CollectiveKind::kBroadcast, Rank{0}, 500}};
  const RunIndex run = world().add_run(plan);
  Step sent = 0;
  world().set_filter([&](Passing& passing) {
    if (is_piece(passing, StreamId::kCollectives) && rank_of(passing) == 0)
      sent = passing.packet.body<wire::Piece>().step;
    passing.drop =
        passing.packet.type() == PacketType::kAccept && rank_of(passing) == 1 && sent < 2;
  });
  expect_completed(run, 5 * kSecond);
  EXPECT_EQ(sent, 2u);
}

TEST_F(Members, a_new_run_under_an_old_name_is_refused_while_the_old_one_lives) {
  JobPlan plan = make_plan(2, 20, {64 * 40});
  plan.run_id = 0xAAAA;
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex old_run = world().add_run(plan);
  JobPlan next = plan;
  next.run_id = 0xBBBB;
  for (RankPlan& rank : next.ranks) rank.start_at = 500 * kMillisecond;
  const RunIndex new_run = world().add_run(next);
  expect_failed(new_run, Rank{99}, 2 * kSecond, {"aaaa", "bbbb", "rank 0"});
  expect_completed(old_run, 5 * kSecond);
}

TEST_F(Members, a_new_run_takes_an_old_name_whose_members_are_all_silent) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  options.unreachable_hints = false;
  JobPlan plan = make_plan(2, 20, {64 * 40});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex old_run = world().add_run(plan);
  world().run_until(500 * kMillisecond);
  world().kill(world().worker(old_run, 0), false);
  world().kill(world().worker(old_run, 1), false);
  plan.run_id += 1;
  for (RankPlan& rank : plan.ranks) rank.start_at = 3500 * kMillisecond;
  expect_completed(world().add_run_on(plan, old_run), 8 * kSecond);
}

TEST_F(Members, a_relaunch_within_a_second_of_a_kill_waits_and_is_accepted) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  for (const bool hints : {true, false}) {
    options.unreachable_hints = hints;
    JobPlan plan = make_plan(2, 20, {64 * 40});
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
    plan.name = hints ? "told" : "silent";
    const RunIndex old_run = world().add_run(plan);
    const TimeNs killed = world().now() + 500 * kMillisecond;
    world().run_until(killed);
    for (std::size_t rank = 0; rank < 2; ++rank) world().kill(world().worker(old_run, rank), false);
    plan.run_id += 1;
    for (RankPlan& rank : plan.ranks) rank.start_at = killed + 200 * kMillisecond;
    expect_completed(world().add_run_on(plan, old_run), killed + (hints ? 4 : 8) * kSecond);
  }
}

TEST_F(Members, the_whole_job_starts_again_at_once_after_a_death) {
  const RunIndex run = world().add_run(make_plan(3, 3, {64 * 40}));
  kill_after(run, 1, 20, false);
  expect_failed(run, Rank{1}, 6 * kSecond, {"rank 1"});
  JobPlan plan = make_plan(3, 3, {64 * 40});
  plan.run_id = 2;
  plan.seed = 99;
  expect_completed(world().add_run_on(plan, run), world().now() + 3 * kSecond);
}

TEST_F(Members, joiners_in_mid_run_are_refused_with_both_values) {
  JobPlan plan = make_plan(2, 10, {64 * 40});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  JobPlan bigger = make_plan(3, 1, {64 * 40});  // its rank 2 is outside the job of two
  JobPlan other_layout = make_plan(2, 1, {64 * 41});
  for (JobPlan* joiner : {&bigger, &other_layout})
    for (RankPlan& rank : joiner->ranks) rank.start_at = 300 * kMillisecond;
  const RunIndex too_many = world().add_run(bigger);
  const RunIndex differs = world().add_run(other_layout);
  expect_failed(too_many, Rank{99}, 2 * kSecond, {"world size 3", "world size 2"});
  expect_failed(differs, Rank{99}, 2 * kSecond, {"40 chunks", "41 chunks"});
  expect_completed(run, 4 * kSecond);
}

TEST_F(Members, a_stopped_workers_downlink_holds_up_nobody_elses_job) {
  options.downlink.queue_frames = 64;
  JobPlan stopped = make_plan(3, 4, {64 * 300});
  for (RankPlan& rank : stopped.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(stopped);
  JobPlan other = make_plan(3, 20, {64 * 40});
  other.name = "other";
  for (RankPlan& rank : other.ranks) rank.step_delay_ns = 20 * kMillisecond;
  const RunIndex unharmed = world().add_run(other);
  const HostIndex host = world().worker(run, 0).identity.host;
  world().at(150 * kMillisecond, [&] { world().block_downlink(host, true); });
  world().at(2 * kSecond, [&] { world().block_downlink(host, false); });
  expect_completed(unharmed, kSecond);
  expect_completed(run, 5 * kSecond);
  const LinkCounters& counters = world().downlink(host).counters();
  EXPECT_TRUE(counters.balanced());
}

TEST_F(Members, an_appliance_that_ends_tells_all_members) {
  JobPlan plan = make_plan(3, 50, {64 * 40});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().at(500 * kMillisecond, [&] { world().appliance().shutdown(world().now()); });
  expect_failed(run, Rank{99}, kSecond, {"shutting down"});
}

TEST_F(Members, an_appliance_that_dies_is_noticed_within_5_s) {
  JobPlan plan = make_plan(3, 50, {64 * 40});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().at(500 * kMillisecond, [&] { world().stop_appliance(); });
  expect_failed(run, Rank{99}, 5500 * kMillisecond, {"10.255.0.1:7700"});
}

TEST_F(Members, an_appliance_that_restarts_makes_the_workers_fail_and_serves_the_next_run) {
  JobPlan plan = make_plan(3, 50, {64 * 40});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().at(500 * kMillisecond, [&] { world().start_appliance(4711); });
  expect_failed(run, Rank{99}, 6 * kSecond, {"10.255.0.1:7700"});
  JobPlan next = make_plan(3, 2, {64 * 40});
  next.run_id = 2;
  expect_completed(world().add_run_on(next, run), world().now() + 3 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
