// Measures the network: how many of this worker's packets it carries a second, and how much longer
// a unit takes than its packets alone. The inputs are the packets sent and those known to have
// arrived.
//
// A busy period begins with a packet that is sent when none is in flight, and ends when none is in
// flight again. It gives a number of packets and a duration. A straight line is fitted to the last
// periods, weighted by exponential forgetting: its slope is the time of a packet, its intercept the
// overhead (round trip, hosts, waiting for feedback). While all periods are about equally long no
// line can be fitted, and the overhead is counted as part of the packets. Periods in which this
// worker had nothing to send, or packets were lost, are left out. Used by prophet.h. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "client/sched/choice.h"

namespace sluice::client {

class LinkMeter {
 public:
  // Called whenever a packet may be sent, before one is handed out.
  void observe(const WindowState& windows) noexcept {
    if (!busy_ || windows.in_flight_packets != 0) return;
    busy_ = false;
    const std::uint32_t packets = windows.arrived_packets - first_arrived_;
    if (clean_ && packets != 0) add(packets, static_cast<double>(windows.now - began_ns_));
  }
  // A packet is handed out. `idle`: no packet waited to be sent for a while before it.
  void sent(const WindowState& windows, bool idle) noexcept {
    if (busy_) {
      clean_ &= !idle;
      return;
    }
    busy_ = clean_ = true;
    began_ns_ = windows.now;
    first_arrived_ = windows.arrived_packets;
  }
  void lost() noexcept { clean_ = false; }

  bool known() const noexcept { return packet_ns_ > 0; }
  // Precondition: known().
  double packets_per_ns() const noexcept { return 1 / packet_ns_; }
  DurationNs overhead_ns() const noexcept { return static_cast<DurationNs>(overhead_ns_); }

 private:
  static constexpr double kForget = 7.0 / 8;
  static constexpr double kLeastPackets = 16;  // packets of one period, before there is a rate
  static constexpr double kLeastSpread =
      0.1;  // relative spread of the periods' packets, before a line is fitted

  void add(double packets, double ns) noexcept {
    weight_ = kForget * weight_ + 1;
    packets_ = kForget * packets_ + packets;
    ns_ = kForget * ns_ + ns;
    squares_ = kForget * squares_ + packets * packets;
    products_ = kForget * products_ + packets * ns;
    most_packets_ = std::max(most_packets_, packets);
    if (most_packets_ < kLeastPackets) return;
    const double mean_packets = packets_ / weight_;
    const double variance = squares_ / weight_ - mean_packets * mean_packets;
    const double covariance = products_ / weight_ - mean_packets * ns_ / weight_;
    packet_ns_ = ns_ / packets_;
    overhead_ns_ = 0;
    if (variance < kLeastSpread * kLeastSpread * mean_packets * mean_packets) return;
    const double slope = covariance / variance;
    if (slope <= 0 || slope > packet_ns_) return;  // noise: no overhead is below zero
    packet_ns_ = slope;
    overhead_ns_ = (ns_ - slope * packets_) / weight_;
  }

  bool busy_ = false;
  bool clean_ = false;
  TimeNs began_ns_ = 0;
  std::uint32_t first_arrived_ = 0;
  // Sums over the periods.
  double weight_ = 0;
  double packets_ = 0;
  double ns_ = 0;
  double squares_ = 0;
  double products_ = 0;
  double most_packets_ = 0;
  double packet_ns_ = 0;
  double overhead_ns_ = 0;
};

}  // namespace sluice::client
