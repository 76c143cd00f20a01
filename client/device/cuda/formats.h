// The wire formats of one element: the conversions of aggregator/core/narrow.h, rounded to nearest
// even, by integer operations and by additions that round alike on every machine.
#pragma once

#include <cstdint>
#include <limits>

#include "aggregator/base/types.h"
#include "client/device/cuda/lanes.h"

namespace sluice::cuda {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

SLUICE_LANE bool is_finite(float value) { return magnitude_of(value) < kInfinityBits; }

SLUICE_LANE std::uint32_t encode_bfloat16(std::uint32_t bits) {
  if ((bits & 0x7fffffffu) > kInfinityBits) return 0x7fc0u;
  return (bits + (bits >> 16 & 1) + 0x7fffu) >> 16;
}

SLUICE_LANE std::uint32_t encode_float16(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits ^ magnitude) >> 16;
  if (magnitude > kInfinityBits) return 0x7e00u;
  if (magnitude >= 143u << 23) return sign | 0x7c00u;  // 2^16 and beyond
  // Below the normal halves adding 0.5 lets the addition round at the right bit.
  if (magnitude < 113u << 23) return sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u);
  // The exponent rebiased, rounded at bit 13; a carry may reach infinity.
  return sign | (magnitude + ((15u - 127u) << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
}

SLUICE_LANE float decode_float16(std::uint32_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  // 2^112 corrects the bias, exactly, of denormals too.
  const std::uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  return float_of(sign | (magnitude > 0x7bffu ? finite | kInfinityBits : finite));
}

// The scale of an int8 chunk with this greatest magnitude; NaN if that is not finite.
SLUICE_LANE float scale_for(std::uint32_t most) {
  if (most >= kInfinityBits) return float_of(0x7fc00000u);
  constexpr float kLeast = std::numeric_limits<float>::min();
  const float scale = float_of((bits_of(float_of(most) / 127.0f) + 0x7fffffu) & 0xff800000u);
  return scale < kLeast ? kLeast : scale;
}

struct Format {
  Dtype wire = Dtype::kFloat32;
  float scale = 0;  // of int8

  // The element in dtype_bytes(wire) bytes.
  SLUICE_LANE std::uint32_t encode(float value) const {
    switch (wire) {
      case Dtype::kFloat16: return encode_float16(bits_of(value));
      case Dtype::kBfloat16: return encode_bfloat16(bits_of(value));
      case Dtype::kInt8: return encode_int8(value);
      default: return bits_of(value);
    }
  }
  // Whether all bits of encode(value) are zero, in fewer steps.
  SLUICE_LANE bool vanishes(float value) const {
    switch (wire) {
      case Dtype::kFloat16: return bits_of(value) <= bits_of(0x1p-25f);
      case Dtype::kBfloat16: return bits_of(value) <= 0x8000u;
      case Dtype::kInt8: return !(float_of(magnitude_of(value)) > 0.5f * scale);
      default: return bits_of(value) == 0;
    }
  }
  // The value that a receiver decodes.
  SLUICE_LANE float decode(std::uint32_t bits) const {
    switch (wire) {
      case Dtype::kFloat16: return decode_float16(bits);
      case Dtype::kBfloat16: return float_of(bits << 16);
      case Dtype::kInt8: return static_cast<float>(static_cast<std::int8_t>(bits)) * scale;
      default: return float_of(bits);
    }
  }

 private:
  // In a chunk that is not finite the scale is NaN, so its elements do not matter: they are zero.
  SLUICE_LANE std::uint32_t encode_int8(float value) const {
    if (!is_finite(scale)) return 0;
    constexpr float kNoFraction = 12582912.0f;  // behind it there is no place for one
    float quanta = value * (1 / scale);
    quanta = quanta < -127.0f ? -127.0f : quanta;
    quanta = quanta > 127.0f ? 127.0f : quanta;
    quanta = (quanta + kNoFraction) - kNoFraction;
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(quanta)) & 0xffu;
  }
};

}  // namespace sluice::cuda
