// The slots of a shard for the operations of one job, in pages of one block each, and the queue of
// those whose results are to be sent.
//
// A page belongs to a block of a group's sequence from the first part of the block until the
// group's floor has passed it. So a slot has one chunk at a time and needs no version. The sum of
// what sequences may hold is at most the number of pages (slots are told to members only after
// every shard has reserved them), so take() never fails. In a reproducible job the parts that came
// before those of lower places wait in further pages of their block, two members' in each: a slot
// has room for floats, and what waits is as it came. Used by the shard's lcore alone.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/prefault.h"
#include "aggregator/base/types.h"
#include "aggregator/operations/spec.h"
#include "aggregator/wire/operation.h"

namespace sluice::agg {

struct Group;

enum class PartState : std::uint8_t {
  kEmpty,     // no part has come
  kOpen,      // its first part has fixed what it is
  kComplete,  // its bytes do not change any more
};

// The state of one chunk, without its data.
struct PartSlot {
  std::uint64_t payload_sum = 0;  // internet checksum's partial sum of the result's payload
  std::uint32_t hash = 0;         // of the operation's description
  std::uint32_t previous = 0;     // in the queue of its priority, while `queued`
  std::uint32_t next = 0;
  std::uint16_t count = 0;  // members that are in
  std::uint16_t payload_bytes = 0;
  std::uint16_t owner = wire::kNoRank;
  // A place of the group. Of a complete slot: whose result is to be sent next. Before, where sums
  // are in the order of places: whose part is to be added next.
  std::uint16_t next_place = 0;
  wire::OperationKind kind{};
  Dtype wire = Dtype::kBytes;
  wire::Reduction reduction{};
  PartState state{};
  Priority priority = kLeastUrgent;  // the most urgent of its parts
  bool queued = false;
  bool finite = true;
  bool given = false;  // a member has given the result
};

struct BlockKey {  // a block of 64 chunks
  std::uint16_t group = 0;
  wire::Sequence sequence{};
  std::uint64_t block = 0;

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

class SlotPool {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  SlotPool(const OperationsSpec& spec, BuildProgress* progress);
  static std::size_t memory_bytes(const OperationsSpec& spec) noexcept;

  std::uint32_t free_pages() const noexcept { return free_count_; }
  // The first slot of the block's page; kNone: it has none.
  std::uint32_t find(const BlockKey& key) const noexcept;
  // Takes a page for a block that has none, with empty slots.
  std::uint32_t take(const BlockKey& key, Group& group) noexcept;
  // The block's page, if it has one, is free again. Results of it that are queued are not sent.
  void release(const BlockKey& key) noexcept;

  PartSlot& slot(std::uint32_t index) noexcept {
    DCHECK(index < slots_.size());
    return slots_[index];
  }
  const BlockKey& key_of(std::uint32_t index) const noexcept {
    return pages_[index / kChunksPerBlock].key;
  }
  std::uint64_t chunk_of(std::uint32_t index) const noexcept {
    return key_of(index).block * kChunksPerBlock + index % kChunksPerBlock;
  }
  Group& group_of(std::uint32_t index) const noexcept {
    DCHECK(pages_[index / kChunksPerBlock].group != nullptr);
    return *pages_[index / kChunksPerBlock].group;
  }
  std::uint64_t* mask_of(std::uint32_t index) noexcept { return &masks_[index * mask_word_count_]; }
  float* data_of(std::uint32_t index) const noexcept {
    return data_.get() + index * stride_floats_;
  }
  std::span<const std::uint8_t> payload_of(std::uint32_t index) const noexcept {
    return {reinterpret_cast<const std::uint8_t*>(data_of(index)), slots_[index].payload_bytes};
  }

  // ---- parts that wait for their turn, in a reproducible job ----
  // `place` is not 0: the first is never early. The block has its page.
  void keep_early(std::uint32_t index, std::uint16_t place,
                  std::span<const std::uint8_t> payload) noexcept;
  // What is kept; it stays until the block's page is released.
  const std::uint8_t* early_of(std::uint32_t index, std::uint16_t place) const noexcept {
    const std::uint32_t page = early_[early_entry(index, place)];
    DCHECK(page != kNone);
    return early_at(page, index, place);
  }

  // ---- the queue: most urgent first, in the order of completion within a priority ----
  bool queue_empty() const noexcept {
    return (waiting_[0] | waiting_[1] | waiting_[2] | waiting_[3]) == 0;
  }
  std::uint32_t queue_head() const noexcept;  // precondition: not empty
  void enqueue(std::uint32_t index) noexcept;
  void dequeue(std::uint32_t index) noexcept;

 private:
  struct Page {
    BlockKey key;
    Group* group = nullptr;      // null: free
    std::uint32_t next = kNone;  // in its bucket, or in the list of free pages
  };
  struct Ends {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };
  std::size_t bucket_of(const BlockKey& key) const noexcept;
  std::uint32_t take_free() noexcept;
  void give_back(std::uint32_t page) noexcept;
  std::size_t early_entry(std::uint32_t index, std::uint16_t place) const noexcept {
    DCHECK(place != 0 && std::size_t{place} <= 2 * early_pages_);
    return index / kChunksPerBlock * early_pages_ + (place - 1u) / 2;
  }
  std::uint8_t* early_at(std::uint32_t page, std::uint32_t index,
                         std::uint16_t place) const noexcept {
    const std::uint32_t slot = page * kChunksPerBlock + index % kChunksPerBlock;
    return reinterpret_cast<std::uint8_t*>(data_of(slot) + (place - 1u) % 2 * stride_floats_ / 2);
  }

  const std::size_t mask_word_count_;
  const std::size_t stride_floats_;
  const std::size_t early_pages_;  // that a block may have besides its own; 0: sums as parts come
  std::vector<Page> pages_;
  std::vector<std::uint32_t> early_;    // of each page that is a block's: its early ones, or kNone
  std::vector<std::uint32_t> buckets_;  // of pages in use, by key; a power of two
  std::uint32_t free_ = kNone;
  std::uint32_t free_count_ = 0;
  std::vector<PartSlot> slots_;
  std::vector<std::uint64_t> masks_;
  FloatArray data_{nullptr, std::free};
  std::array<Ends, 256> ends_{};
  std::array<std::uint64_t, 4> waiting_{};  // a bit a priority
};

}  // namespace sluice::agg
