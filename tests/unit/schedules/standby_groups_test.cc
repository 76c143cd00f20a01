// Schedules of a job of operations with two appliances: it moves as a synchronous job does.
#include <algorithm>

#include "tests/unit/schedules/moving.h"

namespace sluice::sim {
namespace {

auto failed_operations(const Worker& worker) {
  return std::ranges::count_if(worker.log(), [](const LoggedEvent& event) {
    return event.kind == Kind::kOperationDone && !event.status.ok();
  });
}

class StandbyOfGroups : public Moving {
 protected:
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

TEST_F(StandbyOfGroups, a_rank_that_dies_with_the_first_ends_the_job_by_name) {
  JobPlan plan = plan_of_rounds(40);
  plan.session.restart_timeout_ns = 6 * kSecond;
  plan.loses_ranks = true;
  const RunIndex run = begin(plan);
  world().kill(world().worker(run, 1), true);
  world().stop_appliance(kA);
  expect_failed(run, Rank{1}, world().now() + 9 * kSecond, {"2 of 3 ranks joined", "rank 1"});
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
