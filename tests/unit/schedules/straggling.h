// Helpers of the schedules of jobs that tolerate stragglers.
#pragma once

#include <initializer_list>
#include <vector>

#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {

class Straggling : public Schedule {
 protected:
  // A job of `workers` ranks. A step takes 20 ms and waits for `k` of them. All leave when all are
  // done.
  static JobPlan fastest(std::uint16_t workers, std::uint16_t k, Step steps,
                         const std::vector<std::uint64_t>& elem_counts, LateMode late) {
    JobPlan plan = make_plan(workers, steps, elem_counts);
    plan.session.has_policy = true;
    plan.session.policy.kind = PolicyKind::kFixed;
    plan.session.policy.k = k;
    plan.session.policy.late = late;
    plan.nil_output = true;
    for (RankPlan& rank : plan.ranks) {
      rank.step_delay_ns = 20 * kMillisecond;
      rank.compute_max_ns = 0;
      rank.ending = Ending::kTogether;
    }
    return plan;
  }

  bool steps_done(RunIndex run, std::initializer_list<std::uint16_t> ranks, Step step) {
    for (const std::uint16_t rank : ranks)
      if (world().worker(run, rank).steps_done() < step) return false;
    return true;
  }

  // Every live rank has applied every step, and all have the same parameters.
  void expect_same_replicas(RunIndex run, TimeNs deadline) {
    const bool done = world().run_until_done(run, deadline);
    const JobPlan& plan = world().plan(run);
    const Worker* first = nullptr;
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
      Worker& worker = world().worker(run, rank);
      if (worker.state() == ProcessState::kDead) continue;
      EXPECT_FALSE(worker.failed()) << worker.failure().message();
      EXPECT_EQ(worker.steps_done(), plan.ranks[rank].last_step)
          << "rank " << rank << ": " << worker.session().describe_stall(world().now());
      if (first == nullptr) first = &worker;
      EXPECT_EQ(worker.replica(), first->replica()) << "rank " << rank;
    }
    EXPECT_TRUE(done) << world().report();
  }
};

}  // namespace sluice::sim
