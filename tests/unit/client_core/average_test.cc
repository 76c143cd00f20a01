// Result payloads to averages, for every type and every kind of averaging.
#include "client/core/sums/average.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/unit/client_core/straggler_bench.h"

namespace sluice::client {
namespace {

struct alignas(64) Scratch {
  float values[64];
};

// Of a sum over 4 of 4 ranks, unless it says otherwise.
template <class T>
std::vector<T> average(std::vector<T> payload, Dtype dtype, std::uint64_t weight, bool is_mean,
                       AveragingChoice averaging, bool& finite, std::uint16_t members = 4) {
  Scratch scratch;
  std::vector<T> output(payload.size());
  finite = write_average(
      reinterpret_cast<std::uint8_t*>(output.data()),
      {reinterpret_cast<const std::uint8_t*>(payload.data()), payload.size() * sizeof(T)},
      payload.size(), dtype, dtype,
      {.weight = weight, .members = members, .may_count = 4, .is_mean = is_mean}, averaging,
      scratch.values);
  return output;
}

TEST(Average, IsByWeightUnlessLateGradientsAreRequeuedOrAnotherOneIsAskedFor) {
  for (const PolicyKind kind : {PolicyKind::kSync, PolicyKind::kFixed, PolicyKind::kGoodput}) {
    for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
      const PolicyOptions policy{.kind = kind, .late = late};
      const bool shares = kind != PolicyKind::kSync && late == LateMode::kRequeue;
      EXPECT_EQ(resolved(AveragingChoice::kDefault, policy),
                shares ? AveragingChoice::kWorld : AveragingChoice::kWeight);
      for (const auto named :
           {AveragingChoice::kWeight, AveragingChoice::kWorld, AveragingChoice::kSum})
        EXPECT_EQ(resolved(named, policy), named);
    }
  }
}

TEST(Average, DividesFloat32SumsByWeightOrNothingAndCountsAShareOfTheWorld) {
  bool finite = false;
  const std::vector<float> sums{12, 1, -6};
  EXPECT_EQ(average(sums, Dtype::kFloat32, 3, false, AveragingChoice::kWeight, finite),
            (std::vector<float>{4, 1.0f / 3.0f, -2}));
  EXPECT_TRUE(finite);
  // 3 of 4 ranks of weight 1: the sum / 4, in one division. 2 of 4 of other weights: the mean / 2.
  EXPECT_EQ(average(sums, Dtype::kFloat32, 3, false, AveragingChoice::kWorld, finite, 3),
            (std::vector<float>{3, 0.25f, -1.5f}));
  EXPECT_EQ(average(sums, Dtype::kFloat32, 6, false, AveragingChoice::kWorld, finite, 2),
            (std::vector<float>{1, 1.0f / 12.0f, -0.5f}));
  EXPECT_TRUE(finite);
  EXPECT_EQ(average(sums, Dtype::kFloat32, 3, false, AveragingChoice::kSum, finite), sums);
}

TEST(Average, OfAllRanksHasTheSameBitsAsAShareOfTheWorld) {
  bool finite = false;
  const std::vector<float> sums{0.1f, 1e-40f, -3e38f, 7.0f / 9.0f};
  for (const std::uint64_t weight : {1, 3, 4, 1'000'003})
    EXPECT_EQ(average(sums, Dtype::kFloat32, weight, false, AveragingChoice::kWorld, finite),
              average(sums, Dtype::kFloat32, weight, false, AveragingChoice::kWeight, finite));
}

constexpr std::uint16_t kHalf3 = 0x4200, kHalf12 = 0x4A00, kHalf24 = 0x4E00;  // binary16

TEST(Average, MultipliesNarrowMeansBackWhenTheSumIsWanted) {
  bool finite = false;
  const std::vector<std::uint16_t> means{kHalf3};
  EXPECT_EQ(average(means, Dtype::kFloat16, 8, true, AveragingChoice::kWeight, finite), means);
  EXPECT_EQ(average(means, Dtype::kFloat16, 8, true, AveragingChoice::kSum, finite)[0], kHalf24);
  EXPECT_EQ(average(means, Dtype::kFloat16, 16, true, AveragingChoice::kWorld, finite), means);
  const std::vector<std::uint16_t> larger{kHalf12, kHalf24};
  EXPECT_EQ(average(larger, Dtype::kFloat16, 16, true, AveragingChoice::kWorld, finite, 1)[0],
            kHalf3);
  EXPECT_EQ(average(larger, Dtype::kFloat16, 16, true, AveragingChoice::kWorld, finite, 2)[1],
            kHalf12);
  EXPECT_TRUE(finite);
  average(means, Dtype::kFloat16, 100'000, true, AveragingChoice::kSum, finite);
  EXPECT_FALSE(finite);  // 300,000 is beyond binary16
}

TEST(Average, SaysSoWhenAllWeightsAreZero) {
  bool finite = true;
  const auto output = average(std::vector<float>{0, 1}, Dtype::kFloat32, 0, false,
                              AveragingChoice::kWeight, finite);
  EXPECT_FALSE(finite);
  EXPECT_TRUE(std::isnan(output[0]));
  EXPECT_TRUE(std::isinf(output[1]));
  average(std::vector<float>{8}, Dtype::kFloat32, 0, false, AveragingChoice::kWorld, finite, 2);
  EXPECT_FALSE(finite);
  average(std::vector<float>{8}, Dtype::kFloat32, 0, false, AveragingChoice::kSum, finite);
  EXPECT_TRUE(finite);
}

template <class T>
bool finite(const std::vector<T>& elems, Dtype dtype) {
  Scratch scratch;
  return all_finite(reinterpret_cast<const std::uint8_t*>(elems.data()), elems.size(), dtype,
                    scratch.values);
}

TEST(Average, KnowsInputsThatAreNotFiniteInEveryType) {
  EXPECT_TRUE(finite(std::vector<float>{0, -1e38f, 1e-45f}, Dtype::kFloat32));
  EXPECT_FALSE(finite(std::vector<float>{0, NAN, 1}, Dtype::kFloat32));
  EXPECT_FALSE(finite(std::vector<float>{0, 1, -INFINITY}, Dtype::kFloat32));
  EXPECT_TRUE(finite(std::vector<std::uint16_t>{0x7BFF, 0x0001}, Dtype::kFloat16));   // the ends
  EXPECT_FALSE(finite(std::vector<std::uint16_t>{kHalf3, 0x7C00}, Dtype::kFloat16));  // infinity
  EXPECT_TRUE(finite(std::vector<std::uint16_t>{0x7F7F, 0x0001}, Dtype::kBfloat16));
  EXPECT_FALSE(finite(std::vector<std::uint16_t>{0x3F80, 0x7FC0}, Dtype::kBfloat16));  // NaN
}

// All ranks had late gradients to give to the step, and nothing for its first chunk. Results come
// in any order.
TEST(Average, AStepCountsTheShareOfItsFirstChunkThatHasAnybody) {
  Bench bench(LateMode::kRequeue);
  Tensor mine;
  ASSERT_TRUE(bench.session.submit(of(mine), bench.now).ok());
  bench.sent();
  bench.open_step = 2;
  bench.result(1, 2, std::vector<float>(8, 12), 2, 0, kBoth, 2);
  bench.result(1, 0, {}, 0, wire::kFlagNil, 0, 4);
  bench.result(1, 1, std::vector<float>(16, 12), 1, 0, kWithoutMe, 4);
  EXPECT_FALSE(bench.events().front().absent);
  EXPECT_EQ(mine.values[0], 0) << "not its own gradient: all replicas have the same";
  EXPECT_EQ(mine.values[16], 3) << "1 of 4 ranks";
  EXPECT_EQ(mine.values[32], 6);
  const StepReport* report = bench.session.report(1);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->k, 0);
  EXPECT_EQ(report->weight, 0u);
  EXPECT_EQ(report->in_every[0], 0u);
  EXPECT_EQ(report->in_any[0], kBoth);
  EXPECT_EQ(report->first_members, 1);
  EXPECT_EQ(report->first_may_count, 4);

  Tensor nobodys;
  const std::vector<float> before = nobodys.values;
  bench.open_step = 3;
  for (const ChunkIndex chunk : {0, 1, 2}) bench.result(2, chunk, {}, 0, wire::kFlagNil, 0, 4);
  ASSERT_TRUE(bench.catch_up(nobodys).ok());
  EXPECT_TRUE(bench.events().front().absent);
  EXPECT_EQ(nobodys.values, before);
  EXPECT_EQ(bench.session.report(2)->first_members, 0);
}

}  // namespace
}  // namespace sluice::client
