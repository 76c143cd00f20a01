// What a worker of a parameter store may read, recomputed from what was pushed.
//
// A rank's pushes add kUnit / n to every element of its own (those with index % world_size == rank)
// and nothing to others; n are the members of that moment, so all sums are whole numbers. From a
// chunk that was read, the oracle takes apart how much of each rank is in it: no less than the
// bound asks for and no more than was pushed, whole pushes only, all of the reader's own, never
// less than it has read before. While nobody was lost n is known, and so is the number of pushes.
// With bound 0, and when all is over, everybody reads the same. It knows what the applications did,
// and nothing of either end.
//
// Optimizers with a memory are compared with one of its own a rank, which steps once an iteration:
// with bound 0, while nobody was lost, to the last bit. Else a push of SGD with momentum 0.5 is in
// what is read at least once and less than twice over.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "client/core/calls/layout.h"
#include "tests/sim/oracle.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

class StoreOracle {
 public:
  static constexpr std::uint16_t kMostRanks = 5;
  static constexpr float kUnit = 2520;  // the least that 1 to 2 * kMostRanks divide

  explicit StoreOracle(Oracle& oracle) : oracle_(oracle) {}

  // A process joined and will push `first` first.
  void joined(const Party& party, const JobPlan& plan, Step first);
  // It has pushed a layer's part of an iteration; the store has counted it.
  void pushed(const Party& party, std::uint32_t layer, Step iteration);
  void counted(const Party& party, std::uint32_t layer, Step iteration);

  struct Read {
    Party party;
    std::uint32_t layer = 0;
    Step iteration = 0;  // that computes with it; kLastStep: all are over
    std::uint32_t tensor = 0;
    std::span<const float> values;
  };
  void check(const Read& read, const JobPlan& plan, const client::Layout& layout);
  std::uint64_t reads_checked() const { return reads_checked_; }

 private:
  struct Process {
    Rank rank;
    Step first = 0;
    std::vector<Step> pushed, counted;  // by layer: the last iteration; 0: none
  };
  struct Run {
    std::map<ProcessIndex, Process> processes;  // of a rank in the order in which they came
    std::map<std::tuple<std::uint32_t, ChunkIndex, std::uint16_t>, double> read;  // process, , rank
    std::map<std::tuple<ChunkIndex, Step, std::uint16_t>, double> same;
  };
  struct Limits {
    std::uint32_t least = 0, most = 0;  // pushes
  };

  Process& process(const Party& party) { return runs_[party.run].processes[party.process]; }
  static Limits limits(const Run& run, const Read& read, Rank rank, const JobPlan& plan);
  float expected_after(Step iterations, const JobPlan& plan) const;
  void check_rank(Run& run, const Read& read, ChunkIndex chunk, Rank rank, float found,
                  const JobPlan& plan);

  Oracle& oracle_;
  std::map<RunIndex, Run> runs_;
  std::uint64_t reads_checked_ = 0;
};

}  // namespace sluice::sim
