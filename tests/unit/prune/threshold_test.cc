#include "client/prune/threshold.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/prune/gradients.h"

namespace sluice::client {
namespace {

constexpr std::size_t kElems = 100'000;

Thresholds for_one(const PruneOptions& options, std::size_t elem_count = kElems) {
  const PruneTensor tensor{.elem_count = elem_count};
  return Thresholds(options, {&tensor, 1});
}
float next(Thresholds& thresholds, const Gradients& from, std::uint32_t tensor = 0) {
  return thresholds.next(tensor, from.gradient, from.residual);
}
PruneOptions rule(PruneRule which, double fraction = 0.01) {
  return {.rule = which, .fraction = fraction};
}

TEST(Prune, StaticIsTheSortedElementOnEveryTargetAtEveryFraction) {
  const Gradients some = drawn(kElems, 1);
  const auto sorted = some.descending();
  agg::on_every_target([&](std::string_view target) {
    for (const double fraction : {1e-9, 1e-4, 1e-3, 0.01, 0.0333, 0.1, 0.5, 1.0}) {
      Thresholds thresholds = for_one(rule(PruneRule::kStatic, fraction));
      const auto rank = std::max<std::size_t>(1, static_cast<std::size_t>(fraction * kElems + 0.5));
      const float found = next(thresholds, some);
      EXPECT_EQ(found, std::bit_cast<float>(sorted[rank - 1])) << target << " " << fraction;
      EXPECT_EQ(some.above(found), rank) << target << " " << fraction;
    }
  });
}

// 18 elements of the sample shall leave: that is off by more than a third in one step of six.
TEST(Prune, StaticIsExactAndSampledCorrectedWhereTheSampleIsOff) {
  const Gradients some = drawn(kElems, 2);
  for (const PruneRule which : {PruneRule::kStatic, PruneRule::kSampled}) {
    Thresholds thresholds = for_one(rule(which, 0.018));
    int exact = 0;
    for (int step = 0; step < 60; ++step) {
      const std::size_t leave = some.above(next(thresholds, some));
      EXPECT_GE(leave * 3, 1800u * 2);
      EXPECT_LE(leave * 3, 1800u * 4);
      exact += leave == 1800;
    }
    EXPECT_GE(exact, which == PruneRule::kStatic ? 60 : 4);
    EXPECT_LE(exact, which == PruneRule::kStatic ? 60 : 30);
  }
}

// With a hundred elements of 10,000 in the sample it is off by a tenth, and never by a third.
TEST(Prune, SampledIsNearWhatWasAskedForAndDrawsAnewEveryStep) {
  Thresholds thresholds = for_one(rule(PruneRule::kSampled, 0.1));
  const Gradients some = drawn(kElems, 3);
  std::vector<float> found;
  double squares = 0;
  for (int step = 0; step < 50; ++step) {
    found.push_back(next(thresholds, some));
    const double off = static_cast<double>(some.above(found.back())) / (0.1 * kElems) - 1;
    EXPECT_LT(std::fabs(off), 0.34);
    squares += off * off / 50;
  }
  EXPECT_LT(std::sqrt(squares), 0.15);
  std::sort(found.begin(), found.end());
  EXPECT_GT(std::unique(found.begin(), found.end()) - found.begin(), 20);
}

TEST(Prune, RowsOfAnyLengthAreSampledEvenly) {
  for (const std::size_t row : {50u, 64u, 100u, 200u, 256u, 1000u}) {
    Gradients some = drawn(kElems, 4);
    for (std::size_t i = 0; i < kElems; ++i) some.gradient[i] *= i % row == 0 ? 1000.0f : 1.0f;
    const float right = std::bit_cast<float>(some.descending()[kElems / 10 - 1]);
    Thresholds thresholds = for_one(rule(PruneRule::kSampled, 0.1));
    EXPECT_NEAR(next(thresholds, some) / right, 1, 0.2) << row;
  }
}

TEST(Prune, SigmaIsThePlainDeviation) {
  const Gradients some = drawn(kElems, 5);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < kElems; ++i) {
    const double value = static_cast<double>(some.gradient[i] + some.residual[i]);
    sum += value, squares += value * value;
  }
  const double deviation = std::sqrt(squares / kElems - sum * sum / kElems / kElems);
  for (const double sigmas : {1.0, 2.0, 3.0}) {
    Thresholds thresholds = for_one({.rule = PruneRule::kSigma, .sigmas = sigmas});
    EXPECT_NEAR(next(thresholds, some) / (sigmas * deviation), 1, 1e-6);
  }
}

float mean_above_reference(const Gradients& from, float threshold) {
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < from.gradient.size(); ++i) {
    const float magnitude = std::fabs(from.gradient[i] + from.residual[i]);
    if (magnitude >= threshold) sum += static_cast<double>(magnitude), ++count;
  }
  return static_cast<float>(sum / count);
}

TEST(Prune, DynamicGoesThroughThreeMeansEveryStepAndComesBack) {
  Thresholds thresholds = for_one({.rule = PruneRule::kDynamic});
  const Gradients some = drawn(kElems, 6);
  float right = 0;
  for (int round = 0; round < 3; ++round) right = mean_above_reference(some, right);
  const float first = next(thresholds, some);
  EXPECT_NEAR(first / right, 1, 1e-5);
  for (int step = 0; step < 30; ++step) EXPECT_EQ(next(thresholds, some), first);
}

TEST(Prune, TheLiteralDynamicRuleRatchetsToNothing) {
  Thresholds thresholds = for_one({.rule = PruneRule::kDynamicRaw});
  float last = 0;
  std::size_t leave = kElems;
  for (int step = 0; step < 40; ++step) {
    const Gradients some = drawn(kElems, 7 + static_cast<std::uint64_t>(step));
    const float found = next(thresholds, some);
    EXPECT_GE(found, last);
    leave = some.above(last = found);
    if (step == 0) {
      EXPECT_GT(leave, kElems / 4);
    }
  }
  EXPECT_LT(leave, 3u);
}

TEST(Prune, WarmUpHoldsEachDensityForItsStepsAndEndsAtTheFraction) {
  const Gradients some = drawn(kElems, 8);
  for (const PruneRule which : {PruneRule::kStatic, PruneRule::kSampled}) {
    PruneOptions options = rule(which, 0.001);
    options.warmup_steps = 2;
    Thresholds thresholds = for_one(options);
    const double slack = which == PruneRule::kSampled ? 1.0 / 3 : 0;
    for (const int right : {25000, 25000, 6250, 6250, 1563, 1563, 391, 391, 100, 100, 100})
      EXPECT_NEAR(static_cast<double>(some.above(next(thresholds, some))), right, right * slack);
  }
}

TEST(Prune, SmallAndMarkedTensorsAndAllWithoutARuleStayDense) {
  const PruneTensor tensors[] = {{.elem_count = 1023}, {.elem_count = 1024}, {2048, true}};
  Thresholds some(rule(PruneRule::kStatic), tensors);
  EXPECT_FALSE(some.prunes(0));
  EXPECT_TRUE(some.prunes(1));
  EXPECT_FALSE(some.prunes(2));
  EXPECT_EQ(next(some, drawn(1023, 9), 0), kPruneNothing);
  EXPECT_GT(next(some, drawn(1024, 9), 1), 0);
  EXPECT_EQ(next(some, drawn(2048, 9), 2), kPruneNothing);
  EXPECT_FALSE(Thresholds({}, tensors).prunes(1));
}

TEST(Prune, EveryRuleGivesAPositiveFiniteThresholdWhateverComes) {
  std::vector<Gradients> all{awkward(kElems, 10)};
  Gradients zeros{std::vector<float>(kElems), std::vector<float>(kElems)};
  all.push_back(zeros);
  Gradients equal = zeros;
  std::fill(equal.gradient.begin(), equal.gradient.end(), -0.5f);
  all.push_back(equal);
  Gradients spiked = zeros;
  spiked.gradient[777] = std::numeric_limits<float>::quiet_NaN();
  all.push_back(spiked);
  for (const PruneRule which : {PruneRule::kStatic, PruneRule::kSampled, PruneRule::kSigma,
                                PruneRule::kDynamic, PruneRule::kDynamicRaw})
    for (const Gradients& some : all) {
      Thresholds thresholds = for_one({.rule = which});
      for (int step = 0; step < 3; ++step) {
        const float found = next(thresholds, some);
        EXPECT_GT(found, 0) << static_cast<int>(which);
        EXPECT_TRUE(std::isfinite(found)) << static_cast<int>(which);
      }
    }
  // Zeros do not leave; a NaN always does; all of what is equal does.
  Thresholds thresholds = for_one(rule(PruneRule::kStatic, 0.5));
  EXPECT_EQ(zeros.above(next(thresholds, zeros)), 0u);
  EXPECT_EQ(spiked.above(next(thresholds, spiked)), 1u);
  EXPECT_EQ(equal.above(next(thresholds, equal)), kElems);
}

}  // namespace
}  // namespace sluice::client
