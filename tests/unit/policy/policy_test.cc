#include "aggregator/policy/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice::agg {
namespace {

constexpr std::uint16_t kWorkers = 16;

std::vector<double> ramp_of(double first_s, double step_s) {
  std::vector<double> durations_s;
  for (int i = 0; i < kWorkers; ++i) durations_s.push_back(first_s + step_s * i);
  return durations_s;
}

StepObservation observed(Step step, std::span<const double> durations_s) {
  return {.step = step, .durations_s = durations_s};
}

// One detection round with this share of flipped signs.
StepObservation round_of(std::span<const double> durations_s, std::uint64_t flipped_permille) {
  return {.durations_s = durations_s, .signs_flipped = flipped_permille, .signs_compared = 1000};
}

TEST(Policy, KeepsAllWorkersWithSyncAndTheGivenNumberWithFixed) {
  const auto times = ramp_of(1, 1);
  Policy sync({}, kWorkers);
  Policy fixed({.kind = PolicyKind::kFixed, .k = 6}, kWorkers);
  for (Step step = 1; step <= 20; ++step) {
    EXPECT_EQ(sync.next_k(observed(step, times)), kWorkers);
    EXPECT_EQ(fixed.next_k(observed(step, times)), 6);
  }
}

TEST(Saina, RaisesKWhenTheCounterReachesItsThresholdAndStartsAgain) {
  const auto times = ramp_of(1, 0);
  Policy policy({.kind = PolicyKind::kSaina, .k = 1, .count_threshold = 3}, kWorkers);
  EXPECT_EQ(policy.next_k(round_of(times, 500)), 1);
  EXPECT_EQ(policy.next_k(round_of(times, 500)), 1);
  EXPECT_EQ(policy.next_k(round_of(times, 500)), 2);
  EXPECT_EQ(policy.next_k(round_of(times, 900)), 2);
  EXPECT_EQ(policy.next_k(round_of(times, 499)), 2) << "counts down";
  EXPECT_EQ(policy.next_k(round_of(times, 500)), 2);
  EXPECT_EQ(policy.next_k(round_of(times, 500)), 2);
  EXPECT_EQ(policy.next_k(round_of(times, 500)), 3);
}

TEST(Saina, NeverCountsBelowZeroNorBeyondAllWorkers) {
  const auto times = ramp_of(1, 0);
  Policy policy({.kind = PolicyKind::kSaina, .k = 1, .count_threshold = 1}, kWorkers);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(policy.next_k(round_of(times, 0)), 1);
  for (int i = 0; i < 40; ++i) policy.next_k(round_of(times, 1000));
  EXPECT_EQ(policy.k(), kWorkers);
}

TEST(Saina, TakesKItselfAsTheThresholdWhenAskedTo) {
  const auto times = ramp_of(1, 0);
  Policy policy({.kind = PolicyKind::kSaina, .k = 1, .count_threshold = 0}, kWorkers);
  int rounds = 0;
  while (policy.k() < 5) {
    policy.next_k(round_of(times, 600));
    ++rounds;
  }
  EXPECT_EQ(rounds, 1 + 2 + 3 + 4);
}

TEST(Saina, SkipsStepsThatEndNoRoundOrAreNotFinite) {
  const auto times = ramp_of(1, 0);
  Policy policy({.kind = PolicyKind::kSaina, .k = 1, .count_threshold = 1}, kWorkers);
  EXPECT_EQ(policy.next_k(observed(1, times)), 1);
  StepObservation broken = round_of(times, 900);
  broken.conclusive = false;
  EXPECT_EQ(policy.next_k(broken), 1);
}

TEST(NoiseScale, FindsTheRatioOfNoiseToSignalThatTheNormsWereMadeFrom) {
  // |g|^2 = 4, trace of one worker's covariance 12: E|g_i|^2 = 16, E|g_W|^2 = 4 + 12 / W.
  for (std::uint16_t workers : {2, 4, 16}) {
    NoiseScale scale;
    EXPECT_FALSE(scale.valid());
    for (int i = 0; i < 10; ++i) scale.observe(workers, 16, 4 + 12.0 / workers);
    EXPECT_TRUE(scale.valid());
    EXPECT_NEAR(scale.phi(), 3, 1e-9);
  }
}

// |g|^2 of a finite float32 above 1e19 is infinite in float32, and that of 1e30 is 1e60.
TEST(NoiseScale, ForgetsOneGradientThatIsFarTooLarge) {
  for (const double spike : {std::numeric_limits<double>::infinity(), 1e60}) {
    NoiseScale scale;
    const auto observe_usual = [&] { scale.observe(4, 3.0, 1.5); };  // S = 2, G2 = 1
    for (int step = 0; step < 100; ++step) observe_usual();
    const double usual = scale.phi();
    scale.observe(4, spike, spike / 4);
    EXPECT_TRUE(std::isfinite(scale.phi())) << spike;
    for (int step = 0; step < 500; ++step) observe_usual();
    EXPECT_TRUE(scale.valid()) << spike;
    EXPECT_NEAR(scale.phi(), usual, usual / 100) << spike;
  }
}

TEST(NoiseScale, IsBoundedWhenTheSignalDrownsAndIgnoresASingleWorker) {
  NoiseScale scale;
  scale.observe(4, 12, 3);  // no signal at all
  EXPECT_DOUBLE_EQ(scale.phi(), 256);
  NoiseScale single;
  single.observe(1, 5, 5);
  EXPECT_FALSE(single.valid());
}

TEST(ArrivalOrder, SortsEachStepAndForgetsAnUnknownPlaceWhenItIsFilledAgain) {
  ArrivalOrder order(3);
  const double first[] = {3, 1, 2};
  order.observe(first);
  EXPECT_DOUBLE_EQ(order.at(1), 1);
  EXPECT_DOUBLE_EQ(order.at(3), 3);
  const double second[] = {1, kUnknown, 4};
  order.observe(second);
  EXPECT_DOUBLE_EQ(order.at(2), 3) << "the mean of 2 and 4";
  EXPECT_TRUE(std::isinf(order.at(3)));
  const double third[] = {1, 5, 4};
  order.observe(third);
  EXPECT_DOUBLE_EQ(order.at(3), 5);
}

TEST(Goodput, WaitsForNobodyMoreThanItsNoiseIsWorth) {
  auto times = ramp_of(1, 0);
  times[14] = times[15] = 3;  // two persistent stragglers
  for (double phi : {0.5, 64.0}) {
    Policy policy({.kind = PolicyKind::kGoodput, .late = LateMode::kRequeue}, kWorkers);
    StepObservation step = observed(1, times);
    step.workers = kWorkers;
    step.mean_square = 1 + phi;
    step.square_of_mean = 1 + phi / kWorkers;
    std::uint16_t k = 0;
    for (int i = 0; i < 10; ++i) k = policy.next_k(step);
    EXPECT_EQ(k, 14) << "all the equally fast ones, at any noise";
  }
}

TEST(Goodput, MovesBothWays) {
  const auto times = ramp_of(1, 0.2);
  Policy policy({.kind = PolicyKind::kGoodput}, kWorkers);
  const auto feed = [&](double phi, int steps) {
    StepObservation step = observed(1, times);
    step.workers = kWorkers;
    step.mean_square = 1 + phi;
    step.square_of_mean = 1 + phi / kWorkers;
    for (int i = 0; i < steps; ++i) policy.next_k(step);
    return policy.k();
  };
  const std::uint16_t clean = feed(0.01, 10);
  const std::uint16_t noisy = feed(200, 200);
  EXPECT_EQ(clean, 2) << "the floor with drop";
  EXPECT_GT(noisy, 8);
  EXPECT_LT(feed(0.01, 600), noisy);
}

TEST(Goodput, HoldsItsStartUntilTheNoiseIsKnown) {
  const auto times = ramp_of(1, 0.2);
  Policy policy({.kind = PolicyKind::kGoodput, .late = LateMode::kRequeue}, kWorkers);
  EXPECT_EQ(policy.next_k(observed(1, times)), 4) << "ceil(n / 4)";
}

TEST(Ramp, GrowsAlongTheLineWithRequeueUpToTheCap) {
  const auto times = ramp_of(1, 0);
  Policy policy({.kind = PolicyKind::kRamp, .late = LateMode::kRequeue, .planned_steps = 100},
                kWorkers);
  std::vector<std::uint16_t> ks;
  for (Step step = 1; step <= 100; ++step) ks.push_back(policy.next_k(observed(step, times)));
  EXPECT_EQ(ks.front(), 4) << "the floor";
  EXPECT_EQ(ks[34], 9) << "half of 0.7 * 100: round(1 + 15 / 2)";
  EXPECT_EQ(ks[99], kWorkers);
  auto slow = times;
  slow[14] = slow[15] = 10;
  Policy capped({.kind = PolicyKind::kRamp, .late = LateMode::kRequeue, .planned_steps = 100},
                kWorkers);
  for (Step step = 1; step <= 100; ++step) capped.next_k(observed(step, slow));
  EXPECT_EQ(capped.k(), 14) << "argmax j^2 / T_j";
}

TEST(Ramp, StartsFastWithDropAndEndsWithTheSquareOfEfficiency) {
  const auto times = ramp_of(1, 0.1);
  Policy policy({.kind = PolicyKind::kRamp, .planned_steps = 100}, kWorkers);
  StepObservation step = observed(1, times);
  step.workers = kWorkers;
  step.mean_square = 1 + 32;
  step.square_of_mean = 1 + 32.0 / kWorkers;
  EXPECT_EQ(policy.next_k(step), 2);
  for (Step at = 2; at <= 100; ++at) {
    step.step = at;
    policy.next_k(step);
  }
  double best = 0;
  std::uint16_t expected = 0;
  for (int j = 1; j <= kWorkers; ++j) {
    const double value = std::pow(j / (j + 32.0), 2) / (1 + 0.1 * (j - 1));
    if (value > best) best = value, expected = static_cast<std::uint16_t>(j);
  }
  EXPECT_EQ(policy.k(), expected);
}

}  // namespace
}  // namespace sluice::agg
