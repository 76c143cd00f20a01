// The wire format of chunks of which few elements are not zero.
//
// A sparse packet names chunks of one block, which have one type and one number of elements, and
// those of them that have values. Each of the latter has an entry, in the order of the chunks: a
// u16 with the count of its values (never 0), then the places of the values, then the values in the
// format of a dense payload of `count` elements (so int8 has its scale behind them). The places are
// increasing u16 indices, or a bitmap with a bit for each element, whichever is shorter; the counts
// tell which. An entry that would not be shorter than the dense payload is not used: the chunk
// travels dense. Pure; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"

namespace sluice::wire {

// In front of the entries: two u64 bit masks, of the chunks, and of those that have values.
inline constexpr std::size_t kSparseHeadBytes = 2 * sizeof(std::uint64_t);

constexpr std::size_t bitmap_bytes(std::size_t elem_count) noexcept { return (elem_count + 7) / 8; }
// Whether the places of `value_count` values are a bitmap.
constexpr bool uses_bitmap(std::size_t elem_count, std::size_t value_count) noexcept {
  return value_count * sizeof(std::uint16_t) > bitmap_bytes(elem_count);
}
constexpr std::size_t places_bytes(std::size_t elem_count, std::size_t value_count) noexcept {
  return uses_bitmap(elem_count, value_count) ? bitmap_bytes(elem_count)
                                              : value_count * sizeof(std::uint16_t);
}
// The size of an entry; 0 for a chunk without a value, which has none.
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

// Takes the entry at the front of `bytes`, which check_entries() has accepted or this process has
// made, and moves `bytes` behind it.
SparseEntry take_entry(std::span<const std::uint8_t>& bytes, std::size_t elem_count,
                       Dtype dtype) noexcept;

// Checks that `bytes` are exactly `entry_count` entries: every index is inside the chunk and above
// the one before it, every bitmap has as many bits as its count, and all lengths agree. No other
// code reads entries from the network that are not validated.
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
