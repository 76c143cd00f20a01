// Sessions against the real aggregator: exact sums whatever the network does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/unit/client_core/small_world.h"

namespace sluice::client {
namespace {

using Kind = Event::Kind;
using ::testing::HasSubstr;

// Tensor `tensor` of `rank` in `step`: small integers, so that sums are exact in any order.
float gradient(std::size_t rank, std::size_t tensor, Step step, std::size_t elem) {
  return static_cast<float>((rank + 1) * (elem % 7 + 1) + tensor + step);
}

// Buffers of every rank for every tensor; inputs are outputs.
struct Gradients {
  explicit Gradients(const WorldOptions& world_options)
      : options(world_options), ranks(options.workers) {
    for (auto& rank : ranks)
      for (const TensorSpec& tensor : options.tensors) rank.emplace_back(tensor.elem_count);
  }
  void submit(SmallWorld& world, std::size_t rank, Step step) {
    for (std::uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
      auto& values = ranks[rank][tensor];
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient(rank, tensor, step, i);
      const Status status = world.session(rank).submit({.tensor = tensor,
                                                        .input = values.data(),
                                                        .output = values.data(),
                                                        .priority = static_cast<Priority>(tensor)},
                                                       world.now());
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  void expect_sums(Step step, float divisor) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      for (std::size_t tensor = 0; tensor < options.tensors.size(); ++tensor)
        for (std::size_t i = 0; i < ranks[rank][tensor].size(); ++i) {
          float sum = 0;
          for (std::size_t from = 0; from < ranks.size(); ++from)
            sum += gradient(from, tensor, step, i);
          ASSERT_EQ(ranks[rank][tensor][i], sum / divisor)
              << "rank " << rank << " tensor " << tensor << " element " << i;
        }
  }
  WorldOptions options;
  std::vector<std::vector<std::vector<float>>> ranks;
};

// Joins and runs `steps` steps; the time of the steps.
DurationNs train(SmallWorld& world, const WorldOptions& options, Step steps, DurationNs limit_ns) {
  EXPECT_TRUE(world.run_until(Kind::kStarted, 1, 10 * kSecond)) << world.first_failure();
  Gradients gradients(options);
  const TimeNs begun_ns = world.now();
  for (Step step = 1; step <= steps; ++step) {
    for (std::size_t rank = 0; rank < options.workers; ++rank) gradients.submit(world, rank, step);
    EXPECT_TRUE(world.run_until(Kind::kStepDone, step, limit_ns))
        << world.first_failure() << world.session(0).describe_stall(world.now());
    gradients.expect_sums(step, options.workers);
    if (::testing::Test::HasFailure()) break;
  }
  return world.now() - begun_ns;
}

TEST(SessionWorld, FourWorkersGetTheExactAverageWithoutLoss) {
  const WorldOptions options;
  SmallWorld world(options);
  train(world, options, 5, kSecond);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(world.session(rank).stats().retransmissions, 0u);
    EXPECT_EQ(world.session(rank).stats().duplicate_results, 0u);
    EXPECT_EQ(world.session(rank).stats().probes, 0u);
    EXPECT_EQ(world.session(rank).current_step(), 6u);
  }
}

struct Weather {
  double loss;
  double duplicates;
  DurationNs jitter_ns;
  std::uint16_t shards;
  std::size_t elems;
};

class SessionWeather : public ::testing::TestWithParam<Weather> {};

TEST_P(SessionWeather, SumsAreExactWhateverTheNetworkDoes) {
  WorldOptions options;
  options.loss = GetParam().loss;
  options.duplicates = GetParam().duplicates;
  options.jitter_ns = GetParam().jitter_ns;
  options.shards = GetParam().shards;
  options.tensors = {{"a", GetParam().elems, Dtype::kFloat32}, {"b", 3, Dtype::kFloat32}};
  SmallWorld world(options);
  const DurationNs took_ns = train(world, options, 2, 60 * kSecond);
  const SessionStats& stats = world.session(0).stats();
  std::printf(
      "%.3f s for two steps, sent %lu retransmissions %lu probes %lu pulled %lu dup %lu wakeups "
      "%lu\n",
      static_cast<double>(took_ns) / kSecond, stats.packets_sent, stats.retransmissions,
      stats.probes, stats.results_pulled, stats.duplicate_results, world.wakeups());
}

INSTANTIATE_TEST_SUITE_P(
    Loss, SessionWeather,
    ::testing::Values(Weather{0, 0, 0, 1, 64 * 1000}, Weather{0.01, 0, 0, 1, 64 * 1000},
                      Weather{0.05, 0, 0, 1, 64 * 1000}, Weather{0.2, 0, 0, 1, 64 * 1000},
                      Weather{0.01, 0.05, 50 * kMicrosecond, 1, 64 * 1000},
                      Weather{0, 0.05, 50 * kMicrosecond, 1, 64 * 1000},
                      Weather{0.2, 0.05, 50 * kMicrosecond, 1, 64 * 1000},
                      Weather{0.2, 0.05, 50 * kMicrosecond, 4, 64 * 1000},
                      Weather{0, 0, 0, 1, 64 * 20000}, Weather{0.2, 0, 0, 1, 64 * 20000}));

}  // namespace
}  // namespace sluice::client
