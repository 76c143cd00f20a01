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

// The whole vectors at the front: 32-bit words into 64-bit lanes, of which the lower and the upper
// halves are added apart, so that no carry is lost below 16 GiB.
std::uint64_t sum_vectors(const std::uint8_t* bytes, std::size_t count, std::size_t* summed) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t step = hn::Lanes(d) * sizeof(std::uint64_t);
  const auto low_half = hn::Set(d, 0xffffffff);
  auto low = hn::Zero(d);
  auto high = hn::Zero(d);
  std::size_t at = 0;
  for (; at + step <= count; at += step) {
    const auto words = load_words(d, bytes + at);
    low = hn::Add(low, hn::And(words, low_half));
    high = hn::Add(high, hn::ShiftRight<32>(words));
  }
  *summed = at;
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
}

}  // namespace sluice::wire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::wire {

HWY_EXPORT(sum_vectors);

PartialSum sum_long(std::span<const std::uint8_t> bytes) noexcept {
  std::size_t summed = 0;
  const std::uint64_t sum = HWY_DYNAMIC_DISPATCH(sum_vectors)(bytes.data(), bytes.size(), &summed);
  return PartialSum{(sum & 0xffffffff) + (sum >> 32)} + sum_short(bytes.subspan(summed));
}

}  // namespace sluice::wire
#endif  // HWY_ONCE
