// Payloads of a reproducible job that arrived before those of lower ranks and wait for their turn,
// all for the open step.
//
// Every rank but the first may be early with every chunk, so there is a place for each of them. A
// payload takes the place that was freed last: when ranks are close to each other, few places are
// used, and they stay in the cache. The memory is allocated beforehand. Used by one shard's lcore.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/prefault.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

class EarlyPayloads {
 public:
  // The number of places: for each chunk, one for every rank but the first.
  static std::size_t place_count(std::size_t chunk_count, std::size_t world_size) noexcept {
    CHECK(world_size != 0);
    return chunk_count * (world_size - 1);
  }
  // Bytes that the tables need for a place.
  static constexpr std::size_t kTableBytes = 2 * sizeof(std::uint32_t);

  EarlyPayloads() = default;  // of a job that is not reproducible: nothing can wait
  EarlyPayloads(std::size_t chunk_count, std::size_t world_size, std::size_t place_floats,
                FloatArray memory)
      : ranks_(world_size - 1),
        place_bytes_(place_floats * sizeof(float)),
        memory_(std::move(memory)),
        place_of_(place_count(chunk_count, world_size), kNone),
        free_(place_of_.size()),
        free_count_(free_.size()) {
    CHECK(memory_ != nullptr || free_.empty());
    std::iota(free_.begin(), free_.end(), std::uint32_t{0});
  }

  void keep(std::size_t chunk, Rank rank, std::span<const std::uint8_t> payload) noexcept {
    std::uint32_t& place = entry(chunk, rank);
    CHECK(place == kNone && free_count_ != 0 && payload.size() <= place_bytes_);
    place = free_[--free_count_];
    std::memcpy(at(place), payload.data(), payload.size());
  }
  // Takes the waiting payload out; its bytes are valid until the next keep(). Null: none waits.
  const std::uint8_t* take(std::size_t chunk, Rank rank) noexcept {
    if (rank.value == 0) return nullptr;
    const std::uint32_t place = std::exchange(entry(chunk, rank), kNone);
    if (place == kNone) return nullptr;
    CHECK(free_count_ < free_.size());
    free_[free_count_++] = place;
    return at(place);
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::uint32_t& entry(std::size_t chunk, Rank rank) noexcept {
    CHECK(rank.value != 0 && rank.value <= ranks_);
    return place_of_[chunk * ranks_ + rank.value - 1];
  }
  std::uint8_t* at(std::uint32_t place) const noexcept {
    DCHECK(place < free_.size());
    return reinterpret_cast<std::uint8_t*>(memory_.get()) + place * place_bytes_;
  }

  std::size_t ranks_ = 0;  // that can be early
  std::size_t place_bytes_ = 0;
  FloatArray memory_{nullptr, std::free};
  std::vector<std::uint32_t> place_of_;  // of (chunk, rank)
  std::vector<std::uint32_t> free_;      // a stack of places
  std::size_t free_count_ = 0;
};

}  // namespace sluice::agg
