// The simulator's randomness: SplitMix64, so that a seed means the same on every machine.
//
// Not the standard library's distributions: their output differs between implementations. `mix()`
// is the stateless form, for values that must not depend on the order in which they are asked for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::sim {

constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

template <class... Rest>
constexpr std::uint64_t mix(std::uint64_t first, std::uint64_t second, Rest... rest) noexcept {
  return mix(mix(first) ^ second, rest...);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(mix(seed)) {}

  std::uint64_t next() noexcept { return mix(state_++); }
  // 0 .. bound - 1; 0 for a bound of 0.
  std::uint64_t below(std::uint64_t bound) noexcept { return bound == 0 ? 0 : next() % bound; }
  std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool chance_ppm(std::uint64_t parts_per_million) noexcept {
    return parts_per_million != 0 && below(1'000'000) < parts_per_million;
  }
  bool one_in(std::uint64_t count) noexcept { return below(count) == 0; }

  template <class T>
  void shuffle(std::vector<T>& items) noexcept {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::sim
