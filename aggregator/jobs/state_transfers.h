// Transfers of state: which rank gives its parameters and optimizer state to a rank that has none
// or fell too far behind, and how long the window waits for that.
//
// Resyncs keeps the line, one transfer a job at a time; the window waits for the transfer under way
// alone. The target drives its transfer: it repeats its request until a status names it. Part of a
// JobControl, which evicts the ranks that cannot be given state.
#pragma once

#include <optional>
#include <string>

#include "aggregator/jobs/context.h"

namespace sluice::agg {

class StateTransfers {
 public:
  // A rank that must leave the job, and the text that it is told.
  struct Eviction {
    Rank rank;
    std::string why;
  };

  StateTransfers(JobEntry& entry, ControlContext& context) noexcept
      : entry_(entry), context_(context) {}

  // The rank wants state, or has it, as its request `number`. The caller calls advance() then.
  void ask(Rank rank, std::uint32_t number, TimeNs now);
  void finish(Rank rank, std::uint32_t number);
  // Carries out all that time or the last packet changed. After an eviction the next rank in line
  // may have its turn, so the caller evicts and calls again. Precondition: the job goes on.
  [[nodiscard]] std::optional<Eviction> advance(TimeNs now);
  // A process that returned and has not asked for state for too long: steps whose k needs it would
  // wait for ever.
  [[nodiscard]] std::optional<Eviction> check_idle_return(Rank rank, TimeNs now) const;

  // Shard 0 has opened a transfer with this first step.
  void opened(Step first_step);
  // Whether the transfer that shard 0 means by this step has lost its source.
  bool has_lost_source(Step step) const noexcept;
  // Another rank becomes the source of the transfer under way. Without one the target is evicted,
  // unless it may follow the others to another appliance.
  [[nodiscard]] std::optional<Eviction> replace_source(TimeNs now);

  // The rank is no member any more. Where it was the source, advance() finds another.
  void forget(Rank rank);

 private:
  std::optional<Eviction> check(TimeNs now);
  void start(Rank source, TimeNs now);
  void open(Rank source, TimeNs now);
  void end();
  std::optional<Rank> choose_source(Rank target, TimeNs now) const;
  std::optional<Eviction> give_up(Rank target) const;
  std::string describe_hold(TimeNs now) const;
  std::string describe_no_source(Rank target) const;

  JobEntry& entry_;
  ControlContext& context_;
};

}  // namespace sluice::agg
