// The control side's account of a job's slots: which of a shard's pages sequences have reserved.
#pragma once

#include <cstdint>

#include "aggregator/base/check.h"
#include "aggregator/operations/group.h"
#include "aggregator/operations/spec.h"

namespace sluice::agg {

class Reservations {
 public:
  explicit Reservations(const OperationsSpec& spec) noexcept
      : spec_(spec), free_pages_(spec.page_count) {}

  // The slots that the sequence gets: as many as it asks for, or 0 when the job has not so many
  // left.
  std::uint32_t grant(const Group& group, wire::Sequence sequence, std::uint32_t slots) noexcept {
    const std::uint32_t before =
        group.slots[static_cast<std::size_t>(sequence)].load(std::memory_order_acquire);
    DCHECK(slots > before);
    const std::uint32_t pages = pages_of(group, slots) - pages_of(group, before);
    if (pages > free_pages_) return 0;
    free_pages_ -= pages;
    return slots;
  }
  // The group is removed from every shard.
  void release(const Group& group) noexcept {
    for (const auto& slots : group.slots)
      free_pages_ += pages_of(group, slots.load(std::memory_order_acquire));
  }
  std::uint32_t free_pages() const noexcept { return free_pages_; }

 private:
  // In each shard.
  std::uint32_t pages_of(const Group& group, std::uint32_t slots) const noexcept {
    return slots / kChunksPerBlock / spec_.shard_count *
           pages_per_block(spec_, group.members.size());
  }

  const OperationsSpec spec_;
  std::uint32_t free_pages_;
};

}  // namespace sluice::agg
