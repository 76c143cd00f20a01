// Which elements of a gradient leave, as a join says it: how the values are used is in
// client/prune/threshold.h.
//
// Travels as it stands in memory (wire/control.h), so every field has a fixed size.
#pragma once

#include <cstdint>

namespace sluice {

enum class PruneRule : std::uint8_t {
  kOff = 0,         // everything leaves
  kStatic = 1,      // the biggest, a fraction of the elements, exactly
  kSampled = 2,     // likewise, by a sample; exact where the sample is off by more than a third
  kSigma = 3,       // what is some standard deviations from zero
  kDynamic = 4,     // three times the mean of the magnitudes above the last threshold, from zero
  kDynamicRaw = 5,  // that mean once a step, from the last step's threshold on, which never falls
};

struct [[gnu::packed]] PruneOptions {
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

  friend bool operator==(const PruneOptions&, const PruneOptions&) = default;
};
static_assert(sizeof(PruneOptions) == 33);

}  // namespace sluice
