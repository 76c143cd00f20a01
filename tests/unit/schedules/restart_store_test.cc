// Schedules of parameter stores whose appliance is killed, at every point, and comes back without
// its memory. The simulator's oracle of stores checks each value that is read: whole pushes, each
// once, all of the reader's own, at least what the bound asks for.

#include "tests/unit/schedules/restarting.h"

namespace sluice::sim {
namespace {

class RestartStore : public Schedule {
 protected:
  void expect_survives(const JobPlan& plan, const std::vector<std::uint32_t>& deaths) {
    World own(options);
    const RunIndex run = own.add_run(plan);
    // A rank that leaves takes its copy with it.
    Killer killer{.world = own, .run = run, .deaths = {.after = deaths, .in_steps = true}};
    killer.watch();
    expect_done(own, run);
    resumed += own.books().chunks_resumed();
    reads += own.stores().reads_checked();
    deaths_seen += killer.seen;
    all_seen = killer.seen == deaths.size();
  }
  void at_every_packet(const JobPlan& plan, std::uint32_t step = 1) {
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && !HasFailure(); at += step) {
      SCOPED_TRACE("bound " + std::to_string(plan.session.store->bound) + ", killed after " +
                   std::to_string(at) + " datagrams");
      expect_survives(plan, {at});
    }
  }

  std::uint64_t resumed = 0;
  std::uint64_t reads = 0;
  std::size_t deaths_seen = 0;
  bool all_seen = true;
};

TEST_F(RestartStore, at_every_packet_of_a_store_that_gathers) {
  at_every_packet(plan_of_store(0, 2));
  EXPECT_GT(deaths_seen, 500u);
  EXPECT_GT(resumed, 10'000u);
}

TEST_F(RestartStore, in_the_order_of_ranks) {
  JobPlan plan = plan_of_store(0, 3);
  plan.reproducible = true;
  at_every_packet(plan, 11);
  EXPECT_GT(deaths_seen, 100u);
}

TEST_F(RestartStore, at_every_third_packet_of_stores_with_a_bound) {
  for (const std::uint32_t bound : {1u, 3u, kNoBound}) at_every_packet(plan_of_store(bound, 3), 3);
  EXPECT_GT(deaths_seen, 500u);
  EXPECT_GT(resumed, 10'000u);
}

TEST_F(RestartStore, over_two_shards_and_lossy_links) {
  use_two_shards_and_lossy_links(options);
  for (const std::uint32_t bound : {0u, 1u, 3u, kNoBound}) {
    all_seen = true;
    for (std::uint32_t at = 0; all_seen && !HasFailure(); at += 83) {
      SCOPED_TRACE("bound " + std::to_string(bound) + ", killed after " + std::to_string(at) +
                   " datagrams");
      options.seed = at + 1;
      expect_survives(plan_of_store(bound), {at});
    }
  }
  EXPECT_GT(deaths_seen, 60u);
  EXPECT_GT(resumed, 1000u);
}

TEST_F(RestartStore, once_more_at_every_seventh_packet_after_a_restart) {
  for (const std::uint32_t bound : {0u, 3u})
    for (const std::uint32_t first : {300u, 700u, 1100u}) {
      all_seen = true;
      for (std::uint32_t at = 0; all_seen && at < 400 && !HasFailure(); at += 7) {
        SCOPED_TRACE("bound " + std::to_string(bound) + ", killed after " + std::to_string(first) +
                     " and " + std::to_string(at) + " datagrams");
        expect_survives(plan_of_store(bound), {first, at});
      }
    }
  EXPECT_GT(deaths_seen, 300u);
}

TEST_F(RestartStore, an_optimizer_in_the_store_goes_on_and_its_state_begins_anew) {
  JobPlan plan = plan_of_store(0);
  plan.session.store->update = {.rule = UpdateRule::kSgd, .momentum = 0.5};
  at_every_packet(plan, 41);
  plan.session.store->update.rule = UpdateRule::kAdam;
  at_every_packet(plan, 41);
  EXPECT_GT(deaths_seen, 40u);
}

// A rank that dies with the appliance: its next process joins the store that the others have
// brought back, whether it comes before or behind them.
TEST_F(RestartStore, a_rank_that_is_killed_with_the_appliance_comes_back_as_a_new_process) {
  for (const DurationNs away : {10 * kMillisecond, 2 * kSecond}) {
    JobPlan plan = plan_of_store(3, 60);
    plan.loses_ranks = true;
    World own(options);
    const RunIndex run = own.add_run(plan);
    ASSERT_TRUE(own.run_until(
        [&] {
          for (std::uint16_t rank = 0; rank < 3; ++rank)
            if (own.worker(run, rank).steps_done() < 5) return false;
          return true;
        },
        10 * kSecond));
    own.stop_appliance();
    own.kill(own.worker(run, 1), false);
    own.at(own.now() + kDown, [&] { own.start_appliance(7); });
    own.run_until(own.now() + kDown + away);
    own.add_worker(run, Rank{1}, own.now());
    EXPECT_TRUE(own.run_until_done(run, own.now() + 30 * kSecond)) << own.report();
    own.check_at_end();
    EXPECT_TRUE(own.healthy()) << own.report();
    EXPECT_GT(own.books().chunks_resumed(), 50u);
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      EXPECT_FALSE(own.worker(run, rank).failed()) << own.worker(run, rank).failure().message();
  }
}

// Its pushes that nobody has read are lost, and the others' log says so.
TEST_F(RestartStore, a_rank_that_does_not_come_back_is_lost_and_named) {
  JobPlan plan = plan_of_store(3, 60);
  plan.loses_ranks = true;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().run_until(world().now() + 20 * kMillisecond);
  world().stop_appliance();
  world().kill(world().worker(run, 2), true);
  world().start_appliance(7);
  EXPECT_TRUE(world().run_until(
      [&] {
        return world().worker(run, 0).steps_done() == 60 &&
               world().worker(run, 1).steps_done() == 60;
      },
      world().now() + 20 * kSecond))
      << world().report();
  expect_words(world().worker(run, 0).returned, {"rank 2", "nobody has read is lost"});
}

// The second death is in the exchange: all state once more what they have.
TEST_F(RestartStore, a_rank_that_dies_while_values_are_given) {
  for (const PacketType type : {PacketType::kCopies, PacketType::kCopy}) {
    JobPlan plan = plan_of_store(1, 60);
    plan.loses_ranks = true;
    World own(options);
    const RunIndex run = own.add_run(plan);
    ASSERT_TRUE(own.run_until([&] { return own.worker(run, 0).steps_done() > 3; }, 10 * kSecond));
    bool lost = false;
    own.set_filter([&](Passing& passing) {
      if (passing.packet.type() != type || rank_of(passing) != 0 || lost) return;
      lost = true;
      own.at(passing.now, [&] { own.kill(own.worker(run, 0), true); });
    });
    own.start_appliance(7);
    EXPECT_TRUE(own.run_until(
        [&] {
          return own.worker(run, 1).steps_done() == 60 && own.worker(run, 2).steps_done() == 60;
        },
        own.now() + 30 * kSecond))
        << own.worker(run, 1).session().describe_stall(own.now());
    EXPECT_TRUE(lost && own.healthy()) << own.report();
  }
}

TEST_F(RestartStore, without_restart_timeout_it_ends_with_the_appliance) {
  JobPlan plan = plan_of_store(3, 60);
  plan.session.restart_timeout_ns = 0;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().start_appliance(7);
  expect_failed(run, Rank{9}, world().now() + 10 * kSecond, {"has been silent"});
}

}  // namespace
}  // namespace sluice::sim
