// The sum of many bytes, compiled once per instruction set as core/fold.cc is.
#include "aggregator/wire/checksum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/wire/checksum.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::wire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Highway's scalar target has no byte vectors.
template <class D>
HWY_INLINE hn::Vec<D> load_words(D d, const std::uint8_t* from) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    std::uint64_t words;
    std::memcpy(&words, from, sizeof words);
    return hn::Set(d, words);
  } else {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), from));
  }
}

// What whole vectors cover of the bytes, and how many that is: all of them but an odd one, where
// there is at least one vector.
//
// 32-bit words lie in 64-bit lanes. The lanes are added whole, which loses carries, and their upper
// halves apart: what the lower halves come to is the difference. Exact below 16 GiB.
template <class D>
HWY_INLINE std::uint64_t sum_lanes(D d, const std::uint8_t* bytes, std::size_t count,
                                   std::size_t* summed) {
  const std::size_t step = hn::Lanes(d) * sizeof(std::uint64_t);
  auto whole = hn::Zero(d);
  auto high = hn::Zero(d);
  auto whole_too = hn::Zero(d);  // of every second vector, so that additions need not wait
  auto high_too = hn::Zero(d);
  std::size_t at = 0;
  for (; at + 2 * step <= count; at += 2 * step) {
    const auto words = load_words(d, bytes + at);
    const auto words_too = load_words(d, bytes + at + step);
    whole = hn::Add(whole, words);
    high = hn::Add(high, hn::ShiftRight<32>(words));
    whole_too = hn::Add(whole_too, words_too);
    high_too = hn::Add(high_too, hn::ShiftRight<32>(words_too));
  }
  if (at + step <= count) {
    const auto words = load_words(d, bytes + at);
    whole = hn::Add(whole, words);
    high = hn::Add(high, hn::ShiftRight<32>(words));
    at += step;
  }
  if constexpr (hn::MaxLanes(D()) > 1) {
    // The rest lies at the end of one more vector, behind bytes that were added before.
    const std::size_t end = count & ~std::size_t{1};
    if (at != end && end >= step) {
      const hn::Repartition<std::uint8_t, D> d8;
      const auto last =
          hn::IfThenZeroElse(hn::FirstN(d8, step - (end - at)), hn::LoadU(d8, bytes + end - step));
      const auto words = hn::BitCast(d, last);
      whole_too = hn::Add(whole_too, words);
      high_too = hn::Add(high_too, hn::ShiftRight<32>(words));
      at = end;
    }
  }
  *summed = at;
  high = hn::Add(high, high_too);
  const auto low = hn::Sub(hn::Add(whole, whole_too), hn::ShiftLeft<32>(high));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
}

std::uint64_t sum_vectors(const std::uint8_t* bytes, std::size_t count, std::size_t* summed) {
  return sum_lanes(hn::ScalableTag<std::uint64_t>(), bytes, count, summed);
}

}  // namespace sluice::wire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::wire {

HWY_EXPORT(sum_vectors);

PartialSum sum_long(std::span<const std::uint8_t> bytes) noexcept {
  std::size_t summed = 0;
  const std::uint64_t sum = HWY_DYNAMIC_DISPATCH(sum_vectors)(bytes.data(), bytes.size(), &summed);
  const PartialSum folded{(sum & 0xffffffff) + (sum >> 32)};
  return summed == bytes.size() ? folded : folded + sum_short(bytes.subspan(summed));
}

}  // namespace sluice::wire
#endif  // HWY_ONCE
