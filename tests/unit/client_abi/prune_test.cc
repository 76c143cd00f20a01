// Whole jobs in which only the large gradients leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/unit/client_abi/job_support.h"

namespace job_test {
namespace {

using sluice::Job;
using sluice::Options;
using testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;
constexpr std::size_t kElems = 40'000;

class Pruning : public testing::TestWithParam<sluice_prune_rule> {
 protected:
  Options options(std::uint32_t rank) const {
    const std::string name = "prune" + std::to_string(static_cast<int>(GetParam()));
    Options options = options_for(name.c_str(), rank, kRanks);
    options.prune.rule = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Every, Pruning,
                         testing::Values(SLUICE_PRUNE_STATIC, SLUICE_PRUNE_SAMPLED,
                                         SLUICE_PRUNE_SIGMA, SLUICE_PRUNE_DYNAMIC,
                                         SLUICE_PRUNE_DYNAMIC_RAW),
                         [](const auto& instance) {
                           return "rule" + std::to_string(static_cast<int>(instance.param));
                         });

// Small integers, so that sums are exact in any order: of an element, all that the ranks gave is in
// the averages or in their residuals, and with the flush before the last step in the averages.
TEST_P(Pruning, LeavesBehindWhatTheFlushBringsAndFewBytesUntilThen) {
  constexpr std::uint32_t kSteps = 12;
  std::vector<std::vector<float>> sums(kRanks), totals(kRanks);
  on_every_rank(kRanks, [&](std::uint32_t rank) {
    Job job(options(rank), {{"g", kElems},
                            {"bias", 2000, SLUICE_FLOAT32, false, true},
                            {"exact", 2000, SLUICE_FLOAT32, true},
                            {"small", 1000}});
    job.set_averaging(0, SLUICE_AVERAGE_SUM);
    std::mt19937 random(rank);
    std::normal_distribution<float> draw(0, 40);
    std::vector<float> gradient(kElems), sum(kElems), rest(2000, 1.0f), whole(2000);
    sums[rank].resize(kElems), totals[rank].resize(kElems);
    const auto step = [&](std::uint32_t number) {
      for (std::size_t i = 0; i < kElems; ++i)
        totals[rank][i] += gradient[i] = std::nearbyint(draw(random));
      job.submit({0, gradient.data(), sum.data()});
      for (const std::uint32_t tensor : {1u, 2u, 3u}) {
        job.submit({tensor, rest.data(), whole.data()});
        job.wait(tensor, kLong);
        EXPECT_EQ(std::count(whole.begin(), whole.begin() + 1000, 1.0f), 1000);
      }
      EXPECT_EQ(job.wait_step(kLong), number);
      for (std::size_t i = 0; i < kElems; ++i) sums[rank][i] += sum[i];
    };
    for (std::uint32_t number = 1; number < kSteps; ++number) step(number);
    const auto residual = job.residual(0, kElems);
    EXPECT_GT(std::count_if(residual.begin(), residual.end(), [](float v) { return v != 0; }),
              static_cast<std::ptrdiff_t>(kElems / 2));
    EXPECT_LT(job.counters().bytes_sent, kSteps * (kElems * 2 + 30'000));
    EXPECT_THAT(error_of([&] { (void)job.residual(1, 2000); }).what(), HasSubstr("'bias'"));
    job.flush_residuals();
    step(kSteps);
    EXPECT_EQ(job.residual(0, kElems), std::vector<float>(kElems));
  });
  for (std::size_t i = 0; i < kElems; ++i) {
    ASSERT_EQ(sums[0][i], sums[1][i]);
    ASSERT_EQ(sums[0][i], totals[0][i] + totals[1][i] + totals[2][i]);
  }
}

// Deep Gradient Compression's equations, step by step. Halves and small integers: exact sums.
TEST(PrunedJobs, CorrectTheMomentum) {
  constexpr std::uint32_t kSteps = 10;
  constexpr std::size_t kSent = kElems / 100, kBiases = 500;
  struct Rank {
    std::vector<float> velocity = std::vector<float>(kElems), residual = velocity;
    std::vector<float> left[kSteps], sums[kSteps];
  };
  std::vector<Rank> ranks(2);
  on_every_rank(2, [&](std::uint32_t rank) {
    Options options = options_for("momentum", rank, 2);
    options.prune.rule = SLUICE_PRUNE_STATIC;
    options.prune.momentum = 0.5;
    Job job(options, {{"g", kElems}, {"bias", kBiases}});
    for (const std::uint32_t tensor : {0u, 1u}) job.set_averaging(tensor, SLUICE_AVERAGE_SUM);
    Rank& own = ranks[rank];
    std::mt19937 random(rank);
    std::normal_distribution<float> draw(0, 40);
    std::vector<float> gradient(kElems), magnitudes(kElems), ones(kBiases, 1), biases(kBiases);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::vector<float>& left = own.left[step];
      left.resize(kElems), own.sums[step].resize(kElems);
      for (std::size_t i = 0; i < kElems; ++i) {
        gradient[i] = std::nearbyint(draw(random));
        own.velocity[i] = own.velocity[i] / 2 + gradient[i];
        own.residual[i] += own.velocity[i];
        magnitudes[i] = std::abs(own.residual[i]);
      }
      std::nth_element(magnitudes.begin(), magnitudes.begin() + kSent - 1, magnitudes.end(),
                       std::greater<>());
      for (std::size_t i = 0; i < kElems; ++i)
        if (std::abs(own.residual[i]) >= magnitudes[kSent - 1]) {
          left[i] = std::exchange(own.residual[i], 0.0f);
          own.velocity[i] = 0;
        }
      job.submit({0, gradient.data(), own.sums[step].data()});
      job.submit({1, ones.data(), biases.data()});
      EXPECT_EQ(job.wait_step(kLong), step + 1);
      EXPECT_EQ(biases[7], 2 * (2 - std::ldexp(1.0f, -static_cast<int>(step))));
    }
    std::vector<float> state = own.residual;
    state.insert(state.end(), own.velocity.begin(), own.velocity.end());
    EXPECT_EQ(job.residual(0, kElems), state);
  });
  for (std::uint32_t step = 0; step < kSteps; ++step)
    for (std::size_t i = 0; i < kElems; ++i)
      ASSERT_EQ(ranks[0].sums[step][i], ranks[0].left[step][i] + ranks[1].left[step][i]);
}

TEST(PrunedJobs, RefuseAMomentumThatNothingWouldUse) {
  for (const auto& [prune, momentum, why] :
       {std::tuple{SLUICE_PRUNE_OFF, 0.9, "leave the momentum to the optimizer"},
        std::tuple{SLUICE_PRUNE_STATIC, 1.0, "options.prune.momentum is 1; must be"}}) {
    Options options = options_for("momentum", 0, 1);
    options.prune.rule = prune;
    options.prune.momentum = momentum;
    EXPECT_THAT(error_of([&] { Job job(options, {{"g", kElems}}); }).what(), HasSubstr(why));
  }
}

TEST(PrunedJobs, AreRefusedUnderAPolicyThatReadsWholeGradients) {
  for (const auto& [policy, reads] : {std::pair{SLUICE_POLICY_SAINA, "reads the signs"},
                                      {SLUICE_POLICY_GOODPUT, "reads the norms"},
                                      {SLUICE_POLICY_RAMP, "reads the norms"}}) {
    Options options = options_for("reader", 0, 1);
    options.policy.kind = policy;
    if (policy == SLUICE_POLICY_RAMP) options.policy.planned_steps = 100;
    options.prune.rule = SLUICE_PRUNE_STATIC;
    const auto error = error_of([&] { Job job(options, {{"g", kElems}}); });
    EXPECT_EQ(error.status(), SLUICE_REFUSED);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(reads), HasSubstr("use policy sync")));
  }
}

}  // namespace
}  // namespace job_test
