// Schedulers that decide anew for every packet: one queue a shard, and the most urgent head among
// the shards that may send, in turn when several are equally urgent.
//
// Same interface and preconditions as Scheduler (scheduler.h), which chooses between such classes.
#pragma once

#include <string>
#include <vector>

#include "aggregator/base/limits.h"
#include "client/sched/choice.h"

namespace sluice::client {

template <class Queue>
class PacketQueues {
 public:
  explicit PacketQueues(const ScheduleSetup& setup)
      : links_(setup.chunk_count), queues_(setup.shard_count, Queue(links_)) {}
  PacketQueues(const PacketQueues&) = delete;  // the queues view links_
  PacketQueues& operator=(const PacketQueues&) = delete;

  void begin_step(TimeNs) noexcept {}
  void push(ChunkIndex chunk, Priority priority, TimeNs) noexcept {
    queues_[shard_of(chunk, shard_count())].push(chunk, priority);
  }
  void push_again(ChunkIndex chunk, Priority priority) noexcept { push(chunk, priority, 0); }

  bool next(const Opportunity& opportunity, Choice& choice) noexcept {
    int most_urgent = 256;
    for (std::uint16_t turn = 0; turn < shard_count(); ++turn) {
      const auto shard = static_cast<std::uint16_t>((next_shard_ + turn) % shard_count());
      if (queues_[shard].empty() || !opportunity.is_open(shard)) continue;
      if (queues_[shard].top() >= most_urgent) continue;
      most_urgent = queues_[shard].top();
      choice.shard = shard;
    }
    if (most_urgent == 256) return false;
    Queue& queue = queues_[choice.shard];
    choice.chunk = queue.pop();
    choice.last = queue.empty();
    next_shard_ = static_cast<std::uint16_t>((choice.shard + 1) % shard_count());
    return true;
  }

  TimeNs next_wake() const noexcept { return kNever; }
  void clear() noexcept {
    for (Queue& queue : queues_) queue.clear();
  }

 private:
  std::uint16_t shard_count() const noexcept { return static_cast<std::uint16_t>(queues_.size()); }

  std::vector<ChunkIndex> links_;
  std::vector<Queue> queues_;
  std::uint16_t next_shard_ = 0;
};

}  // namespace sluice::client
