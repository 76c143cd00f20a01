// The sum of many bytes, compiled once per instruction set as core/fold.cc is.
#include "aggregator/wire/checksum.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/wire/checksum.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "aggregator/wire/checksum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::wire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 64 KiB at most.
std::uint64_t sum_vectors(const std::uint8_t* bytes, std::size_t count) {
#if HWY_TARGET == HWY_SCALAR  // it has no vectors of bytes
  return sum_short({bytes, count}).value;
#else
  const hn::ScalableTag<std::uint8_t> d8;
  const SumTag<decltype(d8)> d32;
  const std::size_t step = hn::Lanes(d8);
  if (count < step) return sum_short({bytes, count}).value;
  auto sum = hn::Zero(d32);
  auto half = hn::Zero(d32);     // of the additions, where an instruction makes only half of them
  auto sum_too = hn::Zero(d32);  // of every second vector, so that additions need not wait
  auto half_too = hn::Zero(d32);
  std::size_t at = 0;
  for (; at + 2 * step <= count; at += 2 * step) {
    add_words(d8, hn::LoadU(d8, bytes + at), sum, half);
    add_words(d8, hn::LoadU(d8, bytes + at + step), sum_too, half_too);
  }
  std::size_t vectors = at / step;
  if (at + step <= count) {
    add_words(d8, hn::LoadU(d8, bytes + at), sum, half);
    at += step;
    ++vectors;
  }
  // The rest lies at the end of one more vector, behind bytes that were added before.
  const std::size_t end = count & ~std::size_t{1};
  if (at != end) {
    const auto last =
        hn::IfThenZeroElse(hn::FirstN(d8, step - (end - at)), hn::LoadU(d8, bytes + end - step));
    add_words(d8, last, sum_too, half_too);
    ++vectors;
  }
  const std::uint64_t odd = end != count ? bytes[end] : 0;
  const auto all = hn::Add(hn::Add(sum, half), hn::Add(sum_too, half_too));
  return odd + sum_of_words(d32, all, vectors * step / sizeof(std::uint16_t));
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
