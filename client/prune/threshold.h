// How big an element must be to leave in a step: the thresholds of pruning, a tensor at a time.
//
// What is measured is v = gradient + residual, all that this worker has not delivered. An element
// leaves when |v| >= threshold, compared as the bits of magnitudes, which are in the order of their
// values: infinities and NaNs come behind all others and so always leave, where they are seen.
// Elements as big as the threshold leave all of them, so where many are equal more leave than were
// asked for. What becomes of the elements, client/core/residuals.h knows.
//
// Pure. Calls for different tensors may run on different threads; those for one tensor follow each
// other. Memory (a hundredth of the gradients for kStatic and kSampled) is allocated at the start.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "aggregator/base/types.h"

namespace sluice::client {

enum class PruneRule : std::uint8_t {
  kOff = 0,         // everything leaves
  kStatic = 1,      // the biggest, a fraction of the elements, exactly
  kSampled = 2,     // likewise, by a sample; exact where the sample is off by more than a third
  kSigma = 3,       // what is some standard deviations from zero
  kDynamic = 4,     // three times the mean of the magnitudes above the last threshold, from zero
  kDynamicRaw = 5,  // that mean once a step, from the last step's threshold on, which never falls
};

struct PruneOptions {
  PruneRule rule = PruneRule::kOff;
  double fraction = 0.01;  // kStatic, kSampled: above 0, at most 1
  double sigmas = 3;       // kSigma: above 0
  // kStatic, kSampled: for how many steps each of the densities 1/4, 1/16, 1/64 ... holds first,
  // while it is above `fraction`. 0: none does.
  std::uint32_t warmup_steps = 0;
  // Smaller tensors stay dense: a few packets less are not worth a later gradient.
  std::uint64_t min_elems = 1024;
  // Above 0: momentum correction (Lin et al., Deep Gradient Compression, ICLR 2018, 3.2 and 3.3).
  // Residuals gather velocities, u = momentum * u + gradient, which start anew where they leave;
  // the optimizer has no momentum then. No threshold knows of it: a velocity is what it is told as
  // the gradient.
  float momentum = 0;
};

struct PruneTensor {
  std::uint64_t elem_count = 0;
  bool dense = false;  // whatever its size: of one dimension, or exact, or not of float32
};

// Two thresholds of a special meaning.
inline constexpr float kPruneNothing = 0;
inline constexpr float kPruneAll = std::numeric_limits<float>::infinity();

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

  // Of the tensor's next step: the fraction that kStatic and kSampled aim at.
  double density(std::uint32_t tensor) const noexcept;

 private:
  struct State {
    bool dense = false;
    std::uint64_t elem_count = 0;
    std::uint64_t first_room = 0;  // kStatic, kSampled: for a sample's magnitudes, in rooms_
    std::uint32_t steps = 0;       // that have had their threshold
    float last = 0;                // kDynamicRaw: of the last step
  };

  PruneOptions options_;
  std::vector<State> tensors_;
  std::vector<std::uint32_t> rooms_;
};

}  // namespace sluice::client
