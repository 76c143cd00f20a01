// A port in virtual time: the production queue, shaper and rounds (dataplane/core/egress.h) in
// front of a device with a ring and a link. It reports the delays of urgent frames. For the unit
// tests and for bench/priority.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <random>
#include <vector>

#include "dataplane/core/egress.h"

namespace sluice::dataplane {

struct PortModel {
  std::uint64_t link_bps = 10'000'000'000;
  std::uint64_t shaper_bps = 9'500'000'000;  // 0: unshaped
  DurationNs round_ns = 5 * kMicrosecond;    // from one look at arrivals and the queue to the next
  std::size_t device_packets = 1024;         // that the device's ring holds
  std::uint32_t urgent_bytes = 1518;
  std::uint32_t background_bytes = 1518;
  double urgent_load = 0.01;     // of the link, at random times
  double background_load = 1.5;  // of the link, evenly; 0: the port is otherwise idle
  // The background pauses and comes back, so that it meets a full bucket; 0: it never pauses.
  DurationNs background_pause_every_ns = 0;
  std::size_t urgent_frames = 20'000;
  std::uint32_t seed = 1;

  DurationNs wire_ns(std::uint32_t bytes) const {
    const double bits = 8.0 * (bytes + Egress::kWireOverheadBytes);
    return static_cast<DurationNs>(std::llround(bits * 1e9 / static_cast<double>(link_bps)));
  }
  // The time of one burst of the background on the link.
  DurationNs burst_ns() const { return Egress::kBurstPackets * wire_ns(background_bytes); }
};

struct UrgentLatency {
  DurationNs p50_ns = 0;
  DurationNs p99_ns = 0;
  DurationNs max_ns = 0;
  double background_share = 0;  // of the link's time
};

// The time from the arrival of an urgent frame at the switch to its last bit on the link.
inline UrgentLatency urgent_latency(const PortModel& model) {
  constexpr ClassIndex kUrgent = 0;
  constexpr ClassIndex kBackground = 63;
  Egress::Options options;
  options.shaper = Egress::shaper_for(model.shaper_bps, model.background_bytes);
  PortCounters counters;
  Egress egress(options, counters, 0);
  std::mt19937_64 random(model.seed);
  std::exponential_distribution<double> gap(model.urgent_load /
                                            static_cast<double>(model.wire_ns(model.urgent_bytes)));
  const double background_gap_ns =
      static_cast<double>(model.wire_ns(model.background_bytes)) / model.background_load;

  std::vector<TimeNs> arrivals;  // of urgent frames; a packet pointer is an index + 1
  std::vector<DurationNs> latencies;
  std::deque<TimeNs> on_device;  // the time at which each frame there has left
  TimeNs link_free = 0;
  double next_urgent = gap(random);
  double next_background = 0;
  const auto drop = [](void*) {};
  const auto mark = [](void*) { return false; };
  TimeNs now = 0;
  for (; latencies.size() < model.urgent_frames; now += model.round_ns) {
    for (; next_urgent <= static_cast<double>(now); next_urgent += gap(random)) {
      arrivals.push_back(static_cast<TimeNs>(next_urgent));
      egress.enqueue({reinterpret_cast<void*>(arrivals.size()), model.urgent_bytes, kUrgent, now},
                     drop, mark);
    }
    const bool pause =
        model.background_pause_every_ns != 0 && now / model.background_pause_every_ns % 2 != 0;
    if (model.background_load > 0) {
      for (; next_background <= static_cast<double>(now); next_background += background_gap_ns)
        if (!pause) egress.enqueue({&egress, model.background_bytes, kBackground, now}, drop, mark);
    }
    while (!on_device.empty() && on_device.front() <= now) on_device.pop_front();
    egress.begin_flush(now);
    for (std::span burst = egress.take(); !burst.empty(); burst = egress.take()) {
      const std::size_t accepted = std::min(burst.size(), model.device_packets - on_device.size());
      for (std::size_t at = 0; at < accepted; ++at) {
        link_free = std::max(link_free, now) + model.wire_ns(burst[at].bytes);
        on_device.push_back(link_free);
        if (burst[at].egress_class == kUrgent)
          latencies.push_back(link_free -
                              arrivals[reinterpret_cast<std::uintptr_t>(burst[at].packet) - 1]);
      }
      egress.accept(accepted, now);
      if (accepted < burst.size()) break;
    }
  }
  std::sort(latencies.begin(), latencies.end());
  const auto background = static_cast<double>(counters.classes[kBackground].tx_packets.read());
  return {.p50_ns = latencies[latencies.size() / 2],
          .p99_ns = latencies[latencies.size() * 99 / 100],
          .max_ns = latencies.back(),
          .background_share = background *
                              static_cast<double>(model.wire_ns(model.background_bytes)) /
                              static_cast<double>(std::max(now, link_free))};
}

}  // namespace sluice::dataplane
