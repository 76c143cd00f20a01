// Passes over magnitudes. This file includes itself once per instruction set (Highway's
// foreach_target.h); the part under HWY_ONCE at the end is compiled once and dispatches.
#include "client/prune/magnitudes.h"

#include <algorithm>

#include "aggregator/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "client/prune/magnitudes.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::client::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kSumLanes>;
using One = hn::CappedTag<float, 1>;

template <class D>
HWY_INLINE hn::Vec<D> value_at(D d, const Values& values, std::size_t at) noexcept {
  return hn::Add(hn::LoadU(d, values.gradient + at), hn::LoadU(d, values.residual + at));
}
template <class D>
HWY_INLINE auto bits_of(D, hn::Vec<D> value) noexcept {
  return hn::BitCast(hn::RebindToSigned<D>(), hn::Abs(value));
}

struct Sums {
  double left = 0;
  double right = 0;
};

// Computes two sums at once in the order that the header states: `kernel(d, at, left, right)` adds
// its terms of a vector of values, from `at` on, to both.
template <class Kernel>
HWY_INLINE Sums sum_up(std::size_t elem_count, const Kernel& kernel) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  Sums columns[kSumColumns];
  for (std::size_t begin = 0; begin < elem_count; begin += kSumBlock) {
    const std::size_t end = HWY_MIN(begin + kSumBlock, elem_count);
    float left[kSumLanes], right[kSumLanes];
    for (std::size_t lane = 0; lane < kSumLanes; lane += lanes) {
      auto left_lanes = hn::Zero(d), right_lanes = hn::Zero(d);
      for (std::size_t at = begin + lane; at + lanes <= end; at += kSumLanes)
        kernel(d, at, left_lanes, right_lanes);
      hn::StoreU(left_lanes, d, left + lane);
      hn::StoreU(right_lanes, d, right + lane);
    }
    for (std::size_t at = end - (end - begin) % lanes; at < end; ++at) {
      const std::size_t lane = (at - begin) % kSumLanes;
      auto left_one = hn::LoadU(One(), left + lane), right_one = hn::LoadU(One(), right + lane);
      kernel(One(), at, left_one, right_one);
      hn::StoreU(left_one, One(), left + lane);
      hn::StoreU(right_one, One(), right + lane);
    }
    Sums block;
    for (const float sum : left) block.left += static_cast<double>(sum);
    for (const float sum : right) block.right += static_cast<double>(sum);
    Sums& column = columns[begin / kSumBlock % kSumColumns];
    column.left += block.left;
    column.right += block.right;
  }
  Sums sums;
  for (const Sums& column : columns) {
    sums.left += column.left;
    sums.right += column.right;
  }
  return sums;
}

Moments moments_of(const Values& values) {
  const Sums sums =
      sum_up(values.elem_count, [&](auto d, std::size_t at, auto& sum, auto& squares) HWY_ATTR {
        const auto value = value_at(d, values, at);
        sum = hn::Add(sum, value);
        squares = hn::Add(squares, hn::Mul(value, value));
      });
  return {sums.left, sums.right};
}

Above above_of(const Values& values, std::uint32_t least) {
  std::uint64_t elem_count = 0;
  const Sums sums =
      sum_up(values.elem_count, [&](auto d, std::size_t at, auto& sum, auto&) HWY_ATTR {
        const hn::RebindToSigned<decltype(d)> d_bits;
        const auto bits = bits_of(d, value_at(d, values, at));
        const auto counts = hn::Gt(bits, hn::Set(d_bits, static_cast<std::int32_t>(least) - 1));
        elem_count += hn::CountTrue(d_bits, counts);
        sum = hn::Add(sum, hn::BitCast(d, hn::IfThenElseZero(counts, bits)));
      });
  return {elem_count, sums.left};
}

// Most magnitudes are in none of the ranges, so a vector of such magnitudes is skipped at once.
void count_ranges_of(const Values& values, std::uint32_t first, int shift, Histogram& histogram) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> d_bits;
  const std::size_t lanes = hn::Lanes(d);
  const auto base = hn::Set(d_bits, first);
  const auto ranges = hn::Set(d_bits, static_cast<std::uint32_t>(kRanges));
  std::uint32_t picked[kSumLanes];
  std::size_t at = 0;
  for (; at + lanes <= values.elem_count; at += lanes) {
    const auto bits = hn::BitCast(d_bits, hn::Abs(value_at(d, values, at)));
    const auto range = hn::ShiftRightSame(hn::Sub(bits, base), shift);
    const auto inside = hn::Lt(range, ranges);
    const auto not_behind = hn::Or(inside, hn::Lt(bits, base));
    histogram.behind += lanes - hn::CountTrue(d_bits, not_behind);
    if (hn::AllFalse(d_bits, inside)) continue;
    const std::size_t count = hn::CompressStore(range, inside, d_bits, picked);
    for (std::size_t i = 0; i < count; ++i) ++histogram.counts[picked[i]];
  }
  for (; at < values.elem_count; ++at) {
    const std::uint32_t bits = values.magnitude(at);
    const std::uint32_t range = (bits - first) >> shift;
    if (range < kRanges)
      ++histogram.counts[range];
    else
      histogram.behind += bits >= first;
  }
}

}  // namespace sluice::client::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::client {

HWY_EXPORT(moments_of);
HWY_EXPORT(above_of);
HWY_EXPORT(count_ranges_of);

Moments moments(const Values& values) noexcept { return HWY_DYNAMIC_DISPATCH(moments_of)(values); }

Above above(const Values& values, std::uint32_t least) noexcept {
  CHECK(least <= 0x7fffffffu);
  return HWY_DYNAMIC_DISPATCH(above_of)(values, least);
}

void count_ranges(const Values& values, std::uint32_t first, int shift,
                  Histogram& histogram) noexcept {
  CHECK(shift >= 0 && shift < 31);
  HWY_DYNAMIC_DISPATCH(count_ranges_of)(values, first, shift, histogram);
}

// Narrows [low, high) down to one value: each pass counts the magnitudes in kRanges parts of it,
// and the next pass takes the part into which the rank falls.
std::uint32_t select(const Values& values, std::uint64_t rank, std::uint32_t low,
                     std::uint32_t high) noexcept {
  CHECK(rank >= 1 && rank <= values.elem_count);
  CHECK(low < high && high <= kMagnitudes);
  for (std::uint32_t span = high - low;;) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(span - 1)) - kRangeBits);
    Histogram histogram;
    count_ranges(values, low, shift, histogram);
    std::uint64_t above = histogram.behind;
    std::size_t range = kRanges;
    while (range > 0 && above < rank) above += histogram.counts[--range];
    if (above < rank || range == kRanges) {  // the caller's expectation was wrong
      CHECK(low != 0 || span < kMagnitudes);
      low = 0, span = kMagnitudes;
      continue;
    }
    low += static_cast<std::uint32_t>(range << shift);
    if (shift == 0) return low;
    span = std::uint32_t{1} << shift;
  }
}

}  // namespace sluice::client
#endif  // HWY_ONCE
