// What every fifth seed has besides: a BCube of relays and appliances, in a world of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/bcube_world.h"
#include "tests/sim/swarm_run.h"

namespace sluice::sim {

struct BcubeSwarm {
  BcubeOptions options;
  TimeNs faults_stop_at = 0;
  std::vector<BcubeWorld::Absence> absences;
  std::optional<BcubeWorld::Death> death;
};

inline bool has_bcube(std::uint64_t seed) { return seed % 5 == 0; }
BcubeSwarm draw_bcube(std::uint64_t seed);
std::string describe(const BcubeSwarm& swarm);
// Adds to what the seed's other jobs came to.
void run_bcube(const BcubeSwarm& swarm, SwarmOutcome& outcome);

// Of a run in which something has died; empty: nothing is wrong.
std::string check_failures(const BcubeSwarm& swarm, const BcubeWorld& world);

}  // namespace sluice::sim
