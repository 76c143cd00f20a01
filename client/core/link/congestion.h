// How much a flow may have on the wire, and how long an answer takes: two small estimators that
// know neither packets nor chunks.
//
// RttEstimator is RFC 6298 with a floor that fits a data centre (the appliance tells how long it
// held a packet, so samples are clean). Congestion is slow start until a loss, a mark or a longer
// round trip says that a queue stands (as HyStart, RFC 9406), then additive increase of one packet
// a window, halving on loss at most once a round trip, and DCTCP (RFC 8257) on
// congestion-experienced marks.
// Pure; used by Flow on the session's thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class RttEstimator {
 public:
  static constexpr DurationNs kMinTimeout = 2 * kMillisecond;
  static constexpr DurationNs kMaxTimeout = 500 * kMillisecond;
  static constexpr DurationNs kFirstTimeout = 50 * kMillisecond;  // before the first sample
  static constexpr DurationNs kFirstRtt = 5 * kMillisecond;       // likewise

  void sample(DurationNs rtt_ns) noexcept;
  bool valid() const noexcept { return smoothed_ns_ != 0; }
  DurationNs smoothed_ns() const noexcept { return valid() ? smoothed_ns_ : kFirstRtt; }
  // The least of all samples, 0 before the first: of a packet that waited nowhere.
  DurationNs shortest_ns() const noexcept { return shortest_ns_; }
  DurationNs timeout_ns() const noexcept;
  // Likewise where no other worker is waited for.
  DurationNs confirm_ns() const noexcept;
  // The last sample is so much longer than the shortest that packets have waited on the way.
  bool queueing() const noexcept {
    return last_ns_ > shortest_ns_ + std::max(shortest_ns_ / 2, kNoise);
  }

 private:
  static constexpr DurationNs kNoise = 100 * kMicrosecond;  // wake-ups of hosts
  DurationNs smoothed_ns_ = 0;
  DurationNs last_ns_ = 0;
  DurationNs shortest_ns_ = 0;
  DurationNs deviation_ns_ = 0;
};

class Congestion {
 public:
  static constexpr std::uint32_t kStart = 64;  // packets
  static constexpr std::uint32_t kFloor = 16;

  // `cap`: never more than this.
  explicit Congestion(std::uint32_t cap) noexcept
      : cap_(cap < kFloor ? kFloor : cap), window_(cap_ < kStart ? cap_ : kStart) {}

  // Packets that may be on the wire.
  std::uint32_t window() const noexcept { return static_cast<std::uint32_t>(window_); }
  // `arrived` more packets reached the other end, `marked` of them with the mark. `limited`: before
  // that the window was in use; one that is not needed tells nothing about the network, and does
  // not grow by slow start (RFC 7661).
  void on_arrived(std::uint32_t arrived, std::uint32_t marked, bool limited = true) noexcept;
  void on_loss(TimeNs now, DurationNs rtt_ns) noexcept;
  // A queue stands: from now on the window grows slowly.
  void end_slow_start() noexcept { slow_start_ = false; }

 private:
  void check() const noexcept;

  std::uint32_t cap_;
  double window_;                    // packets; fractions keep the cut for a single mark exact
  std::uint32_t round_arrived_ = 0;  // a round is one window's worth of arrivals
  std::uint32_t round_marked_ = 0;
  bool slow_start_ = true;
  bool lost_this_round_ = false;
  double marked_fraction_ = 1.0;  // RFC 8257's alpha, which starts pessimistic
  TimeNs next_halving_ns_ = 0;
};

}  // namespace sluice::client
