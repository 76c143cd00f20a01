// What one job's operations are made of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

struct OperationsSpec {
  std::uint16_t world_size = 0;
  std::uint16_t chunk_bytes = 0;
  std::uint16_t shard_count = 1;
  std::uint32_t page_count =
      0;                        // of each shard: blocks of 64 slots for all sequences of all groups
  std::size_t group_bytes = 0;  // for the objects of groups, besides their slots
  // Processes come and go, world_size at a time at most: each gets a rank that none has, and the
  // job starts with the first.
  bool elastic = false;
  bool reproducible = false;  // sums in the order of ranks

  bool owns(ShardId shard, std::uint64_t block) const noexcept {
    return block % shard_count == shard.value;
  }
};

// The slots with which a sequence begins. All later numbers are this times a power of two.
constexpr std::uint32_t first_slots(std::uint16_t shard_count) noexcept {
  const std::uint32_t round = kChunksPerBlock * shard_count;
  return (kFirstSlots + round - 1) / round * round;
}

// Pages that a block of chunks takes in its shard: its slots, and in a reproducible job the parts
// that wait for those of lower ranks. Each member but the first may be early; two share a page.
constexpr std::uint32_t early_pages(const OperationsSpec& spec, std::size_t member_count) noexcept {
  return spec.reproducible ? static_cast<std::uint32_t>(member_count / 2) : 0;
}
constexpr std::uint32_t pages_per_block(const OperationsSpec& spec,
                                        std::size_t member_count) noexcept {
  return 1 + early_pages(spec, member_count);
}

}  // namespace sluice::agg
