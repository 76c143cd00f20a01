// A step of the internet checksum in vectors, for kernels that sum the bytes that they read or
// write. Included once per instruction set, hence the unusual include guard.
//
// One instruction multiplies 16-bit words by 1 and adds neighbours to 32-bit lanes, but reads them
// as signed. So the top bit of each word is flipped, which subtracts 2^15, and sum_of_words() adds
// that back at the end. The lanes have room for 64 KiB. Highway's scalar target has no such vectors
// and can't use this file's sums.
#if defined(SLUICE_CHECKSUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CHECKSUM_INL_H_
#undef SLUICE_CHECKSUM_INL_H_
#else
#define SLUICE_CHECKSUM_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace sluice::wire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using SumTag = hn::Repartition<std::int32_t, D>;

// Adds a vector's words, of any type D, to `sum`, and to `half` where the instruction makes only
// half of the additions.
template <class D, class Sum>
HWY_INLINE void add_words(D, hn::Vec<D> bits, Sum& sum, Sum& half) noexcept {
  const hn::Repartition<std::int16_t, D> d16;
  const auto flipped = hn::Xor(hn::BitCast(d16, bits), hn::Set(d16, std::int16_t{-32768}));
  const auto ones = hn::Set(d16, std::int16_t{1});
  sum = hn::ReorderWidenMulAccumulate(SumTag<D>(), flipped, ones, sum, half);
}

// The sum of `words` words.
template <class D32>
HWY_INLINE std::uint64_t sum_of_words(D32 d32, hn::Vec<D32> sum, std::size_t words) noexcept {
  const auto flipped = std::int64_t{hn::GetLane(hn::SumOfLanes(d32, sum))};
  return static_cast<std::uint64_t>(flipped + static_cast<std::int64_t>(words * 32768));
}

}  // namespace sluice::wire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
