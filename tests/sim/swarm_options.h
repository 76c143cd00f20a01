// Everything that a seed decides about one swarm run, drawn up front so that it can be printed.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/random.h"
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

// How a job that tolerates stragglers loses a rank and goes on.
enum class LossKind : std::uint8_t {
  kKilled,    // a process; its host lives
  kHostDown,  // with its host, in silence
  kFrozen,    // stopped like SIGSTOP, and continued
  kCutOff,    // from the network
};

struct Loss {
  LossKind kind{};
  Rank rank;
  TimeNs at = 0;  // not before the job has started
  DurationNs away_ns = 0;
  bool returns = false;  // killed: another process takes the rank. Frozen: no other process does
};

struct SwarmJob {
  JobPlan plan;
  std::vector<Loss> losses;  // of a job that tolerates stragglers
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
  bool keep_log = false;
  WorldOptions world;  // with the faulty links of the safety phase
  TimeNs faults_stop_at = 0;
  std::vector<SwarmJob> jobs;
  std::vector<SwarmFault> faults;
};

// Jobs of even seeds tolerate stragglers, but for some; those of odd seeds are synchronous.
SwarmOptions draw_swarm(std::uint64_t seed);
void let_tolerate_stragglers(Random& random, SwarmJob& job, TimeNs faults_stop_at);
std::string describe_stragglers(const SwarmJob& job);
// One line for the network and one a job.
std::string describe(const SwarmOptions& options);

}  // namespace sluice::sim
