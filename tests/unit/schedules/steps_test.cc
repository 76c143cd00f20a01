// Schedules of steps: orders of submission, stragglers, tensors left out, shards that close in
// every order.
#include <algorithm>

#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

class Steps : public Schedule {};

TEST_F(Steps, ranks_submit_their_tensors_in_different_orders) {
  JobPlan plan = make_plan(4, 5, {100, 300, 64, 1, 700, 20});
  plan.random_order = true;
  for (RankPlan& rank : plan.ranks) rank.compute_max_ns = 5 * kMillisecond;
  EXPECT_NE(plan.submission_order(Rank{0}, 1), plan.submission_order(Rank{1}, 1));
  expect_completed(world().add_run(plan), 3 * kSecond);
}

TEST_F(Steps, a_straggler_10_s_late_is_waited_for_without_a_flood_of_probes) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  JobPlan plan = make_plan(4, 1, {64 * 500});
  plan.ranks[3].step_delay_ns = 10 * kSecond;
  const RunIndex run = world().add_run(plan);
  expect_completed(run, 12 * kSecond);
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    Worker& worker = world().worker(run, rank);
    const client::Counters& counters = worker.session().counters();
    EXPECT_LE(counters.probes, 10'000u / 25 + 50) << "one probe per 25 ms at most";
    EXPECT_EQ(counters.retransmissions, 0u);
    EXPECT_EQ(counters.nil_contributions, 0u);
    ASSERT_GE(worker.count(Kind::kStalled), 1u);
    for (const LoggedEvent& event : worker.log())
      if (event.kind == Kind::kStalled)
        expect_words(event.status.message(), {"'t0'", "3", "last heard"});
  }
}

TEST_F(Steps, a_stopped_straggler_is_waited_for_within_its_member_timeout) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  JobPlan plan = make_plan(3, 3, {64 * 200});
  for (RankPlan& rank : plan.ranks) rank.step_delay_ns = 50 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  world().at(100 * kMillisecond, [&] { world().pause(world().worker(run, 1)); });
  world().at(12 * kSecond, [&] { world().resume(world().worker(run, 1)); });
  expect_completed(run, 16 * kSecond);
}

TEST_F(Steps, a_tensor_that_one_rank_never_submits_is_nil_with_end_step) {
  JobPlan plan = make_plan(3, 3, {200, 100, 64});
  plan.nil_rule = [](Rank rank, Step, std::uint32_t tensor) {
    return rank.value == 1 && tensor == 1;
  };
  const RunIndex run = world().add_run(plan);
  expect_completed(run, 3 * kSecond);
  EXPECT_EQ(world().worker(run, 1).session().counters().nil_contributions, 3u * 2u);
  EXPECT_GT(world().appliance().count(Verdict::kNilFolded) +
                world().appliance().count(Verdict::kCompleted),
            0u);
}

TEST_F(Steps, a_rank_without_a_gradient_still_gets_the_average) {
  JobPlan plan = make_plan(3, 3, {200, 100, 64});
  plan.nil_rule = [](Rank rank, Step step, std::uint32_t tensor) {
    return (rank.value == 1 && tensor == 1) || (step == 2 && tensor == 0);
  };
  plan.nil_output = true;
  const RunIndex run = world().add_run(plan);
  expect_completed(run, 3 * kSecond);
  EXPECT_EQ(world().worker(run, 1).count(Kind::kTensorDone), 9u);
}

// 150 chunks in three blocks: four packets with the used one. Of those without data the first of
// rank 0's is lost, one of rank 1's comes twice, and so are the first result and the second.
TEST_F(Steps, chunks_without_data_leave_a_block_at_a_time_and_survive_loss_and_duplicates) {
  JobPlan plan = make_plan(3, 1, {64, 64 * 149});
  plan.nil_rule = [](Rank, Step, std::uint32_t tensor) { return tensor == 1; };
  const RunIndex run = world().add_run(plan);
  std::array<int, 3> sent{};
  int results = 0;
  unsigned chunks_of_results = 0;
  unsigned lost_chunks = 0;
  world().set_filter([&](Passing& passing) {
    if (is_contribution(passing)) {
      const int number = ++sent[rank_of(passing)];
      const bool nil = passing.packet.payload().empty();
      passing.drop = nil && rank_of(passing) == 0 && number == 2;
      if (nil && rank_of(passing) == 1 && number == 3) passing.copies = 2;
    } else if (is_result(passing) && rank_of(passing) == 2) {
      const bool nil = passing.packet.payload().empty();
      const auto chunks = static_cast<unsigned>(std::popcount(passing.packet.chunks()));
      passing.drop = nil && ++results == 1;
      if (passing.drop) lost_chunks = chunks;
      if (nil) chunks_of_results += chunks;
    }
  });
  expect_completed(run, 3 * kSecond);
  EXPECT_EQ(sent, (std::array<int, 3>{5, 4, 4}));
  EXPECT_EQ(results, 3 + 1) << "the lost ones were pulled together";
  EXPECT_EQ(chunks_of_results, 149 + lost_chunks);
}

TEST_F(Steps, a_tensor_that_nobody_submits_is_nil_everywhere) {
  JobPlan plan = make_plan(3, 2, {200, 100, 64});
  plan.nil_rule = [](Rank, Step step, std::uint32_t tensor) { return step == 1 && tensor == 1; };
  const RunIndex run = world().add_run(plan);
  expect_completed(run, 3 * kSecond);
}

TEST_F(Steps, a_tensor_that_one_rank_never_submits_stalls_by_name_without_end_step) {
  JobPlan plan = make_plan(3, 1, {200, 100, 64});
  plan.nil_rule = [](Rank rank, Step, std::uint32_t tensor) {
    return rank.value == 1 && tensor == 1;
  };
  plan.forget_end_step = true;
  const RunIndex run = world().add_run(plan);
  world().run_until(9 * kSecond);
  for (const std::uint16_t rank : {0, 2}) {
    Worker& worker = world().worker(run, rank);
    EXPECT_EQ(worker.steps_done(), 0u);
    ASSERT_GE(worker.count(Kind::kStalled), 1u);
    const auto stall = worker.session().stall(world().now());
    expect_words(stall.text, {"'t1'", "1", "last heard"});
    EXPECT_EQ(stall.missing[0], 0b10u);
    EXPECT_GT(stall.stalled_ns, kSecond);
  }
  // The rank itself is told what it left out.
  expect_words(world().worker(run, 1).session().describe_stall(world().now()),
               {"not submitted", "'t1'", "end_step"});
  Worker& forgetful = world().worker(run, 1);
  ASSERT_TRUE(forgetful.session().end_step().ok());
  forgetful.pump(world().now());
  expect_completed(run, 11 * kSecond);
}

TEST_F(Steps, a_tensor_may_not_be_left_out_when_the_job_does_not_allow_it) {
  JobPlan plan = make_plan(2, 1, {200, 100});
  plan.allow_nil = false;
  plan.manual = true;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  Worker& worker = world().worker(run, 0);
  ASSERT_TRUE(worker.session()
                  .submit({.tensor = 0, .input = worker.input(0), .output = worker.output(0)},
                          world().now())
                  .ok());
  const Status status = worker.session().end_step();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  expect_words(status.message(), {"allow_nil"});
}

TEST_F(Steps, two_accumulation_passes_are_two_steps_and_never_mix) {
  JobPlan plan = make_plan(2, 2, {64});
  plan.manual = true;
  plan.averaging = AveragingChoice::kSum;
  plan.check_values = false;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  const auto submit = [&](std::uint16_t rank, float value) {
    Worker& worker = world().worker(run, rank);
    std::vector<float> values(64, value);
    std::memcpy(worker.input(0), values.data(), 256);
    const Status status = worker.session().submit(
        {.tensor = 0, .input = worker.input(0), .output = worker.output(0)}, world().now());
    if (status.ok()) worker.pump(world().now());
    return status;
  };
  ASSERT_TRUE(submit(0, 1).ok());
  // The second pass of the same tensor before the first is done would have to mix with it.
  const Status early = submit(0, 100);
  EXPECT_EQ(early.code(), StatusCode::kBusy);
  expect_words(early.message(), {"t0", "1"});
  ASSERT_TRUE(submit(1, 2).ok());
  const auto done = [&](Step step) {
    return [&, step] {
      return world().worker(run, 0).steps_done() == step &&
             world().worker(run, 1).steps_done() == step;
    };
  };
  // The refused call must not have touched what was on its way; its buffer was the caller's.
  ASSERT_TRUE(world().run_until(done(1), world().now() + kSecond));
  ASSERT_TRUE(submit(0, 10).ok());
  ASSERT_TRUE(submit(1, 20).ok());
  ASSERT_TRUE(world().run_until(done(2), world().now() + kSecond));
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    float value;
    std::memcpy(&value, world().worker(run, rank).output(0), 4);
    EXPECT_EQ(value, 30);
  }
}

TEST_F(Steps, a_bucket_rebuild_moves_memory_order_and_priority_but_not_the_layout) {
  JobPlan plan = make_plan(3, 4, {100, 300, 64, 200});
  plan.random_order = true;
  plan.random_priority = true;
  plan.move_buffers = true;
  expect_completed(world().add_run(plan), 3 * kSecond);
}

TEST_F(Steps, a_tensor_may_start_its_next_step_while_others_are_still_on_the_wire) {
  JobPlan plan = make_plan(3, 6, {64 * 30, 64, 300, 64 * 90});
  plan.pipelined = true;
  for (RankPlan& rank : plan.ranks) rank.compute_max_ns = 2 * kMillisecond;
  expect_completed(world().add_run(plan), 5 * kSecond);
}

TEST_F(Steps, collectives_of_every_size_run_between_the_steps) {
  JobPlan plan = make_plan(3, 2, {200});
  plan.chunk_bytes = 64;
  const std::uint32_t block_bytes = 64 * kCollectiveChunks;
  plan.collectives = {{1, CollectiveKind::kBroadcast, Rank{2}, 1},
                      {1, CollectiveKind::kBarrier},
                      {2, CollectiveKind::kBroadcast, Rank{0}, 64},
                      {2, CollectiveKind::kBroadcast, Rank{1}, block_bytes},
                      {2, CollectiveKind::kBroadcast, Rank{1}, block_bytes + 1},
                      {3, CollectiveKind::kBroadcast, Rank{0}, 20 * block_bytes + 13},
                      {3, CollectiveKind::kBarrier}};
  for (RankPlan& rank : plan.ranks) rank.compute_max_ns = 3 * kMillisecond;
  options.appliance.jobs.shard_count = 3;
  const RunIndex run = world().add_run(plan);
  expect_completed(run, 5 * kSecond);
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(world().worker(run, rank).count(Kind::kCollectiveDone), 7u);
}

TEST_F(Steps, ranks_that_call_different_collectives_are_both_named) {
  JobPlan plan = make_plan(2, 1, {200});
  plan.manual = true;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  std::vector<std::uint8_t> buffer(100);
  ASSERT_TRUE(world().worker(run, 0).session().barrier(world().now()).ok());
  world().worker(run, 0).pump(world().now());
  world().run_until(world().now() + 10 * kMillisecond);
  ASSERT_TRUE(world()
                  .worker(run, 1)
                  .session()
                  .broadcast(Rank{1}, buffer.data(), buffer.size(), world().now())
                  .ok());
  world().worker(run, 1).pump(world().now());
  expect_failed(run, Rank{99}, world().now() + 2 * kSecond, {"barrier", "broadcast", "100"});
}

// Four shards; in each of the 24 orders, one closes 5 ms after the other, for two steps.
TEST_F(Steps, four_shards_close_their_steps_in_every_order) {
  std::vector<std::uint16_t> order = {1, 2, 3, 4};
  do {
    WorldOptions world_options = options;
    world_options.appliance.jobs.shard_count = 4;
    World ordered(world_options);
    JobPlan plan = make_plan(2, 3, {64 * 256, 64 * 10});  // every shard owns a block, one owns two
    const RunIndex run = ordered.add_run(plan);
    std::vector<std::uint16_t> closed;  // by the first result of each shard in step 2
    ordered.set_filter([&](Passing& passing) {
      if (is_contribution(passing)) {
        const auto place = std::find(order.begin(), order.end(), passing.port_offset);
        passing.delay_ns = (place - order.begin()) * 5 * kMillisecond;
      }
      if (is_result(passing) && passing.packet.body<wire::ResultHeader>().step == 2 &&
          std::find(closed.begin(), closed.end(), passing.port_offset) == closed.end())
        closed.push_back(passing.port_offset);
    });
    ASSERT_TRUE(ordered.run_until_done(run, 3 * kSecond));
    ordered.check_at_end();
    EXPECT_TRUE(ordered.healthy()) << ordered.report();
    EXPECT_EQ(ordered.worker(run, 0).steps_done(), 3u);
    EXPECT_EQ(closed, order);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(Steps, a_weight_of_0_is_legal_and_does_not_count) {
  JobPlan plan = make_plan(3, 2, {300});
  plan.zero_weights = true;
  expect_completed(world().add_run(plan), 2 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
