// Whole jobs whose gradients are rounded on the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/unit/client_abi/job_support.h"

namespace job_test {
namespace {

using sluice::Job;
using sluice::Options;
using testing::HasSubstr;

class WireFormats : public testing::TestWithParam<sluice_wire> {
 protected:
  Options options(std::uint32_t rank, std::uint32_t world_size) const {
    Options options =
        options_for("wire" + std::to_string(static_cast<int>(GetParam())), rank, world_size);
    options.wire = GetParam();
    return options;
  }
  // A quarter of the float's bytes, or half.
  std::uint64_t most_bytes(std::uint64_t floats) const {
    return (GetParam() == SLUICE_WIRE_INT8 ? 1 : 2) * floats * 11 / 10;
  }
};
INSTANTIATE_TEST_SUITE_P(Every, WireFormats,
                         testing::Values(SLUICE_WIRE_FLOAT16, SLUICE_WIRE_BFLOAT16,
                                         SLUICE_WIRE_INT8),
                         [](const auto& instance) {
                           return "format" + std::to_string(static_cast<int>(instance.param));
                         });

// What was not delivered is in the residuals, to the bit but for the additions' own rounding; all
// ranks hold the same averages, and over many steps those are the gradients' to within a few
// roundings of one step.
TEST_P(WireFormats, LoseNothingOverManyStepsAndAgreeOnEveryRank) {
  constexpr std::uint32_t kRanks = 3, kSteps = 40;
  constexpr std::size_t kElems = 5000;
  std::vector<std::vector<float>> averages(kRanks), totals(kRanks), residuals(kRanks);
  std::vector<std::uint64_t> sent(kRanks);
  on_every_rank(kRanks, [&](std::uint32_t rank) {
    Job job(options(rank, kRanks), {{"g", kElems}, {"exact", 100, SLUICE_FLOAT32, true}});
    std::mt19937 random(rank);
    std::normal_distribution<float> draw(0.25f);
    std::vector<float> gradient(kElems), average(kElems), exact(100, 1 + 0x1p-20f), same(100);
    totals[rank].resize(kElems);
    for (std::uint32_t step = 1; step <= kSteps; ++step) {
      for (std::size_t i = 0; i < kElems; ++i) totals[rank][i] += gradient[i] = draw(random);
      job.submit({0, gradient.data(), average.data()});
      job.submit({1, exact.data(), same.data()});
      ASSERT_EQ(job.wait_step(kLong), step);
      averages[rank].resize(kElems);
      for (std::size_t i = 0; i < kElems; ++i) averages[rank][i] += average[i];
      ASSERT_EQ(same, exact);
    }
    residuals[rank] = job.residual(0, kElems);
    sent[rank] = job.counters().bytes_sent;
  });
  double worst = 0;
  for (std::size_t i = 0; i < kElems; ++i) {
    double due = 0;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(averages[rank][i], averages[0][i]);
      ASSERT_LE(std::fabs(residuals[rank][i]), 0.05f);
      due += static_cast<double>(totals[rank][i] - residuals[rank][i]) / kRanks;
    }
    worst = std::max(worst, std::fabs(averages[0][i] - due));
  }
  // Only the averages' own rounding is left: at random, so its sum grows with the root of steps.
  EXPECT_LE(worst, 5 * std::sqrt(kSteps) * 0.0625 / 2);
  for (const std::uint64_t bytes : sent) EXPECT_LE(bytes, most_bytes(kSteps * kElems) + 100'000);
}

TEST_P(WireFormats, ShowWhatIsNotFiniteAndKeepItOutOfTheResidual) {
  on_every_rank(2, [&](std::uint32_t rank) {
    Job job(options(rank, 2), {{"g", 100}});
    std::vector<float> gradient(100, 1.5f), average(100);
    if (rank == 0) gradient[7] = std::numeric_limits<float>::infinity();
    if (rank == 0) gradient[50] = std::numeric_limits<float>::quiet_NaN();
    job.submit({0, gradient.data(), average.data()});
    EXPECT_NE(job.wait(0, kLong).non_finite, 0);
    EXPECT_FALSE(std::isfinite(average[7]) || std::isfinite(average[50]));
    EXPECT_EQ(job.counters().non_finite_inputs, rank == 0 ? 1u : 0u);
    for (const float value : job.residual(0, 100)) EXPECT_EQ(value, 0);
    std::fill(gradient.begin(), gradient.end(), 1.5f);
    job.submit({0, gradient.data(), average.data()});
    EXPECT_EQ(job.wait(0, kLong).non_finite, 0);
    EXPECT_EQ(average, gradient);
  });
}

TEST_P(WireFormats, ResidualsAreSavedSetAndScaled) {
  on_every_rank(1, [&](std::uint32_t rank) {
    Job job(options(rank, 1), {{"g", 8}, {"h", 8, SLUICE_FLOAT16}});
    job.set_residual(0, std::vector<float>(8, 0.5f));
    job.scale_residuals(4);
    EXPECT_EQ(job.residual(0, 8), std::vector<float>(8, 2.0f));
    std::vector<float> gradient(8, 1.0f);
    std::vector<std::uint16_t> half(8);
    job.submit({0, gradient.data(), gradient.data()});
    job.submit({1, half.data(), half.data()});
    EXPECT_EQ(job.wait_step(kLong), 1u);
    EXPECT_EQ(gradient, std::vector<float>(8, 3.0f));
    EXPECT_EQ(job.residual(0, 8), std::vector<float>(8, 0.0f));
    EXPECT_EQ(error_of([&] { (void)job.residual(1, 8); }).status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(error_of([&] { job.scale_residuals(NAN); }).what(), HasSubstr("finite"));
  });
}

}  // namespace
}  // namespace job_test
