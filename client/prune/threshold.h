// The thresholds of pruning: for each tensor and step, the least magnitude of the elements that
// leave.
//
// A threshold is compared with v = gradient + residual, all that this worker has not delivered of
// an element. The element leaves if |v| >= threshold. The bits of magnitudes are compared, which
// are in the order of their values; infinities and NaNs are greater than all others, so they always
// leave and are noticed. All elements whose magnitude equals the threshold leave, so if many are
// equal, more leave than were asked for. client/core/calls/residuals.h handles the elements.
//
// Pure. Calls for different tensors may run on different threads; calls for one tensor follow each
// other. The constructor allocates all memory (a hundredth of the gradients for kStatic and
// kSampled).
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
  bool dense = false;  // never pruned: it has one dimension, is exact, or is not float32
};

// Two thresholds with a special meaning.
inline constexpr float kPruneNothing = 0;
inline constexpr float kPruneAll = std::numeric_limits<float>::infinity();

// The state of a tensor's pruning between two steps, besides its residual. Part of a checkpoint.
struct PrunePosition {
  std::uint32_t steps = 0;  // steps that have had their threshold
  float last = 0;           // kDynamicRaw: the threshold of the last step
};

class Thresholds {
 public:
  Thresholds(const PruneOptions& options, std::span<const PruneTensor> tensors);

  // Whether the tensor is pruned; the threshold of other tensors is always kPruneNothing.
  bool prunes(std::uint32_t tensor) const noexcept { return !tensors_[tensor].dense; }

  // The threshold for the tensor's next step. To be called once in each step, also if no gradient
  // is contributed, if all ranks are to have the same density. Both spans have elem_count elements.
  // For a pruned tensor the threshold is above zero and finite. If values are not finite and the
  // rule finds no number, the threshold is the greatest float.
  float next(std::uint32_t tensor, std::span<const float> gradient,
             std::span<const float> residual) noexcept;

  // In place of next(), for callers that find kStatic's threshold elsewhere (on a device): the
  // number of elements that leave.
  std::uint64_t take_rank(std::uint32_t tensor) noexcept;

  // May be set between two steps, to a `last` that is finite and not below zero.
  PrunePosition& position(std::uint32_t tensor) noexcept { return tensors_[tensor].position; }

  // The fraction of elements that kStatic and kSampled aim at in the tensor's next step.
  double density(std::uint32_t tensor) const noexcept;

 private:
  struct State {
    bool dense = false;
    std::uint64_t elem_count = 0;
    std::uint64_t first_room = 0;  // kStatic, kSampled: of the sample's magnitudes, in rooms_
    PrunePosition position;
  };

  PruneOptions options_;
  std::vector<State> tensors_;
  std::vector<std::uint32_t> rooms_;
};

}  // namespace sluice::client
