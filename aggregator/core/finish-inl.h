// The pass that turns a sum into a result: every vector is read once and converted to the format's
// bytes, and while it is in a register its part of the checksum, of the squared norm and of the
// signs is computed. Included by the kernels' sources, once per instruction set, hence the unusual
// include guard.
#if defined(SLUICE_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_FINISH_INL_H_
#undef SLUICE_FINISH_INL_H_
#else
#define SLUICE_FINISH_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aggregator/core/fold.h"
#include "aggregator/core/fold_convert-inl.h"
#include "aggregator/wire/checksum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kWordBits = 64;
using WordTag = hn::CappedTag<float, kWordBits / 2>;  // two vectors and more fill a word of signs

// The sign bits of one vector, lane 0 in bit 0.
template <class D>
HWY_INLINE std::uint64_t vector_signs([[maybe_unused]] D d, hn::Vec<D> value) noexcept {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return std::bit_cast<std::uint32_t>(hn::GetLane(value)) >> 31;
  } else {
    const hn::RebindToSigned<D> d_bits;
    std::uint8_t bytes[8] = {};  // Highway may write all eight
    hn::StoreMaskBits(d_bits, hn::Lt(hn::BitCast(d_bits, value), hn::Zero(d_bits)), bytes);
    // Only as many bytes as the vector fills: compilers then use one move from the mask register.
    using Bits = std::conditional_t<
        hn::MaxLanes(D()) <= 8, std::uint8_t,
        std::conditional_t<hn::MaxLanes(D()) <= 16, std::uint16_t, std::uint64_t>>;
    Bits signs;
    std::memcpy(&signs, bytes, sizeof(signs));
    return signs;
  }
}

// Replaces the lowest `count` bits and returns how many of them differ.
inline std::uint64_t exchange_word(std::uint64_t* stored, std::uint64_t signs,
                                   std::size_t count) noexcept {
  const std::uint64_t valid = ~std::uint64_t{0} >> (kWordBits - count);
  const std::uint64_t flipped = (*stored ^ signs) & valid;
  *stored ^= flipped;
  return static_cast<std::uint64_t>(std::popcount(flipped));
}

// Calls `take(d, at, is_odd)` once for each vector, with is_odd for every second one; it returns
// the values whose signs are exchanged if kSigns, those of 64 elements at once. Returns how many
// signs have changed.
template <bool kSigns, class Take>
HWY_INLINE std::uint64_t over_words(std::size_t elem_count, [[maybe_unused]] std::uint64_t* stored,
                                    const Take& take) {
  const WordTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t signs = 0, flipped = 0;
  std::size_t first = 0;  // of the word
  const auto take_signs = [&](auto tag, std::size_t at, auto is_odd) HWY_ATTR {
    const auto value = take(tag, at, is_odd);
    if constexpr (kSigns) signs |= vector_signs(tag, value) << (at - first);
  };
  const auto end_word = [&](std::size_t count) {
    if constexpr (kSigns) flipped += exchange_word(stored++, signs, count);
    signs = 0;
  };
  for (; first + kWordBits <= elem_count; first += kWordBits) {
    for (std::size_t bit = 0; bit < kWordBits; bit += 2 * lanes) {
      take_signs(d, first + bit, std::false_type());
      take_signs(d, first + bit + lanes, std::true_type());
    }
    end_word(kWordBits);
  }
  if (first == elem_count) return flipped;
  std::size_t at = first;
  for (; at + lanes <= elem_count; at += lanes) take_signs(d, at, std::false_type());
  for (; at < elem_count; ++at) take_signs(hn::CappedTag<float, 1>(), at, std::false_type());
  end_word(elem_count - first);
  return flipped;
}

#if HWY_TARGET == HWY_SCALAR
template <class D>
HWY_INLINE double sum_in_double(D, hn::Vec<D> lane) noexcept {
  return hn::GetLane(lane);
}
#else
template <class D>
HWY_INLINE double sum_in_double(D, hn::Vec<D> lanes) noexcept {
  const hn::Half<D> d_half;
  const hn::Repartition<double, D> d_wide;
  const auto wide = hn::Add(hn::PromoteTo(d_wide, hn::LowerHalf(d_half, lanes)),
                            hn::PromoteTo(d_wide, hn::UpperHalf(d_half, lanes)));
  return hn::GetLane(hn::SumOfLanes(d_wide, wide));
}
#endif

// `mean(d, sums, at)` returns the values of the result's elements. float32 travels as the sum,
// which is in place already: nothing is written.
template <class Format, bool kSigns, bool kNorm, class Mean>
HWY_INLINE Finished finish_pass(const float* acc, std::size_t elem_count, std::uint64_t* signs,
                                [[maybe_unused]] std::uint8_t* out, const Mean& mean) {
  using Bits = typename Format::template BitsTag<WordTag>;
  using Word = hn::TFromD<Bits>;
  constexpr auto kTwice = static_cast<Word>(2 * Format::kExponent);
  const WordTag d;
  const Bits d_bits;
  const wire::HWY_NAMESPACE::SumTag<Bits> d32;
  // Every second vector has its own sums, so that additions need not wait; so have single elements.
  auto most = hn::Zero(d_bits), odd_most = most;  // twice the bits: the sign falls out
  auto words = hn::Zero(d32), odd_words = words, half = words, odd_half = words;
  [[maybe_unused]] auto squares = hn::Zero(d), odd_squares = squares;
  Word one_most = 0;
  std::uint64_t sum = 0;
  double norm = 0;
  const auto take = [&](auto tag, std::size_t at, auto is_odd) HWY_ATTR {
    using D = decltype(tag);
    const typename Format::template BitsTag<D> tag_bits;
    const auto sums = hn::LoadU(tag, acc + at);
    const auto value = mean(tag, sums, at);
    const auto bits =
        Format::encode(tag, Format::kTravelsAsMean ? canonical_nan(tag, value) : value);
    if constexpr (Format::kTravelsAsMean) store_bits(tag_bits, bits, out + at * Format::kElemBytes);
    if constexpr (hn::MaxLanes(D()) == 1) {
      const Word word = hn::GetLane(bits);
      one_most = std::max(one_most, static_cast<Word>(word + word));
      sum += word;
      if constexpr (kNorm) norm += double{hn::GetLane(value)} * hn::GetLane(value);
    } else {
      auto& of_most = is_odd ? odd_most : most;
      of_most = hn::Max(of_most, hn::Add(bits, bits));
      wire::HWY_NAMESPACE::add_words(tag_bits, bits, is_odd ? odd_words : words,
                                     is_odd ? odd_half : half);
      auto& of_squares = is_odd ? odd_squares : squares;
      if constexpr (kNorm) of_squares = hn::MulAdd(value, value, of_squares);
    }
    return sums;
  };
  const std::uint64_t flipped = over_words<kSigns>(elem_count, signs, take);
  if constexpr (hn::MaxLanes(d) != 1) {
    const std::size_t whole = elem_count - elem_count % hn::Lanes(d);
    sum += wire::HWY_NAMESPACE::sum_of_words(
        d32, hn::Add(hn::Add(words, half), hn::Add(odd_words, odd_half)),
        whole * Format::kElemBytes / sizeof(std::uint16_t));
    if constexpr (kNorm) norm += sum_in_double(d, hn::Add(squares, odd_squares));
  }
  const bool finite = one_most < kTwice &&
                      hn::AllTrue(d_bits, hn::Lt(hn::Max(most, odd_most), hn::Set(d_bits, kTwice)));
  return {.finite = finite, .sum = {sum}, .signs_flipped = flipped, .squared_norm = norm};
}

// Chooses the pass that computes no more than is wanted.
template <class Format, class Mean>
Finished finish_wanted(const float* acc, std::size_t elem_count, const Wanted& wanted,
                       std::uint8_t* out, const Mean& mean) {
  if (wanted.signs != nullptr)
    return finish_pass<Format, true, false>(acc, elem_count, wanted.signs, out, mean);
  if (wanted.norm) return finish_pass<Format, false, true>(acc, elem_count, nullptr, out, mean);
  return finish_pass<Format, false, false>(acc, elem_count, nullptr, out, mean);
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
