// Schedules of a job with k < n and two appliances: it moves as a synchronous job does, and what
// each rank has of the appliance before is given as after a restart.
#include "tests/unit/schedules/moving.h"

namespace sluice::sim {
namespace {

class StandbyLate : public Moving {
 protected:
  void SetUp() override { options.appliance.jobs.member_timeout_ns = 3 * kSecond; }
};

TEST_F(StandbyLate, the_first_dies_at_every_packet_of_a_job) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
    const JobPlan plan = plan_of_late(late);
    for (std::uint32_t at = 0; at < 260 && !HasFailure(); ++at) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
      expect_survives(plan, {.after = {at}, .down_ns = 100 * kSecond, .in_steps = true});
    }
  }
  EXPECT_GT(handed_over, 100u);
}

TEST_F(StandbyLate, over_two_shards_and_lossy_links) {
  use_two_shards_and_lossy_links(options);
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
    JobPlan plan = plan_of_late(late, 4);
    plan.tensors = {{.name = "a", .elem_count = 16 * 100}, {.name = "b", .elem_count = 16 * 30}};
    for (std::uint32_t at = 0; at < 900 && !HasFailure(); at += 41) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams");
      options.seed = at + 1;
      expect_survives(plan, {.after = {at}, .down_ns = 100 * kSecond, .in_steps = true});
    }
  }
  EXPECT_GT(handed_over, 100u);
}

// It is back before anybody has noticed, while the ranks vote, and after they have left.
TEST_F(StandbyLate, the_first_comes_back_while_members_move) {
  const JobPlan plan = plan_of_late(LateMode::kRequeue);
  for (const DurationNs down : {400, 700, 800, 900, 1000, 1500})
    for (std::uint32_t at = 0; at < 240 && !HasFailure(); at += 11) {
      SCOPED_TRACE("killed after " + std::to_string(at) + " datagrams for " + std::to_string(down) +
                   " ms");
      expect_survives(plan, {.after = {at}, .down_ns = down * kMillisecond, .in_steps = true});
    }
}

// While the ranks join the second and give what they have; the first is back by then.
TEST_F(StandbyLate, the_second_dies_at_every_packet_after_the_move) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue})
    for (const std::uint32_t first : {40u, 77u, 110u})
      for (std::uint32_t second = 0; second < 130 && !HasFailure(); second += 3) {
        SCOPED_TRACE("killed after " + std::to_string(first) + " and " + std::to_string(second));
        expect_survives_two(plan_of_late(late, 12), first, second);
      }
}

// Ranks that are at the first go on there, with a lower k after the member timeout. At the second,
// which cannot tell who is where, nobody goes on. When all meet, what was completed is given.
TEST_F(StandbyLate, ranks_that_are_kept_apart_never_go_on_at_two_places) {
  JobPlan plan = plan_of_late_steps(400);
  plan.session.restart_timeout_ns = 60 * kSecond;
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
    expect_completed(run, world().now() + 60 * kSecond);
  }
}

// Rank 0 has left; the others cannot reach the second yet, and complete steps at the first.
TEST_F(StandbyLate, what_the_first_completes_for_those_that_have_not_left_is_given_at_the_second) {
  JobPlan plan = plan_of_late_steps(60);
  plan.ranks[2].step_delay_ns = 50 * kMillisecond;
  const RunIndex run = begin(plan);
  const Step before = world().worker(run, 1).steps_done();
  keep_apart(run, 0b001, true);
  world().run_until(world().now() + 950 * kMillisecond);
  EXPECT_EQ(world().worker(run, 0).session().epoch(), 1u);
  EXPECT_GT(world().worker(run, 1).steps_done(), before + 4);
  keep_apart(run, 0b001, false);
  expect_moved(run, 1, world().now() + kSecond);
  expect_completed(run, 30 * kSecond);
}

// Between every rank and every appliance, for some time, and with another one a moment later.
TEST_F(StandbyLate, partitions_between_every_pair) {
  const JobPlan plan = plan_of_late_steps(40);
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

TEST_F(StandbyLate, a_rank_that_dies_with_the_first_is_named_and_another_process_takes_its_place) {
  const RunIndex run = begin(plan_of_late_steps(60));
  world().kill(world().worker(run, 1), false);
  world().stop_appliance(kA);
  world().run_until(world().now() + 7 * kSecond);  // longer than the member timeout
  for (const std::uint16_t rank : {0, 2})
    expect_words(world().worker(run, rank).session().describe_stall(world().now()),
                 {"10.255.0.2:7700", "2 of 3 ranks here", "rank 1"});
  world().add_worker(run, Rank{1}, world().now());
  expect_done(world(), run);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 1u);
}

// At the second it would wait for all ranks.
TEST_F(StandbyLate, a_job_that_has_lost_a_rank_stays_until_another_process_has_it) {
  const RunIndex run = begin(plan_of_late_steps(300));
  world().kill(world().worker(run, 1), false);
  world().run_until(world().now() + 5 * kSecond);
  world().appliance(kA).drain(world().now());
  world().run_until(world().now() + 2 * kSecond);
  for (const std::uint16_t rank : {0, 2})
    EXPECT_EQ(world().worker(run, rank).session().epoch(), 0u);
  world().add_worker(run, Rank{1}, world().now());
  expect_moved(run, 1, world().now() + 3 * kSecond);
  expect_done(world(), run);
}

// Rank 1 has fallen out of the window, and all that have its state leave the first, which is
// drained, while they give it. It cannot reach the second for a while.
TEST_F(StandbyLate, a_rank_that_needs_a_state_follows_those_that_have_moved) {
  for (DurationNs ahead = 0; ahead < 15 && !HasFailure(); ++ahead) {
    SCOPED_TRACE("drained " + std::to_string(ahead) + " ms after it has noticed");
    end_world();
    JobPlan plan = plan_of_late_steps(60);
    plan.state_bytes = 1'000'000;
    const RunIndex run = begin(plan);
    for (const std::size_t box : {kA, kB}) cut(run, 1, box, true);
    world().run_until(world().now() + kSecond);
    cut(run, 1, kA, false);
    const client::Session& behind = world().worker(run, 1).session();
    ASSERT_TRUE(world().run_until([&] { return !behind.behind_status().ok(); },
                                  world().now() + 2 * kSecond));
    world().run_until(world().now() + ahead * kMillisecond);
    world().appliance(kA).drain(world().now());
    world().run_until(world().now() + 800 * kMillisecond);
    cut(run, 1, kB, false);
    expect_completed(run, world().now() + 30 * kSecond);
  }
}

// Nobody is left behind any more: a restart there is as any other.
TEST_F(StandbyLate, a_rank_that_dies_as_the_second_restarts_is_waited_for_as_at_the_first) {
  const RunIndex run = begin(plan_of_late_steps(300));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  world().run_until(world().now() + kSecond);
  world().kill(world().worker(run, 1), false);
  world().start_appliance(7, kB);
  const Step at = world().worker(run, 0).steps_done();
  world().run_until(world().now() + 2 * kSecond);
  EXPECT_LE(world().worker(run, 0).steps_done(), at + 1) << "the dead rank may come";
  ASSERT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() > at + 5; },
                                world().now() + 5 * kSecond));
  world().add_worker(run, Rank{1}, world().now());
  expect_done(world(), run);
}

}  // namespace
}  // namespace sluice::sim
