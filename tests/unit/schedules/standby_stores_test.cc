// Schedules of a store with two appliances. The simulator's oracle of stores checks each value that
// is read: whole pushes, each once, all of the reader's own, at least what the bound asks for.
#include <algorithm>

#include "tests/unit/schedules/moving.h"

namespace sluice::sim {
namespace {

class StandbyOfStores : public Moving {
 protected:
  static JobPlan plan_of_pauses(std::uint32_t bound, Step steps) {
    JobPlan plan = plan_of_store(bound, steps);
    for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 50 * kMillisecond;
    return plan;
  }
  // The first appliance dies once, in the steps: a rank that leaves takes its copy with it.
  void expect_survives(const JobPlan& plan, std::uint32_t at, DurationNs down_ns) {
    World own(options);
    const RunIndex run = own.add_run(plan);
    Killer killer{
        .world = own, .run = run, .deaths = {.after = {at}, .down_ns = down_ns, .in_steps = true}};
    killer.watch();
    expect_done(own, run);
    resumed += own.books().chunks_resumed();
    deaths_seen += killer.seen;
    all_seen = killer.seen == 1 || !killer.up;
  }
  void at_every_packet(const JobPlan& plan, std::uint32_t step, DurationNs down_ns) {
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && !HasFailure(); at += step) {
      SCOPED_TRACE("bound " + std::to_string(plan.session.store->bound) + ", killed after " +
                   std::to_string(at) + " datagrams for " + std::to_string(down_ns / kMillisecond) +
                   " ms");
      expect_survives(plan, at, down_ns);
      ++played;
    }
  }
  // Each rank reaches the second appliance alone where its bit is set, else the first alone.
  void keep_apart(RunIndex run, std::uint32_t at_second, bool on) {
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      cut(run, rank, (at_second >> rank & 1) != 0 ? kA : kB, on);
  }
  // Ranks go on at one appliance alone.
  void expect_one_place(RunIndex run, DurationNs duration) {
    for (const TimeNs until = world().now() + duration; world().now() < until;) {
      world().run_until(world().now() + 100 * kMillisecond);
      std::optional<std::uint32_t> epoch;
      for (std::uint16_t rank = 0; rank < 3; ++rank) {
        const client::Session& session = world().worker(run, rank).session();
        if (session.state() != client::SessionState::kRunning) continue;
        EXPECT_EQ(epoch.value_or(session.epoch()), session.epoch()) << "rank " << rank;
        epoch = session.epoch();
      }
    }
  }
  Worker& worker(RunIndex run, std::uint16_t rank) { return world().worker(run, rank); }

  std::uint64_t resumed = 0;
  std::size_t deaths_seen = 0;
  std::size_t played = 0;
  bool all_seen = true;
};

TEST_F(StandbyOfStores, the_first_dies_at_every_third_packet_of_a_store_that_gathers) {
  at_every_packet(plan_of_store(0, 2), 3, 100 * kSecond);
  EXPECT_GT(played, 150u);
  EXPECT_GT(resumed, 5'000u);
}

TEST_F(StandbyOfStores, the_first_dies_at_every_13th_packet_of_stores_with_a_bound) {
  for (const std::uint32_t bound : {1u, 3u, kNoBound})
    at_every_packet(plan_of_store(bound, 3), 13, 100 * kSecond);
  EXPECT_GT(played, 90u);
  EXPECT_GT(resumed, 2'000u);
}

TEST_F(StandbyOfStores, over_two_shards_and_lossy_links) {
  use_two_shards_and_lossy_links(options);
  for (const std::uint32_t bound : {0u, 3u, kNoBound})
    for (std::uint32_t at = 0; at < 900 && !HasFailure(); at += 83) {
      SCOPED_TRACE("bound " + std::to_string(bound) + ", killed after " + std::to_string(at));
      options.seed = at + 1;
      expect_survives(plan_of_store(bound), at, 100 * kSecond);
    }
  EXPECT_GT(resumed, 1000u);
}

// It is back before anybody has noticed, while the ranks vote, and after they have left.
TEST_F(StandbyOfStores, the_first_comes_back_while_members_move) {
  for (const DurationNs down : {400, 700, 800, 900, 1000, 1500})
    for (const std::uint32_t bound : {0u, 3u})
      at_every_packet(plan_of_store(bound, 2), 97, down * kMillisecond);
  EXPECT_GT(deaths_seen, 30u);
}

// While the ranks join the second, state and give what they have; the first is back by then.
TEST_F(StandbyOfStores, the_second_dies_after_the_move) {
  for (const std::uint32_t bound : {0u, 3u})
    for (const std::uint32_t first : {100u, 400u})
      for (std::uint32_t second = 0; second < 300 && !HasFailure(); second += 23) {
        SCOPED_TRACE("bound " + std::to_string(bound) + ", killed after " + std::to_string(first) +
                     " and " + std::to_string(second));
        expect_survives_two(plan_of_store(bound, 30), first, second);
      }
}

TEST_F(StandbyOfStores, a_job_moves_within_a_second_and_a_half_of_the_death) {
  const RunIndex run = begin(plan_of_pauses(0, 40));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  expect_completed(run, 20 * kSecond);
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(worker(run, rank).session().counters().appliance_restarts, 1u);
}

TEST_F(StandbyOfStores, both_die_and_the_first_comes_back) {
  const RunIndex run = begin(plan_of_pauses(1, 100));
  world().stop_appliance(kA);
  expect_moved(run, 1, world().now() + 1500 * kMillisecond);
  world().stop_appliance(kB);
  world().run_until(world().now() + 3 * kSecond);
  world().start_appliance(7, kA);
  expect_moved(run, 2, world().now() + 2 * kSecond);
  expect_completed(run, 30 * kSecond);
}

TEST_F(StandbyOfStores, both_are_upgraded_one_after_the_other) {
  const RunIndex run = begin(plan_of_pauses(0, 200));
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

TEST_F(StandbyOfStores, ranks_that_are_kept_apart_wait_for_each_other) {
  options.appliance.jobs.member_timeout_ns = 10 * kSecond;
  for (const std::uint32_t bound : {0u, 2u, kNoBound})
    for (std::uint32_t at_second = 1; at_second < 7 && !HasFailure(); ++at_second) {
      SCOPED_TRACE("ranks at the second, as bits: " + std::to_string(at_second));
      JobPlan plan = plan_of_pauses(bound, 100);
      plan.session.restart_timeout_ns = 60 * kSecond;
      end_world();
      const RunIndex run = begin(plan);
      keep_apart(run, at_second, true);
      expect_one_place(run, 5 * kSecond);
      keep_apart(run, at_second, false);
      expect_completed(run, world().now() + 60 * kSecond);
    }
}

// After limits.member_timeout_s the store goes on at the first without ranks that are not there. At
// the second, which cannot tell who is where, nobody goes on. What the ranks there have is old by
// then, and they are refused.
TEST_F(StandbyOfStores, after_the_member_timeout_ranks_go_on_at_the_first_alone) {
  for (const std::uint32_t bound : {0u, 2u, kNoBound})
    for (std::uint32_t at_second = 1; at_second < 7 && !HasFailure(); ++at_second) {
      SCOPED_TRACE("bound " + std::to_string(bound) +
                   ", ranks at the second, as bits: " + std::to_string(at_second));
      JobPlan plan = plan_of_pauses(bound, 150);
      plan.session.restart_timeout_ns = 60 * kSecond;
      plan.loses_ranks = true;
      end_world();
      const RunIndex run = begin(plan);
      keep_apart(run, at_second, true);
      for (int i = 0; i < 80; ++i) {
        world().run_until(world().now() + 100 * kMillisecond);
        for (std::uint16_t rank = 0; rank < 3; ++rank) {
          const client::Session& session = worker(run, rank).session();
          EXPECT_FALSE(session.epoch() != 0 && session.state() == client::SessionState::kRunning);
        }
      }
      keep_apart(run, at_second, false);
      const auto is_over = [&] {
        for (std::uint16_t rank = 0; rank < 3; ++rank)
          if (!worker(run, rank).failed() && worker(run, rank).steps_done() != 150) return false;
        return true;
      };
      EXPECT_TRUE(world().run_until(is_over, world().now() + 60 * kSecond)) << world().report();
      for (std::uint16_t rank = 0; rank < 3; ++rank) {
        const bool was_left = (at_second >> rank & 1) != 0;
        EXPECT_EQ(worker(run, rank).failed(), was_left) << "rank " << rank;
        if (was_left)
          expect_words(worker(run, rank).failure().message(), {"without", "start", "rank"});
      }
      EXPECT_TRUE(world().healthy()) << world().report();
    }
}

// Between every rank and every appliance, for some time, and with another one a moment later.
TEST_F(StandbyOfStores, partitions_between_every_pair) {
  for (std::uint32_t pair = 0; pair < 36 && !HasFailure(); ++pair)
    for (const DurationNs duration : {700, 900, 2200}) {
      SCOPED_TRACE("pairs " + std::to_string(pair) + " for " + std::to_string(duration) + " ms");
      end_world();
      const RunIndex run = begin(plan_of_pauses(pair % 2 == 0 ? 0 : 2, 60));
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

// The others name it at the second, which does not wait for it.
TEST_F(StandbyOfStores, a_rank_that_died_before_the_move_is_not_waited_for) {
  for (const std::uint32_t bound : {0u, 2u}) {
    JobPlan plan = plan_of_pauses(bound, 300);
    plan.loses_ranks = true;
    end_world();
    const RunIndex run = begin(plan);
    world().kill(worker(run, 1), true);
    world().run_until(world().now() + options.appliance.jobs.member_timeout_ns + 2 * kSecond);
    const Step before = worker(run, 0).steps_done();
    world().stop_appliance(kA);
    world().run_until(world().now() + 1500 * kMillisecond);
    for (const std::uint16_t rank : {0, 2}) {
      EXPECT_EQ(worker(run, rank).session().epoch(), 1u);
      EXPECT_EQ(worker(run, rank).session().state(), client::SessionState::kRunning);
    }
    world().run_until(world().now() + 2 * kSecond);
    EXPECT_GT(worker(run, 0).steps_done(), before + 10);
    expect_words(worker(run, 0).returned, {"rank 1", "nobody has read is lost"});
  }
}

// Its next process is a member like all others: the second begins with it alone.
TEST_F(StandbyOfStores, a_rank_that_came_back_before_the_move_is_waited_for) {
  JobPlan plan = plan_of_pauses(2, 400);
  plan.loses_ranks = true;
  const RunIndex run = begin(plan);
  world().kill(worker(run, 1), false);
  world().add_worker(run, Rank{1}, world().now() + kSecond);
  ASSERT_TRUE(
      world().run_until([&] { return worker(run, 1).started(); }, world().now() + 30 * kSecond));
  world().run_until(world().now() + kSecond);
  cut(run, 1, kB, true);
  world().stop_appliance(kA);
  world().run_until(world().now() + 2 * kSecond);
  expect_words(worker(run, 0).session().describe_stall(world().now()), {"2 of 3 ranks", "rank 1"});
  cut(run, 1, kB, false);
  world().run_until(world().now() + 8 * kSecond);
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(worker(run, rank).session().state(), client::SessionState::kRunning);
  EXPECT_TRUE(world().healthy()) << world().report();
}

// The first has lost rank 1, and those that know so have moved unheard, when its next process comes
// to the first alone. It is not let in: the second goes on without the rank.
TEST_F(StandbyOfStores, a_new_process_is_not_let_in_where_members_may_have_left) {
  JobPlan plan = plan_of_pauses(kNoBound, 400);
  plan.loses_ranks = true;
  const RunIndex run = begin(plan);
  world().kill(worker(run, 1), false);
  world().run_until(world().now() + options.appliance.jobs.member_timeout_ns + 2 * kSecond);
  for (const std::uint16_t rank : {0, 2}) cut(run, rank, kA, true);
  world().run_until(world().now() + kSecond / 2);
  Worker& next = world().add_worker(run, Rank{1}, world().now());
  world().cut(next.identity.host, kB, true);
  for (int i = 0; i < 100; ++i) {
    world().run_until(world().now() + 100 * kMillisecond);
    EXPECT_FALSE(next.started()) << "at " << world().now() / kMillisecond << " ms";
  }
  for (const std::uint16_t rank : {0, 2}) {
    EXPECT_EQ(worker(run, rank).session().epoch(), 1u);
    EXPECT_EQ(worker(run, rank).session().state(), client::SessionState::kRunning);
  }
  ASSERT_TRUE(next.failed()) << "it has reached the first";
  expect_words(next.failure().message(), {"has ended", "nobody is left"});
}

// The first takes a rank for lost that is at the second alone, and lets a new process in. When all
// meet, the old process is refused, though it has come first.
TEST_F(StandbyOfStores, a_rank_and_its_next_process_meet_at_the_second) {
  for (const std::uint32_t bound : {0u, 2u}) {
    JobPlan plan = plan_of_pauses(bound, 300);
    plan.loses_ranks = true;
    end_world();
    const RunIndex run = begin(plan);
    Worker& old = worker(run, 1);
    bool apart = true;
    world().set_filter([&](Passing& passing) {
      passing.drop = apart && passing.box == (passing.worker == &old ? kA : kB);
    });
    world().run_until(world().now() + options.appliance.jobs.member_timeout_ns + kSecond);
    Worker& next = world().add_worker(run, Rank{1}, world().now());
    ASSERT_TRUE(world().run_until([&] { return next.started(); }, world().now() + 5 * kSecond));
    world().run_until(world().now() + kSecond);
    EXPECT_FALSE(old.failed());
    EXPECT_NE(old.session().epoch(), 0u);
    apart = false;
    const auto have_met = [&] {
      const std::uint32_t epoch = next.session().epoch();
      return old.failed() && epoch != 0 && all_at(run, epoch);
    };
    EXPECT_TRUE(world().run_until(have_met, world().now() + 8 * kSecond)) << world().report();
    expect_words(old.failure().message(), {"rank 1"});
    const Step before = worker(run, 0).steps_done();
    world().run_until(world().now() + 2 * kSecond);
    EXPECT_GT(worker(run, 0).steps_done(), before + 10);
    EXPECT_TRUE(world().healthy()) << world().report();
    world().set_filter({});
  }
}

TEST_F(StandbyOfStores, a_rank_that_dies_with_the_first_ends_the_job_by_name) {
  JobPlan plan = plan_of_pauses(2, 100);
  plan.session.restart_timeout_ns = 6 * kSecond;
  plan.loses_ranks = true;
  const RunIndex run = begin(plan);
  world().kill(worker(run, 1), true);
  world().stop_appliance(kA);
  expect_failed(run, Rank{1}, world().now() + 9 * kSecond, {"2 of 3 ranks joined", "rank 1"});
}

}  // namespace
}  // namespace sluice::sim
