// Schedules of members that are lost and come back while a job of the fastest k goes on.
#include <algorithm>

#include "tests/unit/schedules/straggling.h"

namespace sluice::sim {
namespace {

// When the victim dies: before, while or after its chunks of step 4 are counted; and whether the
// others can do without it by k alone, or only because k is lowered.
struct Death {
  const char* name;
  std::uint32_t after_chunks;
  std::uint16_t k;
};

class Killed : public Straggling, public testing::WithParamInterface<Death> {};

TEST_P(Killed, stops_nobody) {
  constexpr std::uint32_t kChunks = 60;
  const Death& death = GetParam();
  JobPlan plan = fastest(4, death.k, 12, {64 * kChunks}, LateMode::kRequeue);
  // In every sum while it lives: one of the others is late with all of its chunks, not each with
  // some, which together could complete a step without it.
  plan.ranks[1].step_delay_ns = 10 * kMillisecond;
  plan.ranks[3].step_delay_ns = 22 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  Worker* victim = &world().worker(run, 1);
  std::uint32_t passed = 0;
  bool struck = false;
  world().set_filter([&](Passing& passing) {
    if (passing.worker != victim) return;
    if (is_contribution(passing) && passing.packet.body<wire::Contribution>().step == 4 &&
        passed++ == death.after_chunks)
      struck = true;
    if (struck) passing.drop = true;
    // Killed after they were counted: when the first result of the step is on its way to it.
    if (is_result(passing) && passing.packet.body<wire::ResultHeader>().step == 4 &&
        passed == kChunks)
      struck = true;
    if (struck && victim->state() == ProcessState::kRunning)
      world().at(passing.now, [&] { world().kill(*victim, false); });
  });
  expect_same_replicas(run, 6 * kSecond);
  EXPECT_TRUE(struck);
  EXPECT_EQ(victim->state(), ProcessState::kDead);
  EXPECT_EQ(world().oracle().account(victim->party()).delivered,
            3 * kChunks + std::min(death.after_chunks, kChunks));
}

INSTANTIATE_TEST_SUITE_P(
    Moments, Killed,
    testing::Values(Death{"before_its_chunks_were_counted", 0, 3},
                    Death{"while_its_chunks_are_counted", 30, 3},
                    Death{"after_its_chunks_were_counted", 1000, 3},
                    Death{"before_its_chunks_were_counted_with_k_lowered", 0, 4},
                    Death{"while_its_chunks_are_counted_with_k_lowered", 30, 4},
                    Death{"after_its_chunks_were_counted_with_k_lowered", 1000, 4}),
    [](const auto& test) { return test.param.name; });

class Returns : public Straggling {
 protected:
  // Rank 1 dies in mid-run; another process joins for it.
  Worker& replace(RunIndex run, TimeNs dies_at, TimeNs joins_at) {
    world().at(dies_at, [this, run] { world().kill(world().worker(run, 1), false); });
    world().run_until(dies_at + kMillisecond);
    return world().add_worker(run, Rank{1}, joins_at);
  }
};

TEST_F(Returns, a_joiner_in_mid_run_gets_the_state_and_contributes) {
  const RunIndex run = world().add_run(fastest(4, 3, 120, {64 * 40}, LateMode::kRequeue));
  Worker& joiner = replace(run, 300 * kMillisecond, 1500 * kMillisecond);
  expect_same_replicas(run, 10 * kSecond);
  EXPECT_EQ(joiner.resyncs(), 1u);
  EXPECT_GT(joiner.steps_computed(), 10u);
  const Oracle::Account& account = world().oracle().account(joiner.party());
  EXPECT_GT(account.delivered + account.requeued, 0u);
}

// The old process is asked first: a rank whose process is gone need not stay empty for 3 s.
TEST_F(Returns, a_restart_before_3_s_takes_the_rank_when_the_old_process_answers_no_ping) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  options.unreachable_hints = false;
  const RunIndex run = world().add_run(fastest(4, 3, 200, {64 * 40}, LateMode::kDrop));
  Worker& early = replace(run, 300 * kMillisecond, kSecond);
  ASSERT_TRUE(world().run_until([&] { return early.started(); }, 2900 * kMillisecond));
  expect_same_replicas(run, 12 * kSecond);
  EXPECT_EQ(early.resyncs(), 1u);
}

TEST_F(Returns, a_second_process_of_a_rank_that_lives_is_refused_and_the_job_goes_on) {
  JobPlan plan = fastest(4, 3, 100, {64 * 40}, LateMode::kDrop);
  const RunIndex run = world().add_run(plan);
  Worker& first = world().worker(run, 1);
  Worker& second = world().add_worker(run, Rank{1}, 500 * kMillisecond);
  ASSERT_TRUE(world().run_until([&] { return second.failed(); }, 3 * kSecond));
  EXPECT_EQ(second.failure().code(), StatusCode::kRefused);
  expect_words(second.failure().message(),
               {"rank 1", "10.1.0.2:" + std::to_string(first.identity.port), "heard", "3 s",
                "10.1.0.2:" + std::to_string(second.identity.port)});
  const auto all_done = [&] {
    return first.steps_done() == 100 && steps_done(run, {0, 2, 3}, 100);
  };
  EXPECT_TRUE(world().run_until(all_done, 4 * kSecond));
  EXPECT_EQ(first.resyncs(), 0u);
}

TEST_F(Returns, a_restart_after_3_s_takes_the_rank_and_catches_up) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  options.unreachable_hints = false;
  const RunIndex run = world().add_run(fastest(4, 3, 250, {64 * 40}, LateMode::kDrop));
  Worker& late = replace(run, 300 * kMillisecond, 4 * kSecond);
  expect_same_replicas(run, 12 * kSecond);
  EXPECT_EQ(late.resyncs(), 1u);
  EXPECT_GT(late.steps_computed(), 0u);
}

TEST_F(Returns, a_frozen_worker_that_was_given_up_comes_back_by_itself) {
  const RunIndex run = world().add_run(fastest(4, 3, 400, {64 * 40}, LateMode::kRequeue));
  Worker& frozen = world().worker(run, 1);
  world().at(300 * kMillisecond, [&] { world().pause(frozen); });
  world().at(6 * kSecond, [&] { world().resume(frozen); });
  expect_same_replicas(run, 15 * kSecond);
  EXPECT_EQ(&world().worker(run, 1), &frozen);
  EXPECT_GT(frozen.resyncs(), 0u);
  EXPECT_LT(frozen.session().counters().retransmissions, 500u);
}

TEST_F(Returns, a_frozen_worker_whose_rank_was_taken_is_told_and_changes_nothing) {
  const RunIndex run = world().add_run(fastest(4, 3, 400, {64 * 40}, LateMode::kRequeue));
  Worker& frozen = world().worker(run, 1);
  world().at(300 * kMillisecond, [&] { world().pause(frozen); });
  world().run_until(400 * kMillisecond);
  world().add_worker(run, Rank{1}, 4 * kSecond);
  world().at(6 * kSecond, [&] { world().resume(frozen); });
  ASSERT_TRUE(world().run_until([&] { return frozen.failed(); }, 8 * kSecond));
  expect_words(frozen.failure().message(), {"rank 1", "held by"});
  expect_same_replicas(run, 15 * kSecond);
}

// The transfer of 400,000 bytes to a late rank takes a while; here in the middle of it.
class Transfer : public Straggling {
 protected:
  void begin() {
    JobPlan plan = fastest(4, 2, 100, {64 * 40}, LateMode::kDrop);
    plan.state_bytes = 400'000;
    plan.ranks[3].hiccup_step = 3;
    plan.ranks[3].hiccup_ns = 300 * kMillisecond;
    options.downlink.bytes_per_second = 2'000'000;
    run = world().add_run(plan);
    const auto given = [&] {
      for (std::uint16_t rank = 0; rank < 3; ++rank)
        if (world().worker(run, rank).states_given() != 0) giver = &world().worker(run, rank);
      return giver != nullptr;
    };
    ASSERT_TRUE(world().run_until(given, 3 * kSecond));
    world().run_until(world().now() + 50 * kMillisecond);
    ASSERT_EQ(world().worker(run, 3).resyncs(), 0u) << "the transfer was over too soon";
  }
  RunIndex run = 0;
  Worker* giver = nullptr;
};

TEST_F(Transfer, goes_on_from_another_rank_when_its_giver_dies) {
  begin();
  world().kill(*giver, false);
  expect_same_replicas(run, 20 * kSecond);
  EXPECT_EQ(world().worker(run, 3).resyncs(), 1u);
}

TEST_F(Transfer, begins_again_when_its_receiver_was_frozen_and_given_up) {
  begin();
  Worker& receiver = world().worker(run, 3);
  world().pause(receiver);
  world().run_until(world().now() + 6 * kSecond);
  world().resume(receiver);
  expect_same_replicas(run, 30 * kSecond);
  EXPECT_EQ(receiver.resyncs(), 1u);
}

TEST_F(Returns, a_resync_that_outlasts_the_hold_is_refused_with_both_times) {
  options.appliance.jobs.resync_hold_ns = 2 * kSecond;
  JobPlan plan = fastest(4, 3, 30, {64 * 40}, LateMode::kDrop);
  plan.ranks[3].hiccup_step = 3;
  plan.ranks[3].hiccup_ns = 300 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().set_filter([](Passing& passing) {  // the state never arrives
    passing.drop = is_piece_result(passing, StreamId::kState) && rank_of(passing) == 3;
  });
  world().oracle().note_unreliable(run, Rank{3});  // it will be thrown out
  Worker& target = world().worker(run, 3);
  ASSERT_TRUE(world().run_until([&] { return target.failed(); }, 5 * kSecond));
  expect_words(target.failure().message(), {"rank 3", "2.0 s", "resync_hold"});
  EXPECT_LT(world().worker(run, 0).steps_done(), 30u) << "nobody waited for it";
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {0, 1, 2}, 30); }, 7 * kSecond));
  EXPECT_TRUE(world().run_until_done(run, 7 * kSecond));
}

TEST_F(Returns, leaving_in_order_lowers_k_and_the_others_go_on) {
  JobPlan plan = fastest(4, 4, 10, {64 * 40}, LateMode::kDrop);
  plan.ranks[2].last_step = 4;
  plan.ranks[2].ending = Ending::kLeave;
  expect_completed(world().add_run(plan), 3 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
