// How big an element must be to leave in a step: the thresholds of pruning, a tensor at a time.
//
// What is measured is v = gradient + residual, all that this worker has not delivered. An element
// leaves when |v| >= threshold, compared as the bits of magnitudes, which are in the order of their
// values: infinities and NaNs come behind all others and so always leave, where they are seen.
// Elements as big as the threshold leave all of them, so where many are equal more leave than were
// asked for. What becomes of the elements, client/core/calls/residuals.h knows.
//
// Pure. Calls for different tensors may run on different threads; those for one tensor follow each
// other. Memory (a hundredth of the gradients for kStatic and kSampled) is allocated at the start.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "aggregator/base/prune_options.h"
#include "aggregator/base/types.h"

namespace sluice::client {

using sluice::PruneOptions;
using sluice::PruneRule;

struct PruneTensor {
  std::uint64_t elem_count = 0;
  bool dense = false;  // whatever its size: of one dimension, or exact, or not of float32
};

// Two thresholds of a special meaning.
inline constexpr float kPruneNothing = 0;
inline constexpr float kPruneAll = std::numeric_limits<float>::infinity();

// Where a tensor's pruning stands between two steps, beside its residual: part of a checkpoint.
struct PrunePosition {
  std::uint32_t steps = 0;  // that have had their threshold
  float last = 0;           // kDynamicRaw: of the last step
};

class Thresholds {
 public:
  Thresholds(const PruneOptions& options, std::span<const PruneTensor> tensors);

  // The tensor is pruned; the others' threshold is kPruneNothing for ever.
  bool prunes(std::uint32_t tensor) const noexcept { return !tensors_[tensor].dense; }

  // The threshold for the tensor's next step: to be called once a step, also where no gradient is
  // contributed if all ranks are to have the same density. Both spans have elem_count elements.
  // Above zero for a tensor that is pruned, and finite: where something is not finite and the rule
  // finds no number, only that leaves, and what is as big as a float gets.
  float next(std::uint32_t tensor, std::span<const float> gradient,
             std::span<const float> residual) noexcept;

  // For who finds kStatic's threshold elsewhere, in place of next(): how many elements leave.
  std::uint64_t take_rank(std::uint32_t tensor) noexcept;

  // May be set between two steps: `last` is finite and not below zero.
  PrunePosition& position(std::uint32_t tensor) noexcept { return tensors_[tensor].position; }

  // Of the tensor's next step: the fraction that kStatic and kSampled aim at.
  double density(std::uint32_t tensor) const noexcept;

 private:
  struct State {
    bool dense = false;
    std::uint64_t elem_count = 0;
    std::uint64_t first_room = 0;  // kStatic, kSampled: for a sample's magnitudes, in rooms_
    PrunePosition position;
  };

  PruneOptions options_;
  std::vector<State> tensors_;
  std::vector<std::uint32_t> rooms_;
};

}  // namespace sluice::client
