// When each gradient step was opened, and D_i, how long each rank takes for a gradient.
//
// The shard that closes a step last reads durations and then notes the release of the next step;
// shard 0 notes finished gradients. The release times of the last kReleaseRing steps are atomics,
// because these are different threads.
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
  // When `step` was opened; of a step older than those remembered, when the oldest of them was.
  // `open` is the open step.
  TimeNs released_ns(Step step, Step open) const noexcept;

  // A rank's newest finished gradient: the base step in the upper half, the duration in
  // microseconds in the lower.
  using Finished = std::atomic<std::uint64_t>;
  // Notes that the rank has finished its gradient of `base`, a step that is open or was. False: it
  // was known.
  bool report(Finished& finished, Step base, Step open, TimeNs now) const noexcept;
  // D_i at the close of a step: the duration of the rank's last finished gradient, or of the
  // gradient that it is computing if that has taken longer already. Unknown for a rank that has
  // reported nothing.
  double duration_s(const Finished& finished, Step closed, TimeNs now) const noexcept;

 private:
  static Step oldest(Step open) noexcept;
  TimeNs began_ns(Step base, DurationNs taken_ns, Step closed, TimeNs now) const noexcept;

  const LateMode late_;
  std::array<std::atomic<TimeNs>, kReleaseRing> released_ns_{};
};

}  // namespace sluice::agg
