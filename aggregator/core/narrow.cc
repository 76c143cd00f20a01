// The wire formats' kernels. This file includes itself once per instruction set (Highway's
// foreach_target.h); the part under HWY_ONCE at the end is compiled once and dispatches.
#include "aggregator/core/narrow.h"

#include <bit>
#include <cstring>
#include <limits>

#include "aggregator/base/check.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/core/signs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/core/narrow.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "aggregator/core/digest-inl.h"
#include "aggregator/core/finish-inl.h"
#include "aggregator/core/fold_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMostInt8 = 127;

// Uniform bits for the elements from `first` on: steps of the golden ratio from the seed, with a
// single addition. Each element's bits are as uniform as the seed, which suffices for rounding
// without bias; the upper bits of neighbours are spread evenly.
template <class D>
HWY_INLINE auto dice(D, std::uint32_t seed, std::size_t first) noexcept {
  constexpr std::uint32_t kGolden = 0x9e3779b1u;
  const hn::RebindToUnsigned<D> d_bits;
  const auto lanes = hn::Mul(hn::Iota(d_bits, 0u), hn::Set(d_bits, kGolden));
  return hn::Add(hn::Set(d_bits, seed + static_cast<std::uint32_t>(first) * kGolden), lanes);
}
template <class D>
HWY_INLINE hn::Vec<D> uniform(D d, std::uint32_t seed, std::size_t first) noexcept {
  const auto bits = hn::ShiftRight<16>(dice(d, seed, first));
  const hn::RebindToSigned<D> d_signed;
  return hn::Mul(hn::ConvertTo(d, hn::BitCast(d_signed, bits)), hn::Set(d, 0x1p-16f));
}

// Nearest even, for magnitudes below 2^22: the sum has no place for a fraction.
template <class D>
HWY_INLINE hn::Vec<D> nearest(D d, hn::Vec<D> value) noexcept {
  const auto shift = hn::Set(d, 12582912.0f);
  return hn::Sub(hn::Add(value, shift), shift);
}

// ---- bfloat16 and float16: a neighbour in the format, as a float32 ----

template <class Format, class D>
HWY_INLINE hn::Vec<D> to_grid(D d, hn::Vec<D> value, std::uint32_t seed, std::size_t at) noexcept {
  const hn::RebindToUnsigned<D> d_bits;
  constexpr bool half = Format::kExponent == Float16Format::kExponent;
  constexpr int kKeptBits = half ? 19 : 16;
  constexpr std::uint32_t kLost = (1u << (32 - kKeptBits)) - 1;
  const auto random = hn::ShiftRight<kKeptBits>(dice(d, seed, at));
  // Adding random bits below the kept ones rounds the magnitude up with the right odds.
  const auto sum = hn::Add(hn::BitCast(d_bits, value), random);
  auto rounded = hn::BitCast(d, hn::AndNot(hn::Set(d_bits, kLost), sum));
  if constexpr (half) {  // below its normal numbers the quantum does not shrink
    const auto magnitude = hn::Mul(hn::Abs(value), hn::Set(d, 0x1p24f));
    const auto quanta = hn::Floor(hn::Add(magnitude, uniform(d, seed, at)));
    const auto denormal = hn::CopySign(hn::Mul(quanta, hn::Set(d, 0x1p-24f)), value);
    rounded = hn::IfThenElse(hn::Lt(hn::Abs(value), hn::Set(d, 0x1p-14f)), denormal, rounded);
  }
  return hn::IfThenElse(is_finite(d, value), rounded, value);
}

template <class Format, class D>
HWY_INLINE void store(D d, hn::Vec<D> value, std::uint8_t* to) noexcept {
  store_bits(typename Format::template BitsTag<D>(), Format::encode(d, canonical_nan(d, value)),
             to);
}

// The value as a receiver decodes it.
template <class Format, class D>
HWY_INLINE hn::Vec<D> as_received(D d, hn::Vec<D> value) noexcept {
  HWY_ALIGN std::uint8_t bytes[HWY_MAX_BYTES];
  store<Format>(d, value, bytes);
  return Format::load(d, bytes);
}

template <class Format>
void pack_floats(const float* gradient, const float* residual, std::size_t elem_count,
                 std::uint8_t* out) {
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto value = hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i));
    store<Format>(d, value, out + i * Format::kElemBytes);
  });
}

template <class Format>
void update_residual_floats(const float* gradient, float* residual, std::size_t elem_count) {
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto value = hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i));
    keep_if_finite(d, hn::Sub(value, as_received<Format>(d, value)), residual + i);
  });
}

template <class Format>
Finished finish_floats(const float* acc, std::size_t elem_count, float divisor, std::uint32_t seed,
                       std::uint8_t* out, const Wanted& wanted) {
  return finish_wanted<Format>(
      acc, elem_count, wanted, out, [divisor, seed](auto d, auto sums, std::size_t at) HWY_ATTR {
        return to_grid<Format>(d, hn::Div(sums, hn::Set(d, divisor)), seed, at);
      });
}

// ---- int8 ----

// The greatest magnitude of the values that `load` gives; NaN: some are not finite. As integers,
// the bits of magnitudes are in the order of their values, and behind them all come infinities and
// NaNs.
template <class Load>
float greatest(std::size_t elem_count, const Load& load) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d_bits;
  const hn::CappedTag<float, 1> d_one;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = [&](std::size_t i)
                             HWY_ATTR { return hn::BitCast(d_bits, hn::Abs(load(d, i))); };
  auto even = hn::Zero(d_bits), odd = hn::Zero(d_bits);
  std::size_t i = 0;
  for (; i + 2 * lanes <= elem_count; i += 2 * lanes) {
    even = hn::Max(even, magnitude(i));
    odd = hn::Max(odd, magnitude(i + lanes));
  }
  if (i + lanes <= elem_count) {
    even = hn::Max(even, magnitude(i));
    i += lanes;
  }
  std::uint32_t most = hn::GetLane(hn::MaxOfLanes(d_bits, hn::Max(even, odd)));
  for (; i < elem_count; ++i)
    most = HWY_MAX(most, std::bit_cast<std::uint32_t>(hn::GetLane(hn::Abs(load(d_one, i)))));
  const float value = std::bit_cast<float>(most);
  return value <= std::numeric_limits<float>::max() ? value
                                                    : std::numeric_limits<float>::quiet_NaN();
}

// The smallest power of two, of those whose inverse is one, that brings `most` to at most 127.
HWY_INLINE float scale_for(float most) noexcept {
  if (most != most) return most;
  const auto bits = std::bit_cast<std::uint32_t>(most / kMostInt8);
  const float scale = std::bit_cast<float>((bits + 0x7fffff) & 0xff800000u);
  return HWY_MAX(scale, std::numeric_limits<float>::min());
}

template <class D>
HWY_INLINE hn::Vec<D> in_range(D d, hn::Vec<D> quanta) noexcept {
  return hn::Min(hn::Max(quanta, hn::Set(d, -kMostInt8)), hn::Set(d, kMostInt8));
}

template <class D>
HWY_INLINE void store_quanta(D d, hn::Vec<D> quanta, std::uint8_t* to) noexcept {
  const hn::RebindToSigned<D> d_wide;
  const hn::Rebind<std::int8_t, D> d_narrow;
  hn::StoreU(hn::DemoteTo(d_narrow, hn::ConvertTo(d_wide, in_range(d, quanta))), d_narrow,
             reinterpret_cast<std::int8_t*>(to));
}
template <class D>
HWY_INLINE hn::Vec<D> load_quanta(D d, const std::uint8_t* from) noexcept {
  const hn::RebindToSigned<D> d_wide;
  const hn::Rebind<std::int8_t, D> d_narrow;
  const auto narrow = hn::LoadU(d_narrow, reinterpret_cast<const std::int8_t*>(from));
  return hn::ConvertTo(d, hn::PromoteTo(d_wide, narrow));
}

inline float scale_behind(const std::uint8_t* payload, std::size_t elem_count) {
  float scale;
  std::memcpy(&scale, payload + elem_count, sizeof scale);
  return scale;
}

// The elements of a chunk that is not finite do not matter: its scale says so.
void zero_int8(std::size_t elem_count, float scale, std::uint8_t* out) {
  std::memset(out, 0, elem_count);
  std::memcpy(out + elem_count, &scale, sizeof scale);
}

void pack_int8(const float* gradient, const float* residual, std::size_t elem_count,
               std::uint8_t* out) {
  const auto value = [&](auto d, std::size_t i) HWY_ATTR {
    return hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i));
  };
  const float scale = scale_for(greatest(elem_count, value));
  if (scale != scale) return zero_int8(elem_count, scale, out);
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto quanta = hn::Mul(value(d, i), hn::Set(d, 1 / scale));
    store_quanta(d, nearest(d, in_range(d, quanta)), out + i);
  });
  std::memcpy(out + elem_count, &scale, sizeof scale);
}

void update_residual_int8(const float* gradient, float* residual, std::size_t elem_count) {
  const auto value = [&](auto d, std::size_t i) HWY_ATTR {
    return hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i));
  };
  const float scale = scale_for(greatest(elem_count, value));
  if (scale != scale) return;
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto whole = value(d, i);
    const auto quanta = hn::Mul(whole, hn::Set(d, 1 / scale));
    const auto received = hn::Mul(nearest(d, in_range(d, quanta)), hn::Set(d, scale));
    keep_if_finite(d, hn::Sub(whole, received), residual + i);
  });
}

bool finish_int8(const float* acc, std::size_t elem_count, float divisor, std::uint32_t seed,
                 std::uint8_t* out) {
  const auto sum = [&](auto d, std::size_t i) HWY_ATTR { return hn::LoadU(d, acc + i); };
  // Division rounds alike for all, so the greatest mean is that of the greatest sum.
  float most = greatest(elem_count, sum) / divisor;
  if (!(most <= std::numeric_limits<float>::max())) most = std::numeric_limits<float>::quiet_NaN();
  const float scale = scale_for(most);
  if (scale != scale) {
    zero_int8(elem_count, scale, out);
    return false;
  }
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto mean = hn::Div(sum(d, i), hn::Set(d, divisor));
    const auto quanta = hn::Mul(mean, hn::Set(d, 1 / scale));
    store_quanta(d, hn::Floor(hn::Add(quanta, uniform(d, seed, i))), out + i);
  });
  std::memcpy(out + elem_count, &scale, sizeof scale);
  return true;
}

void store_quanta_all(float* acc, const std::uint8_t* payload, std::size_t elem_count) {
  const float scale = scale_behind(payload, elem_count);
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(load_quanta(d, payload + i), hn::Set(d, scale)), d, acc + i);
  });
}

void add_quanta_all(float* acc, const std::uint8_t* payload, std::size_t elem_count) {
  const float scale = scale_behind(payload, elem_count);
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto addend = hn::Mul(load_quanta(d, payload + i), hn::Set(d, scale));
    hn::StoreU(hn::Add(hn::LoadU(d, acc + i), addend), d, acc + i);
  });
}

// ---- any ----

void pack_any(const float* gradient, const float* residual, std::size_t elem_count, Dtype wire,
              std::uint8_t* out) {
  if (wire == Dtype::kInt8) return pack_int8(gradient, residual, elem_count, out);
  if (wire == Dtype::kFloat16)
    return pack_floats<Float16Format>(gradient, residual, elem_count, out);
  pack_floats<Bfloat16Format>(gradient, residual, elem_count, out);
}

void update_residual_any(const float* gradient, float* residual, std::size_t elem_count,
                         Dtype wire) {
  if (wire == Dtype::kInt8) return update_residual_int8(gradient, residual, elem_count);
  if (wire == Dtype::kFloat16)
    return update_residual_floats<Float16Format>(gradient, residual, elem_count);
  update_residual_floats<Bfloat16Format>(gradient, residual, elem_count);
}

void keep_all(const float* gradient, float* residual, std::size_t elem_count) {
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    keep_if_finite(d, hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i)),
                   residual + i);
  });
}

template <class Load>
void give_back_lanes(float* residual, std::size_t elem_count, const Load& load) {
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    keep_if_finite(d, hn::Add(load(d, i), hn::LoadU(d, residual + i)), residual + i);
  });
}

void give_back_any(float* residual, const std::uint8_t* payload, std::size_t elem_count,
                   Dtype wire) {
  if (wire == Dtype::kInt8) {
    const float scale = scale_behind(payload, elem_count);
    return give_back_lanes(residual, elem_count, [&](auto d, std::size_t i) HWY_ATTR {
      return hn::Mul(load_quanta(d, payload + i), hn::Set(d, scale));
    });
  }
  if (wire == Dtype::kFloat16)
    return give_back_lanes(residual, elem_count, [&](auto d, std::size_t i) HWY_ATTR {
      return Float16Format::load(d, payload + 2 * i);
    });
  if (wire == Dtype::kBfloat16)
    return give_back_lanes(residual, elem_count, [&](auto d, std::size_t i) HWY_ATTR {
      return Bfloat16Format::load(d, payload + 2 * i);
    });
  give_back_lanes(residual, elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    return Float32Format::load(d, payload + 4 * i);
  });
}

Finished finish_unbiased_any(const float* acc, std::size_t elem_count, float divisor, Dtype wire,
                             std::uint32_t seed, std::uint8_t* out, const Wanted& wanted) {
  if (wire == Dtype::kFloat16)
    return finish_floats<Float16Format>(acc, elem_count, divisor, seed, out, wanted);
  return finish_floats<Bfloat16Format>(acc, elem_count, divisor, seed, out, wanted);
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::agg {

HWY_EXPORT(pack_any);
HWY_EXPORT(update_residual_any);
HWY_EXPORT(keep_all);
HWY_EXPORT(give_back_any);
HWY_EXPORT(finish_int8);
HWY_EXPORT(digest_all);
HWY_EXPORT(finish_unbiased_any);
HWY_EXPORT(store_quanta_all);
HWY_EXPORT(add_quanta_all);

void pack(const float* gradient, const float* residual, std::size_t elem_count, Dtype wire,
          std::uint8_t* out) noexcept {
  DCHECK(is_narrow(wire));
  HWY_DYNAMIC_DISPATCH(pack_any)(gradient, residual, elem_count, wire, out);
}

void update_residual(const float* gradient, float* residual, std::size_t elem_count, Dtype wire,
                     bool delivered) noexcept {
  DCHECK(is_narrow(wire));
  if (!delivered) return HWY_DYNAMIC_DISPATCH(keep_all)(gradient, residual, elem_count);
  HWY_DYNAMIC_DISPATCH(update_residual_any)(gradient, residual, elem_count, wire);
}

void give_back(float* residual, const std::uint8_t* payload, std::size_t elem_count,
               Dtype wire) noexcept {
  DCHECK(is_summed(wire));
  HWY_DYNAMIC_DISPATCH(give_back_any)(residual, payload, elem_count, wire);
}

std::uint32_t rounding_seed(const float* acc, std::size_t elem_count, ChunkIndex chunk) noexcept {
  const std::uint32_t sums = HWY_DYNAMIC_DISPATCH(digest_all)(acc, elem_count);
  std::uint64_t mixed = (std::uint64_t{sums} << 32 | chunk) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u;
  return static_cast<std::uint32_t>(mixed >> 32);
}

// int8 needs the greatest sum before the first element is written, and has a quarter of the bytes,
// so the wanted values are computed in separate passes.
Finished finish_unbiased(const float* acc, std::size_t elem_count, std::uint64_t weight, Dtype wire,
                         std::uint32_t seed, std::uint8_t* out, const Wanted& wanted) noexcept {
  DCHECK(is_narrow(wire));
  const auto divisor = static_cast<float>(weight);
  if (wire != Dtype::kInt8)
    return HWY_DYNAMIC_DISPATCH(finish_unbiased_any)(acc, elem_count, divisor, wire, seed, out,
                                                     wanted);
  Finished found;
  if (wanted.signs != nullptr)
    found.signs_flipped = exchange_signs(acc, elem_count, kAllSigns, wanted.signs);
  found.finite = HWY_DYNAMIC_DISPATCH(finish_int8)(acc, elem_count, divisor, seed, out);
  if (wanted.norm) found.squared_norm = squared_norm_int8(out, elem_count);
  found.sum = wire::sum_bytes({out, payload_bytes(wire, elem_count)});
  return found;
}

void store_int8(float* acc, const std::uint8_t* payload, std::size_t elem_count) noexcept {
  HWY_DYNAMIC_DISPATCH(store_quanta_all)(acc, payload, elem_count);
}

void add_int8(float* acc, const std::uint8_t* payload, std::size_t elem_count) noexcept {
  HWY_DYNAMIC_DISPATCH(add_quanta_all)(acc, payload, elem_count);
}

// Whole numbers, so the sum is exact however it is taken.
double squared_norm_int8(const std::uint8_t* payload, std::size_t elem_count) noexcept {
  std::int64_t squares = 0;
  for (std::size_t i = 0; i < elem_count; ++i) {
    const std::int32_t quanta = static_cast<std::int8_t>(payload[i]);
    squares += quanta * quanta;
  }
  float scale;
  std::memcpy(&scale, payload + elem_count, sizeof scale);
  return static_cast<double>(squares) * scale * scale;
}

}  // namespace sluice::agg
#endif  // HWY_ONCE
