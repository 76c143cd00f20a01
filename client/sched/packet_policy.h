// The policies that decide anew for every packet and hand out as many as the network takes:
// `strict` with StrictQueue, `fifo` with FifoQueue. Same interface and preconditions as Scheduler
// (scheduler.h).
#pragma once

#include <array>
#include <string>

#include "client/sched/shard_queues.h"

namespace sluice::client {

template <class Queue>
class PacketPolicy {
 public:
  explicit PacketPolicy(const ScheduleSetup& setup) : queues_(setup) {}

  void begin_step(TimeNs) noexcept {}
  void push(ChunkIndex chunk, Priority priority, TimeNs) noexcept { queues_.push(chunk, priority); }
  void push_along(ChunkIndex, Priority, TimeNs) noexcept {}
  void push_again(ChunkIndex chunk, Priority priority) noexcept { queues_.push(chunk, priority); }
  void push_rest(ChunkIndex chunk, Priority priority) noexcept { queues_.push(chunk, priority); }
  bool next(const WindowState& windows, Choice& choice) noexcept {
    typename ShardQueues<Queue>::Head head;
    if (queues_.find(windows.open_shards, 0, head))
      filled_with_[head.shard] = head.priority;
    else if (!queues_.find(overtaking(windows.urgent_shards), 0, head))
      return false;
    queues_.take(head);
    choice = {.chunk = head.chunk, .shard = head.shard, .last = queues_.empty(head.shard)};
    return true;
  }
  bool waits_for_arrival() const noexcept { return false; }
  void clear() noexcept { queues_.clear(); }
  void relearn() noexcept {}
  std::string describe_plan() const { return Queue::kPlan; }

 private:
  // The shards among these whose most urgent chunk is more urgent than the last one that filled
  // their window.
  std::uint64_t overtaking(std::uint64_t shards) const noexcept {
    std::uint64_t result = 0;
    for (std::uint16_t shard = 0; shard < queues_.shard_count(); ++shard)
      if ((shards >> shard & 1) && queues_.top(shard) < filled_with_[shard])
        result |= std::uint64_t{1} << shard;
    return result;
  }

  ShardQueues<Queue> queues_;
  std::array<Priority, kMaxShards> filled_with_{};
};

}  // namespace sluice::client
