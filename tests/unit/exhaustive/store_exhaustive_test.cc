// Every state of a small store. Each event is played to the production shard, whose acts are
// compared with the oracle's own (store_model.h). From every state but the ends some event without
// a fault leads on, and none leads back: no schedule waits for ever.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/unit/exhaustive/replay.h"
#include "tests/unit/exhaustive/store_model.h"

namespace sluice::exhaustive {
namespace {

using Mutation = StoreConfig::Mutation;

std::string describe(const StoreEvent& event) {
  static constexpr std::array kNames{"push", "pull", "compute", "die", "join"};
  return std::string(kNames[static_cast<std::size_t>(event.kind)]) + " of " +
         std::to_string(event.rank) + " iteration " + std::to_string(event.iteration) + " chunk " +
         std::to_string(event.chunk) + (event.lost ? ", answers lost\n" : "\n");
}

Found explore(const StoreConfig& config) {
  return explore_by_replay<StoreModel>(config, &describe);
}

TEST(ExhaustiveStore, NoScheduleBreaksTheBoundLosesAPushOrWaitsForEver) {
  std::size_t states = 0;
  const auto visit = [&](const StoreConfig& config) {
    const Found found = explore(config);
    EXPECT_EQ(found.violation, "") << found.path;
    std::printf("workers %u, chunks %u, iterations %u, bound %u%s%s: %zu states\n",
                config.worker_count, config.chunk_count, config.iterations, config.bound,
                config.death ? ", a death" : "", config.rejoin ? ", a return" : "", found.states);
    std::fflush(stdout);
    states += found.states;
  };
  for (const Step bound : {0u, 1u, 3u}) {
    visit({.chunk_count = 2, .iterations = 3, .bound = bound, .death = true});
    visit({.chunk_count = 2, .iterations = 2, .bound = bound, .death = true, .rejoin = true});
    visit({.chunk_count = 1, .iterations = 4, .bound = bound, .death = true, .rejoin = true});
    visit({.worker_count = 3, .chunk_count = 1, .iterations = 2, .bound = bound, .death = true});
  }
  std::printf("%zu states\n", states);
  EXPECT_GT(states, 10'000u);
}

TEST(ExhaustiveStore, WrongRulesAreFound) {
  EXPECT_EQ(explore({.bound = 1, .mutation = Mutation::kAnswerEarly}).violation,
            "the bound is violated");
  EXPECT_EQ(explore({.bound = 1, .mutation = Mutation::kPushTwice}).violation,
            "the parameters are others");
}

}  // namespace
}  // namespace sluice::exhaustive
