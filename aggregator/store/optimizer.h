// How a store's parameters follow from what its workers push: one update of one chunk.
//
// Pure leaf loops over a chunk's elements, one Highway source for every instruction set, as in
// core/fold.h; no allocation, no state of their own. The order of operations is that of PyTorch's
// optimizers on a CPU (torch/optim/sgd.py and adam.py, one tensor at a time): scalars are computed
// in double and rounded once, and where PyTorch's kernels fuse a multiplication into an addition
// (add with alpha, addcmul, lerp) so do these, on every instruction set. SGD is PyTorch's to the
// last bit, and so is Adam that of releases below 2. Newer ones take roots that are not rounded
// correctly, which moves a parameter by at most 2 ulp an update (tests/unit/store).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/status.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// Ok, or which option has a value that PyTorch refuses too.
Status check_update(const UpdateOptions& options);

// What differs from one update of a chunk to the next.
struct UpdateStep {
  float divisor = 1;      // of what was pushed: n of 1/n
  double rate = 0;        // learning rate; of no meaning for deltas
  std::uint64_t ordinal;  // of this update of the chunk, from 1
};

// `parameters` and `states` (state_count() arrays, those of ordinal 1 are only written) hold
// `elem_count` floats each, `pushed` as many little-endian float32 at any alignment. Updates
// parameters and states with pushed / divisor.
void apply_update(const UpdateOptions& options, const UpdateStep& step, float* parameters,
                  std::span<float* const> states, const std::uint8_t* pushed,
                  std::size_t elem_count) noexcept;

}  // namespace sluice::agg
