// One group of a job's ranks, as all shards share it.
//
// The control side makes it with all its memory and destroys it when every shard has released it.
// Each shard has a slice, which is its own; shard 0 also has the calls and the floors. What shards
// tell each other stands in atomics; the one that counts a counter down to zero says so to the
// control side, which tells all (OperationsRequest::kSettled).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "aggregator/operations/calls.h"
#include "aggregator/operations/floors.h"

namespace sluice::agg {

// A shard's part of a sequence, besides its slots.
struct SequenceSlice {
  struct Range {  // of chunks
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  std::uint64_t floor = 0;  // the group's, as this shard knows it
  std::uint32_t slots = 0;  // for which this shard has reserved pages
  std::vector<Range> held;  // takes no more parts: of operations that are judged
  std::size_t held_count = 0;

  bool holds(std::uint64_t chunk) const noexcept {
    for (std::size_t i = 0; i < held_count; ++i)
      if (held[i].first <= chunk && chunk < held[i].end) return true;
    return false;
  }
};

struct alignas(64) GroupSlice {
  std::array<SequenceSlice, wire::kSequenceCount> sequences;
};

// Questions of a member that wait for an answer; who asks more at once asks again.
inline constexpr std::size_t kAsksPerMember = 4;
struct Asks {
  struct Ask {
    std::uint64_t number = 0;
    wire::Description what;
  };
  std::array<Ask, kAsksPerMember> asks;
  std::uint8_t count = 0;
};

struct Group {
  static constexpr std::uint16_t kNoPlace = UINT16_MAX;

  Group(std::uint16_t group_id, std::uint32_t group_generation, std::vector<Rank> ranks,
        std::uint16_t world_size, std::uint16_t shard_count, std::uint64_t first_chunk = 0)
      : id(group_id),
        generation(group_generation),
        members(std::move(ranks)),
        place_of(world_size, kNoPlace),
        slices(shard_count),
        serving(shard_count),
        calls(members, mask_words(members.size())),
        floors(members.size()),
        asks(members.size()) {
    CHECK(std::ranges::is_sorted(members) && !members.empty() && id < kMaxGroups);
    for (std::uint16_t place = 0; place < members.size(); ++place)
      place_of[members[place].value] = place;
    for (GroupSlice& slice : slices)
      for (SequenceSlice& sequence : slice.sequences) {
        sequence.floor = first_chunk;
        sequence.held.resize(kKeptCalls);
      }
    for (std::size_t place = 0; place < members.size(); ++place)
      for (std::size_t sequence = 0; sequence < wire::kSequenceCount; ++sequence)
        floors.note(place, static_cast<wire::Sequence>(sequence), first_chunk);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Before any shard has it: it goes on from an appliance that is lost. Of each place the member's
  // position there; none: the member is lost. One that was told a floor beyond another member's
  // shows that the other was lost before.
  void resume(std::span<const std::optional<wire::GroupPosition>> positions) noexcept;

  // With all that belongs to it but slots.
  static constexpr std::size_t memory_bytes(std::size_t member_count, std::size_t world_size,
                                            std::size_t shard_count) noexcept {
    const std::size_t slice_bytes =
        sizeof(GroupSlice) + wire::kSequenceCount * kKeptCalls * sizeof(SequenceSlice::Range);
    return sizeof(Group) + Calls::memory_bytes(member_count, mask_words(member_count)) +
           Floors::memory_bytes(member_count) + member_count * (sizeof(Asks) + sizeof(Rank)) +
           world_size * sizeof(std::uint16_t) + shard_count * slice_bytes;
  }

  const std::uint16_t id;
  const std::uint32_t generation;
  const std::vector<Rank> members;      // in ascending order; a rank's place is its index
  std::vector<std::uint16_t> place_of;  // by rank
  std::vector<GroupSlice> slices;       // one a shard

  // Slots of each sequence that all shards have. Written by the shard that reserves them last.
  std::array<std::atomic<std::uint32_t>, wire::kSequenceCount> slots{};
  std::array<std::atomic<std::uint32_t>, wire::kSequenceCount>
      growing{};                             // shards still to reserve
  std::atomic<std::uint32_t> holding{0};     // shards that have still to hold what is judged
  std::atomic<std::uint32_t> incomplete{0};  // shards that hold an incomplete chunk of it
  std::atomic<std::uint32_t> serving;        // shards that have not removed the group

  // The floors with which it began; only the control side reads them.
  std::array<std::uint64_t, wire::kSequenceCount> begins_at{};

  // ---- shard 0's ----
  Calls calls;
  Floors floors;
  std::vector<Asks> asks;  // by place
  // Of each sequence: the slots that the control side was asked for, and whether it had none.
  std::array<std::uint32_t, wire::kSequenceCount> asked_slots{};
  std::array<bool, wire::kSequenceCount> refused{};
  // Of each sequence: its first slots are to be asked for once all is told that was known before.
  std::array<bool, wire::kSequenceCount> postponed{};
};

}  // namespace sluice::agg
