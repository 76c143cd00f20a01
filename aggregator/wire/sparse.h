// How the elements of a chunk travel when few of them are not zero.
//
// A sparse packet names chunks of one block, all of as many elements and of one type, and which of
// them have any value; those have an entry each, in the order of the chunks: a u16 with the count
// of its values (never 0), then where they stand, then the values as a dense payload of `count`
// elements would have them (so int8 has its scale behind them). Where: a u16 an index, increasing,
// or a bitmap with a bit an element, whichever is shorter; the counts say which. What would be as
// long as the dense payload travels as that. Pure; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"

namespace sluice::wire {

// In front of the entries: the chunks, and which of them have values; a u64 of a bit each.
inline constexpr std::size_t kSparseHeadBytes = 2 * sizeof(std::uint64_t);

constexpr std::size_t bitmap_bytes(std::size_t elem_count) noexcept { return (elem_count + 7) / 8; }
// Whether a bitmap says where `value_count` values stand.
constexpr bool uses_bitmap(std::size_t elem_count, std::size_t value_count) noexcept {
  return value_count * sizeof(std::uint16_t) > bitmap_bytes(elem_count);
}
constexpr std::size_t places_bytes(std::size_t elem_count, std::size_t value_count) noexcept {
  return uses_bitmap(elem_count, value_count) ? bitmap_bytes(elem_count)
                                              : value_count * sizeof(std::uint16_t);
}
// Of an entry. None: a chunk without a value needs none.
constexpr std::size_t entry_bytes(std::size_t elem_count, std::size_t value_count,
                                  Dtype dtype) noexcept {
  return value_count == 0 ? 0
                          : sizeof(std::uint16_t) + places_bytes(elem_count, value_count) +
                                payload_bytes(dtype, value_count);
}

// A view of one chunk's values, in memory that outlives it.
struct SparseEntry {
  const std::uint8_t* places = nullptr;
  const std::uint8_t* values = nullptr;
  std::uint16_t value_count = 0;  // 0: the chunk has none, and no entry
  bool is_bitmap = false;
};

// The entry at the front of `bytes`, which are what check_entries() has accepted, or what was made
// here. Moves `bytes` behind it.
SparseEntry take_entry(std::span<const std::uint8_t>& bytes, std::size_t elem_count,
                       Dtype dtype) noexcept;

// Whether `bytes` are exactly so many entries: every index inside the chunk and above the one
// before it, every bitmap as full as its count, every length as it must be. The only code that
// looks at entries that came over the network and are not validated.
Verdict check_entries(std::span<const std::uint8_t> bytes, std::size_t entry_count,
                      std::size_t elem_count, Dtype dtype) noexcept;

// Calls `each` with the place of every value, in order.
template <class Each>
void for_each_place(const SparseEntry& entry, std::size_t elem_count, const Each& each) {
  if (entry.is_bitmap) {
    const std::size_t bytes = bitmap_bytes(elem_count);
    for (std::size_t first = 0; first < bytes; first += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, entry.places + first, bytes - first < 8 ? bytes - first : 8);
      for (; word != 0; word &= word - 1)
        each(8 * first + static_cast<std::size_t>(std::countr_zero(word)));
    }
    return;
  }
  for (std::size_t i = 0; i < entry.value_count; ++i) {
    std::uint16_t index;
    std::memcpy(&index, entry.places + i * sizeof index, sizeof index);
    each(index);
  }
}

}  // namespace sluice::wire
