// The control side's own time, which stands still while its thread is away.
//
// A machine that was stopped, a debugger or a starved core keeps the control thread away for
// seconds, and the members' packets wait in its ring meanwhile. No member may be judged by time in
// which the thread did not listen. So all deadlines of this folder are points of active time: every
// call into Jobs converts its time here first, and no deadline has to be shifted. Pure; one thread.
#pragma once

#include "aggregator/base/check.h"
#include "aggregator/base/time.h"

namespace sluice::agg {

// The thread was away if two calls lie further apart than this; ticks come every 50 ms.
inline constexpr DurationNs kAbsentAfter = 500 * kMillisecond;

class PausableClock {
 public:
  // The thread is here at `now` of the caller's clock. Returns the active time.
  TimeNs advance(TimeNs now) noexcept {
    if (began_ && now - last_ns_ > kAbsentAfter) {
      gone_ns_ = last_ns_;
      back_ns_ = now;
      away_before_ns_ = away_ns_;
      away_ns_ += now - last_ns_;
    }
    began_ = true;
    last_ns_ = now > last_ns_ ? now : last_ns_;
    CHECK(away_ns_ >= away_before_ns_);
    return active_time(now);
  }

  // The active time of an event that a shard's clock has stamped `then`, or of a look from outside,
  // which does not advance the clock. Exact since the last absence but one.
  TimeNs active_time(TimeNs then) const noexcept {
    CHECK(gone_ns_ <= back_ns_ && back_ns_ <= last_ns_);
    if (then >= back_ns_) {
      const bool absent = began_ && then - last_ns_ > kAbsentAfter;
      return (absent ? last_ns_ : then) - away_ns_;
    }
    return (then < gone_ns_ ? then : gone_ns_) - away_before_ns_;
  }

  // The caller's clock at an active time since the last return, for shards and members.
  TimeNs caller_time(TimeNs active_ns) const noexcept { return active_ns + away_ns_; }

 private:
  bool began_ = false;
  TimeNs last_ns_ = 0;  // of the last call
  TimeNs gone_ns_ = 0;  // of the last absence, like the fields below
  TimeNs back_ns_ = 0;
  DurationNs away_before_ns_ = 0;  // sum of all absences but the last
  DurationNs away_ns_ = 0;         // sum of all absences
};

}  // namespace sluice::agg
