// References for the fold kernels' tests. They follow the definitions of the formats (scale, round
// with the FPU, scale back) instead of the kernels' bit tricks, so that no mistake is in both.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"

namespace sluice::agg {

// A binary format by its numbers, for the references below.
struct NarrowFormat {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  int max_exponent;  // of the largest finite number
};
inline constexpr NarrowFormat kHalf{10, -14, 15};
inline constexpr NarrowFormat kBrain{7, -126, 127};

inline const NarrowFormat& format_of(Dtype dtype) {
  return dtype == Dtype::kFloat16 ? kHalf : kBrain;
}

inline float decode_reference(std::uint16_t bits, const NarrowFormat& format) {
  const int mantissa_mask = (1 << format.mantissa_bits) - 1;
  const int biased = (bits & 0x7fff) >> format.mantissa_bits;
  const int mantissa = bits & mantissa_mask;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (biased == format.max_exponent + 1 - (format.min_exponent - 1)) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : static_cast<float>(sign * std::numeric_limits<double>::infinity());
  }
  const int whole = biased == 0 ? 0 : 1 << format.mantissa_bits;
  const int exponent = biased == 0 ? format.min_exponent : format.min_exponent + biased - 1;
  return static_cast<float>(sign * std::ldexp(whole + mantissa, exponent - format.mantissa_bits));
}

// Round to nearest even, overflow to infinity, NaN to the positive quiet NaN.
inline std::uint16_t encode_reference(float value, const NarrowFormat& format) {
  const std::uint16_t infinity = static_cast<std::uint16_t>(
      (format.max_exponent - format.min_exponent + 2) << format.mantissa_bits);
  if (std::isnan(value)) return infinity | (1u << (format.mantissa_bits - 1));
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isinf(value)) return sign | infinity;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  const double quantum = std::ldexp(1.0, exponent - format.mantissa_bits);
  // The number of quanta from the format's first binade on is the bit pattern itself, with carries.
  const auto quanta = static_cast<std::uint32_t>(std::nearbyint(magnitude / quantum));
  const std::uint32_t pattern =
      (static_cast<std::uint32_t>(exponent - format.min_exponent) << format.mantissa_bits) + quanta;
  return sign | static_cast<std::uint16_t>(std::min<std::uint32_t>(pattern, infinity));
}

inline float float_of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// Bytes whose end is the end of readable memory.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : bytes_(bytes) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_bytes_ = (bytes + page - 1) / page * page + page;
    mapped_ =
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped_ != MAP_FAILED);
    guard_ = static_cast<std::uint8_t*>(mapped_) + mapped_bytes_ - page;
    CHECK(mprotect(guard_, page, PROT_NONE) == 0);
  }
  ~GuardedBytes() { munmap(mapped_, mapped_bytes_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::uint8_t* data() { return guard_ - bytes_; }
  std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::size_t mapped_bytes_ = 0;
  void* mapped_ = nullptr;
  std::uint8_t* guard_ = nullptr;
};

// A 64-byte aligned accumulator of at least elem_count floats.
class Accumulator {
 public:
  explicit Accumulator(std::size_t elem_count, float fill = 0) : lines_(elem_count / 16 + 1) {
    for (std::size_t i = 0; i < lines_.size() * 16; ++i) data()[i] = fill;
  }
  float* data() { return lines_.data()->lanes; }

 private:
  struct alignas(64) Line {
    float lanes[16];
  };
  std::vector<Line> lines_;
};

// Bit patterns that hit every kind of float often: NaNs, infinities, denormals, zeros, halves'
// rounding boundaries, ordinary numbers.
inline std::vector<std::uint32_t> awkward_bits(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> all(count);
  for (auto& bits : all) {
    const auto draw = static_cast<std::uint32_t>(random());
    switch (random() % 8) {
      case 0: bits = draw | 0x7f800000u; break;                  // infinity or NaN, any payload
      case 1: bits = draw & 0x807fffffu; break;                  // zero or denormal
      case 2: bits = (draw & 0x80000000u) | 0x7f800000u; break;  // infinity
      case 3: bits = (draw & 0x8fffffffu) | 0x38000000u; break;  // about the halves' range
      case 4: bits = draw & 0xfffff000u; break;                  // ties of float16
      case 5: bits = draw & 0xffff8000u; break;                  // ties of bfloat16
      default: bits = draw; break;
    }
  }
  return all;
}

// Runs `body` once for each target of this machine, and leaves the best target in place.
inline void on_every_target(const std::function<void(std::string_view)>& body) {
  for (std::string_view target : fold_targets()) {
    CHECK(force_fold_target(target));
    body(target);
    CHECK(fold_target() == target);  // nothing in between changed the target
  }
  force_fold_target("");
}

}  // namespace sluice::agg
