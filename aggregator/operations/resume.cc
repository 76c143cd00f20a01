// How a group goes on from an appliance that is lost: from its members' positions there, before
// their data.
#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/operations/operations.h"

namespace sluice::agg {
namespace {

using Positions = std::span<const std::optional<wire::GroupPosition>>;

std::uint64_t most_told(Positions positions, std::size_t sequence) noexcept {
  std::uint64_t most = 0;
  for (const auto& one : positions)
    if (one) most = std::max<std::uint64_t>(most, one->group_floors[sequence]);
  return most;
}

}  // namespace

void Group::resume(Positions positions) noexcept {
  CHECK(positions.size() == members.size());
  std::array<std::uint64_t, wire::kSequenceCount> told{};
  for (std::size_t i = 0; i < told.size(); ++i) told[i] = most_told(positions, i);
  for (std::uint16_t place = 0; place < members.size(); ++place) {
    if (!positions[place]) continue;
    const wire::GroupPosition& at = *positions[place];
    calls.resume(place, at.first_number, at.over_number);
    if (at.broken != wire::OutcomeCode::kOpen)
      calls.set_broken({.code = at.broken,
                        .rank = at.rank,
                        .other = at.other,
                        .expected = at.expected,
                        .actual = at.actual});
    for (std::size_t i = 0; i < told.size(); ++i)
      floors.note(place, static_cast<wire::Sequence>(i), at.floors[i]);
  }
  for (std::uint16_t place = 0; place < members.size(); ++place) {
    const auto lags = [&](std::size_t i) { return positions[place]->floors[i] < told[i]; };
    bool lost = !positions[place];
    for (std::size_t i = 0; i < told.size() && !lost; ++i) lost = lags(i);
    if (!lost) continue;
    calls.remove(place);
    floors.remove(place);
  }
  calls.begin_at_least();
  for (std::size_t i = 0; i < told.size(); ++i) {
    const std::uint64_t least = floors.least(static_cast<wire::Sequence>(i));
    if (least == UINT64_MAX) continue;
    for (GroupSlice& slice : slices) slice.sequences[i].floor = least;
    begins_at[i] = least;
  }
}

// What members were told before is carried out before they send data: nothing that has ended is
// summed again. Then the sequences that they use get slots.
void OperationShard::follow_resumption(Group& group) noexcept {
  if (std::ranges::find(group.postponed, true) == group.postponed.end()) return;
  if (group.calls.resuming()) return judge(group);
  for (std::size_t id = 0; id < wire::kSequenceCount; ++id)
    if (std::exchange(group.postponed[id], false))
      want_slots(group, static_cast<wire::Sequence>(id), first_slots(spec_.shard_count));
  for (std::uint16_t place = 0; place < group.members.size(); ++place)
    if (group.asks[place].count != 0) make_due(group, place);
}

}  // namespace sluice::agg
