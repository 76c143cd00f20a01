// Schedules of a job of operations with two appliances: it moves as a synchronous job does.
#include <algorithm>

#include "tests/unit/schedules/moving.h"

namespace sluice::sim {
namespace {

JobPlan plan_of_rounds(Step rounds, DurationNs pause_ns = 50 * kMillisecond) {
  JobPlan plan = make_plan(3, rounds, {});
  plan.chunk_bytes = 64;
  plan.session.operations = true;
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) {
    rank.ending = Ending::kTogether;
    rank.step_delay_ns = pause_ns;
  }
  return plan;
}

auto failed_operations(const Worker& worker) {
  return std::ranges::count_if(worker.log(), [](const LoggedEvent& event) {
    return event.kind == Kind::kOperationDone && !event.status.ok();
  });
}

class StandbyOfGroups : public Moving {
 protected:
  // Each rank reaches the second appliance alone where its bit is set, else the first alone.
  void keep_apart(RunIndex run, std::uint32_t at_second, bool on) {
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      cut(run, rank, (at_second >> rank & 1) != 0 ? kA : kB, on);
  }
  // Where members are kept apart, nobody goes on: no operation of all is over that was not before.
  void expect_nobody_goes_on(RunIndex run, DurationNs duration) {
    world().run_until(world().now() + kSecond);  // what is on its way arrives
    const auto rounds = [&] {
      std::array<Step, 3> done{};
      for (std::uint16_t rank = 0; rank < 3; ++rank)
        done[rank] = world().worker(run, rank).steps_done();
      return done;
    };
    const std::array<Step, 3> before = rounds();
    world().run_until(world().now() + duration);
    EXPECT_EQ(rounds(), before);
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      EXPECT_FALSE(world().worker(run, rank).failed())
          << world().worker(run, rank).failure().message();
  }
};

TEST_F(StandbyOfGroups, the_first_dies_at_every_packet_of_a_job) {
  const JobPlan plan = plan_of_rounds(3, kMillisecond);
  for (std::uint32_t at = 0; at < 330 && !HasFailure(); at += 2) {
    SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
    expect_survives(plan, {.after = {at}, .down_ns = 100 * kSecond});
  }
}

TEST_F(StandbyOfGroups, over_two_shards_and_lossy_links) {
  use_two_shards_and_lossy_links(options);
  const JobPlan plan = plan_of_rounds(3, kMillisecond);
  for (std::uint32_t at = 0; at < 400 && !HasFailure(); at += 17) {
    SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
    options.seed = at + 1;
    expect_survives(plan, {.after = {at}, .down_ns = 100 * kSecond});
  }
}

// It is back before anybody has noticed, while the ranks vote, and after they have left.
TEST_F(StandbyOfGroups, the_first_comes_back_while_members_move) {
  const JobPlan plan = plan_of_rounds(3, kMillisecond);
  for (const DurationNs down : {400, 700, 800, 900, 1000, 1500})
    for (std::uint32_t at = 0; at < 330 && !HasFailure(); at += 41) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams for " + std::to_string(down) +
                   " ms");
      expect_survives(plan, {.after = {at}, .down_ns = down * kMillisecond});
    }
}

// While the ranks join the second and tell it where they are; the first is back by then.
TEST_F(StandbyOfGroups, the_second_dies_after_the_move) {
  const JobPlan plan = plan_of_rounds(3, kMillisecond);
  for (const std::uint32_t first : {30u, 150u, 260u})
    for (std::uint32_t second = 0; second < 200 && !HasFailure(); second += 7) {
      SCOPED_TRACE("killed after " + std::to_string(first) + " and " + std::to_string(second));
      expect_survives_two(plan, first, second);
    }
}

TEST_F(StandbyOfGroups, they_move_within_a_second_and_a_half_of_the_death) {
  const RunIndex run = begin(plan_of_rounds(40));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  expect_completed(run, 20 * kSecond);
}

TEST_F(StandbyOfGroups, one_rank_that_loses_the_first_takes_all_along) {
  const RunIndex run = begin(plan_of_rounds(40));
  cut(run, 1, kA, true);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  expect_completed(run, 20 * kSecond);
}

TEST_F(StandbyOfGroups, ranks_that_are_kept_apart_wait_for_each_other) {
  options.appliance.jobs.member_timeout_ns = 10 * kSecond;
  JobPlan plan = plan_of_rounds(100);
  plan.session.restart_timeout_ns = 60 * kSecond;
  for (std::uint32_t at_second = 1; at_second < 7 && !HasFailure(); ++at_second) {
    SCOPED_TRACE("ranks at the second, as bits: " + std::to_string(at_second));
    end_world();
    const RunIndex run = begin(plan);
    keep_apart(run, at_second, true);
    expect_nobody_goes_on(run, 5 * kSecond);
    keep_apart(run, at_second, false);
    expect_completed(run, world().now() + 30 * kSecond);
  }
}

// After limits.member_timeout_s ranks are lost at the first to those that are still there. At the
// second, which cannot tell who is where, nobody goes on. What ends completed has the right result.
TEST_F(StandbyOfGroups, after_the_member_timeout_ranks_go_on_at_the_first_alone) {
  JobPlan plan = plan_of_rounds(100);
  plan.session.restart_timeout_ns = 60 * kSecond;
  plan.loses_ranks = true;
  for (std::uint32_t at_second = 1; at_second < 7 && !HasFailure(); ++at_second) {
    SCOPED_TRACE("ranks at the second, as bits: " + std::to_string(at_second));
    end_world();
    const RunIndex run = begin(plan);
    keep_apart(run, at_second, true);
    for (int i = 0; i < 100; ++i) {
      world().run_until(world().now() + 100 * kMillisecond);
      for (std::uint16_t rank = 0; rank < 3; ++rank) {
        const client::Session& session = world().worker(run, rank).session();
        EXPECT_FALSE(session.epoch() != 0 && session.state() == client::SessionState::kRunning);
      }
    }
    keep_apart(run, at_second, false);
    world().run_until_done(run, world().now() + 60 * kSecond);
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const Worker& worker = world().worker(run, rank);
      EXPECT_TRUE(worker.done()) << worker.session().describe_stall(world().now());
      EXPECT_FALSE(worker.failed()) << worker.failure().message();
      EXPECT_EQ(worker.steps_done(), 100u);
      EXPECT_GT(failed_operations(worker), 0);
    }
  }
}

// Between every rank and every appliance, for some time, and with another one a moment later.
TEST_F(StandbyOfGroups, partitions_between_every_pair) {
  const JobPlan plan = plan_of_rounds(40);
  for (std::uint32_t pair = 0; pair < 36 && !HasFailure(); ++pair)
    for (const DurationNs duration : {700, 900, 2200}) {
      SCOPED_TRACE("pairs " + std::to_string(pair) + " for " + std::to_string(duration) + " ms");
      end_world();
      const RunIndex run = begin(plan);
      const std::array<std::uint32_t, 2> pairs = {pair % 6, pair / 6};
      for (std::size_t i = 0; i < 2; ++i) {
        const auto rank = static_cast<std::uint16_t>(pairs[i] / 2);
        const TimeNs at = world().now() + 150 * kMillisecond * static_cast<DurationNs>(i);
        world().at(at, [this, run, rank, box = pairs[i] % 2] { cut(run, rank, box, true); });
        world().at(at + duration * kMillisecond,
                   [this, run, rank, box = pairs[i] % 2] { cut(run, rank, box, false); });
      }
      expect_completed(run, world().now() + 60 * kSecond);
    }
}

TEST_F(StandbyOfGroups, a_rank_that_cannot_reach_the_second_is_waited_for_and_named) {
  const RunIndex run = begin(plan_of_rounds(40));
  cut(run, 1, kB, true);
  world().stop_appliance(kA);
  world().run_until(world().now() + 7 * kSecond);
  for (const std::uint16_t rank : {0, 2})
    expect_words(world().worker(run, rank).session().describe_stall(world().now()),
                 {"10.255.0.2:7700", "2 of 3 ranks here", "rank 1"});
  cut(run, 1, kB, false);
  expect_completed(run, 30 * kSecond);
}

TEST_F(StandbyOfGroups, a_rank_that_dies_with_the_first_ends_the_job_by_name) {
  JobPlan plan = plan_of_rounds(40);
  plan.session.restart_timeout_ns = 6 * kSecond;
  plan.loses_ranks = true;
  const RunIndex run = begin(plan);
  world().kill(world().worker(run, 1), true);
  world().stop_appliance(kA);
  expect_failed(run, Rank{1}, world().now() + 9 * kSecond, {"2 of 3 ranks joined", "rank 1"});
}

TEST_F(StandbyOfGroups, what_an_appliance_sends_that_was_left_counts_for_nothing) {
  const RunIndex run = begin(plan_of_rounds(300));
  stop(kA, 10 * kSecond);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  world().run_until(world().now() + 12 * kSecond);  // it has been back for a while
  EXPECT_TRUE(all_at(run, 1));
  EXPECT_TRUE(world().appliance(kA).jobs().is_empty()) << "the ranks have told it, as it finds out";
  world().stop_appliance(kB);
  expect_moved(run, 2, world().now() + 1500 * kMillisecond);
  expect_completed(run, 60 * kSecond);
}

// A worker's packets come late: the appliance that was left completes operations of its own.
TEST_F(StandbyOfGroups, an_appliance_that_was_left_completes_operations_of_its_own) {
  JobPlan plan = plan_of_rounds(20);
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

TEST_F(StandbyOfGroups, both_die_and_the_first_comes_back) {
  const RunIndex run = begin(plan_of_rounds(40));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  world().stop_appliance(kB);
  world().run_until(world().now() + 3 * kSecond);
  world().start_appliance(7, kA);
  expect_moved(run, 2, world().now() + kSecond);
  expect_completed(run, 30 * kSecond);
}

TEST_F(StandbyOfGroups, a_drained_appliance_is_empty_and_no_operation_is_lost) {
  const RunIndex run = begin(plan_of_rounds(40));
  const TimeNs from = world().now();
  world().appliance(kA).drain(from);
  expect_moved(run, 1, from + 1200 * kMillisecond);
  world().run_until(world().now() + 100 * kMillisecond);
  EXPECT_TRUE(world().appliance(kA).jobs().is_empty());
  world().stop_appliance(kA);
  expect_completed(run, 20 * kSecond);
}

TEST_F(StandbyOfGroups, both_are_upgraded_one_after_the_other) {
  const RunIndex run = begin(plan_of_rounds(200));
  for (const std::size_t box : {kA, kB}) {
    world().appliance(box).drain(world().now());
    expect_moved(run, static_cast<std::uint32_t>(box + 1), world().now() + 1500 * kMillisecond);
    world().run_until(world().now() + 200 * kMillisecond);
    EXPECT_TRUE(world().appliance(box).jobs().is_empty());
    world().stop_appliance(box);
    world().run_until(world().now() + kSecond);
    world().start_appliance(50 + box, box);
    world().run_until(world().now() + 500 * kMillisecond);
  }
  expect_completed(run, 60 * kSecond);
}

// At the second it would wait for all ranks. Here the appliance knows that one is lost.
TEST_F(StandbyOfGroups, a_job_that_has_lost_a_rank_stays_where_it_is) {
  JobPlan plan = plan_of_rounds(100);
  plan.loses_ranks = true;
  const RunIndex run = begin(plan);
  world().kill(world().worker(run, 1), true);
  world().run_until(world().now() + 5 * kSecond);
  world().appliance(kA).drain(world().now());
  world().run_until(world().now() + 2 * kSecond);
  for (const std::uint16_t rank : {0, 2}) {
    EXPECT_EQ(world().worker(run, rank).session().epoch(), 0u);
    EXPECT_GT(failed_operations(world().worker(run, rank)), 0) << "of all ranks";
  }
  ASSERT_TRUE(world().run_until_done(run, 60 * kSecond)) << world().report();
  for (const std::uint16_t rank : {0, 2}) {
    EXPECT_FALSE(world().worker(run, rank).failed());
    EXPECT_EQ(world().worker(run, rank).steps_done(), 100u);
  }
}

}  // namespace
}  // namespace sluice::sim
