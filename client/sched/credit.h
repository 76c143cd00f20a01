// The scheduler `credit`: ByteScheduler (SOSP 2019). Each tensor is cut into units of at most
// `unit_bytes`. The most urgent unit begins when less than `credit_bytes` are in flight, and a unit
// that has begun is sent as a whole. A credit of one packet, with units as big as any tensor, is
// the stop-and-wait priority of a parameter server.
//
// Credit returns when packets are known to have arrived, not when their results come: ranks that
// send in different orders would else wait for each other's results for ever. The shards share the
// credit. The rest of a unit in a shard whose window is closed delays no other chunk, and counts as
// a unit of its own later. Lost chunks need no credit, since their unit had it. Same interface and
// preconditions as Scheduler (scheduler.h). Pure; no allocation after construction.
#pragma once

#include <cstdint>
#include <string>

#include "client/sched/shard_queues.h"
#include "client/sched/strict.h"
#include "client/sched/tensors.h"

namespace sluice::client {

class CreditPolicy {
 public:
  CreditPolicy(const ScheduleOptions& options, const ScheduleSetup& setup);

  void begin_step(TimeNs) noexcept {}
  void push(ChunkIndex chunk, Priority priority, TimeNs) noexcept { fresh_.push(chunk, priority); }
  void push_along(ChunkIndex, Priority, TimeNs) noexcept {}
  void push_again(ChunkIndex chunk, Priority priority) noexcept { lost_.push(chunk, priority); }
  void push_rest(ChunkIndex chunk, Priority priority) noexcept { lost_.push(chunk, priority); }
  bool next(const WindowState& windows, Choice& choice) noexcept;
  bool waits_for_arrival() const noexcept { return waits_; }
  void clear() noexcept;
  void relearn() noexcept {}
  std::string describe_plan() const;

 private:
  using Queues = ShardQueues<StrictQueue>;
  struct Unit {
    ChunkIndex begin = 0;  // its chunks, [begin, end); none: no unit has begun
    ChunkIndex end = 0;
    Priority priority = 0;
    bool has(ChunkIndex chunk) const noexcept { return chunk >= begin && chunk < end; }
  };

  Unit unit_of(const Queues::Head& head) const noexcept;
  bool find_in_unit(std::uint64_t shards, Queues::Head& head) const noexcept;

  const TensorChunks tensors_;
  const std::uint32_t unit_packets_;
  const std::uint32_t credit_packets_;
  Queues fresh_;
  Queues lost_;
  Unit unit_;
  bool waits_ = false;
};

}  // namespace sluice::client
