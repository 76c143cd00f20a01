// Sessions against the real aggregator: exact sums whatever the network does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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
    for (std::uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor)
      submit_tensor(world, rank, tensor, step);
  }
  void submit_tensor(SmallWorld& world, std::size_t rank, std::size_t tensor, Step step) {
    auto& values = ranks[rank][tensor];
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient(rank, tensor, step, i);
    const Status status = world.session(rank).submit({.tensor = static_cast<std::uint32_t>(tensor),
                                                      .input = values.data(),
                                                      .output = values.data(),
                                                      .priority = static_cast<Priority>(tensor)},
                                                     world.now());
    ASSERT_TRUE(status.ok()) << status.message();
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
    EXPECT_EQ(world.session(rank).counters().retransmissions, 0u);
    EXPECT_EQ(world.session(rank).counters().duplicate_results, 0u);
    EXPECT_EQ(world.session(rank).counters().probes, 0u);
    EXPECT_EQ(world.session(rank).current_step(), 6u);
  }
}

TEST(SessionWorld, TheRankThatSentANanCountsItAndTheOthersOnlySeeIt) {
  WorldOptions options;
  options.workers = 3;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, 10 * kSecond)) << world.first_failure();
  Gradients gradients(options);
  for (std::size_t rank = 0; rank < 3; ++rank) gradients.submit(world, rank, 1);
  gradients.ranks[1][0][70] = std::numeric_limits<float>::quiet_NaN();  // inputs are outputs
  gradients.ranks[2][0][999] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(world.run_until(Kind::kStepDone, 1, kSecond));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Counters& counters = world.session(rank).counters();
    EXPECT_EQ(counters.non_finite_results, 2u);
    EXPECT_EQ(counters.non_finite_inputs, rank == 0 ? 0u : 1u) << "rank " << rank;
    EXPECT_TRUE(std::isnan(gradients.ranks[rank][0][70]));
  }
  for (std::size_t rank = 0; rank < 3; ++rank) gradients.submit(world, rank, 2);
  ASSERT_TRUE(world.run_until(Kind::kStepDone, 2, kSecond));
  gradients.expect_sums(2, 3);
  EXPECT_EQ(world.session(1).counters().non_finite_inputs, 1u);
}

struct Weather {
  double loss = 0;
  double duplicates = 0;
  DurationNs jitter_ns = 0;
  std::uint16_t shards = 1;
  std::size_t elems = 0;
  DurationNs limit_ns = 0;
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
  const DurationNs took_ns = train(world, options, 2, 30 * kSecond);
  // Recovery is pipelined over blocks: at 20 % loss each way, ten times the time without loss.
  EXPECT_LT(took_ns, GetParam().limit_ns);
  const Counters& counters = world.session(0).counters();
  if (GetParam().loss != 0) {
    EXPECT_GT(counters.retransmissions, 0u);
    EXPECT_GT(counters.probes, 0u);
    return;
  }
  if (GetParam().jitter_ns != 0) return;
  EXPECT_EQ(counters.retransmissions, 0u);
  EXPECT_EQ(counters.probes, 0u);
  EXPECT_EQ(counters.duplicate_results, 0u);
  EXPECT_LT(counters.packets_sent, 2 * (GetParam().elems / 64 + 1) + 40);
}

constexpr DurationNs kJitter = 50 * kMicrosecond;

INSTANTIATE_TEST_SUITE_P(
    All, SessionWeather,
    ::testing::Values(
        Weather{.elems = 64'000, .limit_ns = 20 * kMillisecond},
        Weather{.loss = 0.01, .elems = 64'000, .limit_ns = kSecond},
        Weather{.loss = 0.05, .elems = 64'000, .limit_ns = kSecond},
        Weather{.loss = 0.2, .elems = 64'000, .limit_ns = 2 * kSecond},
        Weather{.loss = 0.01,
                .duplicates = 0.05,
                .jitter_ns = kJitter,
                .elems = 64'000,
                .limit_ns = kSecond},
        Weather{.duplicates = 0.05, .jitter_ns = kJitter, .elems = 64'000, .limit_ns = kSecond},
        Weather{.loss = 0.2,
                .duplicates = 0.05,
                .jitter_ns = kJitter,
                .elems = 64'000,
                .limit_ns = 2 * kSecond},
        Weather{.loss = 0.2,
                .duplicates = 0.05,
                .jitter_ns = kJitter,
                .shards = 4,
                .elems = 64'000,
                .limit_ns = 2 * kSecond},
        Weather{.elems = 1'280'000, .limit_ns = 200 * kMillisecond},
        Weather{.loss = 0.2, .elems = 1'280'000, .limit_ns = 4 * kSecond}));

TEST(SessionWorld, OrderOfSubmissionMayDifferBetweenRanks) {
  const WorldOptions options;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  Gradients gradients(options);
  for (std::size_t rank = 0; rank < 4; ++rank)
    for (std::uint32_t turn = 0; turn < 2; ++turn)
      gradients.submit_tensor(world, rank, (rank + turn) % 2, 1);
  ASSERT_TRUE(world.run_until(Kind::kStepDone, 1, kSecond)) << world.first_failure();
  gradients.expect_sums(1, 4);
}

TEST(SessionWorld, TensorThatOneRankDidNotUseIsAveragedOverAll) {
  const WorldOptions options;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  Gradients gradients(options);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    gradients.submit_tensor(world, rank, 0, 1);
    if (rank != 2) gradients.submit_tensor(world, rank, 1, 1);
    ASSERT_TRUE(world.session(rank).end_step().ok());
  }
  ASSERT_TRUE(world.run_until(Kind::kStepDone, 1, kSecond)) << world.first_failure();
  EXPECT_EQ(world.count(2, Kind::kTensorDone), 1u);
  EXPECT_EQ(world.count(1, Kind::kTensorDone), 2u);
  const float sum = gradient(0, 1, 1, 0) + gradient(1, 1, 1, 0) + gradient(3, 1, 1, 0);
  EXPECT_EQ(gradients.ranks[0][1][0], sum / 4);
}

TEST(SessionWorld, BroadcastOfManyWindowsReachesEveryRankBesideLoss) {
  WorldOptions options;
  options.loss = 0.1;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  const std::size_t bytes = 64 * 256 * 9 + 100;  // ten steps of 64 chunks
  std::vector<std::vector<std::uint8_t>> buffers(4, std::vector<std::uint8_t>(bytes));
  for (std::size_t i = 0; i < bytes; ++i)
    buffers[1][i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  for (std::size_t rank = 0; rank < 4; ++rank)
    ASSERT_TRUE(
        world.session(rank).broadcast(Rank{1}, buffers[rank].data(), bytes, world.now()).ok());
  ASSERT_TRUE(world.run_until(Kind::kCollectiveDone, 1, 10 * kSecond)) << world.first_failure();
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, buffers[1]);
}

TEST(SessionWorld, RankThatCallsItsBroadcastLatePullsWhatPassed) {
  const WorldOptions options;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  std::vector<std::vector<std::uint8_t>> buffers(4, std::vector<std::uint8_t>(30'000));
  buffers[0].assign(30'000, 42);
  for (std::size_t rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(
        world.session(rank).broadcast(Rank{0}, buffers[rank].data(), 30'000, world.now()).ok());
  EXPECT_FALSE(world.run_until(Kind::kCollectiveDone, 1, 2 * kSecond));
  ASSERT_TRUE(world.session(3).broadcast(Rank{0}, buffers[3].data(), 30'000, world.now()).ok());
  const TimeNs called_ns = world.now();
  ASSERT_TRUE(world.run_until(Kind::kCollectiveDone, 1, kSecond)) << world.first_failure();
  EXPECT_LT(world.now() - called_ns, 100 * kMillisecond);
  EXPECT_EQ(buffers[3], buffers[0]);
  EXPECT_GT(world.session(3).counters().results_pulled, 0u);
}

TEST(SessionWorld, RanksThatCallDifferentCollectivesFailWithBothPrinted) {
  const WorldOptions options;
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  std::vector<std::uint8_t> small(100), big(200);
  for (std::size_t rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(world.session(rank).broadcast(Rank{0}, small.data(), 100, world.now()).ok());
  ASSERT_TRUE(world.session(3).broadcast(Rank{0}, big.data(), 200, world.now()).ok());
  ASSERT_TRUE(world.run_until(Kind::kFailed, 1, 5 * kSecond));
  bool both = false;
  for (const Event& event : world.events(3))
    if (event.kind == Kind::kFailed)
      both = event.status.message().find("100 bytes") != std::string::npos &&
             event.status.message().find("200 bytes") != std::string::npos;
  EXPECT_TRUE(both) << world.first_failure();
}

TEST(SessionWorld, StragglerIsWaitedForWithoutAProbeStorm) {
  WorldOptions options;
  options.tensors = {{"a", 64 * 5000, Dtype::kFloat32}};
  SmallWorld world(options);
  ASSERT_TRUE(world.run_until(Kind::kStarted, 1, kSecond));
  Gradients gradients(options);
  for (std::size_t rank = 0; rank < 3; ++rank) gradients.submit(world, rank, 1);
  EXPECT_FALSE(world.run_until(Kind::kStepDone, 1, 10 * kSecond));
  EXPECT_LE(world.session(0).counters().probes, 410u);  // one in 25 ms
  EXPECT_EQ(world.session(0).counters().retransmissions, 0u);
  ASSERT_GE(world.count(0, Kind::kStalled), 1u);
  for (const Event& event : world.events(0))
    if (event.kind == Kind::kStalled) {
      EXPECT_THAT(event.status.message(), HasSubstr("'a'"));
      EXPECT_THAT(event.status.message(), HasSubstr("missing: rank 3"));
      EXPECT_THAT(event.status.message(), HasSubstr("last heard"));
    }
  gradients.submit(world, 3, 1);
  ASSERT_TRUE(world.run_until(Kind::kStepDone, 1, kSecond)) << world.first_failure();
  gradients.expect_sums(1, 4);
}

TEST(SessionWorld, LeavingRanksAreAcknowledged) {
  const WorldOptions options;
  SmallWorld world(options);
  train(world, options, 1, kSecond);
  for (std::size_t rank = 0; rank < 4; ++rank)
    world.session(rank).leave(wire::LeaveReason::kFinished, world.now());
  ASSERT_TRUE(world.run_until(Kind::kLeft, 1, 100 * kMillisecond));
  EXPECT_EQ(world.session(0).state(), SessionState::kClosed);
  EXPECT_EQ(world.session(0).next_timeout(), kNever);
}

TEST(SessionWorld, IdleJobWakesOnlyForItsKeepalives) {
  const WorldOptions options;
  SmallWorld world(options);
  train(world, options, 1, kSecond);
  const std::uint64_t before = world.wakeups();
  world.run([] { return false; }, 10 * kSecond);
  EXPECT_LT(world.wakeups() - before, 10 * (20 + 4 * 4 * 3) + 20u);
}

}  // namespace
}  // namespace sluice::client
