#include "aggregator/jobs/views.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::agg {

void Views::change() noexcept {
  CHECK(entry_.in_views() && entry_.running());
  ++entry_.view;
}

void Views::lose(Rank rank) noexcept {
  MemberEntry& member = entry_.member(rank);
  CHECK(!member.live());
  entry_.shared(rank).reachable.store(false, std::memory_order_release);
  member.liveness.reset_suspicion();
  member.removal_due = true;
  change();
}

void Views::know(Rank rank, std::uint32_t known) noexcept {
  if (entry_.in_views() && entry_.running()) entry_.member(rank).view = known;
}

Views::Settled Views::settle() noexcept {
  if (!entry_.in_views() || !entry_.running() || is_settled() || entry_.has_moved())
    return Settled::kNothing;
  for (const MemberEntry& one : entry_.members)
    if (one.is(MemberPhase::kJoined) && one.view != entry_.view) return Settled::kNothing;
  if (entry_.exchanging() && std::ranges::any_of(entry_.members, &MemberEntry::removal_due))
    return Settled::kExchange;
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank)
    if (std::exchange(entry_.member(Rank{rank}).removal_due, false)) ranks_.remove(Rank{rank});
  entry_.settled_view = entry_.view;
  return Settled::kView;
}

const MemberEntry* newest_view(const JobEntry& entry) noexcept {
  const std::uint64_t exchange = entry.newest_exchange();
  const MemberEntry* newest = nullptr;
  for (const MemberEntry& one : entry.members)
    if (one.took_part(exchange) && (newest == nullptr || one.view > newest->view)) newest = &one;
  return newest;
}

// Of views that are not settled the appliance has made nothing: a member that has not heard of them
// has missed nothing, unless they are about its rank. A new process takes a rank only when all
// views before are settled, so the process that had the rank has missed one of these.
bool is_in_view(const JobEntry& entry, const MemberEntry& of_rank, std::uint32_t known,
                const MemberEntry& newest) noexcept {
  const Rank rank{static_cast<std::uint16_t>(&of_rank - entry.members.data())};
  return known >= newest.settled_view && !newest.absent.test(rank);
}

bool all_in_view(const JobEntry& entry, bool has_waited) noexcept {
  const MemberEntry* const newest = newest_view(entry);
  if (newest == nullptr) return false;
  const std::uint64_t exchange = entry.newest_exchange();
  return std::ranges::all_of(entry.members, [&](const MemberEntry& one) {
    const auto rank = static_cast<std::uint16_t>(&one - entry.members.data());
    if (newest->absent.test(Rank{rank})) return true;
    if (one.took_part(exchange)) return is_in_view(entry, one, one.view, *newest);
    return one.newcomer_view && (has_waited || is_in_view(entry, one, *one.newcomer_view, *newest));
  });
}

}  // namespace sluice::agg
