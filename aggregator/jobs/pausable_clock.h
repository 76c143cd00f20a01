// The control side's own time, which stands still while its thread is away.
//
// A machine that was stopped, a debugger or a starved core keeps the control thread away for
// seconds, and what the members said meanwhile waits in its ring. Nobody may be judged by time in
// which nobody listened. So all deadlines of this folder are points of active time: every call
// into Jobs passes through here first, and none has to remember to shift its own. Pure; one thread.
#pragma once

#include "aggregator/base/check.h"
#include "aggregator/base/time.h"

namespace sluice::agg {

// Longer than this between two calls, of which ticks come every 50 ms: the thread was away.
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

  // The active time of something that happened at `then`, as a shard's clock says, or of a look
  // from outside, which does not advance the clock. Exact since the last absence but one.
  TimeNs active_time(TimeNs then) const noexcept {
    CHECK(gone_ns_ <= back_ns_ && back_ns_ <= last_ns_);
    if (then >= back_ns_) {
      const bool absent = began_ && then - last_ns_ > kAbsentAfter;
      return (absent ? last_ns_ : then) - away_ns_;
    }
    return (then < gone_ns_ ? then : gone_ns_) - away_before_ns_;
  }

  // The caller's clock at an active time since the last return: what shards and members are told.
  TimeNs caller_time(TimeNs active_ns) const noexcept { return active_ns + away_ns_; }

 private:
  bool began_ = false;
  TimeNs last_ns_ = 0;  // of the last call
  TimeNs gone_ns_ = 0;  // of the last absence, like the fields below
  TimeNs back_ns_ = 0;
  DurationNs away_before_ns_ = 0;  // all absences but the last together
  DurationNs away_ns_ = 0;         // with the last
};

}  // namespace sluice::agg
