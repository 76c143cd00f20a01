// Schedules of stragglers in jobs that sum the fastest k: how far behind they are, what they pull
// and requeue, and that no other rank waits for them.
#include <algorithm>
#include <map>
#include <set>

#include "tests/unit/schedules/straggling.h"

namespace sluice::sim {
namespace {

class Stragglers : public Straggling {
 protected:
  // Three ranks take `steps` steps while the fourth computes in step 3.
  RunIndex run_with_a_late_rank(Step steps, LateMode late) {
    JobPlan plan = fastest(4, 3, steps, {64 * 20, 300}, late);
    plan.ranks[3].hiccup_step = 3;
    plan.ranks[3].hiccup_ns = 2 * kSecond;
    return world().add_run(plan);
  }
};

TEST_F(Stragglers, a_straggler_10_s_late_stops_nobody_when_k_is_below_n) {
  options.appliance.jobs.member_timeout_ns = 30 * kSecond;
  JobPlan plan = fastest(4, 3, 20, {64 * 100}, LateMode::kDrop);
  plan.ranks[3].hiccup_step = 3;
  plan.ranks[3].hiccup_ns = 10 * kSecond;
  const RunIndex run = world().add_run(plan);
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {0, 1, 2}, 20); }, 3 * kSecond));
  expect_same_replicas(run, 15 * kSecond);
}

// W = 4 steps are kept: the open one, 7, and three finished ones. The results of step 3 came while
// it was computing.
TEST_F(Stragglers, a_straggler_w_steps_behind_pulls_what_it_missed) {
  const RunIndex run = run_with_a_late_rank(6, LateMode::kDrop);
  expect_same_replicas(run, 5 * kSecond);
  Worker& late = world().worker(run, 3);
  EXPECT_EQ(late.count(Kind::kFellBehind), 0u);
  EXPECT_EQ(late.resyncs(), 0u);
  EXPECT_EQ(late.steps_computed(), 3u);
  EXPECT_EQ(late.steps_caught_up(), 3u);
  EXPECT_GT(late.session().counters().results_pulled, 0u);
}

TEST_F(Stragglers, a_straggler_w_plus_1_steps_behind_gets_another_ranks_state) {
  const RunIndex run = run_with_a_late_rank(7, LateMode::kDrop);
  expect_same_replicas(run, 5 * kSecond);
  Worker& late = world().worker(run, 3);
  EXPECT_EQ(late.count(Kind::kFellBehind), 1u);
  EXPECT_EQ(late.resyncs(), 1u);
  EXPECT_EQ(late.session().counters().resyncs, 1u);
}

TEST_F(Stragglers, a_result_that_is_there_first_cancels_the_sending) {
  const RunIndex run = run_with_a_late_rank(5, LateMode::kDrop);
  std::set<Step> sent;
  world().set_filter([&](Passing& passing) {
    if (is_contribution(passing) && rank_of(passing) == 3)
      sent.insert(passing.packet.body<wire::Contribution>().step);
  });
  expect_same_replicas(run, 5 * kSecond);
  EXPECT_EQ(sent, (std::set<Step>{1, 2}));
  const client::Counters& counters = world().worker(run, 3).session().counters();
  EXPECT_EQ(counters.cancelled_bytes, 4u * (64 * 20 + 300));
  EXPECT_EQ(counters.discarded_chunks, counters.late_chunks);
  EXPECT_GT(counters.late_chunks, 0u);
}

TEST_F(Stragglers, the_window_waits_for_a_resync_that_takes_longer_than_w_steps) {
  JobPlan plan = fastest(4, 3, 60, {64 * 20}, LateMode::kDrop);
  plan.state_bytes = 300'000;  // of which the switch passes 64 chunks of 256 bytes at a time
  plan.ranks[3].hiccup_step = 3;
  plan.ranks[3].hiccup_ns = 200 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  expect_same_replicas(run, 10 * kSecond);
  EXPECT_EQ(world().worker(run, 3).resyncs(), 1u);
}

TEST_F(Stragglers, a_stopped_workers_downlink_holds_up_nobody_when_k_is_below_n) {
  options.downlink.queue_frames = 64;
  JobPlan plan = fastest(4, 3, 30, {64 * 100}, LateMode::kRequeue);
  const RunIndex run = world().add_run(plan);
  const HostIndex host = world().worker(run, 0).identity.host;
  world().at(150 * kMillisecond, [&] { world().block_downlink(host, true); });
  ASSERT_TRUE(world().run_until(
      [&] {
        return steps_done(run, {1, 2, 3}, 30);
      },
      1500 * kMillisecond));
  EXPECT_LT(world().worker(run, 0).steps_done(), 30u);
  world().block_downlink(host, false);
  expect_same_replicas(run, 6 * kSecond);
  EXPECT_TRUE(world().downlink(host).counters().balanced());
}

TEST_F(Stragglers, requeued_chunks_are_summed_beside_fresh_ones) {
  JobPlan plan = fastest(4, 3, 12, {64 * 20, 300}, LateMode::kRequeue);
  plan.ranks[3].step_delay_ns = 50 * kMillisecond;  // and others 20
  const RunIndex run = world().add_run(plan);
  std::uint64_t beside = 0;
  std::map<std::pair<Step, ChunkIndex>, std::uint64_t> requeued;  // ranks
  world().set_filter([&](Passing& passing) {
    if (is_contribution(passing)) {
      const auto& body = passing.packet.body<wire::Contribution>();
      if (body.base_step != body.step && (body.flow.flags & wire::kFlagNil) == 0) {
        EXPECT_LT(body.base_step, body.step);
        requeued[{body.step, body.chunk}] |= std::uint64_t{1} << rank_of(passing);
      }
    } else if (is_result(passing)) {
      const auto& body = passing.packet.body<wire::ResultHeader>();
      const std::uint64_t mask = passing.packet.mask_word(0);
      const std::uint64_t late = requeued[{body.step, body.chunk}];
      beside += (mask & late) != 0 && (mask & ~late) != 0;
    }
  });
  expect_same_replicas(run, 5 * kSecond);  // the oracle has added every sum up
  EXPECT_GT(beside, 0u);
  const client::Counters& counters = world().worker(run, 3).session().counters();
  EXPECT_GT(counters.requeued_chunks, 0u);
  EXPECT_EQ(counters.requeued_chunks,
            world().oracle().account(world().worker(run, 3).party()).requeued);
}

TEST_F(Stragglers, a_late_gradient_requeued_while_its_new_step_closes_counts_once_in_the_next) {
  JobPlan plan = fastest(4, 3, 12, {64 * 20, 300}, LateMode::kRequeue);
  plan.ranks[3].step_delay_ns = 50 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  Step closed_step = 0;  // the first that a late gradient is sent to; it comes when that is over
  std::set<Step> counted_in;
  world().set_filter([&](Passing& passing) {
    if (!is_contribution(passing) || rank_of(passing) != 3) return;
    const auto& body = passing.packet.body<wire::Contribution>();
    if (body.base_step == body.step || (body.flow.flags & wire::kFlagNil) != 0) return;
    if (closed_step == 0) closed_step = body.step;
    if (body.step == closed_step) passing.delay_ns = 100 * kMillisecond;
    counted_in.insert(body.step);
  });
  expect_same_replicas(run, 5 * kSecond);  // the oracle has seen that each counts once
  EXPECT_GT(counted_in.size(), 1u);
  EXPECT_GT(world().appliance().count(Verdict::kLate), 0u);
  EXPECT_GT(world().worker(run, 3).session().counters().requeued_chunks, 0u);
}

TEST_F(Stragglers, a_gradient_beyond_its_staleness_bound_is_discarded_and_counted) {
  JobPlan plan = fastest(4, 3, 12, {64 * 20}, LateMode::kRequeue);
  plan.session.policy.max_staleness = 1;
  plan.ranks[3].hiccup_step = 3;
  plan.ranks[3].hiccup_ns = 55 * kMillisecond;  // two steps of the others
  const RunIndex run = world().add_run(plan);
  expect_same_replicas(run, 5 * kSecond);
  const client::Counters& counters = world().worker(run, 3).session().counters();
  EXPECT_GT(counters.discarded_chunks, 0u);
  EXPECT_EQ(world().appliance().count(Verdict::kStale), 0u) << "the session knows the bound";
}

// Element by element the world compares: what was delivered and what is left in the residual are
// all that was submitted.
TEST_F(Stragglers, what_misses_its_step_goes_back_into_the_residual_of_a_lossy_format) {
  JobPlan plan = fastest(4, 3, 12, {64 * 20, 300}, LateMode::kDrop);
  plan.wire = Dtype::kInt8;
  plan.ranks[3].step_delay_ns = 50 * kMillisecond;  // and others 20
  const RunIndex run = world().add_run(plan);
  expect_same_replicas(run, 5 * kSecond);
  const client::Counters& counters = world().worker(run, 3).session().counters();
  EXPECT_GT(counters.kept_chunks, 0u);
  EXPECT_GT(counters.delivered_chunks, 0u);
  EXPECT_EQ(counters.discarded_chunks, 0u);  // of what was, nothing could be compared
}

TEST_F(Stragglers, a_lossy_gradient_that_waits_to_be_requeued_beyond_its_bound_goes_back_too) {
  JobPlan plan = fastest(4, 3, 12, {64 * 20}, LateMode::kRequeue);
  plan.wire = Dtype::kInt8;
  plan.session.policy.max_staleness = 1;
  plan.ranks[3].step_delay_ns = 10 * kMillisecond;  // and others 20: at the end it is in time
  plan.ranks[3].hiccup_step = 3;
  plan.ranks[3].hiccup_ns = 55 * kMillisecond;  // two steps of the others
  const RunIndex run = world().add_run(plan);
  expect_same_replicas(run, 5 * kSecond);
  const client::Counters& counters = world().worker(run, 3).session().counters();
  EXPECT_GT(counters.kept_chunks, 0u);
  EXPECT_EQ(counters.discarded_chunks, 0u);
}

// The same of pruned ones, whose late copies travel as sparse as they would have.
TEST_F(Stragglers, what_is_pruned_or_late_is_delivered_or_stays) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
    JobPlan plan = fastest(4, 3, 12, {64 * 150, 300}, late);
    plan.name = late == LateMode::kDrop ? "drop" : "requeue";
    plan.session.prune = {.rule = client::PruneRule::kStatic, .fraction = 0.02, .min_elems = 1};
    plan.session.policy.max_staleness = 1;
    plan.ranks[3].step_delay_ns = (late == LateMode::kDrop ? 50 : 10) * kMillisecond;
    plan.ranks[3].hiccup_step = 3;
    plan.ranks[3].hiccup_ns = 55 * kMillisecond;
    const RunIndex run = world().add_run(plan);
    expect_same_replicas(run, world().now() + 5 * kSecond);
    const client::Counters& counters = world().worker(run, 3).session().counters();
    EXPECT_GT(counters.kept_chunks, 0u);
    EXPECT_EQ(counters.discarded_chunks, 0u);
    const client::Counters& others = world().worker(run, 0).session().counters();
    EXPECT_LT(others.packets_sent, 12u * 155 / 4);  // many chunks a packet
  }
}

// A detection that always strikes moves k up in every step; another shard gets its chunks last in
// each.
TEST_F(Stragglers, k_changes_every_step_over_four_shards) {
  options.appliance.jobs.shard_count = 4;
  constexpr Step kSteps = 16;
  JobPlan plan = fastest(8, 1, kSteps, {64 * 256, 64 * 10}, LateMode::kDrop);
  plan.session.policy.kind = PolicyKind::kSaina;
  plan.session.policy.round_steps = 1;
  plan.session.policy.sign_threshold_permille = 0;
  plan.session.policy.count_threshold = 1;
  for (std::uint16_t rank = 0; rank < 8; ++rank)
    plan.ranks[rank].step_delay_ns = (20 + rank) * kMillisecond;
  const RunIndex run = world().add_run(plan);
  std::map<Step, std::set<std::uint16_t>> ks;
  std::map<Step, std::uint16_t> last_shard;
  world().set_filter([&](Passing& passing) {
    if (is_contribution(passing)) {
      const Step step = passing.packet.body<wire::Contribution>().step;
      if (passing.port_offset == 1 + step % 4) passing.delay_ns = 5 * kMillisecond;
    } else if (is_result(passing)) {
      const auto& body = passing.packet.body<wire::ResultHeader>();
      ks[body.step].insert(body.k);
      if (!ks.contains(body.step + 1)) last_shard[body.step] = passing.port_offset;
    }
  });
  expect_same_replicas(run, 10 * kSecond);
  std::uint32_t changes = 0;
  for (Step step = 1; step <= kSteps; ++step) {
    ASSERT_EQ(ks[step].size(), 1u) << "shards disagree about k of step " << step;
    if (step > 1) changes += *ks[step].begin() != *ks[step - 1].begin();
  }
  EXPECT_GE(changes, 7u);
  std::set<std::uint16_t> closers;
  for (const auto& [step, shard] : last_shard) closers.insert(shard);
  EXPECT_EQ(closers.size(), 4u);
}

// Steps that the test submits, of one chunk a tensor.
class ByHand : public Straggling {
 protected:
  struct Part {
    std::uint16_t rank = 0;
    bool late = false;  // it catches up; else it has a gradient
  };
  // Those who bring a sum about, then those who come too late for it or have nothing for it.
  struct Turn {
    std::uint32_t tensor = 0;
    std::vector<Part> first, then;
  };

  void give(const Part& part, Step step, std::uint32_t tensor) {
    Worker& worker = world().worker(0, part.rank);
    const JobPlan& plan = world().plan(0);
    for (std::uint64_t i = 0; i < plan.tensors[tensor].elem_count; ++i)
      store_element(Dtype::kFloat32, plan.gradient(Rank{part.rank}, step, tensor, i),
                    worker.input(tensor) + 4 * i);
    ASSERT_TRUE(worker.session()
                    .submit({.tensor = tensor,
                             .input = part.late ? nullptr : worker.input(tensor),
                             .output = worker.output(tensor),
                             .contribute = !part.late},
                            world().now())
                    .ok());
    worker.pump(world().now());
  }
  bool has(const Part& part, Step step, std::uint32_t tensor) {
    return std::ranges::any_of(world().worker(0, part.rank).log(), [&](const auto& event) {
      return event.kind == Kind::kTensorDone && event.step == step && event.tensor == tensor;
    });
  }
  void take(Step step, const std::vector<Turn>& turns) {
    for (const Turn& turn : turns)
      for (const std::vector<Part>& parts : {turn.first, turn.then}) {
        for (const Part& part : parts) give(part, step, turn.tensor);
        for (const Part& part : parts)
          ASSERT_TRUE(world().run_until([&] { return has(part, step, turn.tensor); },
                                        world().now() + kSecond))
              << "rank " << part.rank << " step " << step << " tensor " << turn.tensor;
      }
  }
};

// Every rank waits for step 5 with a gradient that was late in another chunk than the first. Then
// nobody has anything for the first one, and none of them is the last that could.
TEST_F(ByHand, a_chunk_that_every_rank_passes_closes_as_empty_and_the_step_has_a_share) {
  JobPlan plan = fastest(3, 2, 6, {64, 64, 64, 64}, LateMode::kRequeue);
  plan.manual = true;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  const Part r0{0}, r1{1}, r2{2}, late0{0, true}, late1{1, true}, late2{2, true};
  for (const Step step : {1, 2})
    for (const std::uint32_t tensor : {0, 1, 2, 3}) take(step, {{tensor, {r0, r1, r2}, {}}});
  take(3, {{0, {r1, r2}, {r0}}, {1, {r0, r2}, {r1}}, {2, {r0, r2}, {r1}}, {3, {r1, r2}, {r0}}});
  take(4, {{0, {late0, r2}, {late1}},
           {1, {late0, late1}, {r2}},
           {2, {late0, r2}, {late1}},
           {3, {late1, r2}, {late0}}});
  for (const std::uint16_t rank : {0, 1, 2})
    EXPECT_EQ(world().worker(run, rank).session().behind(), 1u) << "rank " << rank;
  for (const std::uint32_t tensor : {0, 1, 2, 3}) take(5, {{tensor, {late0, late1, late2}, {}}});
  const Oracle::Summed* empty = world().oracle().result(run, StreamId::kGradients, 5, 0);
  ASSERT_NE(empty, nullptr);
  EXPECT_TRUE(empty->nil && empty->mask.empty());
  EXPECT_EQ(empty->weight, 0u);
  for (const std::uint16_t rank : {0, 1, 2}) {
    const client::StepReport* report = world().worker(run, rank).session().report(5);
    ASSERT_NE(report, nullptr);
    EXPECT_EQ(report->k, 0);
    EXPECT_EQ(report->first_members, 1) << "of the first chunk that somebody had";
    EXPECT_EQ(report->first_may_count, 3);
    for (const LoggedEvent& event : world().worker(run, rank).log())
      if (event.kind == Kind::kTensorDone && event.step == 5) {
        EXPECT_EQ(event.absent, event.tensor == 0) << event.tensor;
      }
  }
  for (const std::uint32_t tensor : {0, 1, 2, 3}) take(6, {{tensor, {r0, r1}, {r2}}});
}

}  // namespace
}  // namespace sluice::sim
