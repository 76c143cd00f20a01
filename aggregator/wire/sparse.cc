#include "aggregator/wire/sparse.h"

#include "aggregator/base/check.h"

namespace sluice::wire {
namespace {

std::uint16_t count_at(std::span<const std::uint8_t> bytes) noexcept {
  std::uint16_t count;
  std::memcpy(&count, bytes.data(), sizeof count);
  return count;
}

bool places_hold(const SparseEntry& entry, std::size_t elem_count) noexcept {
  std::size_t seen = 0;
  std::size_t next = 0;  // the least that the next place may be
  bool increasing = true;
  for_each_place(entry, elem_count, [&](std::size_t place) {
    increasing &= place >= next;
    next = place + 1;
    ++seen;
  });
  return increasing && seen == entry.value_count && next <= elem_count;
}

}  // namespace

SparseEntry take_entry(std::span<const std::uint8_t>& bytes, std::size_t elem_count,
                       Dtype dtype) noexcept {
  DCHECK(bytes.size() >= sizeof(std::uint16_t));
  const std::uint16_t count = count_at(bytes);
  const std::size_t size = entry_bytes(elem_count, count, dtype);
  DCHECK(count != 0 && count <= elem_count && size <= bytes.size());
  const std::uint8_t* places = bytes.data() + sizeof count;
  bytes = bytes.subspan(size);
  return {.places = places,
          .values = places + places_bytes(elem_count, count),
          .value_count = count,
          .is_bitmap = uses_bitmap(elem_count, count)};
}

Verdict check_entries(std::span<const std::uint8_t> bytes, std::size_t entry_count,
                      std::size_t elem_count, Dtype dtype) noexcept {
  for (; entry_count != 0; --entry_count) {
    if (bytes.size() < sizeof(std::uint16_t)) return Verdict::kTruncated;
    const std::uint16_t count = count_at(bytes);
    if (count == 0 || count > elem_count) return Verdict::kBadLength;
    if (bytes.size() < entry_bytes(elem_count, count, dtype)) return Verdict::kTruncated;
    if (!places_hold(take_entry(bytes, elem_count, dtype), elem_count)) return Verdict::kBadIndex;
  }
  return bytes.empty() ? Verdict::kAccepted : Verdict::kBadLength;
}

}  // namespace sluice::wire
