// Results of gradients that share a packet: those of one block that have no data or are sparse
// entries, and differ only in the chunk and its values.
#include "aggregator/core/slice.h"

namespace sluice::agg {
namespace {

// Most jobs have one word of ranks, and need no call to compare it.
bool same_ranks(std::span<const std::uint64_t> left,
                std::span<const std::uint64_t> right) noexcept {
  return left.front() == right.front() && (left.size() == 1 || std::ranges::equal(left, right));
}

}  // namespace

// Whether the results of two slots, the left one of which can share, differ only in the chunk and
// its values, so that one packet with enough room can carry both.
bool GradientSlice::alike(std::size_t left, std::size_t right) const noexcept {
  DCHECK(can_share(left));
  const Sum& a = sums[left];
  const Sum& b = sums[right];
  return can_share(right) && slots[right].complete_for(slots[left].step) &&
         a.has_data() == b.has_data() && a.elem_count == b.elem_count && a.result == b.result &&
         a.is_mean() == b.is_mean() && a.finite == b.finite && a.weight == b.weight && a.k == b.k &&
         a.eligible_count == b.eligible_count && same_ranks(mask_of(left), mask_of(right)) &&
         !a.unwanted && !b.unwanted;
}

bool GradientSlice::consistent(std::size_t slot_index) const noexcept {
  DCHECK(slot_index < sums.size());
  const Sum& sum = sums[slot_index];
  const std::uint64_t* const mask = mask_of(slot_index).data();
  const std::uint16_t count = slots[slot_index].count;
  if (count_bits(mask, mask_word_count) != count || sum.data_count > count) return false;
  for (std::size_t word = 0; sum.unwanted && word < mask_word_count; ++word)
    if (unwanted[slot_index * mask_word_count + word] & ~mask[word]) return false;
  if (abstained.empty()) return sum.abstained_count == 0;
  const std::uint64_t* const words = &abstained[slot_index * mask_word_count];
  return count_bits(words, mask_word_count) == sum.abstained_count &&
         disjoint(mask, words, mask_word_count);
}

std::uint64_t GradientSlice::alike_to(std::size_t first_slot, std::uint64_t chunks,
                                      std::size_t most_bytes) const noexcept {
  DCHECK(chunks != 0 && first_slot < slots.size());
  DCHECK(first_slot % chunk_count % kChunksPerBlock ==
         static_cast<std::size_t>(std::countr_zero(chunks)));
  const std::uint64_t first = chunks & -chunks;
  if (!can_share(first_slot)) return first;
  std::uint64_t found = first;
  std::size_t bytes = wire::kSparseHeadBytes + slots[first_slot].payload_bytes;
  for (std::uint64_t rest = chunks - first; rest != 0; rest &= rest - 1) {
    const std::size_t slot_index =
        first_slot + static_cast<std::size_t>(std::countr_zero(rest) - std::countr_zero(first));
    DCHECK(local_chunk(slot_index) >= local_chunk(first_slot));  // of one step
    if (!alike(first_slot, slot_index) || bytes + slots[slot_index].payload_bytes > most_bytes)
      continue;
    bytes += slots[slot_index].payload_bytes;
    found |= rest & -rest;
  }
  return found;
}

std::uint64_t GradientSlice::chunks_at_head(std::size_t most_bytes) const noexcept {
  DCHECK(slots[queue_head].queued && slots[queue_head].state == SlotState::kComplete);
  if (!can_share(queue_head)) return 0;
  const std::uint32_t in_block = local_chunk(queue_head) % kChunksPerBlock;
  const std::uint32_t first = queue_head - in_block;
  std::uint64_t chunks = std::uint64_t{1} << in_block;
  std::size_t bytes = wire::kSparseHeadBytes + slots[queue_head].payload_bytes;
  for (std::uint32_t next = slots[queue_head].next_queued;
       next != kNoSlot && next - first < kChunksPerBlock && alike(queue_head, next);
       next = slots[next].next_queued) {
    bytes += slots[next].payload_bytes;
    if (bytes > most_bytes) break;
    chunks |= std::uint64_t{1} << (next - first);
  }
  return chunks;
}

std::uint64_t GradientSlice::still_complete(std::size_t slot_index,
                                            std::uint64_t chunks) const noexcept {
  DCHECK(slots[slot_index].state == SlotState::kComplete);
  const std::size_t first = slot_index - local_chunk(slot_index) % kChunksPerBlock;
  std::uint64_t found = chunks;
  for (std::uint64_t rest = chunks; rest != 0; rest &= rest - 1) {
    const Slot& slot = slots[first + static_cast<std::size_t>(std::countr_zero(rest))];
    if (!slot.complete_for(slots[slot_index].step)) found &= ~(rest & -rest);
  }
  return found;
}

}  // namespace sluice::agg
