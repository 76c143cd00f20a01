// Which elements of a gradient leave, as a join states it. client/prune/threshold.h uses the
// values.
//
// Travels as it stands in memory (wire/control.h), so every field has a fixed size.
#pragma once

#include <cstdint>

namespace sluice {

enum class PruneRule : std::uint8_t {
  kOff = 0,      // everything leaves
  kStatic = 1,   // exactly a fraction of the elements, the greatest
  kSampled = 2,  // as kStatic, by a sample; exact where the sample is off by more than a third
  kSigma = 3,    // elements at least some standard deviations from zero
  kDynamic = 4,  // three times the mean of the magnitudes above the last threshold, from zero
  kDynamicRaw =
      5,  // that mean once a step, starting at the last step's threshold, so it never falls
};

struct [[gnu::packed]] PruneOptions {
  PruneRule rule = PruneRule::kOff;
  double fraction = 0.01;  // kStatic, kSampled: above 0, at most 1
  double sigmas = 3;       // kSigma: above 0
  // kStatic, kSampled: the number of steps for which each of the densities 1/4, 1/16, 1/64 ...
  // above `fraction` holds first. 0: none does.
  std::uint32_t warmup_steps = 0;
  // Smaller tensors stay dense: a few packets less are not worth delayed gradients.
  std::uint64_t min_elems = 1024;
  // Above 0: momentum correction (Lin et al., Deep Gradient Compression, ICLR 2018, 3.2 and 3.3).
  // Residuals accumulate velocities, u = momentum * u + gradient, instead of gradients; the
  // velocity of an element that leaves starts anew, and the optimizer has no momentum. Thresholds
  // do not know of it: they are given velocities as gradients.
  float momentum = 0;

  friend bool operator==(const PruneOptions&, const PruneOptions&) = default;
};
static_assert(sizeof(PruneOptions) == 33);

}  // namespace sluice
