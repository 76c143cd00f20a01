// Schedules of numbers and limits: float16 near its maximum, a NaN, a full arena.
#include <cmath>
#include <limits>

#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

class Numbers : public Schedule {
 protected:
  // All ranks submit tensor 0 filled with what `value` says; returns when the step is done.
  void one_step(RunIndex run, const std::function<float(std::uint16_t, std::uint64_t)>& value) {
    start_all(run);
    const JobPlan& plan = world().plan(run);
    const client::TensorSpec& tensor = plan.tensors[0];
    const std::size_t elem_bytes = dtype_bytes(tensor.dtype);
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
      Worker& worker = world().worker(run, rank);
      for (std::uint64_t i = 0; i < tensor.elem_count; ++i)
        store_element(tensor.dtype, value(rank, i), worker.input(0) + i * elem_bytes);
      ASSERT_TRUE(worker.session()
                      .submit({.tensor = 0, .input = worker.input(0), .output = worker.output(0)},
                              world().now())
                      .ok());
      worker.pump(world().now());
    }
    ASSERT_TRUE(world().run_until(
        [&] {
          for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
            if (world().worker(run, rank).steps_done() != 1) return false;
          return true;
        },
        world().now() + kSecond));
  }
  JobPlan manual_plan(std::uint16_t workers, Dtype dtype, std::uint64_t elems) {
    JobPlan plan = make_plan(workers, 1, {elems});
    plan.tensors[0].dtype = dtype;
    plan.manual = true;
    plan.check_values = false;
    return plan;
  }
  const LoggedEvent& tensor_done(RunIndex run, std::uint16_t rank) {
    for (const LoggedEvent& event : world().worker(run, rank).log())
      if (event.kind == Kind::kTensorDone) return event;
    ADD_FAILURE() << "no kTensorDone";
    return world().worker(run, rank).log().front();
  }
};

TEST_F(Numbers, float16_near_its_maximum_does_not_overflow_in_the_sum) {
  const RunIndex run = world().add_run(manual_plan(4, Dtype::kFloat16, 300));
  one_step(run, [](std::uint16_t rank, std::uint64_t i) {
    return i % 2 == 0 ? 65504.0f : (rank % 2 == 0 ? 65504.0f : -65504.0f);
  });
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(tensor_done(run, rank).non_finite);
    for (std::uint64_t i = 0; i < 300; ++i) {
      std::uint8_t expected[2];
      store_element(Dtype::kFloat16, i % 2 == 0 ? 65504.0f : 0.0f, expected);
      ASSERT_EQ(std::memcmp(world().worker(run, rank).output(0) + 2 * i, expected, 2), 0) << i;
    }
  }
}

TEST_F(Numbers, bfloat16_sums_beyond_float16s_range_stay_exact) {
  const RunIndex run = world().add_run(manual_plan(3, Dtype::kBfloat16, 300));
  one_step(run, [](std::uint16_t, std::uint64_t) { return 0x1p100f; });
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(tensor_done(run, rank).non_finite);
    std::uint8_t expected[2];
    store_element(Dtype::kBfloat16, 0x1p100f, expected);
    ASSERT_EQ(std::memcmp(world().worker(run, rank).output(0), expected, 2), 0);
  }
}

TEST_F(Numbers, a_nan_from_one_rank_is_flagged_at_all_and_touches_nothing_else) {
  JobPlan plan = manual_plan(3, Dtype::kFloat32, 200);
  plan.averaging = AveragingChoice::kSum;
  const RunIndex run = world().add_run(plan);
  one_step(run, [](std::uint16_t rank, std::uint64_t i) {
    return rank == 1 && i == 70 ? std::numeric_limits<float>::quiet_NaN() : 2.0f;
  });
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(tensor_done(run, rank).non_finite);
    EXPECT_EQ(world().worker(run, rank).session().counters().non_finite_results, 1u);
    for (std::uint64_t i = 0; i < 200; ++i) {
      float value;
      std::memcpy(&value, world().worker(run, rank).output(0) + 4 * i, 4);
      if (i == 70)
        EXPECT_TRUE(std::isnan(value));
      else
        ASSERT_EQ(value, 6.0f);
    }
  }
}

TEST_F(Numbers, a_full_slot_arena_refuses_the_next_job_with_the_numbers) {
  options.appliance.jobs.max_job_memory_bytes = std::size_t{4} << 20;
  options.appliance.jobs.max_total_memory_bytes = std::size_t{6} << 20;
  JobPlan first = make_plan(2, 30, {350'000});  // two windows of 1.4 MB, and their slots
  first.chunk_bytes = 1024;
  for (RankPlan& rank : first.ranks) rank.step_delay_ns = 50 * kMillisecond;
  JobPlan second = first;
  second.name = "second";
  for (RankPlan& rank : second.ranks) rank.start_at = 200 * kMillisecond;
  JobPlan huge = make_plan(2, 1, {600'000});
  huge.name = "huge";
  huge.chunk_bytes = 1024;
  JobPlan small = make_plan(2, 3, {1000});
  small.name = "small";
  for (RankPlan& rank : small.ranks) rank.start_at = 300 * kMillisecond;
  const RunIndex first_run = world().add_run(first);
  const RunIndex second_run = world().add_run(second);
  const RunIndex huge_run = world().add_run(huge);
  const RunIndex small_run = world().add_run(small);
  expect_failed(huge_run, Rank{99}, 2 * kSecond, {"'huge' needs 6 MiB", "4 MiB"});
  expect_failed(second_run, Rank{99}, 2 * kSecond, {"'second' needs", "of 6 MiB", "1 job"});
  expect_completed(small_run, 3 * kSecond);
  expect_completed(first_run, 5 * kSecond);
}

TEST_F(Numbers, a_wrong_secret_is_refused_by_name) {
  options.appliance.jobs.secret = "right";
  JobPlan plan = make_plan(2, 2, {100});
  plan.secret = "right";
  const RunIndex good = world().add_run(plan);
  plan.secret = "wrong";
  plan.name = "intruder";
  const RunIndex bad = world().add_run(plan);
  expect_failed(bad, Rank{99}, 2 * kSecond, {"secret", "intruder"});
  expect_completed(good, 2 * kSecond);
}

TEST_F(Numbers, an_appliance_that_is_not_there_is_named_within_5_s) {
  for (const bool hints : {true, false}) {
    WorldOptions alone = options;
    alone.unreachable_hints = hints;
    World empty(alone);
    empty.stop_appliance();
    const RunIndex run = empty.add_run(make_plan(2, 1, {100}));
    ASSERT_TRUE(empty.run_until([&] { return empty.worker(run, 0).failed(); }, 5 * kSecond));
    EXPECT_EQ(empty.worker(run, 0).failure().code(), StatusCode::kUnreachable);
    expect_words(empty.worker(run, 0).failure().message(), {"10.255.0.1:7700"});
  }
}

TEST_F(Numbers, a_path_that_cannot_carry_a_chunk_is_an_error_with_both_sizes) {
  JobPlan plan = make_plan(2, 1, {1000});
  plan.chunk_bytes = 1344;
  const RunIndex run = world().add_run(plan);
  world().set_filter([](Passing& passing) {  // a path with an MTU of 1,280
    if (passing.packet.bytes().size() > 1232) passing.drop = true;
  });
  expect_failed(run, Rank{99}, 5 * kSecond, {std::to_string(wire::datagram_bytes(1344, 2)), "MTU"});
}

}  // namespace
}  // namespace sluice::sim
