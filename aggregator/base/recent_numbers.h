// Which packets of a flow have come, of the last ones up to the highest number. Both ends keep it
// of what they receive. Pure, no allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

class RecentNumbers {
 public:
  static constexpr std::uint32_t kRemembered = 1024;

  // A new highest one; the `skipped` before it have not come.
  void advance(std::uint32_t number, std::uint32_t skipped) noexcept {
    for (std::uint32_t back = std::min(skipped, kRemembered - 1); back != 0; --back)
      words_[place(number - back)] &= ~bit_of(number - back);
    note(number);
  }
  void note(std::uint32_t number) noexcept { words_[place(number)] |= bit_of(number); }
  bool came(std::uint32_t number) const noexcept { return words_[place(number)] & bit_of(number); }

 private:
  static std::size_t place(std::uint32_t number) noexcept { return number % kRemembered / 64; }
  static std::uint64_t bit_of(std::uint32_t number) noexcept {
    return std::uint64_t{1} << number % 64;
  }
  std::array<std::uint64_t, kRemembered / 64> words_{};
};

}  // namespace sluice
