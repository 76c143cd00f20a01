// The values that a worker of a parameter store may read, recomputed from the pushes.
//
// A rank's push adds kUnit / n to every element of its own (those with index % world_size == rank)
// and nothing to others. n is the number of members at that moment, so all sums are whole numbers.
// The oracle finds in a chunk how much of each rank is in it: at least what the bound asks for, at
// most what was pushed, whole pushes only, all pushes of the reader, never less than the reader has
// read before. While no rank was lost, n is known, and so is the number of pushes. With bound 0,
// and after the end, all ranks read the same values. The oracle knows the applications' acts, and
// nothing of the inside of either end.
//
// After a restart a push that is acknowledged may be counted anew, so a read without bound 0 may
// lack it. Where the store has moved, it may go on without a rank for a while.
//
// Optimizers with a memory are compared with an optimizer of the oracle's own for each rank, which
// steps once an iteration: with bound 0, while no rank was lost, to the last bit. Otherwise a push
// of SGD with momentum 0.5 is at least once and less than twice in a value that is read.
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

  // A process has joined; `first` is its first iteration.
  void joined(const Party& party, const JobPlan& plan, Step first);
  // A process has pushed a layer's part of an iteration; the store has counted the push.
  void pushed(const Party& party, std::uint32_t layer, Step iteration);
  void counted(const Party& party, std::uint32_t layer, Step iteration);

  // The run's appliance is lost, and with it the state of its optimizer.
  void note_restart(RunIndex run) { runs_[run].has_restarted = true; }
  // The run goes on at another appliance, which a process for which it had not begun may reach
  // later, and one that another rank's last push has left before.
  void note_move(RunIndex run) { runs_[run].has_restarted = runs_[run].has_moved = true; }

  struct Read {
    Party party;
    std::uint32_t layer = 0;
    Step iteration = 0;  // the iteration that computes with it; kLastStep: after the end
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
    // By process, chunk and rank.
    std::map<std::tuple<std::uint32_t, ChunkIndex, std::uint16_t>, double> read;
    std::map<std::tuple<ChunkIndex, Step, std::uint16_t>, double> same;
    bool has_restarted = false, has_moved = false;
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
