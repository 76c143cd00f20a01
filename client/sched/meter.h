// What the network does with this worker's packets, measured from what was sent and what is known
// to have arrived: packets a second, and how much longer a unit takes than its packets alone.
//
// A busy period begins with a packet when nothing is in flight, and ends when nothing is again. The
// rate is taken between two arrivals inside one, so that the round trip does not count; the
// overhead is the rest of the period's length, so it is the round trip and whatever the hosts add.
// A period in which this worker had nothing to send for a while measures the worker, not the
// network: its rate starts anew, its overhead is not taken. Used by prophet.h. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "client/sched/choice.h"

namespace sluice::client {

class LinkMeter {
 public:
  // At every opportunity, before anything is handed out.
  void observe(const Opportunity& opportunity) noexcept {
    const std::uint32_t arrived = opportunity.arrived_packets;
    if (period_ && arrived != last_arrived_) on_arrival(arrived, opportunity.now);
    last_arrived_ = arrived;
    if (period_ && opportunity.in_flight_packets == 0) end_period(arrived, opportunity.now);
  }

  // A packet is handed out. `idle`: before it, nothing waited to be sent for a while.
  void sent(const Opportunity& opportunity, bool idle) noexcept {
    if (!period_) {
      period_ = true;
      continuous_ = true;
      marked_ = false;
      began_ns_ = opportunity.now;
      first_arrived_ = opportunity.arrived_packets;
    } else if (idle) {
      continuous_ = false;
      marked_ = false;
    }
  }

  bool known() const noexcept { return packets_per_ns_ > 0; }
  double packets_per_ns() const noexcept { return packets_per_ns_; }
  DurationNs overhead_ns() const noexcept { return static_cast<DurationNs>(overhead_ns_); }

 private:
  // Samples below these are the noise of wake-ups.
  static constexpr std::uint32_t kSamplePackets = 16;
  static constexpr DurationNs kSampleNs = 50 * kMicrosecond;

  void on_arrival(std::uint32_t arrived, TimeNs now) noexcept {
    if (marked_) {
      const std::uint32_t packets = arrived - mark_arrived_;
      if (packets < kSamplePackets || now - mark_ns_ < kSampleNs) return;
      const double rate = packets / static_cast<double>(now - mark_ns_);
      packets_per_ns_ = known() ? packets_per_ns_ + (rate - packets_per_ns_) / 4 : rate;
    }
    marked_ = true;
    mark_arrived_ = arrived;
    mark_ns_ = now;
  }

  void end_period(std::uint32_t arrived, TimeNs now) noexcept {
    period_ = false;
    const std::uint32_t packets = arrived - first_arrived_;
    if (!continuous_ || packets == 0 || !known()) return;
    const double sending_ns = packets / packets_per_ns_;
    const double overhead_ns = std::max(static_cast<double>(now - began_ns_) - sending_ns, 0.0);
    overhead_ns_ = measured_ ? overhead_ns_ + (overhead_ns - overhead_ns_) / 8 : overhead_ns;
    measured_ = true;
  }

  double packets_per_ns_ = 0;
  double overhead_ns_ = 0;
  bool measured_ = false;  // the overhead
  bool period_ = false;
  bool continuous_ = false;
  bool marked_ = false;
  TimeNs began_ns_ = 0;
  TimeNs mark_ns_ = 0;
  std::uint32_t first_arrived_ = 0;  // packet counts are serial numbers and wrap
  std::uint32_t mark_arrived_ = 0;
  std::uint32_t last_arrived_ = 0;
};

}  // namespace sluice::client
