#include "aggregator/operations/slot_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aggregator/core/mask.h"

namespace sluice::agg {
namespace {

// The elements of a narrow format need a float each.
std::size_t stride_floats_of(std::size_t chunk_bytes) noexcept {
  constexpr std::size_t kLineFloats = 64 / sizeof(float);
  return (chunk_bytes / 2 + kLineFloats - 1) / kLineFloats * kLineFloats;
}

}  // namespace

std::size_t SlotPool::memory_bytes(const OperationsSpec& spec) noexcept {
  const std::size_t slot_bytes = sizeof(PartSlot) + 8 * mask_words(spec.world_size) +
                                 sizeof(float) * stride_floats_of(spec.chunk_bytes);
  return spec.page_count * (kChunksPerBlock * slot_bytes + sizeof(Page) +
                            (2 + early_pages(spec, spec.world_size)) * sizeof(std::uint32_t));
}

SlotPool::SlotPool(const OperationsSpec& spec, BuildProgress* progress)
    : mask_word_count_(mask_words(spec.world_size)),
      stride_floats_(stride_floats_of(spec.chunk_bytes)),
      early_pages_(early_pages(spec, spec.world_size)),
      pages_(spec.page_count),
      early_(spec.page_count * early_pages_, kNone),
      buckets_(std::bit_ceil(std::max(spec.page_count, 1u)), kNone),
      slots_(std::size_t{spec.page_count} * kChunksPerBlock),
      masks_(slots_.size() * mask_word_count_),
      data_(allocate_prefaulted(slots_.size() * stride_floats_, progress)) {
  CHECK(early_pages_ == 0 || stride_floats_ / 2 * sizeof(float) >= spec.chunk_bytes);
  for (std::uint32_t page = spec.page_count; page-- != 0;)
    pages_[page].next = std::exchange(free_, page);
  free_count_ = spec.page_count;
}

std::size_t SlotPool::bucket_of(const BlockKey& key) const noexcept {
  const std::uint64_t mixed =
      (key.block * wire::kSequenceCount + static_cast<std::size_t>(key.sequence) +
       (std::uint64_t{key.group} << 48)) *
      0x9E3779B97F4A7C15u;
  return (mixed >> 32) & (buckets_.size() - 1);
}

std::uint32_t SlotPool::find(const BlockKey& key) const noexcept {
  for (std::uint32_t page = buckets_[bucket_of(key)]; page != kNone; page = pages_[page].next)
    if (pages_[page].key == key) return page * kChunksPerBlock;
  return kNone;
}

std::uint32_t SlotPool::take_free() noexcept {
  CHECK(free_ != kNone && free_count_ != 0);
  --free_count_;
  return std::exchange(free_, pages_[free_].next);
}

void SlotPool::give_back(std::uint32_t page) noexcept {
  pages_[page] = {.key = {}, .group = nullptr, .next = std::exchange(free_, page)};
  ++free_count_;
  DCHECK(free_count_ <= pages_.size());
}

std::uint32_t SlotPool::take(const BlockKey& key, Group& group) noexcept {
  CHECK(find(key) == kNone);
  const std::uint32_t page = take_free();
  std::uint32_t& bucket = buckets_[bucket_of(key)];
  pages_[page] = {.key = key, .group = &group, .next = std::exchange(bucket, page)};
  const std::uint32_t first = page * kChunksPerBlock;
  std::fill_n(&slots_[first], kChunksPerBlock, PartSlot{});
  std::fill_n(mask_of(first), kChunksPerBlock * mask_word_count_, std::uint64_t{0});
  return first;
}

void SlotPool::release(const BlockKey& key) noexcept {
  std::uint32_t* link = &buckets_[bucket_of(key)];
  while (*link != kNone && pages_[*link].key != key) link = &pages_[*link].next;
  if (*link == kNone) return;
  const std::uint32_t page = *link;
  *link = pages_[page].next;
  for (std::uint32_t index = page * kChunksPerBlock; index < (page + 1) * kChunksPerBlock; ++index)
    if (slots_[index].queued) dequeue(index);
  for (std::size_t i = page * early_pages_; i < (page + 1) * early_pages_; ++i)
    if (const std::uint32_t early = std::exchange(early_[i], kNone); early != kNone)
      give_back(early);
  give_back(page);
}

void SlotPool::keep_early(std::uint32_t index, std::uint16_t place,
                          std::span<const std::uint8_t> payload) noexcept {
  std::uint32_t& page = early_[early_entry(index, place)];
  if (page == kNone) page = take_free();
  DCHECK(payload.size() <= stride_floats_ / 2 * sizeof(float));
  std::memcpy(early_at(page, index, place), payload.data(), payload.size());
}

std::uint32_t SlotPool::queue_head() const noexcept {
  std::size_t word = 0;
  while (waiting_[word] == 0) ++word;
  return ends_[64 * word + static_cast<std::size_t>(std::countr_zero(waiting_[word]))].head;
}

void SlotPool::enqueue(std::uint32_t index) noexcept {
  PartSlot& slot = slots_[index];
  CHECK(!slot.queued && slot.state == PartState::kComplete);
  Ends& ends = ends_[slot.priority];
  slot.queued = true;
  slot.next = kNone;
  slot.previous = ends.tail;
  (ends.tail == kNone ? ends.head : slots_[ends.tail].next) = index;
  ends.tail = index;
  waiting_[slot.priority / 64] |= std::uint64_t{1} << slot.priority % 64;
}

void SlotPool::dequeue(std::uint32_t index) noexcept {
  PartSlot& slot = slots_[index];
  CHECK(slot.queued);
  Ends& ends = ends_[slot.priority];
  slot.queued = false;
  (slot.previous == kNone ? ends.head : slots_[slot.previous].next) = slot.next;
  (slot.next == kNone ? ends.tail : slots_[slot.next].previous) = slot.previous;
  if (ends.head == kNone) waiting_[slot.priority / 64] &= ~(std::uint64_t{1} << slot.priority % 64);
}

}  // namespace sluice::agg
