// The gauges of a store's shard: clocks of the members, parked pulls, staleness of reads. Written
// by the shard's thread, read by any thread; values that change together may be read at different
// moments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aggregator/base/counters.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

// Iterations by which readers were behind their own: how many pulls of a block read so.
class StalenessHistogram {
 public:
  static constexpr std::uint32_t kBounds[] = {0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100};
  static constexpr std::size_t kBuckets = std::size(kBounds) + 1;  // the last one has no bound

  void observe(std::uint32_t iterations) noexcept {
    std::size_t bucket = 0;
    while (bucket + 1 < kBuckets && iterations > kBounds[bucket]) ++bucket;
    buckets_[bucket].add(1);
    sum_.add(iterations);
  }
  std::uint64_t bucket(std::size_t index) const noexcept { return buckets_[index].read(); }
  std::uint64_t sum() const noexcept { return sum_.read(); }

 private:
  Counter buckets_[kBuckets];
  Counter sum_;
};

struct StoreGauges {
  // Pulls of a block that are parked, waiting for pushes.
  struct Parked {
    Counter now;
    Counter ever;
  };
  static constexpr Step kNoClock = UINT32_MAX;

  explicit StoreGauges(std::uint16_t world_size) : clocks(world_size) {}

  std::vector<std::atomic<Step>> clocks;  // by rank: its iterations that are whole in all blocks;
                                          // kNoClock: it counts nowhere
  std::vector<Parked> parked{256};        // by priority: the layer's place, as far as it goes
  // The greatest clock of its blocks, where a clock counts as soon as one of its chunks is applied.
  // It stays when the members leave.
  std::atomic<Step> greatest_clock{0};
  // Chunks with initial values, and blocks whose chunks all have them.
  std::atomic<std::uint32_t> initial_chunks{0}, initial_blocks{0};
  std::atomic<TimeNs> oldest_parked_ns{0};  // when the oldest parked pull was parked; 0: none is
  Histogram waits;                          // of pulls that were parked and are answered now
  StalenessHistogram staleness;
};

}  // namespace sluice::agg
