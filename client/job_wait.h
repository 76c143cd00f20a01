// Job::wait(), the one way to wait; included by the files of Job.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "client/cancellation.h"
#include "client/clock.h"
#include "client/job.h"

namespace sluice::client {

inline constexpr DurationNs kWaitSlice = 100 * kMillisecond;

// What is to be done after a wait, also when the thread that waits is cancelled.
template <class Do>
struct Finally {
  Do act;
  ~Finally() { act(); }
};
template <class Do>
Finally(Do) -> Finally<Do>;

// Waits with the lock held until ready(), the job's end, the timeout or an interruption; what is
// ready counts although the job has ended meanwhile, unless ready() says otherwise. `what` says in
// words what is waited for; it is asked only when that is told. A thread that is cancelled unwinds
// within kWaitSlice.
template <class Ready, class What>
Status Job::wait(Lock& lock, std::int32_t timeout_ms, Ready ready, What what) {
  if (ready()) return {};
  if (shared_.ended()) return shared_.status();
  if (timeout_ms == 0) return {StatusCode::kTimedOut, "not done yet"};  // too short to allocate
  if (on_own_thread())
    return {StatusCode::kInvalidArgument,
            place_ + what() + ": a callback must not wait; use timeout 0"};
  const TimeNs start = monotonic_now();
  const TimeNs deadline = timeout_ms < 0 ? kNever : start + timeout_ms * kMillisecond;
  TimeNs asked_ns = start;
  for (;;) {
    HeldCancellation::act();
    const TimeNs now = monotonic_now();
    if (now >= deadline) {
      std::string text = place_ + what() + ": not done in time";
      std::string stall = shared_.stall(now).text;
      if (stall.starts_with(place_)) stall.erase(0, place_.size());
      if (!stall.empty()) text += ": " + stall;
      return {StatusCode::kTimedOut, std::move(text)};
    }
    if (interrupted_ && now - asked_ns >= kWaitSlice) {
      asked_ns = now;
      lock.unlock();
      const bool interrupted = interrupted_();
      lock.lock();
      if (interrupted) return {StatusCode::kInterrupted, place_ + what() + ": interrupted"};
    } else {
      shared_.changed.wait_for(lock,
                               std::chrono::nanoseconds(std::min(kWaitSlice, deadline - now)));
    }
    if (ready()) return {};
    if (shared_.ended()) return shared_.status();
  }
}

}  // namespace sluice::client
