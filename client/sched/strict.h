// The scheduler `strict`: the most urgent chunk first, first come first served within a priority.
// There is a bucket for each of the 256 priorities and a find-first-set over them, so every
// operation takes constant time.
//
// Each shard has a queue (shard_queues.h). All queues may share one array of links, because a chunk
// belongs to one shard. The session's thread only.
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
  static constexpr const char* kPlan =
      "strict: the most urgent packet that is ready, whenever one can be sent\n";
  static constexpr int kNothing = 256;  // beyond the least urgent priority

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

  // The most urgent priority of waiting chunks, leaving out those more urgent than `floor`; or
  // kNothing.
  int top(Priority floor) const noexcept {
    std::size_t word = floor / 64;
    std::uint64_t waiting = occupied_[word] & ~std::uint64_t{0} << (floor % 64);
    while (waiting == 0) {
      if (++word == occupied_.size()) return kNothing;
      waiting = occupied_[word];
    }
    return static_cast<int>(64 * word) + std::countr_zero(waiting);
  }
  bool has(Priority priority) const noexcept {
    return occupied_[priority / 64] >> (priority % 64) & 1;
  }

  // Precondition of both: has(priority).
  ChunkIndex head(Priority priority) const noexcept { return buckets_[priority].head; }
  void pop(Priority priority) noexcept {
    Bucket& bucket = buckets_[priority];
    if (bucket.head == bucket.tail)
      occupied_[priority / 64] &= ~(std::uint64_t{1} << (priority % 64));
    else
      bucket.head = links_[bucket.head];
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
