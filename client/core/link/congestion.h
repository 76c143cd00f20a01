// How much a flow may have on the wire, and how long an answer takes: two small estimators that
// know neither packets nor chunks.
//
// RttEstimator is RFC 6298 with a floor that fits a data centre (the appliance tells how long it
// held a packet, so samples are clean).
//
// Congestion is a model of the path, as BBR's (draft-ietf-ccwg-bbr): the highest rate of arrival
// over the last rounds, and the shortest round trip of the last ten seconds. The window is their
// product and a small queue beside it, which keeps the path busy while feedback is late or a host's
// thread sleeps. A round begins with a packet and ends when that has arrived or been passed, with
// all feedback that a thread hears before it sends again. Its rate is what arrived meanwhile over
// the time since the feedback before the packet, or over the time in which it was sent, where that
// is longer: feedback that is heard at once, as the thread did not run or it waited in a queue,
// makes no path look fast. Slow start doubles the window each round until the rate grows by less
// than a quarter in three rounds, or the round trip says that a queue stands (as HyStart, RFC
// 9406). A loss of less than 2 % is no signal: the sums need no order, and what was lost is known
// exactly. A greater loss in either direction halves the queue: the appliance sends about as much
// as it is sent, so this paces its results too. Congestion-experienced marks shrink the queue by
// half their share (RFC 8257); a thousand packets without either give a tenth back.
// Pure; used by Flow on the session's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::client {

class RttEstimator {
 public:
  static constexpr DurationNs kMinTimeout = 2 * kMillisecond;
  static constexpr DurationNs kMaxTimeout = 500 * kMillisecond;
  static constexpr DurationNs kFirstTimeout = 50 * kMillisecond;  // before the first sample
  static constexpr DurationNs kFirstRtt = 5 * kMillisecond;       // before the first sample

  void sample(DurationNs rtt_ns) noexcept;
  bool valid() const noexcept { return smoothed_ns_ != 0; }
  DurationNs smoothed_ns() const noexcept { return valid() ? smoothed_ns_ : kFirstRtt; }
  // The least of all samples, 0 before the first: of a packet that waited nowhere.
  DurationNs shortest_ns() const noexcept { return shortest_ns_; }
  DurationNs timeout_ns() const noexcept;
  // The timeout of a packet that waits for no other worker: shorter.
  DurationNs confirm_ns() const noexcept;

 private:
  static constexpr DurationNs kNoise = 100 * kMicrosecond;  // wake-ups of hosts
  DurationNs smoothed_ns_ = 0;
  DurationNs shortest_ns_ = 0;
  DurationNs deviation_ns_ = 0;
};

class Congestion {
 public:
  static constexpr std::uint32_t kStart = 64;  // packets
  static constexpr std::uint32_t kFloor = 16;

  // What one feedback told.
  struct Arrivals {
    TimeNs now = 0;
    std::uint32_t advanced = 0;       // how far the highest number that arrived went up
    std::uint32_t arrived = 0;        // packets
    std::uint32_t marked = 0;         // of those, with the mark
    std::uint32_t back_advanced = 0;  // the same two of the packets that came back
    std::uint32_t back_arrived = 0;
    DurationNs rtt_ns = 0;  // of the highest number; 0: it went not up
    TimeNs sent_ns = 0;     // when that left; 0: it went not up
    bool limited = true;    // before it the window was in use: the path set the pace
  };

  // `cap`: never more than this.
  explicit Congestion(std::uint32_t cap) noexcept
      : cap_(std::max(cap, kFloor)), window_(std::min(cap_, kStart)) {}

  // Packets that may be on the wire.
  std::uint32_t window() const noexcept { return window_; }
  // Packets a second at which the window is to leave; 0: at once, as nothing is known yet.
  double pace() const noexcept { return pace_; }
  // A packet leaves, `in_flight` are before it.
  void on_sent(std::uint32_t in_flight, TimeNs now) noexcept {
    if (in_round_ && left_ == 0) end_round();
    if (!in_round_) begin_round(in_flight, now);
  }
  // A packet that came back after later ones.
  void on_late() noexcept { ++back_.arrived; }
  void on_arrived(const Arrivals& arrivals) noexcept;
  // The path holds as much as the cap allows, or more.
  bool capped() const noexcept { return capped_; }

 private:
  static constexpr std::size_t kRounds = 4;  // whose rates are remembered

  void begin_round(std::uint32_t in_flight, TimeNs now) noexcept;
  void end_round() noexcept;
  void judge() noexcept;
  bool queue_stands() const noexcept;
  void note_floor(const Arrivals& arrivals) noexcept;
  void resize() noexcept;
  double rate() const noexcept { return *std::ranges::max_element(rates_); }
  void check() const noexcept;

  std::uint32_t cap_;
  std::uint32_t window_;
  double pace_ = 0;
  bool capped_ = false;

  // The path: packets a second that arrived in each of the last rounds, and its round trip while no
  // queue stood.
  std::array<double, kRounds> rates_{};
  std::size_t next_rate_ = 0;
  DurationNs floor_ns_ = kNever;
  TimeNs floor_at_ns_ = 0;
  bool draining_ = false;  // a round with less in flight than the path holds, to see its floor

  // The round under way.
  bool in_round_ = false;
  TimeNs began_ns_ = 0;
  TimeNs first_sent_ns_ = 0;  // when the last one left that had arrived before it
  std::uint32_t left_ = 0;    // numbers to arrive or be passed until it ends; 0: it may end
  TimeNs passed_ns_ = 0;      // when it was 0
  std::uint32_t arrived_ = 0;
  DurationNs shortest_ns_ = kNever;
  bool limited_ = true;
  bool idle_before_ = true;   // nothing was in flight when it began
  TimeNs heard_ns_ = 0;       // the last feedback that told of an arrival
  TimeNs heard_sent_ns_ = 0;  // when its highest number left
  DurationNs heard_rtt_ns_ = 0;

  bool slow_start_ = true;
  double fastest_ = 0;             // in slow start
  std::uint32_t flat_rounds_ = 0;  // in slow start: since the rate grew

  // Packets since the last judgement, of one direction.
  struct Tally {
    std::uint32_t advanced = 0;
    std::uint32_t arrived = 0;
    bool may_be_judged() const noexcept;
    bool much_is_lost() const noexcept;
  };
  Tally there_;
  Tally back_;
  std::uint32_t marked_ = 0;  // of those that arrived there
  double share_ = 1;          // of the queue that this flow may keep
};

}  // namespace sluice::client
