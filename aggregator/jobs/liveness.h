// Whether the process behind a rank is still there, judged by when it spoke and by hints.
//
// Silence is answered with pings, and a hint that the process is gone with three quick pings. Pure:
// the caller passes active time (pausable_clock.h), sends the pings and carries the finding out.
// Each member has one; control thread only.
#pragma once

#include <cstdint>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/time.h"

namespace sluice::agg {

inline constexpr DurationNs kSuspectPing = 200 * kMillisecond;   // between the quick pings
inline constexpr unsigned kSuspectPings = 3;                     // unanswered: dead
inline constexpr DurationNs kClearedFor = kSecond;               // after an answer to the pings
inline constexpr DurationNs kSuspectGrace = 100 * kMillisecond;  // packets already under way

class Liveness {
 public:
  enum class State : std::uint8_t {
    kTrusted,    // only silence speaks against the process
    kSuspected,  // a hint says that the process is gone: it is asked
    kCleared,    // the process has answered; for a while another hint counts for nothing
  };
  enum class Finding : std::uint8_t { kNothing, kPing, kDied, kSilent };

  State state() const noexcept { return state_; }
  bool suspected() const noexcept { return state_ == State::kSuspected; }
  TimeNs heard_ns() const noexcept { return heard_ns_; }  // on the control port
  bool was_cleared(TimeNs now) const noexcept {
    return state_ == State::kCleared && now - cleared_ns_ <= kClearedFor;
  }

  void hear(TimeNs now) noexcept { heard_ns_ = now; }
  // A hint that the process is gone. True: the caller sends a ping.
  bool suspect(TimeNs now) noexcept {
    if (suspected()) return false;
    change_to(State::kSuspected);
    suspected_ns_ = now;
    pings_sent_ = 0;
    ping_due_ = true;
    return true;
  }
  // The same of a connection that ended: pings that went over it count for nothing.
  bool suspect_anew(TimeNs now) noexcept {
    const bool ping_waits = suspected() && ping_due_;
    reset_suspicion();
    return suspect(now) && !ping_waits;
  }
  // A ping is on its way. Only pings that were really sent speak against a suspect.
  void note_ping(TimeNs now) noexcept {
    if (!suspected() || !ping_due_) return;
    CHECK(pings_sent_ < kSuspectPings);
    ping_due_ = false;
    pinged_ns_ = now;
    ++pings_sent_;
  }
  // The question is answered: the member is gone, or another process holds the rank.
  void reset_suspicion() noexcept {
    if (suspected()) change_to(State::kTrusted);
  }

  // The finding at `now`. `last_heard()` says when the process spoke last, on any port; the call is
  // dear, and made only where the control port alone does not tell.
  template <class LastHeard>
  Finding check(TimeNs now, DurationNs timeout_ns, LastHeard&& last_heard) noexcept {
    CHECK(pings_sent_ <= kSuspectPings);
    if (suspected()) {
      if (last_heard() - suspected_ns_ > kSuspectGrace) {
        change_to(State::kCleared);
        cleared_ns_ = now;
      } else if (!ping_due_ && now - pinged_ns_ >= kSuspectPing) {
        if (pings_sent_ == kSuspectPings) return Finding::kDied;
        ping_due_ = true;
        return Finding::kPing;
      }
    }
    if (now - heard_ns_ <= kPingAfterSilence) return Finding::kNothing;
    const DurationNs silent_ns = now - last_heard();
    if (silent_ns > timeout_ns) return Finding::kSilent;
    if (silent_ns <= kPingAfterSilence || now < next_ping_ns_) return Finding::kNothing;
    next_ping_ns_ = now + kPingAfterSilence;
    return Finding::kPing;
  }

 private:
  void change_to(State next) noexcept {
    CHECK(next == State::kSuspected ? state_ != State::kSuspected : state_ == State::kSuspected);
    state_ = next;
  }

  State state_ = State::kTrusted;
  TimeNs heard_ns_ = 0;
  TimeNs next_ping_ns_ = 0;  // for silence alone
  TimeNs suspected_ns_ = 0;  // of kSuspected, like the fields below
  unsigned pings_sent_ = 0;  // pings that have been handed out to be sent
  TimeNs pinged_ns_ = 0;     // when the last ping was handed out
  bool ping_due_ = false;    // a ping waits to be handed out
  TimeNs cleared_ns_ = 0;    // of kCleared
};

}  // namespace sluice::agg
