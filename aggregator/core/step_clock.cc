#include "aggregator/core/step_clock.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/policy/policy.h"

namespace sluice::agg {

void StepClock::release(Step step, TimeNs now) noexcept {
  CHECK(step != 0);
  released_ns_[step % kReleaseRing].store(now, std::memory_order_relaxed);
}

// The oldest step whose release is remembered. One entry of the ring belongs to the next step and
// may be written now. Older steps, which a slow rank may report, have the time of the oldest one.
Step StepClock::oldest(Step open) noexcept {
  return open >= kReleaseRing ? open - kReleaseRing + 2 : 1;
}

TimeNs StepClock::released_ns(Step step, Step open) const noexcept {
  DCHECK(step <= open);
  return released_ns_[std::max(step, oldest(open)) % kReleaseRing].load(std::memory_order_relaxed);
}

bool StepClock::report(Finished& finished, Step base, Step open, TimeNs now) const noexcept {
  CHECK(base <= open);
  if (base <= finished.load(std::memory_order_relaxed) >> 32) return false;
  const DurationNs taken_ns = std::max<DurationNs>(0, now - released_ns(base, open));
  const auto taken_us = static_cast<std::uint64_t>(taken_ns / kMicrosecond);
  finished.store(std::uint64_t{base} << 32 | std::min<std::uint64_t>(taken_us, UINT32_MAX),
                 std::memory_order_relaxed);
  return true;
}

double StepClock::duration_s(const Finished& finished, Step closed, TimeNs now) const noexcept {
  const std::uint64_t newest = finished.load(std::memory_order_relaxed);
  if (newest == 0) return kUnknown;
  const auto base = static_cast<Step>(newest >> 32);
  CHECK(base != 0);
  const DurationNs last_ns = static_cast<DurationNs>(newest & UINT32_MAX) * kMicrosecond;
  DurationNs longest_ns = last_ns;
  if (base < closed) longest_ns = std::max(longest_ns, now - began_ns(base, last_ns, closed, now));
  return static_cast<double>(longest_ns) / static_cast<double>(kSecond);
}

// When a rank whose gradient of `base` took `taken_ns` began its next one. If the gradient was on
// time, when the next step opened. If it was late: at once where late gradients are dropped; where
// they are requeued, when the first step opened after it was finished, or `now` if none has.
TimeNs StepClock::began_ns(Step base, DurationNs taken_ns, Step closed, TimeNs now) const noexcept {
  DCHECK(taken_ns >= 0 && base < closed);
  const TimeNs finished_ns = released_ns(base, closed) + taken_ns;
  if (finished_ns <= released_ns(base + 1, closed)) return released_ns(base + 1, closed);
  if (late_ == LateMode::kDrop) return finished_ns;
  for (Step step = std::max(base + 2, oldest(closed)); step <= closed; ++step)
    if (released_ns(step, closed) >= finished_ns) return released_ns(step, closed);
  return now;
}

}  // namespace sluice::agg
