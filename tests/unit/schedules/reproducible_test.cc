// The same contributions over other networks and shards: the same bits.
#include "tests/unit/schedules/schedule.h"

namespace sluice::sim {
namespace {

// The content of every result of a job over one network.
std::vector<std::uint64_t> results_over(std::uint64_t seed, std::uint16_t shards,
                                        bool reproducible) {
  WorldOptions options{.seed = seed};
  options.appliance.jobs.shard_count = shards;
  options.uplink.loss_ppm = options.downlink.loss_ppm = 20'000;
  options.uplink.jitter_ns = 200 * kMicrosecond;
  World world(options);
  JobPlan plan = make_plan(5, 6, {16 * 300, 64 * 70, 3});
  plan.reproducible = reproducible;
  plan.inexact = true;
  plan.check_values = reproducible;  // the oracle knows the order of ranks and no other
  const RunIndex run = world.add_run(plan);
  EXPECT_TRUE(world.run_until_done(run, 20 * kSecond)) << world.report();
  std::vector<std::uint64_t> found;
  const ChunkIndex chunks = world.worker(run, 0).layout.chunk_count();
  for (Step step = 1; step <= 6; ++step)
    for (ChunkIndex chunk = 0; chunk < chunks; ++chunk)
      found.push_back(world.oracle().result(run, StreamId::kGradients, step, chunk)->content_hash);
  return found;
}

TEST(Reproducible, other_networks_and_shards_give_the_same_bits) {
  const auto first = results_over(1, 1, true);
  EXPECT_GT(first.size(), 100u);
  for (const std::uint64_t seed : {2, 3, 4})
    EXPECT_EQ(first, results_over(seed, static_cast<std::uint16_t>(seed), true)) << seed;
  EXPECT_NE(first, results_over(2, 2, false)) << "the gradients prove nothing";
}

}  // namespace
}  // namespace sluice::sim
