// Schedules of an appliance that is killed, at every point, and comes back without its memory.

#include <algorithm>

#include "tests/unit/schedules/restarting.h"

namespace sluice::sim {
namespace {

class Restart : public Schedule {
 protected:
  static JobPlan plan_that_waits_8_s() {
    JobPlan plan = make_plan(3, 50, {64 * 40});
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
    plan.session.restart_timeout_ns = 8 * kSecond;
    return plan;
  }
  // Whether all goes on to the same end, though the appliance dies then.
  void expect_survives(const JobPlan& plan, const std::vector<std::uint32_t>& deaths) {
    World own(options);
    const RunIndex run = own.add_run(plan);
    Killer killer{.world = own, .run = run, .deaths = {.after = deaths}};
    killer.watch();
    expect_done(own, run);
    handed_over += own.oracle().totals().handed_over;
    deaths_seen += killer.seen;
    all_seen = killer.seen == deaths.size();
  }

  std::uint64_t handed_over = 0;
  std::size_t deaths_seen = 0;
  bool all_seen = true;
};

TEST_F(Restart, at_every_packet_of_a_job) {
  const JobPlan plan = plan_of_steps();
  for (std::uint32_t at = 0; all_seen && !HasFailure(); ++at) {
    SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
    expect_survives(plan, {at});
  }
  EXPECT_GT(deaths_seen, 150u);
  EXPECT_GT(handed_over, 10u);
}

TEST_F(Restart, over_two_shards_and_lossy_links) {
  use_two_shards_and_lossy_links(options);
  JobPlan plan = plan_of_steps();
  plan.tensors = {{.name = "a", .elem_count = 16 * 100}, {.name = "b", .elem_count = 16 * 30}};
  plan.collectives.clear();
  for (std::uint32_t at = 0; all_seen && !HasFailure(); at += 37) {
    SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
    options.seed = at + 1;
    expect_survives(plan, {at});
  }
  EXPECT_GT(handed_over, 100u);
}

// While the ranks join, state what they know, hand over.
TEST_F(Restart, once_more_at_every_packet_after_a_restart) {
  const JobPlan plan = plan_of_steps();
  for (const std::uint32_t first : {20u, 95u, 120u}) {
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && at < 130 && !HasFailure(); ++at) {
      SCOPED_TRACE("killed after " + std::to_string(first) + " and " + std::to_string(at) +
                   " datagrams");
      expect_survives(plan, {first, at});
    }
  }
}

TEST_F(Restart, with_results_that_are_rounded_pruned_and_in_the_order_of_ranks) {
  for (const Dtype wire : {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8, Dtype::kFloat32}) {
    JobPlan plan = plan_of_steps();
    plan.nil_rule = nullptr;
    plan.collectives.clear();
    plan.wire = wire;
    if (wire == Dtype::kFloat32) plan.reproducible = plan.inexact = true;
    if (wire == Dtype::kInt8)
      plan.session.prune = {.rule = client::PruneRule::kStatic, .fraction = 0.2, .min_elems = 1};
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && !HasFailure(); at += 3) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
      expect_survives(plan, {at});
    }
  }
  EXPECT_GT(handed_over, 20u);
}

// The result of step 1 reaches rank 0 alone, whose application goes on to step 2.
TEST_F(Restart, a_result_that_one_rank_has_is_given_to_all_others_once) {
  JobPlan plan = make_plan(3, 2, {16});
  plan.chunk_bytes = 64;
  plan.in_place = true;
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) rank.ending = Ending::kTogether;
  const RunIndex run = world().add_run(plan);
  bool lost = false;
  std::uint32_t empty = 0;
  world().set_filter([&](Passing& passing) {
    if (!lost && is_result(passing)) {
      passing.drop = rank_of(passing) != 0;
      return;
    }
    if (!lost || !is_contribution(passing)) return;
    const auto& body = passing.packet.body<wire::Contribution>();
    if (body.step != 1) return;
    empty += body.weight == 0;
  });
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 1; }, kSecond));
  world().stop_appliance();
  lost = true;
  world().at(world().now() + kDown, [&] { world().start_appliance(7); });
  expect_completed(run, 5 * kSecond);
  EXPECT_EQ(world().oracle().totals().handed_over, 1u) << "by rank 0";
  EXPECT_EQ(empty, 2u) << "by ranks 1 and 2";
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(world().worker(run, rank).session().counters().appliance_restarts, 1u);
}

// All contributions are counted, and no result leaves.
TEST_F(Restart, what_the_appliance_has_summed_and_told_nobody_counts_once) {
  JobPlan plan = make_plan(3, 2, {16 * 4});
  plan.chunk_bytes = 64;
  plan.in_place = true;
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) rank.ending = Ending::kTogether;
  const RunIndex run = world().add_run(plan);
  bool lost = false;
  world().set_filter([&](Passing& passing) { passing.drop = !lost && is_result(passing); });
  start_all(run);
  world().run_until(world().now() + 100 * kMillisecond);
  world().start_appliance(7);
  lost = true;
  expect_completed(run, 5 * kSecond);
  EXPECT_EQ(world().oracle().totals().handed_over, 0u);
}

TEST_F(Restart, while_the_job_forms_costs_nothing) {
  JobPlan plan = plan_of_steps();
  plan.ranks[2].start_at = kSecond;
  const RunIndex run = world().add_run(plan);
  world().run_until(500 * kMillisecond);
  EXPECT_FALSE(world().worker(run, 0).started());
  world().start_appliance(7);
  expect_completed(run, 5 * kSecond);
}

TEST_F(Restart, a_new_process_cannot_take_the_place_of_one_that_was_in_the_step) {
  JobPlan plan = make_plan(3, 50, {16 * 4});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  plan.session.restart_timeout_ns = 5 * kSecond;
  const RunIndex run = world().add_run(plan);
  world().run_until(kSecond);
  world().kill(world().worker(run, 1), false);
  world().start_appliance(7);
  world().add_worker(run, Rank{1}, world().now());
  world().run_until(world().now() + 8 * kSecond);
  for (const std::uint16_t rank : {0, 2}) {
    ASSERT_TRUE(world().worker(run, rank).failed());
    expect_words(world().worker(run, rank).failure().message(), {"rank 1"});
  }
}

TEST_F(Restart, an_appliance_that_does_not_come_back_is_named_after_restart_timeout) {
  const RunIndex run = world().add_run(plan_that_waits_8_s());
  world().at(500 * kMillisecond, [&] { world().stop_appliance(); });
  world().run_until(8 * kSecond);
  EXPECT_FALSE(world().worker(run, 0).failed());
  expect_words(world().worker(run, 0).session().describe_stall(world().now()),
               {"10.255.0.1:7700", "silent for", "waits for it for 8.0 s"});
  expect_failed(run, Rank{99}, 9 * kSecond,
                {"10.255.0.1:7700", "silent for 8.0 s", "restart_timeout"});
}

// It waits as long as the others from when it runs again, and says the same.
TEST_F(Restart, a_rank_that_stood_still_while_it_waited_names_restart_timeout_as_well) {
  const RunIndex run = world().add_run(plan_that_waits_8_s());
  world().at(500 * kMillisecond, [&] { world().stop_appliance(); });
  world().at(3 * kSecond, [&] { world().pause(world().worker(run, 1)); });
  world().at(5 * kSecond, [&] { world().resume(world().worker(run, 1)); });
  expect_failed(run, Rank{99}, 11 * kSecond,
                {"10.255.0.1:7700", "silent for 8.0 s", "restart_timeout"});
}

TEST_F(Restart, ranks_that_do_not_come_back_are_named_after_restart_timeout) {
  const RunIndex run = world().add_run(plan_that_waits_8_s());
  world().at(500 * kMillisecond, [&] {
    world().kill(world().worker(run, 2), true);
    world().start_appliance(7);
  });
  expect_failed(run, Rank{2}, 10 * kSecond, {"2 of 3 ranks", "8.0 s", "rank 2"});
}

// It hears the end of a step that the lost appliance had sent, and calls a collective there.
TEST_F(Restart, a_rank_that_was_away_says_first_what_it_would_have_said) {
  JobPlan plan = plan_of_steps();
  plan.ranks[1].step_delay_ns = 10 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().run_until(world().now() + 5 * kMillisecond);
  world().pause(world().worker(run, 2));
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() == 1; }, kSecond));
  world().start_appliance(7);
  world().run_until(world().now() + 500 * kMillisecond);
  ASSERT_EQ(world().worker(run, 2).steps_done(), 0u);
  world().resume(world().worker(run, 2));
  expect_done(world(), run);
}

// It still knows the ranks: nothing has happened but a pause.
TEST_F(Restart, an_appliance_that_was_only_silent_goes_on_where_it_was) {
  JobPlan plan = plan_of_steps();
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 300 * kMillisecond;
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  for (std::uint32_t link = 0; link < 3; ++link) world().partition(link, true);
  world().run_until(world().now() + 6 * kSecond);
  for (std::uint32_t link = 0; link < 3; ++link) world().partition(link, false);
  expect_completed(run, 20 * kSecond);
  EXPECT_EQ(world().worker(run, 0).session().counters().appliance_restarts, 0u);
}

TEST_F(Restart, an_appliance_that_says_that_it_ends_is_waited_for_too) {
  JobPlan plan = plan_of_steps();
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 100 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().appliance().shutdown(world().now());
  world().run_until(world().now() + 50 * kMillisecond);
  world().stop_appliance();
  world().at(world().now() + 2 * kSecond, [&] { world().start_appliance(7); });
  expect_completed(run, 10 * kSecond);
  EXPECT_EQ(world().worker(run, 0).session().counters().appliance_restarts, 1u);
}

TEST_F(Restart, pauses_a_job_for_the_time_without_an_appliance_and_little_more) {
  JobPlan plan = plan_of_steps();
  plan.collectives.clear();
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 50 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().run_until(world().now() + 60 * kMillisecond);
  world().stop_appliance();
  world().run_until(world().now() + 2 * kSecond);
  world().start_appliance(7);
  const TimeNs back = world().now();
  const auto all_back = [&] {
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      if (world().worker(run, rank).count(Kind::kReturned) != 1) return false;
    return true;
  };
  ASSERT_TRUE(world().run_until(all_back, back + 200 * kMillisecond)) << "asked every 100 ms";
  expect_completed(run, 10 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
