#include "client/prune/magnitudes.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/prune/gradients.h"

namespace sluice::client {
namespace {

constexpr std::size_t kLengths[] = {0,  1,  3,    15,   16,   17,   31,
                                    33, 70, 1023, 1024, 1025, 5000, kSumColumns* kSumBlock + 700};

// The order of addition that the header gives, as it says it.
template <class Addend>
double sum_in_order(const Gradients& from, const Addend& addend) {
  double columns[kSumColumns] = {};
  for (std::size_t begin = 0; begin < from.gradient.size(); begin += kSumBlock) {
    float sums[kSumLanes] = {};
    for (std::size_t i = begin; i < std::min(begin + kSumBlock, from.gradient.size()); ++i) {
      volatile float term = addend(from.gradient[i] + from.residual[i]);  // rounded before added
      sums[(i - begin) % kSumLanes] += term;
    }
    double block = 0;
    for (const float sum : sums) block += static_cast<double>(sum);
    columns[begin / kSumBlock % kSumColumns] += block;
  }
  return std::accumulate(std::begin(columns), std::end(columns), 0.0);
}

TEST(Magnitudes, MomentsAreAddedInTheWrittenOrderOnEveryTargetAtEveryLength) {
  agg::on_every_target([](std::string_view target) {
    for (const std::size_t length : kLengths) {
      const Gradients some = drawn(length, length + 1);
      const Moments found = moments(some.values());
      EXPECT_EQ(found.sum, sum_in_order(some, [](float v) { return v; }))
          << target << " " << length;
      EXPECT_EQ(found.squares, sum_in_order(some, [](float v) { return v * v; }))
          << target << " " << length;
    }
  });
}

TEST(Magnitudes, WhatIsAboveIsCountedAndAddedAsALoopDoes) {
  agg::on_every_target([](std::string_view target) {
    for (const std::size_t length : kLengths) {
      const Gradients some = drawn(length, length + 2);
      for (const float least : {0.0f, 1e-3f, 4e-3f, 1.0f}) {
        const Above found = above(some.values(), std::bit_cast<std::uint32_t>(least));
        EXPECT_EQ(found.elem_count, some.above(least)) << target << " " << length;
        EXPECT_EQ(found.sum,
                  sum_in_order(
                      some, [&](float v) { return std::fabs(v) >= least ? std::fabs(v) : 0.0f; }))
            << target << " " << length;
      }
    }
  });
}

TEST(Magnitudes, WhatIsNotFiniteIsAboveEverything) {
  const Gradients some = awkward(999, 5);
  const Above found = above(some.values(), 0x7f800000u);
  EXPECT_GT(found.elem_count, 50u);
  EXPECT_FALSE(std::isfinite(found.sum));
  EXPECT_EQ(found.elem_count, some.above(std::numeric_limits<float>::infinity()));
}

TEST(Magnitudes, RangesCountAsALoopDoes) {
  agg::on_every_target([](std::string_view target) {
    for (const std::size_t length : kLengths) {
      const Gradients some = awkward(length, length + 3);
      for (const auto& [first, shift] : {std::pair{0u, 20}, {0x3a000000u, 10}, {0x3a83126fu, 0}}) {
        Histogram found, right;
        count_ranges(some.values(), first, shift, found);
        for (const std::uint32_t bits : some.magnitudes()) {
          if (bits < first) continue;
          const std::uint32_t range = (bits - first) >> shift;
          range < kRanges ? ++right.counts[range] : ++right.behind;
        }
        EXPECT_EQ(found.counts, right.counts) << target << " " << length << " " << shift;
        EXPECT_EQ(found.behind, right.behind) << target << " " << length << " " << shift;
      }
    }
  });
}

TEST(Magnitudes, TheSelectedIsTheSortedOneWhateverIsExpected) {
  agg::on_every_target([](std::string_view target) {
    for (const bool hostile : {false, true}) {
      const Gradients some = hostile ? awkward(3000, 7) : drawn(3000, 7);
      const auto sorted = some.descending();
      for (const std::uint64_t rank : {1u, 2u, 30u, 300u, 1500u, 2999u, 3000u}) {
        const std::uint32_t right = sorted[rank - 1];
        EXPECT_EQ(select(some.values(), rank), right) << target << " " << rank;
        // Expectations that are right, too low, too high, and of one value.
        EXPECT_EQ(select(some.values(), rank, right / 2, right + 1), right) << target;
        EXPECT_EQ(select(some.values(), rank, right, right + 1), right) << target;
        EXPECT_EQ(select(some.values(), rank, 0, 1), right) << target;
        EXPECT_EQ(select(some.values(), rank, right / 2, right / 2 + 5000), right) << target;
        EXPECT_EQ(select(some.values(), rank, kMagnitudes - 9, kMagnitudes), right) << target;
      }
    }
  });
}

}  // namespace
}  // namespace sluice::client
