// One swarm run: a safety phase with faults, then a liveness phase without, and the verdict.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/swarm_options.h"

namespace sluice::sim {

struct SwarmOutcome {
  bool ok = false;
  std::string violations;  // one a line
  std::string log;         // every session's events, one a line; when asked for
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::uint64_t results_checked = 0;
  std::uint64_t reads_checked = 0;  // chunks that workers of stores have read
  std::uint64_t results_sent = 0;   // copies for members
  std::uint64_t results_due = 0;    // that a network without faults would have carried
  std::uint64_t contributions = 0;
  std::uint64_t contributions_due = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t probes = 0;
  std::uint64_t partial_results = 0;  // without some rank
  std::uint64_t empty_results = 0;    // of chunks that all ranks have passed
  std::uint64_t requeued = 0;         // chunks that count in a later step
  std::uint64_t caught_up = 0;        // steps that a worker applied without a gradient of its own
  std::uint64_t resyncs = 0;
  std::uint64_t restarts = 0;     // of a worker's appliance, that its job has survived
  std::uint64_t handed_over = 0;  // results that one rank gave to others then
  TimeNs virtual_time_ns = 0;
  std::uint32_t jobs_completed = 0;
  std::uint32_t jobs_failed_as_promised = 0;
};

SwarmOutcome run_swarm(const SwarmOptions& options);

}  // namespace sluice::sim
