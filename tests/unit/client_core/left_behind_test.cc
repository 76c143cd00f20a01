// The reports of gradients that a rank has left behind. Small integers: exact sums.
#include "client/core/sums/left_behind.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace sluice::client {
namespace {

TEST(LeftBehindTest, WhatIsNotZeroCountsPartByPart) {
  LeftBehind found;
  found.add(std::array{3.0f, 0.0f, -0.0f});
  EXPECT_EQ(found.elem_count, 1u);
  EXPECT_EQ(found.norm(), 3.0);
  found.add({});
  found.add(std::array{0.0f, -4.0f});
  EXPECT_EQ(found.elem_count, 2u);
  EXPECT_EQ(found.norm(), 5.0);
}

// Squares of such floats are no floats.
TEST(LeftBehindTest, TheNormOfBigAndSmallElementsIsNeitherInfiniteNorZero) {
  LeftBehind big, small;
  big.add(std::array{std::ldexp(1.0f, 100)});
  small.add(std::array{std::ldexp(1.0f, -100)});
  EXPECT_EQ(big.norm(), std::ldexp(1.0, 100));
  EXPECT_EQ(small.norm(), std::ldexp(1.0, -100));
}

TEST(LeftBehindTest, TheTextHasTheNumbersAndTheRemedyOrIsEmpty) {
  LeftBehind found;
  found.add(std::array{0.0f, 0.0f});
  EXPECT_EQ(found.describe(), "");
  found.add(std::array{3.0f, 0.0f, -4.0f});
  EXPECT_EQ(
      found.describe(),
      "ends, and 2 elements of its gradients (norm 5, 8 bytes) were never delivered, which "
      "pruning left behind: call sluice_flush_residuals() before the last step's submissions, "
      "or save what sluice_get_residual() tells for a run that goes on from here");
}

}  // namespace
}  // namespace sluice::client
