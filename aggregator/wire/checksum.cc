// The sum of many bytes, compiled once per instruction set as core/fold.cc is.
#include "aggregator/wire/checksum.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/wire/checksum.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::wire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 64 KiB at most.
//
// One instruction multiplies 16-bit words by 1 and adds neighbours to 32-bit lanes, but takes them
// as signed: flipping the top bit takes 2^15 from each word, which is given back in the end.
std::uint64_t sum_vectors(const std::uint8_t* bytes, std::size_t count) {
#if HWY_TARGET == HWY_SCALAR  // it has no vectors of bytes
  return sum_short({bytes, count}).value;
#else
  const hn::ScalableTag<std::uint8_t> d8;
  const hn::Repartition<std::int16_t, decltype(d8)> d16;
  const hn::Repartition<std::int32_t, decltype(d8)> d32;
  const std::size_t step = hn::Lanes(d8);
  if (count < step) return sum_short({bytes, count}).value;
  const auto ones = hn::Set(d16, 1);
  const auto flip = hn::Set(d16, std::int16_t{-32768});
  auto sum = hn::Zero(d32);
  auto half = hn::Zero(d32);     // of the additions, where an instruction makes only half of them
  auto sum_too = hn::Zero(d32);  // of every second vector, so that additions need not wait
  auto half_too = hn::Zero(d32);
  const auto load = [&](std::size_t at) { return hn::BitCast(d16, hn::LoadU(d8, bytes + at)); };
  const auto add = [&](auto words, auto to, auto& to_half) {
    return hn::ReorderWidenMulAccumulate(d32, hn::Xor(words, flip), ones, to, to_half);
  };
  std::size_t at = 0;
  for (; at + 2 * step <= count; at += 2 * step) {
    sum = add(load(at), sum, half);
    sum_too = add(load(at + step), sum_too, half_too);
  }
  std::size_t vectors = at / step;
  if (at + step <= count) {
    sum = add(load(at), sum, half);
    at += step;
    ++vectors;
  }
  // The rest lies at the end of one more vector, behind bytes that were added before.
  const std::size_t end = count & ~std::size_t{1};
  if (at != end) {
    const auto last =
        hn::IfThenZeroElse(hn::FirstN(d8, step - (end - at)), hn::LoadU(d8, bytes + end - step));
    sum_too = add(hn::BitCast(d16, last), sum_too, half_too);
    ++vectors;
  }
  const std::uint64_t odd = end != count ? bytes[end] : 0;
  const auto all = hn::Add(hn::Add(sum, half), hn::Add(sum_too, half_too));
  const auto flipped = std::int64_t{hn::GetLane(hn::SumOfLanes(d32, all))};
  return odd + static_cast<std::uint64_t>(flipped +
                                          static_cast<std::int64_t>(vectors * step / 2 * 32768));
#endif
}

}  // namespace sluice::wire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::wire {

HWY_EXPORT(sum_vectors);

PartialSum sum_long(std::span<const std::uint8_t> bytes) noexcept {
  constexpr std::size_t kMostBytes = 1 << 16;
  PartialSum sum;
  while (!bytes.empty()) {
    const std::span<const std::uint8_t> part = bytes.first(std::min(bytes.size(), kMostBytes));
    sum.value += HWY_DYNAMIC_DISPATCH(sum_vectors)(part.data(), part.size());
    bytes = bytes.subspan(part.size());
  }
  return sum;
}

}  // namespace sluice::wire
#endif  // HWY_ONCE
