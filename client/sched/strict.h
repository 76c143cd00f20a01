// The scheduler `strict`: always the most urgent chunk first, first come first served inside a
// priority. One bucket a priority and a find-first-set over the 256 of them, so every operation
// takes the same time whatever waits.
//
// One shard has one queue (packet_queues.h); all of them may share one array of links, because a
// chunk belongs to one shard. The session's thread only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/types.h"

namespace sluice::client {

class StrictQueue {
 public:
  // `links` has one entry for each chunk that will ever be pushed, and outlives the queue.
  explicit StrictQueue(std::span<ChunkIndex> links) noexcept : links_(links) {}

  // Precondition: `chunk` is not in the queue.
  void push(ChunkIndex chunk, Priority priority) noexcept {
    std::uint64_t& word = occupied_[priority / 64];
    const std::uint64_t bit = std::uint64_t{1} << (priority % 64);
    Bucket& bucket = buckets_[priority];
    if (word & bit) {
      links_[bucket.tail] = chunk;
    } else {
      bucket.head = chunk;
      word |= bit;
    }
    bucket.tail = chunk;
  }

  bool empty() const noexcept {
    return (occupied_[0] | occupied_[1] | occupied_[2] | occupied_[3]) == 0;
  }

  // The most urgent priority that waits. Precondition: !empty().
  Priority top() const noexcept {
    for (std::size_t word = 0; word < occupied_.size(); ++word)
      if (occupied_[word] != 0)
        return static_cast<Priority>(64 * word + std::countr_zero(occupied_[word]));
    return 255;
  }

  // Precondition: !empty().
  ChunkIndex pop() noexcept {
    const Priority priority = top();
    Bucket& bucket = buckets_[priority];
    const ChunkIndex chunk = bucket.head;
    if (chunk == bucket.tail)
      occupied_[priority / 64] &= ~(std::uint64_t{1} << (priority % 64));
    else
      bucket.head = links_[chunk];
    return chunk;
  }

  void clear() noexcept { occupied_ = {}; }

 private:
  struct Bucket {
    ChunkIndex head = 0;
    ChunkIndex tail = 0;
  };
  std::span<ChunkIndex> links_;
  std::array<Bucket, 256> buckets_{};
  std::array<std::uint64_t, 4> occupied_{};
};

}  // namespace sluice::client
