// The arguments of the kernels of optimizer.cc: a chunk's arrays, and the scalars of one update as
// PyTorch's kernels get them. Shared by the parts for each instruction set and the dispatcher.
#pragma once

#include <cmath>
#include <cstdint>

#include "aggregator/store/optimizer.h"

namespace sluice::agg {

struct UpdateElements {
  float* parameters;
  float* first;   // momentum, or the mean of gradients; null: none
  float* second;  // the mean of their squares
  const std::uint8_t* pushed;
};

struct UpdateScalars {
  float divisor;
  float decay;
  float first_keep;  // momentum, beta1
  float first_take;  // 1 - dampening, 1 - beta1
  float second_keep;
  float second_take;
  float root_divisor;
  float epsilon;
  float minus_rate;
  bool is_first;
  bool nesterov;
  bool interpolates;
};

// PyTorch computes these in Python, in double, and rounds them where a kernel takes them.
inline UpdateScalars scalars_of(const UpdateOptions& options, const UpdateStep& step) noexcept {
  const bool adam = options.rule == UpdateRule::kAdam;
  const auto ordinal = static_cast<double>(step.ordinal);
  const double rate = adam ? step.rate / (1 - std::pow(options.beta1, ordinal)) : step.rate;
  const auto rounded = [](double value) { return static_cast<float>(value); };
  return {.divisor = step.divisor,
          .decay = rounded(options.weight_decay),
          .first_keep = rounded(adam ? options.beta1 : options.momentum),
          .first_take = rounded(1 - (adam ? options.beta1 : options.dampening)),
          .second_keep = rounded(options.beta2),
          .second_take = rounded(1 - options.beta2),
          .root_divisor = adam ? rounded(std::sqrt(1 - std::pow(options.beta2, ordinal))) : 1.0f,
          .epsilon = rounded(options.epsilon),
          .minus_rate = rounded(-rate),
          .is_first = step.ordinal == 1,
          .nesterov = options.nesterov != 0,
          .interpolates = options.interpolates != 0};
}

}  // namespace sluice::agg
