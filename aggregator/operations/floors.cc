#include "aggregator/operations/floors.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::agg {

Floors::Floors(std::size_t member_count)
    : entries_(member_count * wire::kSequenceCount), due_(member_count), counts_(member_count, 1) {
  CHECK(member_count != 0);
}

bool Floors::note(std::size_t place, wire::Sequence sequence, std::uint64_t floor) noexcept {
  Entry& entry = at(place, sequence);
  if (floor <= entry.floor) return false;
  entry.floor = floor;
  return true;
}

void Floors::remove(std::size_t place) noexcept {
  counts_[place] = 0;
  due_[place] = 0;
}

std::uint64_t Floors::least(wire::Sequence sequence) const noexcept {
  std::uint64_t least = UINT64_MAX;
  for (std::size_t place = 0; place < counts_.size(); ++place)
    if (counts_[place]) least = std::min(least, at(place, sequence).floor);
  return least;
}

void Floors::stop(std::size_t place, wire::Sequence sequence, std::uint64_t group_floor) noexcept {
  if (!std::exchange(at(place, sequence).stopped, true))
    ++stopped_[static_cast<std::size_t>(sequence)];
  make_due(place, sequence);
  for (std::size_t other = 0; other < counts_.size(); ++other) {
    if (other == place || !counts_[other] || at(other, sequence).floor > group_floor) continue;
    at(other, sequence).asked = true;
    make_due(other, sequence);
  }
}

bool Floors::announce(wire::Sequence sequence, std::uint64_t group_floor, std::uint32_t slots,
                      bool more_slots) noexcept {
  std::uint64_t& announced = announced_[static_cast<std::size_t>(sequence)];
  std::uint32_t& stopped = stopped_[static_cast<std::size_t>(sequence)];
  const bool far = more_slots || group_floor - announced >= slots / 4;
  if (!far && stopped == 0) return false;
  if (far) announced = group_floor;
  bool some = false;
  for (std::size_t place = 0; place < counts_.size(); ++place) {
    Entry& entry = at(place, sequence);
    const bool waits = std::exchange(entry.stopped, false);
    if (!counts_[place]) continue;
    if (!more_slots && !waits && !(far && group_floor - entry.told >= slots / 4)) continue;
    make_due(place, sequence);
    some = true;
  }
  stopped = 0;
  return some;
}

wire::Sequence Floors::take_due(std::size_t place, bool& asked) noexcept {
  CHECK(due(place));
  const auto sequence = static_cast<wire::Sequence>(std::countr_zero(due_[place]));
  due_[place] = static_cast<std::uint8_t>(due_[place] & (due_[place] - 1));
  asked = std::exchange(at(place, sequence).asked, false);
  return sequence;
}

}  // namespace sluice::agg
