#include "aggregator/jobs/entry.h"

#include <algorithm>

#include "aggregator/jobs/views.h"

namespace sluice::agg {

// The data flows are read only when the control port is quiet: a keepalive every 250 ms usually
// answers the question with one load.
TimeNs JobEntry::last_heard_ns(Rank rank, const PausableClock& clock) const noexcept {
  CHECK(rank.value < world_size());
  TimeNs heard_ns = member(rank).liveness.heard_ns();
  if (job == nullptr) return heard_ns;
  for (const JobSlice& slice : job->slices)
    heard_ns = std::max(
        heard_ns,
        clock.active_time(slice.flows[rank.value].last_heard_ns.load(std::memory_order_relaxed)));
  return heard_ns;
}

std::uint64_t JobEntry::newest_exchange() const noexcept {
  std::uint64_t newest = 0;
  for (const MemberEntry& one : members)
    if (one.is(MemberPhase::kJoined) && one.resume_step != 0)
      newest = std::max(newest, one.exchange_over);
  return newest;
}

bool JobEntry::may_give(const MemberEntry& one) const noexcept {
  if (!one.took_part(newest_exchange())) return false;
  return !in_views() || is_in_view(*this, one, one.view, *newest_view(*this));
}

Resumed JobEntry::resumed() const noexcept {
  const bool tolerates = exchanges();
  Step least = kLastStep;
  Step most = 0;
  for (const MemberEntry& one : members) {
    if (tolerates && !may_give(one)) continue;
    most = std::max(most, one.resume_step);
    least = std::min(least, std::max<Step>(one.resume_step, 1));
  }
  if (most == 0) return {};
  if (is_operations()) return {.step = 1, .givers = {}};  // what the ranks say is not a step
  if (!tolerates) return {.step = least, .givers = {}};
  Resumed resumed{.step = most, .givers = {}};
  Step k_of = 0;
  for (std::uint16_t rank = 0; rank < world_size(); ++rank) {
    const MemberEntry& one = members[rank];
    if (!may_give(one) || one.resume_step + 1 < most) continue;
    resumed.givers.set(Rank{rank});
    if (one.resume_k == 0 || one.resume_step < k_of) continue;
    resumed.k = one.resume_step == k_of ? std::max(resumed.k, one.resume_k) : one.resume_k;
    k_of = one.resume_step;
  }
  return resumed;
}

std::uint8_t JobEntry::percent_made() const noexcept {
  CHECK(memory_ == JobMemory::kMaking && progress != nullptr && memory_bytes != 0);
  const std::size_t made_bytes = progress->bytes.load(std::memory_order_relaxed);
  return static_cast<std::uint8_t>(
      std::min<std::uint64_t>(100, std::uint64_t{made_bytes} * 100 / memory_bytes));
}

bool JobEntry::can_give_state(Rank rank, Rank target) const noexcept {
  const MemberEntry& giver = member(rank);
  return rank != target && giver.is(MemberPhase::kJoined) && !giver.needs_state &&
         !resyncs.in_line(rank);
}

std::optional<Rank> JobEntry::rank_for(std::uint64_t nonce) const noexcept {
  const auto find = [&](auto is_one) -> std::optional<Rank> {
    const auto found = std::ranges::find_if(members, is_one);
    if (found == members.end()) return {};
    return Rank{static_cast<std::uint16_t>(found - members.begin())};
  };
  if (const auto own = find([&](const MemberEntry& one) {
        return one.cookie != 0 && (one.nonce == nonce || one.stale_nonce == nonce);
      }))
    return own;
  if (const auto fresh = find([](const MemberEntry& one) { return one.is(MemberPhase::kFree); }))
    return fresh;
  return find([](const MemberEntry& one) { return !one.live(); });
}

bool JobEntry::may_yield(TimeNs now) const noexcept {
  if (is_kept()) return now - kept_since_ns >= kYieldAfter;
  return forming() && job != nullptr && now - held_since_ns >= kYieldAfter;
}

void JobEntry::check() const noexcept {
  CHECK((job != nullptr) == (memory_ == JobMemory::kHeld || memory_ == JobMemory::kLeaving));
  CHECK(!running() || memory_ == JobMemory::kHeld);
  CHECK(memory_ != JobMemory::kMaking || unclaimed());
  CHECK(memory_ != JobMemory::kLeaving || (ended() && releases_left != 0));
  CHECK(!failed || (ended() && !notice_text.empty()));
  CHECK(!ended() || !listed || failed || !no_memory.empty());
  CHECK(no_memory.empty() || (ended() && job == nullptr));
  CHECK(!is_kept() || was_kept);
  CHECK(!initialised || is_store());
  CHECK(layout_rank.value < world_size() && spec.world_size == world_size());
  CHECK(!goes_on() || !resyncs.active() || member(resyncs.target()).live());
  for (const MemberEntry& one : members) {
    CHECK(one.is(MemberPhase::kFree) == (one.cookie == 0));
    CHECK(!one.liveness.suspected() || one.is(MemberPhase::kJoined) || one.has_left());
    CHECK(!one.is(MemberPhase::kReturning) || goes_on() || ended());
    CHECK(!one.is(MemberPhase::kEvicted) || !one.notice.empty());
    CHECK(one.missing_from == 0 || one.is(MemberPhase::kLeft));
    CHECK(one.cookie == 0 || one.cookie != one.stale_cookie);
    CHECK(!one.needs_state || one.rejoined);
    CHECK(one.admissions_due == 0 || goes_on() || ended());
  }
}

}  // namespace sluice::agg
