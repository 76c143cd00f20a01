// Which process holds each rank of a job, and what the shards are told of it.
//
// A rank is taken while the job forms, and taken again in a job that runs on without it: in a
// store, and in a job whose policy lets a step complete without one of the ranks. A synchronous job
// ends with its first loss (ending.cc). Part of a JobControl, which decides who gets or loses a
// rank.
#pragma once

#include "aggregator/jobs/context.h"
#include "aggregator/jobs/replies.h"

namespace sluice::agg {

class RankHolders {
 public:
  RankHolders(JobEntry& entry, ControlContext& context) noexcept
      : entry_(entry), context_(context) {}

  // The process that has sent the join takes the rank, with a cookie of its own.
  void occupy(const Request& request);
  // What its join says of a lost appliance, and of others.
  void note_resumption(const Request& request) noexcept;
  // The job is about to go on from there without the ranks that give nothing.
  void resume(const Resumed& resumed, TimeNs now) noexcept;
  // A job of operations goes on from an appliance that is lost with the ranks that have joined.
  void go_on_without_absent() noexcept;
  // From now on no step waits for the rank and no result is sent to it.
  void remove(Rank rank) noexcept;

  // A process holds the rank of a running job again: a new process, or the old one after a pause.
  // It contributes from a step on whose record no shard has yet, and is accepted when shard 0 knows
  // it.
  void rejoin(Rank rank, TimeNs now);
  // A shard drops events when too many wait. A member that speaks while it waits asks for them.
  void repeat_rejoin(Rank rank, TimeNs now);
  // Shard 0 knows the process.
  void admitted(Rank rank, TimeNs now);
  // Of a store: admits the processes for which every shard holds its clocks now. They start behind
  // the greatest clock.
  void start_joiners(TimeNs now);

 private:
  Cookie make_cookie(Rank rank, std::uint64_t nonce) noexcept;
  std::uint64_t next_exchange() noexcept;

  JobEntry& entry_;
  ControlContext& context_;
};

}  // namespace sluice::agg
