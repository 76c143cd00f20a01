// Schedules of jobs with k < n whose appliance is killed, at every point, and comes back without
// its memory.

#include <utility>

#include "tests/unit/schedules/restarting.h"

namespace sluice::sim {
namespace {

JobPlan plan_with_a_broadcast(Step steps = 30) {
  JobPlan plan = plan_of_late(LateMode::kDrop, steps);
  plan.collectives = {{.before_step = 3,
                       .kind = CollectiveKind::kBroadcast,
                       .root = Rank{1},
                       .size_bytes = 64 * 70}};
  return plan;
}

class RestartLate : public Schedule {
 protected:
  void SetUp() override { options.appliance.jobs.member_timeout_ns = 3 * kSecond; }

  void expect_survives(const JobPlan& plan, const std::vector<std::uint32_t>& deaths) {
    World own(options);
    const RunIndex run = own.add_run(plan);
    Killer killer{.world = own, .run = run, .deaths = {.after = deaths}};
    killer.watch();
    expect_done(own, run);
    handed_over += own.oracle().totals().handed_over;
    requeued += own.oracle().totals().requeued_counted;
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
      resyncs += own.worker(run, rank).resyncs();
    deaths_seen += killer.seen;
    all_seen = killer.seen == deaths.size();
  }
  void at_every_packet(const JobPlan& plan, std::uint32_t step = 1) {
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && !HasFailure(); at += step) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
      expect_survives(plan, {at});
    }
  }

  // Rank 0 has results that nobody else has, and is paused; the appliance has restarted. Returns
  // the run, and the steps that rank 0 had done before.
  std::pair<RunIndex, Step> begin_with_results_of_rank_0_alone() {
    const RunIndex run = world().add_run(plan_of_late(LateMode::kRequeue, 60));
    start_all(run);
    bool cut = false;
    world().set_filter([&cut](Passing& passing) {
      if (cut && is_result(passing)) passing.drop = rank_of(passing) != 0;
    });
    world().run_until(world().now() + 20 * kMillisecond);
    const Step before = world().worker(run, 0).steps_done();
    cut = true;
    world().run_until([&] { return world().worker(run, 0).steps_done() > before; },
                      world().now() + kSecond);
    world().pause(world().worker(run, 0));
    world().start_appliance(7);
    world().set_filter({});
    return {run, before};
  }

  void restart_two_steps_after_the_call(RunIndex run) {
    ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 5; },
                                  world().now() + 10 * kSecond));
    ASSERT_EQ(world().worker(run, 2).steps_done(), 2u);
    world().start_appliance(7);
    world().set_filter({});
  }

  std::uint64_t handed_over = 0;
  std::uint64_t requeued = 0;
  std::size_t resyncs = 0;
  std::size_t deaths_seen = 0;
  bool all_seen = true;
};

TEST_F(RestartLate, at_every_packet_of_a_job_that_drops) {
  at_every_packet(plan_of_late(LateMode::kDrop));
  EXPECT_GT(deaths_seen, 100u);
  EXPECT_GT(handed_over, 50u);
}

TEST_F(RestartLate, at_every_packet_of_a_job_that_requeues) {
  at_every_packet(plan_of_late(LateMode::kRequeue));
  EXPECT_GT(deaths_seen, 100u);
  EXPECT_GT(handed_over, 50u);
  EXPECT_GT(requeued, 100u);
}

TEST_F(RestartLate, once_more_at_every_packet_after_a_restart) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue})
    for (const std::uint32_t first : {40u, 77u, 110u}) {
      all_seen = true;
      for (std::uint32_t at = 0; all_seen && at < 80 && !HasFailure(); ++at) {
        SCOPED_TRACE("killed after " + std::to_string(first) + " and " + std::to_string(at) +
                     " datagrams");
        expect_survives(plan_of_late(late), {first, at});
      }
    }
}

TEST_F(RestartLate, over_two_shards_and_lossy_links) {
  use_two_shards_and_lossy_links(options);
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
    JobPlan plan = plan_of_late(late, 4);
    plan.tensors = {{.name = "a", .elem_count = 16 * 100}, {.name = "b", .elem_count = 16 * 30}};
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && !HasFailure(); at += 41) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
      options.seed = at + 1;
      expect_survives(plan, {at});
    }
  }
  EXPECT_GT(handed_over, 100u);
}

TEST_F(RestartLate, with_a_policy_that_moves_k_and_with_rounded_and_pruned_results) {
  JobPlan moving = plan_of_late(LateMode::kDrop);
  moving.session.policy = {.kind = PolicyKind::kSaina,
                           .late = LateMode::kDrop,
                           .k = 1,
                           .sign_threshold_permille = 1,
                           .count_threshold = 1,
                           .round_steps = 1};
  at_every_packet(moving, 2);
  JobPlan narrow = plan_of_late(LateMode::kRequeue);
  narrow.wire = Dtype::kInt8;
  narrow.session.prune = {.rule = client::PruneRule::kStatic, .fraction = 0.2, .min_elems = 1};
  at_every_packet(narrow, 2);
}

// It is frozen, and out of the window when the appliance is lost.
TEST_F(RestartLate, a_rank_further_back_than_what_is_kept_gets_another_ranks_state) {
  JobPlan plan = plan_of_late(LateMode::kRequeue, 30);
  plan.ranks[2].hiccup_step = 3;
  plan.ranks[2].hiccup_ns = 60 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 6; }, kSecond));
  ASSERT_LE(world().worker(run, 2).steps_done(), 3u);
  world().stop_appliance();
  world().at(world().now() + kDown, [&] { world().start_appliance(7); });
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 2).resyncs(), 1u);
  EXPECT_EQ(world().worker(run, 2).count(Kind::kFellBehind), 1u);
  EXPECT_EQ(world().worker(run, 0).resyncs(), 0u);
}

// The others wait for member_timeout, and go on without it; another process then gets their state.
TEST_F(RestartLate, a_rank_that_dies_with_the_appliance_is_waited_for_and_comes_back) {
  JobPlan plan = plan_of_late(LateMode::kDrop, 400);
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().run_until(world().now() + 50 * kMillisecond);
  world().stop_appliance();
  world().kill(world().worker(run, 1), false);
  world().at(world().now() + kDown, [&] { world().start_appliance(7); });
  const Step at = world().worker(run, 0).steps_done();
  world().run_until(world().now() + 3 * kSecond);
  EXPECT_LE(world().worker(run, 0).steps_done(), at + 1) << "the dead rank may come";
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() > at + 5; },
                                world().now() + kSecond));
  world().add_worker(run, Rank{1}, world().now());
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 1u);
}

// The second death is in the exchange: all state once more what they have.
TEST_F(RestartLate, a_rank_that_dies_while_results_are_given) {
  JobPlan plan = plan_of_late(LateMode::kRequeue, 60);
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().run_until(world().now() + 20 * kMillisecond);
  bool lost = false;
  world().set_filter([&](Passing& passing) {
    if (passing.packet.type() != wire::PacketType::kHeld || rank_of(passing) != 1 || lost) return;
    lost = true;
    world().at(passing.now, [&] { world().kill(world().worker(run, 1), true); });
  });
  world().start_appliance(7);
  ASSERT_TRUE(
      world().run_until([&] { return world().worker(run, 0).steps_done() == 60; }, 20 * kSecond))
      << world().worker(run, 0).session().describe_stall(world().now());
  EXPECT_TRUE(lost);
  EXPECT_TRUE(world().healthy()) << world().report();
  EXPECT_EQ(world().worker(run, 2).steps_done(), 60u);
}

// No process is left that knows of them: the others make other sums, also with another process of
// that rank, which begins from their state.
TEST_F(RestartLate, results_that_only_a_dead_process_had_are_made_anew) {
  JobPlan plan = make_plan(2, 12, {16 * 5, 16 * 3});
  plan.chunk_bytes = 64;
  plan.session.has_policy = true;
  plan.session.policy = {.kind = PolicyKind::kFixed, .late = LateMode::kRequeue, .k = 1};
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) {
    rank.ending = Ending::kTogether;
    rank.step_delay_ns = kMillisecond;
  }
  const RunIndex run = world().add_run(plan);
  start_all(run);
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 2; }, kSecond));
  world().block_downlink(world().worker(run, 0).identity.host, true);
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 1).steps_done() == 5; }, kSecond));
  ASSERT_EQ(world().worker(run, 0).steps_done(), 2u);
  world().kill(world().worker(run, 1), false);
  world().start_appliance(7);
  world().block_downlink(world().worker(run, 0).identity.host, false);
  world().add_worker(run, Rank{1}, world().now() + kSecond);
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 0).resyncs(), 0u);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 1u);
}

// It is away while the others go on, and has results that nobody else has.
TEST_F(RestartLate, a_rank_without_which_the_job_went_on_lets_go_of_what_it_has) {
  const auto [run, before] = begin_with_results_of_rank_0_alone();
  world().run_until(world().now() + 8 * kSecond);
  EXPECT_GT(world().worker(run, 1).steps_done(), before + 10);
  world().resume(world().worker(run, 0));
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 0).resyncs(), 1u);
}

// It is away from the second appliance, where the others make other sums than it has, and all meet
// at the third.
TEST_F(RestartLate, a_rank_that_missed_an_appliance_lets_go_of_what_it_has_too) {
  const auto [run, before] = begin_with_results_of_rank_0_alone();
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 1).steps_done() > before; },
                                world().now() + 8 * kSecond));
  world().start_appliance(8);
  world().resume(world().worker(run, 0));
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 0).resyncs(), 1u);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 0u);
}

TEST_F(RestartLate, collectives_go_on_too) {
  JobPlan plan = plan_of_late(LateMode::kDrop, 4);
  plan.collectives = {{.before_step = 3,
                       .kind = CollectiveKind::kBroadcast,
                       .root = Rank{1},
                       .size_bytes = 64 * 70},
                      {.before_step = 3, .kind = CollectiveKind::kBarrier}};
  at_every_packet(plan, 2);
}

// The others have ended the call, and are too far ahead to give it results.
TEST_F(RestartLate, a_call_is_over_for_a_rank_that_lacks_its_end_alone) {
  const RunIndex run = world().add_run(plan_with_a_broadcast());
  world().set_filter([](Passing& passing) {
    if (is_piece_result(passing, StreamId::kCollectives) && rank_of(passing) == 2)
      passing.drop =
          passing.packet.body<wire::PieceResult>().operation.kind == CollectiveKind::kBarrier;
  });
  restart_two_steps_after_the_call(run);
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 2).resyncs(), 1u);
}

// It took part in no call that the others had ended before it came.
TEST_F(RestartLate, a_process_that_has_returned_before_goes_on_like_all_others) {
  JobPlan plan = plan_with_a_broadcast(320);
  plan.collectives.push_back({.before_step = 300, .kind = CollectiveKind::kBarrier});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 10 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 5; }, kSecond));
  world().kill(world().worker(run, 2), false);
  world().add_worker(run, Rank{2}, world().now() + 10 * kMillisecond);
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 2).resyncs() == 1; },
                                world().now() + 5 * kSecond));
  world().run_until(world().now() + 200 * kMillisecond);
  ASSERT_LT(world().worker(run, 0).steps_done(), 250u);
  for (const std::uint64_t boot : {7, 8}) {
    world().start_appliance(boot);
    ASSERT_TRUE(
        world().run_until([&] { return world().worker(run, 2).count(Kind::kReturned) == boot - 6; },
                          world().now() + 5 * kSecond));
  }
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 2).resyncs(), 1u);
}

// It lacks bytes of the broadcast, so the others have ended that without it.
TEST_F(RestartLate, a_call_has_failed_for_a_rank_without_which_it_has_ended) {
  const RunIndex run = world().add_run(plan_with_a_broadcast());
  ASSERT_TRUE(world().run_until([&] { return all_started(run); }, kSecond));
  const auto& away = world().worker(run, 2);
  world().set_filter([](Passing& passing) {
    passing.drop |= is_piece_result(passing, StreamId::kCollectives) && rank_of(passing) == 2;
  });
  ASSERT_TRUE(world().run_until([&] { return away.steps_done() == 2; }, kSecond));
  world().run_until(world().now() + 10 * kMillisecond);
  world().partition(away.identity.host, true);
  restart_two_steps_after_the_call(run);
  world().partition(away.identity.host, false);
  ASSERT_TRUE(world().run_until([&] { return away.failed(); }, world().now() + 5 * kSecond));
  expect_words(away.failure().message(), {"was not in the collective", "checkpoint"});
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 30; },
                                world().now() + 20 * kSecond));
}

}  // namespace
}  // namespace sluice::sim
