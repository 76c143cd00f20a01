// A BCube of relays and appliances in a world of its own, which every fifth seed has besides.
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
// Adds the cube's results to those of the seed's other jobs.
void run_bcube(const BcubeSwarm& swarm, SwarmOutcome& outcome);

// Checks a run in which something has died. Empty: no error.
std::string check_failures(const BcubeSwarm& swarm, const BcubeWorld& world);

}  // namespace sluice::sim
