// Gradients that travel over a BCube at a loss: nothing is lost for good, and replicas are the
// same.
#include <gtest/gtest.h>

#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

class BcubeLosses : public testing::TestWithParam<BcubeShape> {};
INSTANTIATE_TEST_SUITE_P(All, BcubeLosses, testing::ValuesIn(kBcubeShapes), name_of);

// What a server contributes, when and wherever it is sent again, is its gradient and residual,
// rounded; what it keeps is what it has not delivered; the averages of one level have the bits of
// an ordinary job's.
TEST_P(BcubeLosses, WireFormatsLoseNothing) {
  BcubeOptions options = options_of(GetParam());
  options.elem_counts = {4'000, 7, 6'000, 400};
  options.last_exact = true;
  for (const Dtype wire : kNarrow) {
    options.wire = wire;
    BcubeWorld world(options);
    expect_clean(world);
  }
}

TEST_P(BcubeLosses, WireFormatsLoseNothingUnderFaultsOfCables) {
  BcubeOptions options = options_of(GetParam());
  options.link = {.loss_ppm = 20'000, .duplicate_ppm = 5'000, .reorder_ppm = 20'000};
  options.nil_ppm = 200'000;
  options.elem_counts = {4'000, 7, 3'000};
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    options.wire = kNarrow[options.seed - 1];
    options.in_place = options.seed == 2;
    options.averaging = options.seed == 3 ? AveragingChoice::kSum : AveragingChoice::kDefault;
    BcubeWorld world(options);
    expect_clean(world);
  }
}

// The next half-way owner adds dense sums of what is sparse on its first way.
TEST_P(BcubeLosses, WhatIsPrunedIsDeliveredLater) {
  BcubeOptions options = options_of(GetParam());
  options.prune = {.rule = client::PruneRule::kStatic, .fraction = 0.02, .min_elems = 1'000};
  options.link = {.loss_ppm = 5'000, .duplicate_ppm = 5'000, .reorder_ppm = 20'000};
  options.elem_counts = {8'000, 7, 6'000, 2'000};
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    options.wire = options.seed == 3 ? Dtype::kBfloat16 : Dtype::kFloat32;
    options.nil_ppm = options.seed == 2 ? 200'000 : 0;
    options.last_exact = options.seed == 2;
    BcubeWorld world(options);
    expect_clean(world);
  }
}

}  // namespace
}  // namespace sluice::sim
