// What a run is tried with besides its faulty network: an appliance that does not run for a while,
// links that flap, addresses that change, and processes that misbehave within their rights. No job
// may be harmed by any of it: the bounds of a run grow by the appliance's own absence, by the time
// that it takes to make the memory of jobs, and by nothing else.
#pragma once

#include <deque>
#include <set>
#include <string>

#include "tests/sim/swarm_options.h"

namespace sluice::sim {

class Trials {
 public:
  // Both outlive this. `runs`: of the options' jobs, in their order.
  Trials(World& world, const SwarmOptions& options, std::vector<RunIndex> runs);

  // `hit`: processes that a brief fault is for; flapping links add theirs.
  void schedule(std::set<std::uint32_t>& hit);

 private:
  void schedule(const Flap& flap);
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
