// Gradients and residuals from which thresholds are drawn, with plain loops as the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "client/prune/magnitudes.h"
#include "tests/unit/fold/fold_reference.h"

namespace sluice::client {

struct Gradients {
  std::vector<float> gradient;
  std::vector<float> residual;

  Values values() const { return {gradient.data(), residual.data(), gradient.size()}; }
  std::vector<std::uint32_t> magnitudes() const {
    std::vector<std::uint32_t> all;
    for (std::size_t i = 0; i < gradient.size(); ++i) all.push_back(values().magnitude(i));
    return all;
  }
  std::vector<std::uint32_t> descending() const {
    auto all = magnitudes();
    std::sort(all.begin(), all.end(), std::greater<>());
    return all;
  }
  // The number of values that leave.
  std::size_t above(float threshold) const {
    const auto all = magnitudes();
    const auto least = std::bit_cast<std::uint32_t>(threshold);
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](auto bits) { return bits >= least; }));
  }
};

// Values with heavier tails than a normal distribution's, as gradients have.
inline Gradients drawn(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::student_t_distribution<float> gradient(4);
  std::normal_distribution<float> residual(0, 2);
  Gradients made;
  for (std::size_t i = 0; i < count; ++i) {
    made.gradient.push_back(1e-3f * gradient(random));
    made.residual.push_back(1e-3f * residual(random));
  }
  return made;
}

// NaNs, infinities, zeros, denormals.
inline Gradients awkward(std::size_t count, std::uint64_t seed) {
  Gradients made = drawn(count, seed);
  const auto bits = agg::awkward_bits(count, seed);
  for (std::size_t i = 0; i < count; i += 2) made.gradient[i] = std::bit_cast<float>(bits[i]);
  return made;
}

}  // namespace sluice::client
