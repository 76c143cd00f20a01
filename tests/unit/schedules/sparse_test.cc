// Schedules of pruned gradients: their cost on the wire, and the fate of the values that stay.
#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

class Sparse : public Schedule {
 protected:
  static JobPlan pruned(std::uint16_t workers, Step steps, std::uint64_t elem_count,
                        double fraction) {
    JobPlan plan = make_plan(workers, steps, {elem_count});
    plan.session.prune = {.rule = client::PruneRule::kStatic, .fraction = fraction};
    return plan;
  }
  static std::size_t count_left(Worker& worker) {
    client::Kept kept;
    EXPECT_TRUE(worker.session().residual(0, kept).ok());
    const std::span<float> residual = kept.values;
    return residual.size() -
           static_cast<std::size_t>(std::count(residual.begin(), residual.end(), 0.0f));
  }
};

struct Traffic {
  double up_bytes = 0;
  double down_bytes = 0;
};

// Of one of eight workers, from its join to its leave, with what Ethernet, IP and UDP add.
TEST_F(Sparse, at_one_percent_eight_workers_send_a_fortieth_and_get_a_sixth) {
  constexpr double kAroundDatagram = 14 + 20 + 8 + 24;
  Traffic dense, sparse;
  for (const double fraction : {1.0, 0.01}) {
    JobPlan plan = pruned(8, 4, 336 * 64 * 8, fraction);
    plan.name = fraction == 1 ? "dense" : "sparse";
    plan.chunk_bytes = 1344;
    if (fraction == 1) plan.session.prune = {};
    const RunIndex run = world().add_run(plan);
    expect_completed(run, world().now() + 20 * kSecond);
    const client::Counters& counters = world().worker(run, 3).session().counters();
    EXPECT_EQ(counters.retransmissions, 0u);
    (fraction == 1 ? dense : sparse) = {
        static_cast<double>(counters.bytes_sent) +
            kAroundDatagram * static_cast<double>(counters.packets_sent),
        static_cast<double>(counters.bytes_received) +
            kAroundDatagram * static_cast<double>(counters.packets_received)};
  }
  RecordProperty("up", std::to_string(dense.up_bytes / sparse.up_bytes));
  RecordProperty("down", std::to_string(dense.down_bytes / sparse.down_bytes));
  EXPECT_GT(dense.up_bytes / sparse.up_bytes, 40);
  EXPECT_GT(dense.down_bytes / sparse.down_bytes, 6);
}

TEST_F(Sparse, what_was_left_behind_leaves_with_the_last_step) {
  for (const bool flushes : {false, true}) {
    JobPlan plan = pruned(3, 4, 64 * 70, 0.01);
    plan.name = flushes ? "flushes" : "keeps";
    plan.flush_last = flushes;
    const RunIndex run = world().add_run(plan);
    expect_completed(run, world().now() + 5 * kSecond);
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      const std::size_t left = count_left(world().worker(run, rank));
      if (flushes)
        EXPECT_EQ(left, 0u);
      else
        EXPECT_GT(left, 4000u);
    }
  }
}

// Every packet of a rank's first way is lost: what it sends again is the same, chunk by chunk (the
// oracle's I1), in whatever packets.
TEST_F(Sparse, what_is_sent_again_is_the_same_in_other_packets) {
  const RunIndex run = world().add_run(pruned(2, 6, 64 * 200, 0.05));
  std::map<std::pair<Step, ChunkIndex>, int> sent;
  std::set<std::uint64_t> groups;
  world().set_filter([&](Passing& passing) {
    if (!is_contribution(passing) || rank_of(passing) != 1) return;
    const auto& body = passing.packet.body<wire::Contribution>();
    if (sent[{body.step, body.chunk}]++ == 0 && body.step % 2 == 0) passing.drop = true;
    groups.insert(passing.packet.chunks());
  });
  expect_completed(run, 20 * kSecond);
  EXPECT_GT(world().worker(run, 1).session().counters().retransmissions, 0u);
  EXPECT_GT(groups.size(), 2u);
}

TEST_F(Sparse, a_policy_that_reads_norms_or_signs_is_refused_by_name) {
  for (const auto& [kind, name, what] :
       {std::tuple{PolicyKind::kGoodput, "policy goodput", "norms"},
        std::tuple{PolicyKind::kRamp, "policy ramp", "norms"},
        std::tuple{PolicyKind::kSaina, "policy saina", "signs"}}) {
    JobPlan plan = pruned(2, 3, 64 * 40, 0.01);
    plan.name = name;
    plan.nil_output = true;
    plan.session.has_policy = true;
    plan.session.policy.kind = kind;
    if (kind == PolicyKind::kRamp) plan.session.policy.planned_steps = 100;
    const RunIndex run = world().add_run(plan);
    world().run_until([&] { return world().worker(run, 0).failed(); }, world().now() + 5 * kSecond);
    ASSERT_TRUE(world().worker(run, 0).failed());
    expect_words(world().worker(run, 0).failure().message(), {name, what, "pruned"});
  }
}

}  // namespace
}  // namespace sluice::sim
