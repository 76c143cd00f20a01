// Every state of a small synchronous job whose appliance dies once, in any of them, and comes back
// without its memory; and the proof that the checks can fail.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>

#include "tests/unit/exhaustive/replay.h"
#include "tests/unit/restarts/model.h"

namespace sluice::exhaustive {
namespace {

using Mutation = RestartConfig::Mutation;

Found explore(const RestartConfig& config) {
  return explore_by_replay<RestartModel>(config, &describe);
}

void visit(const RestartConfig& config) {
  const std::clock_t begin = std::clock();
  const Found found = explore(config);
  EXPECT_EQ(found.violation, "") << found.path;
  std::printf("%u workers, %zu chunks, %u steps, %u shards: %zu states, %.1f CPU s\n",
              config.worker_count, config.chunk_count, std::uint32_t{config.last_step},
              config.shard_count, found.states,
              static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  std::fflush(stdout);
}

TEST(ExhaustiveRestart, OfTwoWorkersTwoChunksAndTwoSteps) { visit({}); }

TEST(ExhaustiveRestart, OfTwoShards) { visit({.shard_count = 2}); }

// A third worker may have a result without being the one that gives it.
TEST(ExhaustiveRestart, OfThreeWorkers) { visit({.worker_count = 3}); }

TEST(ExhaustiveRestart, WrongRulesAreFound) {
  const auto found = [](Mutation mutation) { return explore({.mutation = mutation}).violation; };
  for (const Mutation mutation : {Mutation::kGiveTwice, Mutation::kAddToGiven,
                                  Mutation::kSkipExchange, Mutation::kForgetKept})
    EXPECT_EQ(found(mutation), "I1, I2, I8: a result is another sum") << static_cast<int>(mutation);
  EXPECT_EQ(found(Mutation::kKeepCookies), "I3: a part for the dead appliance is taken: folded");
  EXPECT_EQ(found(Mutation::kOpenTheNewest), "a worker is in a step that it cannot be in");
  for (const Mutation mutation : {Mutation::kTakeFromOld, Mutation::kSkipClosing})
    EXPECT_EQ(found(mutation), "I4: what a worker needs is gone") << static_cast<int>(mutation);
}

}  // namespace
}  // namespace sluice::exhaustive
