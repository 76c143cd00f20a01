// Carries out the losses of a job that tolerates stragglers, or of a store, as hosts and a launcher
// that restarts failed ranks would. At the end it checks the fate of every rank.
#pragma once

#include <string>

#include "tests/sim/swarm_options.h"

namespace sluice::sim {

class Losses {
 public:
  // The arguments outlive this object.
  Losses(World& world, const SwarmJob& job, RunIndex run);

  void schedule();
  // After the run: adds to the world's violations.
  void check();
  // The virtual time that the losses may cost.
  DurationNs longest_ns() const;

 private:
  void strike(const Loss& loss);
  void come_back(const Loss& loss, bool host_too);
  void watch(Rank rank, std::uint32_t attempts);
  bool may_strike() const;
  bool given_up() const;
  bool waited_in_vain(const Worker& worker) const;
  bool nobody_has_the_state() const;
  bool excused(const Worker& worker) const;
  const Loss* loss_of(Rank rank) const;

  World& world_;
  const SwarmJob& job_;
  const RunIndex run_;
  std::uint32_t struck_ = 0;  // losses so far
  std::uint32_t unseen_ = 0;  // the last of them that came while the control side was away
  std::uint32_t most_unseen_ = 0;
};

}  // namespace sluice::sim
