// When the next packet of a flow may leave: a token bucket over the pace that Congestion found. The
// burst covers a sleep of the progress thread, so pacing costs no wake-up of its own where the
// path is fast. Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class Pacer {
 public:
  static constexpr double kBurst = 64;  // packets, at least
  static constexpr DurationNs kBurstTime = kMillisecond;

  // Whether a packet may leave now at `pace` packets a second; 0: always. Otherwise next_ns() is
  // when one may.
  bool may_send(double pace, TimeNs now) noexcept {
    if (pace <= 0) {
      next_ns_ = 0;
      return true;
    }
    const double burst = std::max(kBurst, pace * kBurstTime / kSecond);
    const DurationNs passed_ns = std::clamp<DurationNs>(now - filled_ns_, 0, kSecond);
    tokens_ = std::min(burst, tokens_ + pace * static_cast<double>(passed_ns) / kSecond);
    filled_ns_ = now;
    next_ns_ = tokens_ >= 0 ? 0 : now + 1 + static_cast<DurationNs>(-tokens_ / pace * kSecond);
    return tokens_ >= 0;
  }
  // `count` packets leave, or will come back at once for one that does. Those that need no leave
  // hold the next one back for no more than a burst.
  void sent(std::uint32_t count) noexcept { tokens_ = std::max(tokens_ - count, -kBurst); }
  // 0: nothing was held back when it was last asked.
  TimeNs next_ns() const noexcept { return next_ns_; }
  // What it held back is not wanted any more.
  void forget() noexcept { next_ns_ = 0; }

 private:
  double tokens_ = kBurst;
  TimeNs filled_ns_ = 0;
  TimeNs next_ns_ = 0;
};

}  // namespace sluice::client
