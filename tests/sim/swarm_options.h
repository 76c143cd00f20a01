// Everything that a seed decides about one swarm run, drawn before the run so that it can be
// printed.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/random.h"
#include "tests/sim/world.h"

namespace sluice::sim {

// The event that ends a job before its time. All but kNone and kEarlyEnd must end in an error that
// names the rank.
enum class Fatality : std::uint8_t {
  kNone,
  kProcessDies,    // its host lives and says that the port is closed
  kHostDies,       // silence
  kAbnormalLeave,  // the application gives up
  kEarlyEnd,       // it ends in order, and the others go on
  kLongPause,      // stopped for longer than member_timeout, then goes on
  kLongPartition,  // cut off for longer than member_timeout
};

// The loss of a rank in a job that tolerates stragglers and goes on.
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
  bool returns = false;  // kKilled: to another process. kFrozen: false gives the rank away
};

struct SwarmJob {
  JobPlan plan;
  std::vector<Loss> losses;  // of a job that tolerates stragglers, or a store
  bool loses_all = false;    // they take every rank of a store, once it has something to keep
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

// The control thread or a shard stops for a while.
struct Absence {
  bool control = false;
  std::uint16_t shard = 0;  // unless control
  TimeNs at = 0;
  DurationNs duration_ns = 0;
};

// A host's link goes down several times.
struct Flap {
  std::uint32_t worker = 0;  // by index, over all jobs
  TimeNs at = 0;
  bool seen =
      false;  // by the appliance, each time, as it sees a socket that closes and opens again
  std::vector<std::pair<DurationNs, DurationNs>> times;  // durations down and up
};

// The route of all hosts changes: what the links carry, from now on.
struct RateChange {
  TimeNs at = 0;
  std::uint64_t bytes_per_second = 0;
};

// An address translator forgets a process, whose packets then come from another port.
struct Rebind {
  std::uint32_t worker = 0;  // by index, over all jobs
  TimeNs at = 0;
};

// The appliance is killed and started again.
struct Restart {
  TimeNs at = 0;  // not before all jobs have started
  DurationNs down_ns = 0;
  std::size_t box = 0;
  bool drains = false;  // and is killed a while later
};

// Nothing passes between a host and one of two appliances for a while.
struct Cut {
  std::uint32_t worker = 0;  // by index, over all jobs
  std::size_t box = 0;
  TimeNs at = 0;
  DurationNs duration_ns = 0;
};

// A process that misbehaves within its rights.
enum class MisfitKind : std::uint8_t {
  kStorm,     // a member of another job probes for everything in a loop
  kIdle,      // joins and never goes on, or joins again and again
  kTwin,      // a second process with the rank and the run of one that lives
  kOtherRun,  // a rank of another run under the name of a job that lives
};

struct Misfit {
  MisfitKind kind{};
  std::size_t job = 0;  // kTwin, kOtherRun: whose
  Rank rank;
  TimeNs at = 0;
  DurationNs duration_ns = 0;
  DurationNs interval_ns = 0;
  std::uint32_t times = 0;
};

struct SwarmOptions {
  std::uint64_t seed = 0;
  bool keep_log = false;
  WorldOptions world;  // with the faulty links of the safety phase
  TimeNs faults_stop_at = 0;
  std::vector<SwarmJob> jobs;
  std::vector<SwarmFault> faults;
  std::vector<Absence> absences;
  std::vector<Flap> flaps;
  std::vector<Rebind> rebinds;
  std::vector<Misfit> misfits;
  std::vector<RateChange> rate_changes;
  std::vector<Restart> restarts;  // each some time after the one before
  std::vector<Cut> cuts;

  // The time that the appliance's own absences may cost every worker.
  DurationNs absent_ns() const;
  // What its restarts may cost, likewise.
  DurationNs restart_ns() const;
  // Whether a brief fault or a flapping link is for this process.
  bool is_hit(std::uint32_t worker) const;
};

// Most jobs of even seeds tolerate stragglers; jobs of odd seeds are synchronous.
SwarmOptions draw_swarm(std::uint64_t seed);
void let_tolerate_stragglers(Random& random, SwarmJob& job, TimeNs faults_stop_at);
void let_be_late_in_parts(std::uint64_t seed, JobPlan& plan);
// In some seeds one job has more than 64 ranks.
void let_be_many(Random& random, SwarmOptions& options);
void draw_trials(std::uint64_t seed, SwarmOptions& options);
// A third of the seeds: the appliance restarts, and the jobs go on.
void draw_restarts(std::uint64_t seed, SwarmOptions& options);
// In some of these seeds a job of operations is the last one.
void draw_operations(Random& random, SwarmOptions& options);
// In half of these seeds there is a second appliance, to which they move.
void draw_standby(Random& random, SwarmOptions& options);
std::string describe_trials(const SwarmOptions& options);
std::string describe_stragglers(const SwarmJob& job);
std::string describe_losses(const SwarmJob& job);
// Every third seed has a parameter store, its last job.
void draw_store(std::uint64_t seed, SwarmOptions& options);
std::string describe_store(const SwarmJob& job);
// One line for the network and one line for each job.
std::string describe(const SwarmOptions& options);

}  // namespace sluice::sim
