// Everything that a seed decides about one swarm run, drawn up front so that it can be printed.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace sluice::sim {

// What ends a job before its time. All but kNone must end in an error that names the rank.
enum class Fatality : std::uint8_t {
  kNone,
  kProcessDies,    // its host lives and says that the port is closed
  kHostDies,       // silence
  kAbnormalLeave,  // the application gives up
  kLongPause,      // stopped for longer than member_timeout, then goes on
  kLongPartition,  // cut off for longer than member_timeout
};

struct SwarmJob {
  JobPlan plan;
  Fatality fatality = Fatality::kNone;
  Rank victim;
  TimeNs fatal_at = 0;   // not before the job has started
  bool returns = false;  // the whole job starts again, as a new run under the old name
  DurationNs return_delay_ns = 0;
};

enum class BriefFault : std::uint8_t { kPartition, kPause, kBlockedDownlink };

struct SwarmFault {
  BriefFault kind{};
  std::uint32_t worker = 0;  // by index, over all jobs
  TimeNs at = 0;
  DurationNs duration_ns = 0;
};

struct SwarmOptions {
  std::uint64_t seed = 0;
  WorldOptions world;  // with the faulty links of the safety phase
  TimeNs faults_stop_at = 0;
  std::vector<SwarmJob> jobs;
  std::vector<SwarmFault> faults;
};

SwarmOptions draw_swarm(std::uint64_t seed);
// One line for the network and one a job.
std::string describe(const SwarmOptions& options);

}  // namespace sluice::sim
