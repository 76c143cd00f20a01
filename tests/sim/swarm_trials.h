// The trials of a run besides its faulty network: absences of the appliance, links that flap,
// addresses that change, and processes that misbehave within their rights. They must harm no job.
// The bounds of a run grow only by the appliance's own absence and by the time of allocating the
// jobs' memory.
#pragma once

#include <deque>
#include <set>
#include <string>

#include "tests/sim/swarm_options.h"

namespace sluice::sim {

class Trials {
 public:
  // `world` and `options` outlive this object. `runs`: of the options' jobs, in their order.
  Trials(World& world, const SwarmOptions& options, std::vector<RunIndex> runs);

  // `hit`: processes with a brief fault; adds those behind a flapping link.
  void schedule(std::set<std::uint32_t>& hit);

 private:
  void schedule(const Flap& flap);
  void schedule_restart(std::size_t index);
  void schedule(const Misfit& misfit);
  bool may_begin(const Misfit& misfit) const;
  void begin(const Misfit& misfit);
  void begin_storm(const Misfit& misfit);
  void probe(const Misfit& misfit, RunIndex run, std::uint32_t left);
  void begin_idle(const Misfit& misfit);
  void join_again(const Misfit& misfit, RunIndex run, std::uint32_t times);

  World& world_;
  const SwarmOptions& options_;
  const std::vector<RunIndex> runs_;
};

}  // namespace sluice::sim
