// Every state of a small store. Each event is played to the production shard, whose acts are
// compared with the oracle's own (store_model.h). From every state but the ends some event without
// a fault leads on, and none leads back: no schedule waits for ever.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <unordered_map>

#include "tests/unit/exhaustive/store_model.h"

namespace sluice::exhaustive {
namespace {

using Mutation = StoreConfig::Mutation;

struct Found {
  std::size_t states = 0;
  std::string violation;
  std::string path;  // of events that led there
};

std::string describe(const StoreEvent& event) {
  static constexpr std::array kNames{"push", "pull", "compute", "die", "join"};
  return std::string(kNames[static_cast<std::size_t>(event.kind)]) + " of " +
         std::to_string(event.rank) + " iteration " + std::to_string(event.iteration) + " chunk " +
         std::to_string(event.chunk) + (event.lost ? ", answers lost\n" : "\n");
}

// A state is reached again by playing the events that led to it, which are few.
Found explore(const StoreConfig& config) {
  struct Node {
    std::size_t parent = 0;
    StoreEvent event;
  };
  std::vector<Node> nodes{{}};
  std::string path;
  std::unordered_map<std::string, std::size_t> seen{{StoreModel(config).key(), 0}};
  const auto replay = [&](std::size_t node) {
    std::vector<StoreEvent> played;
    for (std::size_t at = node; at != 0; at = nodes[at].parent) played.push_back(nodes[at].event);
    auto model = std::make_unique<StoreModel>(config);
    for (std::size_t i = played.size(); i-- != 0;) model->play(played[i]);
    return model;
  };
  for (std::size_t at = 0; at < nodes.size(); ++at) {
    auto model = replay(at);
    const int before = model->progress();
    const std::string key = model->key();
    bool leads_on = model->finished();
    std::vector<StoreEvent> events = model->events();
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (model == nullptr) model = replay(at);
      const StoreEvent event = events[i];
      if (const std::string broken = model->play(event); !broken.empty()) {
        for (std::size_t node = at; node != 0; node = nodes[node].parent)
          path = describe(nodes[node].event) + path;
        return {seen.size(), broken, path + describe(event)};
      }
      if (model->answered() && !event.lost) {  // or the answers are lost
        events.push_back(event);
        events.back().lost = true;
      }
      leads_on |= !event.is_fault() && model->progress() > before;
      std::string next = model->key();
      if (next == key) continue;  // nothing has happened: the next event needs no fresh one
      if (seen.emplace(std::move(next), nodes.size()).second) nodes.push_back({at, event});
      model.reset();
    }
    if (!leads_on) return {seen.size(), "nobody can do anything, and iterations are missing"};
  }
  return {seen.size(), ""};
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
