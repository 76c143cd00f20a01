// Passes over the magnitudes |gradient + residual| of a tensor, from which thresholds are computed.
//
// A magnitude is handled as its bits, an integer of 31 bits. One SIMD source (magnitudes.cc,
// Highway), dispatched at run time, gives the same result on every instruction set: counts are
// exact, and sums have one order of addition:
// 1. A block of kSumBlock elements has kSumLanes sums in float32. Element i of the block is added
// to sum i % kSumLanes, in the order of i.
// 2. The block's sums are added to a double, which begins at zero, in the order of their numbers.
// 3. The double of block b is added to column b % kSumColumns, in the order of b.
// 4. The columns are added in order. (With columns, a device with as many threads need not add one
// block after the other.)
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

// Two arrays of one length.
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

// The number and the sum of the magnitudes of at least `least`.
struct Above {
  std::uint64_t elem_count = 0;
  double sum = 0;
};
Above above(const Values& values, std::uint32_t least) noexcept;

// Counts magnitudes in ranges of length 2^shift: range i begins at first + (i << shift).
inline constexpr int kRangeBits = 11;
inline constexpr std::size_t kRanges = std::size_t{1} << kRangeBits;
struct Histogram {
  std::array<std::uint32_t, kRanges> counts{};
  std::uint64_t behind = 0;  // magnitudes behind the last range
};
void count_ranges(const Values& values, std::uint32_t first, int shift,
                  Histogram& histogram) noexcept;

// The `rank`th greatest magnitude, counted from 1. If the caller expects it in [low, high), these
// save passes if the expectation is right.
std::uint32_t select(const Values& values, std::uint64_t rank, std::uint32_t low = 0,
                     std::uint32_t high = kMagnitudes) noexcept;

}  // namespace sluice::client
