// The sums, for both ends. This file includes itself once per instruction set (Highway's
// foreach_target.h); the part under HWY_ONCE at the end is compiled once and dispatches.
//
// Every kernel is a leaf loop on pointers and counts over the lanes [begin, end): once with whole
// vectors, once with one lane for what is left, so that no load or store passes a buffer's end.
#include "aggregator/core/fold.h"

#include <cstring>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/core/narrow.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/core/fold.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "aggregator/core/finish-inl.h"
#include "aggregator/core/fold_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lanes that whole vectors cover.
inline std::size_t whole_vectors(std::size_t elem_count) {
  const hn::ScalableTag<float> d;
  return elem_count - elem_count % hn::Lanes(d);
}

template <class Format, class D>
void store_lanes(D d, float* acc, const std::uint8_t* payload, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    hn::StoreU(Format::load(d, payload + i * Format::kElemBytes), d, acc + i);
  }
}

template <class Format, class D>
void add_lanes(D d, float* acc, const std::uint8_t* payload, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    const auto addend = Format::load(d, payload + i * Format::kElemBytes);
    hn::StoreU(hn::Add(hn::LoadU(d, acc + i), addend), d, acc + i);
  }
}

// Each vector of the accumulator is read and written once for all payloads.
template <class Format, class D>
void add_several_lanes(D d, float* acc, bool begun, std::span<const std::uint8_t* const> payloads,
                       std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    auto sum =
        begun ? hn::LoadU(d, acc + i) : Format::load(d, payloads.front() + i * Format::kElemBytes);
    for (std::size_t at = begun ? 0 : 1; at < payloads.size(); ++at)
      sum = hn::Add(sum, Format::load(d, payloads[at] + i * Format::kElemBytes));
    hn::StoreU(sum, d, acc + i);
  }
}

template <class D>
void mean_lanes(D d, float* out, const std::uint8_t* sum, float divisor, std::size_t begin,
                std::size_t end) {
  const auto divisors = hn::Set(d, divisor);
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    const auto value = hn::Div(Float32Format::load(d, sum + i * sizeof(float)), divisors);
    hn::StoreU(canonical_nan(d, value), d, out + i);
  }
}

template <class Format>
void store_all(float* acc, const std::uint8_t* payload, std::size_t elem_count) {
  const std::size_t whole = whole_vectors(elem_count);
  store_lanes<Format>(hn::ScalableTag<float>(), acc, payload, 0, whole);
  store_lanes<Format>(hn::CappedTag<float, 1>(), acc, payload, whole, elem_count);
}

template <class Format>
void add_all(float* acc, const std::uint8_t* payload, std::size_t elem_count) {
  const std::size_t whole = whole_vectors(elem_count);
  add_lanes<Format>(hn::ScalableTag<float>(), acc, payload, 0, whole);
  add_lanes<Format>(hn::CappedTag<float, 1>(), acc, payload, whole, elem_count);
}

template <class Format>
void add_several_all(float* acc, bool begun, std::span<const std::uint8_t* const> payloads,
                     std::size_t elem_count) {
  const std::size_t whole = whole_vectors(elem_count);
  add_several_lanes<Format>(hn::ScalableTag<float>(), acc, begun, payloads, 0, whole);
  add_several_lanes<Format>(hn::CappedTag<float, 1>(), acc, begun, payloads, whole, elem_count);
}

void store_narrow(float* acc, const std::uint8_t* payload, std::size_t elem_count, Dtype dtype) {
  if (dtype == Dtype::kFloat16) return store_all<Float16Format>(acc, payload, elem_count);
  return store_all<Bfloat16Format>(acc, payload, elem_count);
}

void add_any(float* acc, const std::uint8_t* payload, std::size_t elem_count, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return add_all<Float32Format>(acc, payload, elem_count);
  if (dtype == Dtype::kFloat16) return add_all<Float16Format>(acc, payload, elem_count);
  return add_all<Bfloat16Format>(acc, payload, elem_count);
}

void add_several_any(float* acc, bool begun, std::span<const std::uint8_t* const> payloads,
                     std::size_t elem_count, Dtype dtype) {
  if (dtype == Dtype::kFloat32)
    return add_several_all<Float32Format>(acc, begun, payloads, elem_count);
  if (dtype == Dtype::kFloat16)
    return add_several_all<Float16Format>(acc, begun, payloads, elem_count);
  return add_several_all<Bfloat16Format>(acc, begun, payloads, elem_count);
}

// The sums are the result already, but for NaNs.
Finished finish_float32(const float* acc, std::size_t elem_count, std::uint8_t* out,
                        const Wanted& wanted) {
  Finished found = finish_wanted<Float32Format>(acc, elem_count, wanted, out,
                                                [](auto, auto sums, std::size_t) { return sums; });
  const std::size_t bytes = elem_count * sizeof(float);
  if (out != reinterpret_cast<const std::uint8_t*>(acc) && bytes != 0) std::memcpy(out, acc, bytes);
  if (found.finite) return found;
  over_lanes(elem_count, [out](auto d, std::size_t i) HWY_ATTR {
    std::uint8_t* const at = out + i * sizeof(float);
    const auto value = canonical_nan(d, Float32Format::load(d, at));
    store_bits(hn::RebindToUnsigned<decltype(d)>(), Float32Format::encode(d, value), at);
  });
  found.sum = wire::sum_bytes({out, bytes});
  return found;
}

Finished finish_any(const float* acc, std::size_t elem_count, float divisor, Dtype dtype,
                    std::uint8_t* out, const Wanted& wanted) {
  if (dtype == Dtype::kFloat32) return finish_float32(acc, elem_count, out, wanted);
  const auto mean = [divisor](auto d, auto sums, std::size_t)
                        HWY_ATTR { return hn::Div(sums, hn::Set(d, divisor)); };
  if (dtype == Dtype::kFloat16)
    return finish_wanted<Float16Format>(acc, elem_count, wanted, out, mean);
  return finish_wanted<Bfloat16Format>(acc, elem_count, wanted, out, mean);
}

void mean_any(float* out, const std::uint8_t* sum, std::size_t elem_count, float divisor) {
  const std::size_t whole = whole_vectors(elem_count);
  mean_lanes(hn::ScalableTag<float>(), out, sum, divisor, 0, whole);
  mean_lanes(hn::CappedTag<float, 1>(), out, sum, divisor, whole, elem_count);
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::agg {

HWY_EXPORT(store_narrow);
HWY_EXPORT(add_any);
HWY_EXPORT(add_several_any);
HWY_EXPORT(finish_any);
HWY_EXPORT(mean_any);

namespace {

[[maybe_unused]] bool is_aligned(const float* acc) noexcept {
  return reinterpret_cast<std::uintptr_t>(acc) % 64 == 0;
}

// The targets that this machine has and this file was compiled for, best in the lowest bit. Asked
// once: Highway's SupportedTargets() puts the best target back as a side effect.
std::int64_t usable_targets() noexcept {
  static const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets;
}

std::int64_t best_of(std::int64_t targets) noexcept { return targets & -targets; }

}  // namespace

void fold_store(float* acc, const std::uint8_t* payload, std::size_t elem_count,
                Dtype dtype) noexcept {
  if (dtype == Dtype::kFloat32 || dtype == Dtype::kBytes) {
    if (elem_count != 0) std::memcpy(acc, payload, elem_count * dtype_bytes(dtype));
    return;
  }
  if (dtype == Dtype::kInt8) return store_int8(acc, payload, elem_count);
  HWY_DYNAMIC_DISPATCH(store_narrow)(acc, payload, elem_count, dtype);
}

void fold_add(float* acc, const std::uint8_t* payload, std::size_t elem_count,
              Dtype dtype) noexcept {
  DCHECK(is_aligned(acc));
  CHECK(dtype != Dtype::kBytes);
  if (dtype == Dtype::kInt8) return add_int8(acc, payload, elem_count);
  HWY_DYNAMIC_DISPATCH(add_any)(acc, payload, elem_count, dtype);
}

void fold_several(float* acc, bool begun, std::span<const std::uint8_t* const> payloads,
                  std::size_t elem_count, Dtype dtype) noexcept {
  DCHECK(is_aligned(acc));
  CHECK(dtype != Dtype::kBytes && (begun || !payloads.empty()));
  DCHECK(payloads.size() <= kAddendsPerPass);
  if (dtype != Dtype::kInt8)
    return HWY_DYNAMIC_DISPATCH(add_several_any)(acc, begun, payloads, elem_count, dtype);
  for (const std::uint8_t* payload : payloads)  // the scale is another one in each
    (std::exchange(begun, true) ? add_int8 : store_int8)(acc, payload, elem_count);
}

Finished finish(const float* acc, std::size_t elem_count, std::uint64_t weight, Dtype dtype,
                std::uint8_t* out, const Wanted& wanted) noexcept {
  DCHECK(is_aligned(acc));
  DCHECK(wanted.signs == nullptr || !wanted.norm);
  DCHECK(payload_bytes(dtype, elem_count) <= UINT16_MAX);
  if (dtype == Dtype::kBytes) {
    if (elem_count != 0) std::memcpy(out, acc, elem_count);
    return {.sum = wire::sum_bytes({out, elem_count})};
  }
  return HWY_DYNAMIC_DISPATCH(finish_any)(acc, elem_count, static_cast<float>(weight), dtype, out,
                                          wanted);
}

void mean(float* out, const std::uint8_t* sum_payload, std::size_t elem_count,
          float divisor) noexcept {
  HWY_DYNAMIC_DISPATCH(mean_any)(out, sum_payload, elem_count, divisor);
}

std::string_view fold_target() noexcept {
  const std::int64_t usable = usable_targets();
  const hwy::ChosenTarget& chosen = hwy::GetChosenTarget();
  if (!chosen.IsInitialized()) return hwy::TargetName(best_of(usable));
  // Highway keeps an index, not a name: ask each target which index it would get.
  for (std::int64_t rest = usable; rest != 0; rest &= rest - 1) {
    hwy::ChosenTarget candidate;
    candidate.Update(best_of(rest));
    if (candidate.GetIndex() == chosen.GetIndex()) return hwy::TargetName(best_of(rest));
  }
  return hwy::TargetName(HWY_STATIC_TARGET);
}

std::vector<std::string_view> fold_targets() {
  std::vector<std::string_view> names;
  for (std::int64_t rest = usable_targets(); rest != 0; rest &= rest - 1) {
    names.push_back(hwy::TargetName(best_of(rest)));
  }
  return names;
}

bool force_fold_target(std::string_view name) noexcept {
  const std::int64_t usable = usable_targets();
  if (name.empty()) {
    hwy::GetChosenTarget().Update(usable);
    return true;
  }
  for (std::int64_t rest = usable; rest != 0; rest &= rest - 1) {
    if (name == hwy::TargetName(best_of(rest))) {
      hwy::GetChosenTarget().Update(best_of(rest));
      return true;
    }
  }
  return false;
}

}  // namespace sluice::agg
#endif  // HWY_ONCE
