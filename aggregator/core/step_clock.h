// When the steps of the gradients were opened, and how long each rank takes for one: D_i.
//
// The shard that closes a step asks for durations and then tells of the release of the next one;
// shard 0 is told of finished gradients. Times of the last kReleaseRing steps are kept, in atomics:
// those threads differ.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "aggregator/base/policy_options.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

class StepClock {
 public:
  static constexpr std::uint32_t kReleaseRing = 64;  // steps whose release time is remembered

  explicit StepClock(LateMode late) noexcept : late_(late) {}

  // `step` is about to be opened.
  void release(Step step, TimeNs now) noexcept;
  // When `step` was opened, or the oldest step that is remembered if it is older. `open`: the step
  // that is open.
  TimeNs released_ns(Step step, Step open) const noexcept;

  // A rank's newest finished gradient: base step in the upper half, duration in microseconds below.
  using Finished = std::atomic<std::uint64_t>;
  // It has finished its gradient of `base`, which is open or has been. False: known already.
  bool report(Finished& finished, Step base, Step open, TimeNs now) const noexcept;
  // D_i at the close of a step: its last finished gradient, or the one that it is computing when
  // that has taken longer already. Unknown for a rank that has reported nothing.
  double duration_s(const Finished& finished, Step closed, TimeNs now) const noexcept;

 private:
  static Step oldest(Step open) noexcept;
  TimeNs began_ns(Step base, DurationNs taken_ns, Step closed, TimeNs now) const noexcept;

  const LateMode late_;
  std::array<std::atomic<TimeNs>, kReleaseRing> released_ns_{};
};

}  // namespace sluice::agg
