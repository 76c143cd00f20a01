// The delay of an urgent frame at a port full of least urgent ones, in virtual time, for the
// priority bench: one line a row. priority.py explains the figures.

#include <cstdint>
#include <cstdio>

#include "tests/sim/port_model.h"

namespace sluice::bench {
namespace {

using dataplane::PortModel;
using dataplane::urgent_latency;
using dataplane::UrgentLatency;

void print_row(std::uint64_t gbps, std::uint32_t urgent_bytes, bool shaped, std::uint32_t seed) {
  PortModel model;
  model.link_bps = gbps * 1'000'000'000;
  model.shaper_bps = shaped ? model.link_bps / 100 * 95 : 0;
  model.round_ns = gbps >= 100 ? 2 * kMicrosecond : 5 * kMicrosecond;
  model.urgent_bytes = urgent_bytes;
  model.seed = seed;
  model.urgent_frames = shaped ? 10'000 : 2'000;  // the latter's simulation takes long
  const UrgentLatency full = urgent_latency(model);
  model.background_load = 0;
  const UrgentLatency idle = urgent_latency(model);
  std::printf("%llu %u %d %u %lld %lld %lld %lld %lld %.3f\n",
              static_cast<unsigned long long>(gbps), urgent_bytes, shaped ? 1 : 0, seed,
              static_cast<long long>(idle.p50_ns), static_cast<long long>(idle.p99_ns),
              static_cast<long long>(full.p50_ns), static_cast<long long>(full.p99_ns),
              static_cast<long long>(model.burst_ns()), full.background_share);
}

}  // namespace
}  // namespace sluice::bench

// Columns: link Gb/s, urgent frame's bytes, shaped, seed, idle p50 and p99, full p50 and p99, one
// burst (all ns), the background's share of the link.
int main() {
  for (const std::uint64_t gbps : {1, 10, 100})
    for (const std::uint32_t urgent_bytes : {64u, 1518u})
      for (const bool shaped : {true, false})
        for (std::uint32_t seed = 1; seed <= 5; ++seed)
          sluice::bench::print_row(gbps, urgent_bytes, shaped, seed);
  return 0;
}
