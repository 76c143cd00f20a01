// The chunks that wait to be sent, in a queue for each shard, and the choice among the heads: the
// most urgent one of the shards that may send, in turn if several are equally urgent. All policies
// use it; Queue is StrictQueue or FifoQueue. Pure; no allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/base/limits.h"
#include "client/sched/choice.h"

namespace sluice::client {

template <class Queue>
class ShardQueues {
 public:
  static constexpr int kNothing = Queue::kNothing;

  explicit ShardQueues(const ScheduleSetup& setup)
      : links_(setup.chunk_count), queues_(setup.shard_count, Queue(links_)) {}
  ShardQueues(const ShardQueues&) = delete;  // the queues view links_
  ShardQueues& operator=(const ShardQueues&) = delete;

  struct Head {
    ChunkIndex chunk = 0;
    std::uint16_t shard = 0;
    Priority priority = 0;
  };

  void push(ChunkIndex chunk, Priority priority) noexcept {
    queues_[shard_of(chunk, shard_count())].push(chunk, priority);
  }
  // Finds the next head in `shards` (bit s: shard s), leaving out chunks more urgent than `floor`.
  // False: there is none.
  bool find(std::uint64_t shards, Priority floor, Head& head) const noexcept {
    int most_urgent = kNothing;
    for (std::uint16_t turn = 0; turn < shard_count(); ++turn) {
      const std::uint16_t shard = after(next_shard_, turn);
      if (!(shards >> shard & 1)) continue;
      const int top = queues_[shard].top(floor);
      if (top >= most_urgent) continue;
      most_urgent = top;
      head.shard = shard;
    }
    if (most_urgent == kNothing) return false;
    head.priority = static_cast<Priority>(most_urgent);
    head.chunk = queues_[head.shard].head(head.priority);
    return true;
  }
  // As find(), but only for heads of exactly this priority for whose chunk `wanted` is true.
  template <class Wanted>
  bool find_at(std::uint64_t shards, Priority priority, Wanted wanted, Head& head) const noexcept {
    for (std::uint16_t turn = 0; turn < shard_count(); ++turn) {
      const std::uint16_t shard = after(next_shard_, turn);
      const Queue& queue = queues_[shard];
      if (!(shards >> shard & 1) || !queue.has(priority) || !wanted(queue.head(priority))) continue;
      head = {.chunk = queue.head(priority), .shard = shard, .priority = priority};
      return true;
    }
    return false;
  }
  // Precondition: `head` was found since the last change.
  void take(const Head& head) noexcept {
    queues_[head.shard].pop(head.priority);
    next_shard_ = after(head.shard, 1);
  }
  int top(std::uint16_t shard) const noexcept { return queues_[shard].top(0); }
  bool empty(std::uint16_t shard) const noexcept { return queues_[shard].empty(); }
  bool empty() const noexcept {
    for (const Queue& queue : queues_)
      if (!queue.empty()) return false;
    return true;
  }
  void clear() noexcept {
    for (Queue& queue : queues_) queue.clear();
  }
  std::uint16_t shard_count() const noexcept { return static_cast<std::uint16_t>(queues_.size()); }

 private:
  std::uint16_t after(std::uint16_t shard, std::uint16_t turns) const noexcept {
    const auto next = static_cast<std::uint16_t>(shard + turns);
    return next < shard_count() ? next : static_cast<std::uint16_t>(next - shard_count());
  }

  std::vector<ChunkIndex> links_;
  std::vector<Queue> queues_;
  std::uint16_t next_shard_ = 0;  // the shard whose turn it is
};

}  // namespace sluice::client
