// Who is still there. Silence is answered with pings; a hint that a process is gone with three
// quick ones; both end in the loss of the member when nothing is heard.
#include <algorithm>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {

// Control and data both count. The data flows are read only when the control port is quiet: a
// keepalive every 250 ms usually answers the question with one load.
TimeNs Jobs::last_heard(const Entry& entry, Rank rank) const noexcept {
  TimeNs heard_ns = entry.members[rank.value].heard_control_ns;
  if (entry.job == nullptr) return heard_ns;
  for (const JobSlice& slice : entry.job->slices)
    heard_ns = std::max(heard_ns, attendance_.attended(slice.flows[rank.value].last_heard_ns.load(
                                      std::memory_order_relaxed)));
  return heard_ns;
}

void Jobs::suspect(JobId job, Rank rank, TimeNs clock_ns) {
  const TimeNs now = attendance_.arrive(clock_ns);
  if (job.value >= entries_.size() || entries_[job.value] == nullptr) return;
  Entry& entry = *entries_[job.value];
  if (entry.state == wire::JobState::kEnded || rank.value >= entry.world_size()) return;
  suspect(entry, rank, now);
}

std::optional<Verdict> Jobs::suspect_quoted(const wire::CommonHeader& quoted, TimeNs clock_ns) {
  const TimeNs now = attendance_.arrive(clock_ns);
  if (quoted.job >= entries_.size() || entries_[quoted.job] == nullptr) return Verdict::kUnknownJob;
  Entry& entry = *entries_[quoted.job];
  if (quoted.rank >= entry.world_size()) return Verdict::kBadRank;
  const Member& member = entry.members[quoted.rank];
  if (quoted.cookie == 0 || quoted.cookie != member.cookie) return Verdict::kBadCookie;
  if (entry.state == wire::JobState::kEnded) return std::nullopt;
  if (member.cleared && now - member.cleared_ns <= kClearedFor) return std::nullopt;
  suspect(entry, Rank{quoted.rank}, now);
  return std::nullopt;
}

void Jobs::suspect(Entry& entry, Rank rank, TimeNs now) {
  Member& member = entry.members[rank.value];
  if (member.phase != Member::Phase::kJoined || member.suspected) return;
  member.suspected = true;
  member.suspected_ns = now;
  member.suspect_pings = 0;
  member.suspect_ping_due = true;
  queue(entry, rank, wire::PacketType::kPing);
}

void Jobs::tick(TimeNs clock_ns) {
  const TimeNs now = attendance_.arrive(clock_ns);
  for (auto& slot : entries_) {
    if (slot == nullptr) continue;
    Entry& entry = *slot;
    for (std::uint16_t rank = 0; rank < entry.world_size() && entry.state != wire::JobState::kEnded;
         ++rank) {
      if (entry.members[rank].phase == Member::Phase::kReturning)
        readmit_again(entry, Rank{rank}, now);
      if (entry.members[rank].phase == Member::Phase::kJoined) check_member(entry, Rank{rank}, now);
      if (entry.members[rank].phase == Member::Phase::kJoined)
        check_idle_return(entry, Rank{rank}, now);
    }
    check_wanted(entry, now);
    if (entry.is_synchronous()) check_ends(entry, now);
    if (entry.goes_on()) advance_resyncs(entry, now);
    if (entry.state == wire::JobState::kEnded) expire(entry, now);
    if (entry.state == wire::JobState::kEnded && entry.memory == Entry::Memory::kNone &&
        now - entry.ended_ns >= kNoticeRepeat)
      slot.reset();
  }
}

void Jobs::check_member(Entry& entry, Rank rank, TimeNs now) {
  Member& member = entry.members[rank.value];
  if (member.suspected) {
    if (last_heard(entry, rank) - member.suspected_ns > kSuspectGrace) {
      member.suspected = false;
      member.cleared = true;
      member.cleared_ns = now;
    } else if (!member.suspect_ping_due && now - member.suspect_pinged_ns >= kSuspectPing) {
      if (member.suspect_pings >= kSuspectPings)
        return lose(entry, rank, wire::NoticeCode::kMemberDied, now);
      member.suspect_ping_due = true;
      queue(entry, rank, wire::PacketType::kPing);
    }
  }

  if (now - member.heard_control_ns <= kPingAfterSilence) return;
  const DurationNs silent_ns = now - last_heard(entry, rank);
  if (silent_ns > options_.member_timeout_ns) {
    lose(entry, rank, wire::NoticeCode::kMemberSilent, now);
  } else if (silent_ns > kPingAfterSilence && now >= member.next_ping_ns) {
    member.next_ping_ns = now + kPingAfterSilence;
    queue(entry, rank, wire::PacketType::kPing);
  }
}

// A synchronous job that runs cannot go on without a rank, others can; one that forms waits for
// another process.
void Jobs::lose(Entry& entry, Rank rank, wire::NoticeCode code, TimeNs now) {
  Member& member = entry.members[rank.value];
  member.phase = Member::Phase::kGone;
  member.suspected = false;
  entry.job->members[rank.value].reachable.store(false, std::memory_order_release);
  if (entry.state == wire::JobState::kForming && entry.count(Member::Phase::kJoined) != 0) return;
  if (entry.is_synchronous() && let_go(entry, rank, code, now)) return;
  if (entry.goes_on()) {
    give_up(entry, rank);
    note_loss(entry, rank, code, describe_loss_by(entry, rank, code, now), now);
    return;
  }
  fail(entry, code, rank, describe_loss_by(entry, rank, code, now), now);
}

std::string Jobs::describe_loss_by(const Entry& entry, Rank rank, wire::NoticeCode code,
                                   TimeNs now) const {
  const bool died = code == wire::NoticeCode::kMemberDied;
  const std::string what = died ? "died (its process answers no ping)"
                                : text("fell silent (limits.member_timeout_s is %.1f)",
                                       seconds(options_.member_timeout_ns));
  return describe_loss(entry, rank, what, now - last_heard(entry, rank));
}

}  // namespace sluice::agg
