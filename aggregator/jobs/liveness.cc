// Who is still there. Silence is answered with pings; a hint that a process is gone with three
// quick ones; both end in the loss of the member when nothing is heard.
#include <algorithm>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {

// Control and data both count. The data flows are read only when the control port is quiet: a
// keepalive every 250 ms usually answers the question with one load.
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

TimeNs Jobs::last_heard(const JobEntry& entry, Rank rank) const noexcept {
  return entry.last_heard_ns(rank, clock_);
}

void Jobs::suspect(JobId job, Rank rank, TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  if (job.value >= entries_.size() || entries_[job.value] == nullptr) return;
  JobEntry& entry = *entries_[job.value];
  if (entry.ended() || rank.value >= entry.world_size()) return;
  MemberEntry& member = entry.member(rank);
  if (member.is(MemberPhase::kJoined) && member.liveness.suspect_anew(now))
    queue(entry, rank, wire::PacketType::kPing);
}

Verdict Jobs::suspect_quoted(const wire::CommonHeader& quoted, TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  if (quoted.job >= entries_.size() || entries_[quoted.job] == nullptr) return Verdict::kUnknownJob;
  JobEntry& entry = *entries_[quoted.job];
  if (quoted.rank >= entry.world_size()) return Verdict::kBadRank;
  const MemberEntry& member = entry.members[quoted.rank];
  if (quoted.cookie == 0 || quoted.cookie != member.cookie) return Verdict::kBadCookie;
  if (!entry.ended() && !member.liveness.was_cleared(now)) suspect(entry, Rank{quoted.rank}, now);
  return Verdict::kAccepted;
}

void Jobs::suspect(JobEntry& entry, Rank rank, TimeNs now) {
  CHECK(!entry.ended());
  MemberEntry& member = entry.member(rank);
  if (member.is(MemberPhase::kJoined) && member.liveness.suspect(now))
    queue(entry, rank, wire::PacketType::kPing);
}

void Jobs::tick(TimeNs clock_ns) {
  const TimeNs now = clock_.advance(clock_ns);
  for (auto& slot : entries_) {
    if (slot == nullptr) continue;
    JobEntry& entry = *slot;
    entry.check();
    entry.furthest.reset();
    for (std::uint16_t rank = 0; rank < entry.world_size() && !entry.ended(); ++rank) {
      if (entry.members[rank].is(MemberPhase::kReturning)) repeat_rejoin(entry, Rank{rank}, now);
      if (entry.members[rank].is(MemberPhase::kJoined)) check_member(entry, Rank{rank}, now);
      if (entry.members[rank].is(MemberPhase::kJoined)) check_idle_return(entry, Rank{rank}, now);
    }
    check_wanted(entry, now);
    if (entry.is_synchronous()) check_ends(entry, now);
    if (entry.goes_on()) advance_resyncs(entry, now);
    if (entry.goes_on() && entry.is_store()) {
      start_joiners(entry, now);
      check_initial_values(entry, now);
      check_kept(entry, now);
    }
    if (entry.ended()) expire(entry, now);
    if (entry.ended() && entry.memory() == JobMemory::kNone &&
        now - entry.ended_ns >= kNoticeRepeat)
      slot.reset();
  }
}

void Jobs::check_member(JobEntry& entry, Rank rank, TimeNs now) {
  const auto last_heard_ns = [&] { return last_heard(entry, rank); };
  CHECK(entry.member(rank).is(MemberPhase::kJoined));
  switch (entry.member(rank).liveness.check(now, options_.member_timeout_ns, last_heard_ns)) {
    case Liveness::Finding::kNothing: return;
    case Liveness::Finding::kPing: return queue(entry, rank, wire::PacketType::kPing);
    case Liveness::Finding::kDied: return lose(entry, rank, wire::NoticeCode::kMemberDied, now);
    case Liveness::Finding::kSilent: return lose(entry, rank, wire::NoticeCode::kMemberSilent, now);
  }
}

// A synchronous job that runs cannot go on without a rank, others can; one that forms waits for
// another process. So does a store: of what the lost one was about to push nothing fits any more.
void Jobs::lose(JobEntry& entry, Rank rank, wire::NoticeCode code, TimeNs now) {
  CHECK(!entry.ended());
  MemberEntry& member = entry.member(rank);
  const bool evicted = entry.goes_on() && entry.is_store();
  member.change_to(evicted ? MemberPhase::kEvicted : MemberPhase::kGone);
  member.liveness.reset_suspicion();
  entry.shared(rank).reachable.store(false, std::memory_order_release);
  if (entry.forming() && entry.count(MemberPhase::kJoined) != 0) return;
  if (entry.is_synchronous() && let_go(entry, rank, code, now)) return;
  if (entry.goes_on()) {
    remove_member(entry, rank);
    std::string why = describe_loss_by(entry, rank, code, now);
    if (evicted) member.notice = why;
    note_loss(entry, rank, code, std::move(why), now);
    return;
  }
  fail(entry, code, rank, describe_loss_by(entry, rank, code, now), now);
}

std::string Jobs::describe_loss_by(const JobEntry& entry, Rank rank, wire::NoticeCode code,
                                   TimeNs now) const {
  const bool died = code == wire::NoticeCode::kMemberDied;
  const std::string what = died ? "died (its process answers no ping)"
                                : text("fell silent (limits.member_timeout_s is %.1f)",
                                       seconds(options_.member_timeout_ns));
  return describe_loss(entry, rank, what, now - last_heard(entry, rank));
}

}  // namespace sluice::agg
