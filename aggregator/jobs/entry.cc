#include "aggregator/jobs/entry.h"

#include <algorithm>

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

std::optional<Step> JobEntry::resume_step() const noexcept {
  Step first = kLastStep;
  bool resumes = false;
  for (const MemberEntry& one : members) {
    resumes |= one.resume_step != 0;
    first = std::min(first, std::max<Step>(one.resume_step, 1));
  }
  if (is_operations()) first = 1;  // what the ranks say is not a step there
  return resumes ? std::optional(first) : std::nullopt;
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
