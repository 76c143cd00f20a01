// Division by a number that is known only at run time, but long before the division.
//
// On the packet path a division would take longer than the look-up that needs it. The result is
// exact for all 32-bit dividends: n / d is the upper half of n * ceil(2^64 / d) (D. Lemire, O.
// Kaser, N. Kurz, "Faster remainder by direct computation", 2019).
#pragma once

#include <cstdint>

#include "aggregator/base/check.h"

namespace sluice {

class Divisor {
 public:
  explicit constexpr Divisor(std::uint32_t value) noexcept
      : value_(value), inverse_(value == 1 ? 0 : UINT64_MAX / value + 1) {
    CHECK(value != 0);
  }
  constexpr std::uint32_t quotient(std::uint32_t dividend) const noexcept {
    if (value_ == 1) return dividend;  // the inverse would be 2^64
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint32_t>(static_cast<Wide>(inverse_) * dividend >> 64);
  }
  constexpr std::uint32_t remainder(std::uint32_t dividend) const noexcept {
    return dividend - quotient(dividend) * value_;
  }

 private:
  std::uint32_t value_;
  std::uint64_t inverse_;
};

}  // namespace sluice
