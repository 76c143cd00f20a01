// The floors of a group's members, and what they are to be told. Shard 0 alone has it.
//
// A group's floor is the least of its members'. Other shards learn it from the members' packets. A
// member that is kept from sending by the floor says so: it is told the newest, and whoever holds
// the floor is asked for its own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "aggregator/wire/operation.h"

namespace sluice::agg {

class Floors {
 public:
  explicit Floors(std::size_t member_count);
  // Besides the object.
  static constexpr std::size_t memory_bytes(std::size_t member_count) noexcept {
    return member_count * (wire::kSequenceCount * sizeof(Entry) + 2);
  }

  // A member has told its floor. Returns whether the group's may have risen.
  bool note(std::size_t place, wire::Sequence sequence, std::uint64_t floor) noexcept;
  // It is lost: its floor counts no more.
  void remove(std::size_t place) noexcept;
  // The least of those that count; UINT64_MAX: none does.
  std::uint64_t least(wire::Sequence sequence) const noexcept;
  std::uint64_t of(std::size_t place, wire::Sequence sequence) const noexcept {
    return at(place, sequence).floor;
  }

  // ---- what members are to be told ----
  // The member is kept from sending. Whoever has not come beyond `group_floor` is asked.
  void stop(std::size_t place, wire::Sequence sequence, std::uint64_t group_floor) noexcept;
  // The group's floor has risen to this, or there are more slots: those that wait for it, or that
  // were told one that is `slots` / 4 less, are to be told. Returns whether there are some.
  bool announce(wire::Sequence sequence, std::uint64_t group_floor, std::uint32_t slots,
                bool more_slots) noexcept;
  bool due(std::size_t place) const noexcept { return due_[place] != 0; }
  // The next of its sequences to tell it about, and whether it is asked. Precondition: due().
  wire::Sequence take_due(std::size_t place, bool& asked) noexcept;
  // A packet has told it.
  void told(std::size_t place, wire::Sequence sequence, std::uint64_t group_floor) noexcept {
    at(place, sequence).told = group_floor;
  }

 private:
  struct Entry {
    std::uint64_t floor = 0;
    std::uint64_t told = 0;
    bool stopped = false;
    bool asked = false;
  };
  Entry& at(std::size_t place, wire::Sequence sequence) noexcept {
    return entries_[place * wire::kSequenceCount + static_cast<std::size_t>(sequence)];
  }
  const Entry& at(std::size_t place, wire::Sequence sequence) const noexcept {
    return entries_[place * wire::kSequenceCount + static_cast<std::size_t>(sequence)];
  }
  void make_due(std::size_t place, wire::Sequence sequence) noexcept {
    due_[place] |= static_cast<std::uint8_t>(1u << static_cast<unsigned>(sequence));
  }

  std::vector<Entry> entries_;        // kSequenceCount a place
  std::vector<std::uint8_t> due_;     // of each place, a bit a sequence
  std::vector<std::uint8_t> counts_;  // of each place, whether its floors do
  std::array<std::uint64_t, wire::kSequenceCount> announced_{};
  std::array<std::uint32_t, wire::kSequenceCount> stopped_{};  // members that are
};

}  // namespace sluice::agg
