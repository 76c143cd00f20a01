// Signs and norms, compiled once per instruction set as fold.cc is.
#include "aggregator/core/signs.h"

#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/core/narrow.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/core/signs.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "aggregator/core/finish-inl.h"
#include "aggregator/core/fold_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

std::uint64_t exchange_all(const float* acc, std::size_t elem_count, std::uint64_t* stored) {
  return over_words<true>(elem_count, stored, [acc](auto d, std::size_t at, auto) HWY_ATTR {
    return hn::LoadU(d, acc + at);
  });
}

// With a stride of 32 there is one float in two cache lines, so vectors would not help.
std::uint64_t exchange_sampled(const float* acc, std::size_t elem_count, std::uint64_t* stored) {
  const std::size_t count = sign_count(elem_count, kOneSignIn32);
  std::uint64_t flipped = 0;
  for (std::size_t at = 0; at < count; at += kWordBits) {
    const std::size_t bits = std::min(kWordBits, count - at);
    const float* sample = acc + at * kOneSignIn32;
    std::uint64_t signs = 0;
    for (std::size_t bit = 0; bit < bits; ++bit, sample += kOneSignIn32)
      signs |= std::uint64_t{std::bit_cast<std::uint32_t>(*sample) >> 31} << bit;
    flipped += exchange_word(stored++, signs, bits);
  }
  return flipped;
}

// Four independent sums hide the latency of an addition. `take(d, value, at)` gets each vector,
// too.
template <class Format, class Take>
double norm_all(const std::uint8_t* payload, std::size_t elem_count, const Take& take) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto load = [&](std::size_t at) {
    const auto value = Format::load(d, payload + at * Format::kElemBytes);
    take(d, value, at);
    return value;
  };
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  std::size_t at = 0;
  for (; at + 4 * lanes <= elem_count; at += 4 * lanes) {
    const auto v0 = load(at), v1 = load(at + lanes), v2 = load(at + 2 * lanes),
               v3 = load(at + 3 * lanes);
    sum0 = hn::MulAdd(v0, v0, sum0);
    sum1 = hn::MulAdd(v1, v1, sum1);
    sum2 = hn::MulAdd(v2, v2, sum2);
    sum3 = hn::MulAdd(v3, v3, sum3);
  }
  for (; at + lanes <= elem_count; at += lanes) {
    const auto value = load(at);
    sum0 = hn::MulAdd(value, value, sum0);
  }
  double total = sum_in_double(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
  const hn::CappedTag<float, 1> d_one;
  for (; at < elem_count; ++at) {
    const auto lane = Format::load(d_one, payload + at * Format::kElemBytes);
    take(d_one, lane, at);
    const double value = hn::GetLane(lane);
    total += value * value;
  }
  return total;
}

template <class Take>
double norm_any(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype,
                const Take& take) {
  if (dtype == Dtype::kFloat32) return norm_all<Float32Format>(payload, elem_count, take);
  if (dtype == Dtype::kFloat16) return norm_all<Float16Format>(payload, elem_count, take);
  return norm_all<Bfloat16Format>(payload, elem_count, take);
}

double norm_alone(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype) {
  return norm_any(payload, elem_count, dtype, [](auto, auto, std::size_t) {});
}

double norm_and_store(float* acc, const std::uint8_t* payload, std::size_t elem_count,
                      Dtype dtype) {
  return norm_any(payload, elem_count, dtype,
                  [acc](auto d, auto value, std::size_t at) { hn::StoreU(value, d, acc + at); });
}

double norm_and_add(float* acc, const std::uint8_t* payload, std::size_t elem_count, Dtype dtype) {
  return norm_any(payload, elem_count, dtype, [acc](auto d, auto value, std::size_t at) {
    hn::StoreU(hn::Add(hn::LoadU(d, acc + at), value), d, acc + at);
  });
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::agg {

HWY_EXPORT(exchange_all);
HWY_EXPORT(exchange_sampled);
HWY_EXPORT(norm_alone);
HWY_EXPORT(norm_and_store);
HWY_EXPORT(norm_and_add);

std::uint64_t exchange_signs(const float* acc, std::size_t elem_count, std::uint16_t stride,
                             std::uint64_t* stored) noexcept {
  DCHECK(reinterpret_cast<std::uintptr_t>(acc) % 64 == 0);
  DCHECK(stride == kAllSigns || stride == kOneSignIn32);
  const std::uint64_t flipped =
      stride == kAllSigns ? HWY_DYNAMIC_DISPATCH(exchange_all)(acc, elem_count, stored)
                          : HWY_DYNAMIC_DISPATCH(exchange_sampled)(acc, elem_count, stored);
  DCHECK(flipped <= sign_count(elem_count, stride));
  return flipped;
}

double squared_norm(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype) noexcept {
  CHECK(dtype != Dtype::kBytes);
  if (dtype == Dtype::kInt8) return squared_norm_int8(payload, elem_count);
  return HWY_DYNAMIC_DISPATCH(norm_alone)(payload, elem_count, dtype);
}

double fold_with_norm(float* acc, bool begun, const std::uint8_t* payload, std::size_t elem_count,
                      Dtype dtype) noexcept {
  CHECK(dtype != Dtype::kBytes);
  if (dtype == Dtype::kInt8) {  // a quarter of the bytes, and each way needs the scale first
    (begun ? add_int8 : store_int8)(acc, payload, elem_count);
    return squared_norm_int8(payload, elem_count);
  }
  return begun ? HWY_DYNAMIC_DISPATCH(norm_and_add)(acc, payload, elem_count, dtype)
               : HWY_DYNAMIC_DISPATCH(norm_and_store)(acc, payload, elem_count, dtype);
}

}  // namespace sluice::agg
#endif  // HWY_ONCE
