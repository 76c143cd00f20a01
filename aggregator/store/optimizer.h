// How pushes update a store's parameters: one update of one chunk.
//
// Pure leaf loops over a chunk's elements, one Highway source for every instruction set, as in
// core/fold.h; they allocate nothing and keep no state. The order of operations is that of
// PyTorch's optimizers on a CPU (torch/optim/sgd.py and adam.py, one tensor at a time). Scalars are
// computed in double and rounded once. Where PyTorch's kernels fuse a multiplication into an
// addition (add with alpha, addcmul, lerp), so do these, on every instruction set. SGD equals
// PyTorch's to the last bit, and Adam equals that of PyTorch releases below 2. Newer releases use
// square roots that are not correctly rounded, which moves a parameter by at most 2 ulp an update
// (tests/unit/store).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/status.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// Ok, or the option with a value that PyTorch refuses too.
Status check_update(const UpdateOptions& options);

// The values that differ from one update of a chunk to the next.
struct UpdateStep {
  float divisor = 1;      // of the pushed values: n of 1/n
  double rate = 0;        // learning rate; not used for deltas
  std::uint64_t ordinal;  // of this update of the chunk, from 1
};

// Updates parameters and states with pushed / divisor. `parameters` and each of the state_count()
// arrays in `states` have `elem_count` floats; with ordinal 1 the states are only written. `pushed`
// is as many little-endian float32 at any alignment.
void apply_update(const UpdateOptions& options, const UpdateStep& step, float* parameters,
                  std::span<float* const> states, const std::uint8_t* pushed,
                  std::size_t elem_count) noexcept;

}  // namespace sluice::agg
