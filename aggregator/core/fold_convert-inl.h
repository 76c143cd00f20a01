// Element formats of the fold kernels: they convert each dtype's bytes to float32 lanes and back.
// Included by the kernels' sources, once per instruction set, hence the unusual include guard.
//
// A format has kElemBytes, kTravelsAsMean, load() from bytes at any alignment, encode() to the
// integer lanes of BitsTag (rounding to nearest even; NaNs are canonical before), and kExponent
// (the bits that are all ones in infinities and NaNs).
#if defined(SLUICE_FOLD_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_FOLD_CONVERT_INL_H_
#undef SLUICE_FOLD_CONVERT_INL_H_
#else
#define SLUICE_FOLD_CONVERT_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little, "payload bytes are read as they are");

// Loops over all elements: with whole vectors, then with one lane for the rest, so that no load or
// store exceeds a buffer.
template <class Kernel>
HWY_INLINE void over_lanes(std::size_t elem_count, const Kernel& kernel) {
  const hn::ScalableTag<float> d;
  const std::size_t whole = elem_count - elem_count % hn::Lanes(d);
  for (std::size_t i = 0; i < whole; i += hn::Lanes(d)) kernel(d, i);
  for (std::size_t i = whole; i < elem_count; ++i) kernel(hn::CappedTag<float, 1>(), i);
}

template <class D>
HWY_INLINE auto is_finite(D d, hn::Vec<D> value) noexcept {
  return hn::Le(hn::Abs(value), hn::Set(d, std::numeric_limits<float>::max()));
}

// Residuals: values that are not finite are never kept.
template <class D>
HWY_INLINE void keep_if_finite(D d, hn::Vec<D> value, float* residual) noexcept {
  const auto old = hn::LoadU(d, residual);
  hn::StoreU(hn::IfThenElse(is_finite(d, value), value, old), d, residual);
}

// Byte loads and stores: payloads have any alignment, and bytes may alias everything. A single lane
// goes through memcpy, because Highway's scalar target has no byte vectors.
template <class D>
HWY_INLINE hn::Vec<D> load_bits(D d, const std::uint8_t* from) noexcept {
  if constexpr (hn::MaxLanes(D()) == 1) {
    hn::TFromD<D> element;
    std::memcpy(&element, from, sizeof(element));
    return hn::Set(d, element);
  } else {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), from));
  }
}

template <class D>
HWY_INLINE void store_bits(D, hn::Vec<D> bits, std::uint8_t* to) noexcept {
  if constexpr (hn::MaxLanes(D()) == 1) {
    const hn::TFromD<D> element = hn::GetLane(bits);
    std::memcpy(to, &element, sizeof(element));
  } else {
    const hn::Repartition<std::uint8_t, D> d_bytes;
    hn::StoreU(hn::BitCast(d_bytes, bits), d_bytes, to);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> canonical_nan(D d, hn::Vec<D> value) noexcept {
  const hn::RebindToUnsigned<D> d_bits;
  const auto quiet_nan = hn::BitCast(d, hn::Set(d_bits, 0x7fc00000u));
  return hn::IfThenElse(hn::Eq(value, value), value, quiet_nan);
}

// Integer lanes of at most 16 significant bits, narrowed.
template <class D>
HWY_INLINE auto narrow_bits(D, hn::Vec<hn::RebindToUnsigned<D>> bits) noexcept {
  return hn::TruncateTo(hn::Rebind<std::uint16_t, D>(), bits);
}

struct Float32Format {
  template <class D>
  using BitsTag = hn::RebindToUnsigned<D>;
  static constexpr std::size_t kElemBytes = 4;
  static constexpr bool kTravelsAsMean = false;
  static constexpr std::uint32_t kExponent = 0x7f800000u;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint8_t* from) noexcept {
    return load_bits(d, from);
  }
  template <class D>
  static HWY_INLINE auto encode(D, hn::Vec<D> value) noexcept {
    return hn::BitCast(hn::RebindToUnsigned<D>(), value);
  }
};

struct Bfloat16Format {
  template <class D>
  using BitsTag = hn::Rebind<std::uint16_t, D>;
  static constexpr std::size_t kElemBytes = 2;
  static constexpr bool kTravelsAsMean = true;
  static constexpr std::uint16_t kExponent = 0x7f80u;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint8_t* from) noexcept {
    const auto narrow = load_bits(BitsTag<D>(), from);
    const auto wide = hn::PromoteTo(hn::RebindToUnsigned<D>(), narrow);
    return hn::BitCast(d, hn::ShiftLeft<16>(wide));
  }
  template <class D>
  static HWY_INLINE auto encode(D d, hn::Vec<D> value) noexcept {
    const hn::RebindToUnsigned<D> d_bits;
    const auto bits = hn::BitCast(d_bits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d_bits, 1u));
    // The canonical NaN does not overflow here: its low half is zero.
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d_bits, 0x7fffu)));
    return narrow_bits(d, hn::ShiftRight<16>(rounded));
  }
};

// float16 by integer arithmetic, for targets without conversion instructions. (Highway's own
// fallback reads infinities as 65,536 and does not round to nearest even.)
template <class D>
HWY_INLINE hn::Vec<D> float16_load_by_integers(D d,
                                               hn::Vec<hn::RebindToUnsigned<D>> half) noexcept {
  const hn::RebindToUnsigned<D> d_bits;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d_bits, 0x8000u)));
  const auto magnitude = hn::And(half, hn::Set(d_bits, 0x7fffu));
  // Mantissa and exponent in float32's places; 2^112 corrects the bias, exactly, denormals too.
  const auto shifted = hn::BitCast(d, hn::ShiftLeft<13>(magnitude));
  const auto finite = hn::BitCast(d_bits, hn::Mul(shifted, hn::Set(d, 0x1p112f)));
  const auto special = hn::Or(finite, hn::Set(d_bits, 0x7f800000u));
  const auto is_special = hn::Gt(magnitude, hn::Set(d_bits, 0x7bffu));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
}

template <class D>
HWY_INLINE auto float16_encode_by_integers(D d, hn::Vec<D> value) noexcept {
  const hn::RebindToUnsigned<D> d_bits;
  const auto bits = hn::BitCast(d_bits, value);
  const auto magnitude = hn::And(bits, hn::Set(d_bits, 0x7fffffffu));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  // Normal halves: rebias the exponent and round at bit 13; a carry may reach infinity.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d_bits, 1u));
  const auto rebias = hn::Set(d_bits, ((15u - 127u) << 23) + 0xfffu);
  const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(rebias, odd)));
  // Denormal halves: adding 0.5 lets the FPU round at the right bit.
  const auto with_half = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
  const auto denormal = hn::Sub(hn::BitCast(d_bits, with_half), hn::Set(d_bits, 0x3f000000u));
  const auto is_denormal = hn::Lt(magnitude, hn::Set(d_bits, 113u << 23));
  const auto finite = hn::IfThenElse(is_denormal, denormal, normal);
  // 2^16 and beyond.
  const auto is_nan = hn::Gt(magnitude, hn::Set(d_bits, 0x7f800000u));
  const auto special = hn::IfThenElse(is_nan, hn::Set(d_bits, 0x7e00u), hn::Set(d_bits, 0x7c00u));
  const auto is_special = hn::Gt(magnitude, hn::Set(d_bits, (143u << 23) - 1));
  return narrow_bits(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
template <class D>
HWY_INLINE hn::Vec<D> float16_load(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> half) noexcept {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
}
template <class D>
HWY_INLINE auto float16_encode(D, hn::Vec<D> value) noexcept {
  const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value);
  return hn::BitCast(hn::Rebind<std::uint16_t, D>(), half);
}
#else
template <class D>
HWY_INLINE hn::Vec<D> float16_load(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> half) noexcept {
  return float16_load_by_integers(d, hn::PromoteTo(hn::RebindToUnsigned<D>(), half));
}
template <class D>
HWY_INLINE auto float16_encode(D d, hn::Vec<D> value) noexcept {
  return float16_encode_by_integers(d, value);
}
#endif

struct Float16Format {
  template <class D>
  using BitsTag = hn::Rebind<std::uint16_t, D>;
  static constexpr std::size_t kElemBytes = 2;
  static constexpr bool kTravelsAsMean = true;
  static constexpr std::uint16_t kExponent = 0x7c00u;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint8_t* from) noexcept {
    return float16_load(d, load_bits(BitsTag<D>(), from));
  }
  template <class D>
  static HWY_INLINE auto encode(D d, hn::Vec<D> value) noexcept {
    return float16_encode(d, value);
  }
};

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
