// What thresholds are made of: passes over the magnitudes |gradient + residual| of a tensor.
//
// A magnitude is looked at as its bits, an integer of 31 bits. One SIMD source (magnitudes.cc,
// Highway), chosen at run time, and the same result on every instruction set: counts are exact, and
// sums have one order of addition. In it a block of kSumBlock elements has kSumLanes sums in
// float32, element i of the block going into sum i % kSumLanes in order of i; then the block's sums
// are added in order of their number to a double from zero, and block b's double to column
// b % kSumColumns, in order of b; at last the columns are added in order. (Columns, so that a
// device with as many threads need not add one block after the other.)
//
// Pure; any thread. No call allocates.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::client {

inline constexpr std::uint32_t kMagnitudes = 0x80000000u;  // how many there are
inline constexpr std::size_t kSumLanes = 16;
inline constexpr std::size_t kSumBlock = 1024;
inline constexpr std::size_t kSumColumns = 256;

// Of two spans of one length.
struct Values {
  const float* gradient = nullptr;
  const float* residual = nullptr;
  std::size_t elem_count = 0;

  std::uint32_t magnitude(std::size_t at) const noexcept {
    return std::bit_cast<std::uint32_t>(gradient[at] + residual[at]) & 0x7fffffffu;
  }
};

struct Moments {
  double sum = 0;
  double squares = 0;
};
Moments moments(const Values& values) noexcept;

// Of the magnitudes from `least` on.
struct Above {
  std::uint64_t elem_count = 0;
  double sum = 0;
};
Above above(const Values& values, std::uint32_t least) noexcept;

// Counts magnitudes by ranges as long as 2^shift: range i begins at first + (i << shift).
inline constexpr int kRangeBits = 11;
inline constexpr std::size_t kRanges = std::size_t{1} << kRangeBits;
struct Histogram {
  std::array<std::uint32_t, kRanges> counts{};
  std::uint64_t behind = 0;  // magnitudes behind the last range
};
void count_ranges(const Values& values, std::uint32_t first, int shift,
                  Histogram& histogram) noexcept;

// The `rank`th greatest magnitude, from 1. `low` and `high`, where the caller expects low <= it <
// high, save passes when that is true.
std::uint32_t select(const Values& values, std::uint64_t rank, std::uint32_t low = 0,
                     std::uint32_t high = kMagnitudes) noexcept;

}  // namespace sluice::client
