// I6 and its purpose, in virtual time: a port that is full of less urgent traffic hardly delays an
// urgent frame.

#include <gtest/gtest.h>

#include "tests/sim/port_model.h"

namespace sluice::dataplane {
namespace {

UrgentLatency idle(PortModel model) {
  model.background_load = 0;
  return urgent_latency(model);
}

TEST(Priority, P99OfTheMostUrgentOnAFullPortIsThatOfAnIdleOneTimes12PlusOneBurst) {
  for (const std::uint64_t gbps : {1, 10, 100}) {
    for (const std::uint32_t bytes : {64u, 1518u}) {
      PortModel model;
      model.link_bps = gbps * 1'000'000'000;
      model.shaper_bps = model.link_bps / 100 * 95;
      model.urgent_bytes = bytes;
      model.round_ns = gbps == 100 ? 2 * kMicrosecond : 5 * kMicrosecond;
      const UrgentLatency full = urgent_latency(model);
      const double limit_ns =
          1.2 * static_cast<double>(idle(model).p99_ns) + static_cast<double>(model.burst_ns());
      EXPECT_LE(static_cast<double>(full.p99_ns), limit_ns) << gbps << " Gb/s, " << bytes;
      EXPECT_GT(full.background_share, 0.9) << "the port must be full for this to mean anything";
    }
  }
}

TEST(Priority, NoUrgentFrameEverWaitsForMoreThanOneBurstOfLessUrgentOnes) {
  for (const DurationNs pause_every_ns : {DurationNs{0}, 200 * kMicrosecond, 2 * kMillisecond}) {
    for (const std::uint64_t gbps : {1, 10}) {
      PortModel model;
      model.link_bps = gbps * 1'000'000'000;
      model.shaper_bps = model.link_bps / 100 * 95;
      model.background_load = 4;
      model.background_pause_every_ns = pause_every_ns;
      model.urgent_load = 0.001;  // urgent frames seldom meet each other
      model.urgent_frames = 2000;
      const UrgentLatency full = urgent_latency(model);
      // A frame of the least urgent class may be due by its share, and one may overdraw the bucket.
      const DurationNs limit_ns = idle(model).max_ns + model.burst_ns() +
                                  2 * model.wire_ns(model.background_bytes) + model.round_ns;
      EXPECT_LE(full.max_ns, limit_ns) << gbps << " Gb/s, pauses of " << pause_every_ns << " ns";
    }
  }
}

TEST(Priority, WithoutAShaperTheDevicesRingIsWhatAnUrgentFrameWaitsFor) {
  PortModel model;
  model.shaper_bps = 0;
  const UrgentLatency full = urgent_latency(model);
  EXPECT_GT(full.p99_ns, 900 * model.wire_ns(model.background_bytes));
}

}  // namespace
}  // namespace sluice::dataplane
