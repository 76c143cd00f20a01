// A job that survives the loss of its appliance, what kills that, and what is expected then.
#pragma once

#include <vector>

#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {

inline constexpr DurationNs kDown = 300 * kMillisecond;

// Three ranks, in place, so that whoever has a result has lost its contribution; a broadcast, a
// barrier, and a tensor that is left out.
inline JobPlan plan_of_steps() {
  JobPlan plan = make_plan(3, 3, {16 * 5, 16 * 3});
  plan.chunk_bytes = 64;
  plan.in_place = true;
  plan.random_priority = false;
  plan.backward_order = true;
  plan.random_order = false;
  plan.call_end_step = true;
  plan.nil_rule = [](Rank rank, Step step, std::uint32_t tensor) {
    return tensor == 1 && (step == 2 || rank.value == 1);
  };
  plan.collectives = {
      {.before_step = 2,
       .kind = CollectiveKind::kBroadcast,
       .root = Rank{1},
       .size_bytes = 64 * 70},
      {.before_step = 2, .kind = CollectiveKind::kBarrier},
      {.before_step = 3, .kind = CollectiveKind::kBroadcast, .root = Rank{2}, .size_bytes = 100}};
  for (RankPlan& rank : plan.ranks) rank.ending = Ending::kTogether;
  plan.ranks[2].step_delay_ns = 2 * kMillisecond;
  plan.session.restart_timeout_ns = 20 * kSecond;
  return plan;
}

// Ranks 0 and 1 complete steps, rank 2 is late, and now and then further back.
inline JobPlan plan_of_late(LateMode late, Step steps = 5) {
  JobPlan plan = make_plan(3, steps, {16 * 5, 16 * 3});
  plan.chunk_bytes = 64;
  plan.in_place = true;
  plan.random_priority = plan.random_order = false;
  plan.backward_order = true;
  plan.nil_output = true;
  plan.session.has_policy = true;
  plan.session.policy = {.kind = PolicyKind::kFixed, .late = late, .k = 2};
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) {
    rank.ending = Ending::kTogether;
    rank.step_delay_ns = kMillisecond;
    rank.compute_max_ns = 100 * kMicrosecond;
  }
  plan.ranks[2].step_delay_ns = 3 * kMillisecond;
  return plan;
}

// Of a store: three ranks, one of them slow; a layer of two tensors, and one of more than a block.
inline JobPlan plan_of_store(std::uint32_t bound, Step steps = 4) {
  JobPlan plan = make_plan(3, steps, {16 * 3, 16 * 2, 16 * 70});
  plan.tensors[0].begins_block = plan.tensors[2].begins_block = true;
  plan.chunk_bytes = 64;
  plan.session.store = StoreOptions{.bound = bound};
  plan.session.restart_timeout_ns = 20 * kSecond;
  for (RankPlan& rank : plan.ranks) {
    rank.ending = Ending::kTogether;
    rank.step_delay_ns = kMillisecond;
    rank.jitter_ns = kMillisecond / 4;
    rank.compute_max_ns = 0;
  }
  plan.ranks[2].step_delay_ns = 3 * kMillisecond;
  return plan;
}

struct Deaths {
  std::vector<std::uint32_t> after;  // datagrams since all have started, or since it was back
  DurationNs down_ns = kDown;
  bool in_steps = false;  // none once all have ended their last step, and may leave
};

// Kills the first appliance of `world` so often, and starts it again.
struct Killer {
  World& world;
  RunIndex run;
  Deaths deaths;
  std::size_t seen = 0;
  std::uint32_t passed = 0;
  bool up = true;

  void watch() {
    world.set_filter([this](Passing& passing) {
      if (passing.box != 0) return;
      passing.drop = !up && passing.direction == Direction::kToWorker;
      if (seen == deaths.after.size() || !up || !started() || (deaths.in_steps && are_over()) ||
          ++passed <= deaths.after[seen])
        return;
      passed = 0;
      up = false;
      world.at(passing.now, [this] { world.stop_appliance(); });
      world.at(passing.now + deaths.down_ns, [this] {
        world.start_appliance(100 + ++seen);
        up = true;
      });
    });
  }
  bool are_over() {
    const JobPlan& plan = world.plan(run);
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
      if (world.worker(run, rank).steps_done() < plan.ranks[rank].last_step) return false;
    return true;
  }
  bool started() {
    for (std::uint16_t rank = 0; rank < world.plan(run).world_size(); ++rank)
      if (!world.worker(run, rank).started()) return false;
    return true;
  }
};

inline void use_two_shards_and_lossy_links(WorldOptions& options) {
  options.appliance.jobs.shard_count = 2;
  for (LinkOptions* link : {&options.uplink, &options.downlink}) {
    link->loss_ppm = 50'000;
    link->duplicate_ppm = 50'000;
    link->reorder_ppm = 50'000;
    link->reorder_delay_ns = kMillisecond;
  }
}

// All ranks reach their last steps and no invariant is broken.
inline void expect_done(World& world, RunIndex run) {
  const bool done = world.run_until_done(run, 40 * kSecond);
  if (world.healthy()) world.check_at_end();
  EXPECT_TRUE(done && world.healthy()) << world.report();
  const JobPlan& plan = world.plan(run);
  for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
    Worker& worker = world.worker(run, rank);
    EXPECT_FALSE(worker.failed()) << worker.failure().message();
    EXPECT_EQ(worker.steps_done(), plan.ranks[rank].last_step)
        << "rank " << rank << ": " << worker.session().describe_stall(world.now());
  }
}

}  // namespace sluice::sim
