// Schedules of the end of a rank's part: early and in order, with a LEAVE that is lost, and in the
// middle of a collective.
#include "tests/unit/schedules/straggling.h"

namespace sluice::sim {
namespace {

class Ends : public Straggling {
 protected:
  void drop_leaves_of(std::uint16_t rank) {
    world().set_filter([rank](Passing& passing) {
      passing.drop = passing.packet.type() == PacketType::kLeave && rank_of(passing) == rank;
    });
  }
};

// Whatever it was (no more data, exit(0), a batch skipped): the others would go on with another
// divisor than it, and nobody would know.
TEST_F(Ends, a_rank_that_ends_early_in_order_ends_a_synchronous_job_with_its_name_and_step) {
  JobPlan plan = make_plan(3, 6, {64 * 40});
  plan.ranks[2].last_step = 4;
  const RunIndex run = world().add_run(plan);
  expect_failed(run, Rank{2}, 2 * kSecond, {"rank 2", "10.1.0.3", "step 4", "step 5", "finish()"});
  for (const std::uint16_t rank : {0, 1}) {
    EXPECT_EQ(world().worker(run, rank).failure().code(), StatusCode::kPeerLost);
    EXPECT_EQ(world().worker(run, rank).steps_done(), 4u) << "a sum without rank 2 was applied";
  }
}

TEST_F(Ends, a_rank_that_ends_before_its_first_step_is_named_too) {
  JobPlan plan = make_plan(3, 6, {64 * 40});
  plan.ranks[1].last_step = 0;
  expect_failed(world().add_run(plan), Rank{1}, 2 * kSecond, {"rank 1", "10.1.0.2", "step 1"});
}

// The others are in the step already when the rank that computes longest ends instead.
TEST_F(Ends, ranks_that_wait_for_one_that_ends_in_order_are_told) {
  JobPlan plan = make_plan(3, 6, {64 * 40});
  plan.ranks[2].last_step = 4;
  const RunIndex run = world().add_run(plan);
  world().set_filter([](Passing& passing) {
    passing.drop = passing.packet.type() == PacketType::kLeave && rank_of(passing) == 2 &&
                   passing.now < 250 * kMillisecond;
  });
  expect_failed(run, Rank{2}, 2 * kSecond, {"rank 2", "step 4", "step 5"});
}

TEST_F(Ends, ranks_that_took_the_same_steps_leave_in_any_order) {
  for (std::uint16_t last = 0; last < 3; ++last) {
    JobPlan plan = make_plan(3, 4, {64 * 40});
    plan.run_id = plan.seed = 1 + last;
    const RunIndex run = world().add_run(plan);
    // It gets its last result a second later than the others theirs.
    Worker* slow = &world().worker(run, last);
    world().set_filter([slow, begin = world().now()](Passing& passing) {
      passing.drop = is_result(passing) && passing.worker == slow &&
                     passing.packet.body<wire::ResultHeader>().step == 4 &&
                     passing.now < begin + kSecond;
    });
    expect_completed(run, world().now() + 3 * kSecond);
  }
}

// Its leaves are lost for longer than an ordinary leave is repeated.
TEST_F(Ends, a_rank_that_ends_where_uneven_ends_are_meant_is_heard_after_two_seconds) {
  JobPlan plan = make_plan(3, 6, {64 * 40});
  plan.ranks[2].last_step = 4;
  plan.ranks[2].ending = Ending::kUneven;
  const RunIndex run = world().add_run(plan);
  world().set_filter([](Passing& passing) {
    passing.drop = passing.packet.type() == PacketType::kLeave && passing.now < 2 * kSecond;
  });
  expect_completed(run, 4 * kSecond);
}

// It stays for an evaluation while the other one has ended, unheard.
TEST_F(Ends, a_finished_rank_whose_leaves_are_all_lost_is_not_called_lost) {
  JobPlan plan = make_plan(2, 4, {64 * 40});
  plan.ranks[0].ending = Ending::kStay;
  const RunIndex run = world().add_run(plan);
  drop_leaves_of(1);
  world().run_until(10 * kSecond);
  Worker& evaluating = world().worker(run, 0);
  EXPECT_EQ(evaluating.steps_done(), 4u);
  EXPECT_FALSE(evaluating.failed()) << evaluating.failure().message();
  evaluating.session().leave(wire::LeaveReason::kFinished, world().now());
  evaluating.pump(world().now());
  ASSERT_TRUE(world().run_until([&] { return evaluating.left(); }, 11 * kSecond));
  // The name is free at once.
  JobPlan next = make_plan(2, 2, {64 * 40});
  next.run_id = 2;
  expect_completed(world().add_run_on(next, run), 13 * kSecond);
}

TEST_F(Ends, a_rank_that_falls_silent_between_steps_is_named_when_somebody_waits_for_it) {
  options.unreachable_hints = false;
  JobPlan plan = make_plan(2, 4, {64 * 40});
  plan.ranks[0].hiccup_step = 3;
  plan.ranks[0].hiccup_ns = 6 * kSecond;
  plan.ranks[1].step_delay_ns = 10 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  const auto between = [&] { return world().worker(run, 1).steps_done() == 2; };
  ASSERT_TRUE(world().run_until(between, kSecond));
  world().kill(world().worker(run, 1), false);
  world().run_until(5 * kSecond);
  EXPECT_FALSE(world().worker(run, 0).failed());
  expect_failed(run, Rank{1}, 8 * kSecond, {"rank 1", "10.1.0.2"});
  EXPECT_GT(world().worker(run, 0).failed_at(), 6 * kSecond);
}

TEST_F(Ends, a_rank_that_was_silent_between_steps_goes_on) {
  JobPlan plan = make_plan(2, 4, {64 * 40});
  plan.ranks[0].hiccup_step = 3;
  plan.ranks[0].hiccup_ns = 6 * kSecond;
  plan.ranks[1].step_delay_ns = 10 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  const auto between = [&] { return world().worker(run, 1).steps_done() == 2; };
  ASSERT_TRUE(world().run_until(between, kSecond));
  world().pause(world().worker(run, 1));
  world().at(5 * kSecond, [&] { world().resume(world().worker(run, 1)); });
  expect_completed(run, 8 * kSecond);
}

// The root of a collective that is lost in a job that goes on without it.
class Roots : public Straggling {
 protected:
  // Before step 2 rank 0 broadcasts `bytes`, and a barrier and rank 1's broadcast follow in step 3.
  JobPlan with_broadcast(std::uint32_t bytes) {
    JobPlan plan = fastest(4, 3, 12, {64 * 40}, LateMode::kDrop);
    plan.collectives = {{2, CollectiveKind::kBroadcast, Rank{0}, bytes},
                        {3, CollectiveKind::kBarrier, Rank{0}, 0},
                        {3, CollectiveKind::kBroadcast, Rank{1}, 700}};
    return plan;
  }
  // Every rank but 0 is told of it by name, once; everything else succeeds.
  void expect_one_failed_call(RunIndex run) {
    for (std::uint16_t rank = 1; rank < 4; ++rank) {
      std::vector<Status> calls;
      for (const LoggedEvent& event : world().worker(run, rank).log())
        if (event.kind == Kind::kCollectiveDone) calls.push_back(event.status);
      ASSERT_EQ(calls.size(), 3u) << "rank " << rank;
      EXPECT_EQ(calls[0].code(), StatusCode::kPeerLost);
      expect_words(calls[0].message(), {"broadcast", "rank 0"});
      EXPECT_TRUE(calls[1].ok()) << calls[1].message();
      EXPECT_TRUE(calls[2].ok()) << calls[2].message();
    }
  }
};

TEST_F(Roots, a_root_that_dies_before_it_sends_fails_the_call_by_name_and_the_job_goes_on) {
  const RunIndex run = world().add_run(with_broadcast(1000));
  const auto in_step_1 = [&] { return steps_done(run, {0}, 1); };
  world().set_filter([&](Passing& passing) {
    passing.drop = is_piece(passing, StreamId::kCollectives) && rank_of(passing) == 0;
  });
  ASSERT_TRUE(world().run_until(in_step_1, 2 * kSecond));
  world().run_until(world().now() + 100 * kMillisecond);
  world().kill(world().worker(run, 0), false);
  expect_same_replicas(run, 10 * kSecond);
  expect_one_failed_call(run);
}

// 20 steps of 64 chunks and their barriers; everybody stops at the same one.
TEST_F(Roots, a_root_that_dies_in_the_middle_of_a_long_broadcast_fails_it_alike_on_every_rank) {
  const RunIndex run = world().add_run(with_broadcast(64 * 256 * 20));
  std::uint32_t sent = 0;
  world().set_filter([&](Passing& passing) {
    if (!is_piece(passing, StreamId::kCollectives) || rank_of(passing) != 0) return;
    if (++sent == 64 * 7 + 20)
      world().at(passing.now, [&] { world().kill(world().worker(run, 0), false); });
    passing.drop = sent >= 64 * 7 + 20;
  });
  expect_same_replicas(run, 10 * kSecond);
  EXPECT_GE(sent, 64u * 7 + 20);
  expect_one_failed_call(run);
}

TEST_F(Roots, a_root_that_starts_again_while_the_others_wait_stops_nobody) {
  options.unreachable_hints = false;
  JobPlan plan = with_broadcast(1000);
  for (RankPlan& rank : plan.ranks) rank.last_step = 60;
  const RunIndex run = world().add_run(plan);
  Worker& first = world().worker(run, 0);
  world().set_filter([&](Passing& passing) {
    passing.drop = is_piece(passing, StreamId::kCollectives) && passing.worker == &first;
  });
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {0}, 1); }, 2 * kSecond));
  world().run_until(world().now() + 100 * kMillisecond);
  Worker& again = world().add_worker(run, Rank{0}, world().now() + 200 * kMillisecond);
  world().kill(first, false);
  expect_same_replicas(run, 15 * kSecond);
  expect_one_failed_call(run);
  EXPECT_EQ(again.resyncs(), 1u);
}

TEST_F(Roots, a_rank_that_leaves_in_the_middle_of_a_collective_has_not_finished) {
  JobPlan plan = with_broadcast(1000);
  plan.collectives = {{2, CollectiveKind::kBarrier, Rank{0}, 0}};
  plan.ranks[1].hiccup_step = 1;
  plan.ranks[1].hiccup_ns = 300 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  const auto waits = [&] { return steps_done(run, {0}, 1); };
  ASSERT_TRUE(world().run_until(waits, 2 * kSecond));
  Worker& leaver = world().worker(run, 0);
  world().oracle().note_unreliable(run, Rank{0});
  leaver.session().leave(wire::LeaveReason::kFinished, world().now());
  leaver.pump(world().now());
  ASSERT_TRUE(world().run_until([&] { return leaver.left(); }, 3 * kSecond));
  const auto views = world().appliance().jobs().views();
  ASSERT_EQ(views.size(), 1u);
  expect_words(std::string(views[0].loss), {"rank 0", "left with an error"});
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {1, 2, 3}, 12); }, 5 * kSecond));
}

}  // namespace
}  // namespace sluice::sim
