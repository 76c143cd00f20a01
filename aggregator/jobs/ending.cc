// How a job loses single ranks, how it ends, what its members are told, and when its memory goes
// back.
//
// A job that runs on without a rank only removes it. In a synchronous job the end of a rank is an
// error only once another rank needs it (contributions.h).
#include <cinttypes>

#include "aggregator/jobs/job_control.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

// The other ranks have this long to end as well once a process is proven gone. A LEAVE is repeated
// for half a second, so a process without one died and did not finish; the others must not idle on
// without it.
constexpr DurationNs kEndTogether = 2 * kSecond;

// Processes with which the job goes on. Of a store in views one that is not let in yet is none: all
// others may be at another appliance, and go on there with the ranks that they know of.
std::uint16_t left_count(const JobEntry& entry) {
  return entry.in_views() ? entry.count(MemberPhase::kJoined) : entry.live_count();
}

// The rest of a sentence about a loss, once the rank is removed.
std::string describe_shrinking(const JobEntry& entry, std::string what) {
  if (left_count(entry) == 0)
    return what + "; nobody is left in the job: start it again" +
           (entry.is_store() ? "" : " from a checkpoint");
  return what + text("; the job goes on with %u of %u ranks, and this one may join again",
                     unsigned{left_count(entry)}, unsigned{entry.world_size()});
}

std::string describe_loss(const JobEntry& entry, Rank rank, const std::string& what,
                          DurationNs silent_ns) {
  const std::string lost = text(
      "job '%s': rank %u at %s %s, last heard %.1f s ago", entry.name.c_str(), unsigned{rank.value},
      entry.member(rank).address.c_str(), what.c_str(), seconds(silent_ns));
  if (entry.goes_on()) return describe_shrinking(entry, lost);
  if (entry.forming()) return lost + "; nobody is left that waits for the job to start: join again";
  return lost +
         "; a synchronous job needs all ranks: look at that rank's log and start the job again";
}

std::string describe_move(const JobEntry& entry, Rank rank) {
  return text("job '%s': rank %u at %s has moved to another appliance", entry.name.c_str(),
              unsigned{rank.value}, entry.member(rank).address.c_str());
}

std::string describe_early_end(const JobEntry& entry, Rank rank,
                               const Contributions::Furthest& furthest) {
  const MemberEntry& member = entry.member(rank);
  CHECK(member.missing_from != 0);
  const std::string when = member.missing_from == 1
                               ? "before its first step"
                               : text("after step %u", member.missing_from - 1);
  return text(
      "job '%s': rank %u at %s ended in order %s and rank %u contributes to step %u: a synchronous "
      "job needs all ranks to take the same number of steps: look at that rank's log, or call "
      "finish() where uneven ends are meant",
      entry.name.c_str(), unsigned{rank.value}, member.address.c_str(), when.c_str(),
      unsigned{furthest.rank.value}, furthest.step);
}

}  // namespace

// ---- single ranks ----

void JobControl::leave(Rank rank, const wire::Leave& leave, std::string_view why, TimeNs now) {
  MemberEntry& member = entry_.member(rank);
  CHECK(!member.has_left() && !member.is(MemberPhase::kFree));
  const bool moved = leave.reason == wire::LeaveReason::kMoved;
  const bool abnormal = leave.reason == wire::LeaveReason::kAbnormal || (moved && !entry_.moves());
  const DurationNs silent_ns = now - entry_.last_heard_ns(rank, context_.clock);
  member.left_ns = now;
  if (leave.reason == wire::LeaveReason::kAborted && !entry_.ended()) {
    member.change_to(MemberPhase::kAborted);
    if (entry_.job != nullptr)
      entry_.shared(rank).reachable.store(false, std::memory_order_release);
    return fail(wire::NoticeCode::kMemberLeft, rank,
                text("job '%s': rank %u at %s has aborted it: %s", entry_.name.c_str(),
                     unsigned{rank.value}, member.address.c_str(),
                     why.empty() ? "it gave no reason" : std::string(why).c_str()),
                now);
  }
  if (entry_.goes_on() && (abnormal || member.lost())) {
    const bool was_live = member.live();
    member.change_to(MemberPhase::kAborted);
    if (!was_live) return;
    if (entry_.breaks_exchange())
      return fail(wire::NoticeCode::kMoved, rank,
                  describe_loss(entry_, rank, "left with an error", silent_ns), now);
    remove_member(rank);
    note_loss(rank, wire::NoticeCode::kMemberLeft,
              describe_loss(entry_, rank, "left with an error", silent_ns), now);
    return;
  }
  member.change_to(MemberPhase::kLeft);
  member.moved = moved;
  if (entry_.job != nullptr) entry_.shared(rank).reachable.store(false, std::memory_order_release);

  // What it has it states where it is now.
  if (entry_.breaks_exchange() || (moved && entry_.exchanging() && !entry_.in_views()))
    return fail(
        wire::NoticeCode::kMoved, rank,
        moved ? describe_move(entry_, rank) : describe_loss(entry_, rank, "left", silent_ns), now);
  // Nobody ends its part: the others follow. It counts among the ranks of a step until then, so
  // nothing that needs it is completed here.
  if (moved && entry_.drain == wire::Drain::kAsked) drain(wire::Drain::kBegun);
  if (moved && entry_.running()) transfers_.forget(rank);
  if (entry_.running() && !moved) {
    if (abnormal) {
      fail(wire::NoticeCode::kMemberLeft, rank,
           describe_loss(entry_, rank, "left with an error", silent_ns), now);
      return;
    }
    Member& shared = entry_.shared(rank);
    const bool uneven = leave.reason == wire::LeaveReason::kUneven;
    for (std::size_t stream = 0; stream < kStreamsOfJob; ++stream) {
      const Step from = std::max(Step{leave.first_steps[stream]}, Step{1});
      if (stream == index_of(StreamId::kGradients) && entry_.is_synchronous() && !uneven)
        member.missing_from = from;  // no step is complete without it: see check_ends()
      else
        shared.left_from[stream].store(from, std::memory_order_release);
    }
    if (entry_.in_views() && entry_.exchanging())
      member.removal_due = true;
    else
      context_.outbox.command(entry_, ShardCommand::Kind::kMemberGone, rank);
    if (entry_.in_views() && entry_.live_count() != 0) {
      views_.change();
      tell_status();
    }
    transfers_.forget(rank);
    groups_.remove_member(rank);
  }
  if (!entry_.ended() && entry_.live_count() == 0 && !keep(now)) retire(now);
}

// Of a job with k < n whose others have not followed a rank that has moved: they cannot reach it,
// and it may come back.
void JobControl::check_member(Rank rank, TimeNs now) {
  MemberEntry& member = entry_.member(rank);
  const DurationNs timeout_ns = context_.options->member_timeout_ns;
  if (entry_.goes_on() && member.is_elsewhere() && !entry_.is_store() && entry_.exchanges() &&
      now - member.left_ns >= timeout_ns) {
    member.change_to(MemberPhase::kAborted);
    remove_member(rank);
    return note_loss(rank, wire::NoticeCode::kMemberLeft,
                     describe_shrinking(entry_, describe_move(entry_, rank)), now);
  }
  if (!member.live()) return;
  const auto last_heard_ns = [&] { return entry_.last_heard_ns(rank, context_.clock); };
  switch (member.liveness.check(now, timeout_ns, last_heard_ns)) {
    case Liveness::Finding::kNothing: return;
    case Liveness::Finding::kPing:
      return context_.outbox.send(entry_, rank, wire::PacketType::kPing);
    case Liveness::Finding::kDied: return lose(rank, wire::NoticeCode::kMemberDied, now);
    case Liveness::Finding::kSilent: return lose(rank, wire::NoticeCode::kMemberSilent, now);
  }
}

// A synchronous job that runs cannot go on without a rank, other jobs can; a job that forms waits
// for another process. A store evicts the rank, since nothing that the lost process was about to
// push fits any more.
void JobControl::lose(Rank rank, wire::NoticeCode code, TimeNs now) {
  CHECK(!entry_.ended());
  MemberEntry& member = entry_.member(rank);
  const bool evicted = entry_.goes_on() && entry_.is_store();
  member.change_to(evicted ? MemberPhase::kEvicted : MemberPhase::kGone);
  member.liveness.reset_suspicion();
  entry_.shared(rank).reachable.store(false, std::memory_order_release);
  if (entry_.forming() && entry_.count(MemberPhase::kJoined) != 0) return;
  if (entry_.is_synchronous() && let_go(rank, code, now)) return;
  if (evicted) member.notice = describe_loss_by(rank, code, now);
  if (entry_.exchanging() && !entry_.in_views())
    return fail(wire::NoticeCode::kMoved, rank, describe_loss_by(rank, code, now), now);
  if (entry_.goes_on()) {
    remove_member(rank);
    std::string why = describe_loss_by(rank, code, now);
    if (evicted) member.notice = why;
    note_loss(rank, code, std::move(why), now);
    return;
  }
  fail(code, rank, describe_loss_by(rank, code, now), now);
}

std::string JobControl::describe_loss_by(Rank rank, wire::NoticeCode code, TimeNs now) const {
  const bool died = code == wire::NoticeCode::kMemberDied;
  const std::string what = died ? "died (its process answers no ping)"
                                : text("fell silent (limits.member_timeout_s is %.1f)",
                                       seconds(context_.options->member_timeout_ns));
  return describe_loss(entry_, rank, what, now - entry_.last_heard_ns(rank, context_.clock));
}

// The member of a synchronous job is silent. False: the job waits for it. Else it may have
// finished, and nobody is told as long as nobody waits for it.
bool JobControl::let_go(Rank rank, wire::NoticeCode code, TimeNs now) {
  CHECK(entry_.is_synchronous() && !entry_.member(rank).live());
  const bool others = entry_.live_count() != 0;
  if (!others && entry_.count(MemberPhase::kLeft) == 0) return false;
  if (contributions_.is_awaited(*entry_.job, rank)) return false;
  MemberEntry& member = entry_.member(rank);
  CHECK(member.is(MemberPhase::kGone));
  member.lost_by = code;
  member.left_ns = now;
  if (!others) retire(now);
  return true;
}

// Ends a synchronous job that needs a rank after all that is gone or has ended in order.
void JobControl::check_ends(TimeNs now) {
  CHECK(entry_.is_synchronous() && entry_.job != nullptr);
  for (std::uint16_t index = 0; index < entry_.world_size(); ++index) {
    const Rank rank{index};
    const MemberEntry& member = entry_.members[index];
    const bool gone = member.is(MemberPhase::kGone);
    if (gone && entry_.last_heard_ns(rank, context_.clock) > member.left_ns)
      revive(rank, now);
    else if (gone && (contributions_.is_awaited(*entry_.job, rank) ||
                      (member.lost_by == wire::NoticeCode::kMemberDied &&
                       now - member.left_ns > kEndTogether)))
      return fail(member.lost_by, rank, describe_loss_by(rank, member.lost_by, now), now);
    if (!member.is(MemberPhase::kLeft) || member.missing_from == 0) continue;
    const Contributions::Furthest& furthest = contributions_.furthest(*entry_.job);
    if (furthest.step >= member.missing_from)
      return fail(wire::NoticeCode::kMemberLeft, rank, describe_early_end(entry_, rank, furthest),
                  now);
  }
}

// Ends one member's part against its will and tells it why; another process may take the rank.
void JobControl::evict(StateTransfers::Eviction eviction, TimeNs now) {
  auto& [rank, why] = eviction;
  MemberEntry& member = entry_.member(rank);
  CHECK(entry_.goes_on() && !why.empty());
  member.change_to(MemberPhase::kEvicted);
  member.notice = why;
  remove_member(rank);
  context_.outbox.send(entry_, rank, wire::PacketType::kNotice);
  note_loss(rank, wire::NoticeCode::kResyncHold, describe_shrinking(entry_, std::move(why)), now);
}

Status JobControl::kick(std::optional<Rank> rank, TimeNs now) {
  const char* name = entry_.name.c_str();
  const auto refused = [&](std::string why) {
    return Status(StatusCode::kNotFound, text("job '%s' %s", name, why.c_str()));
  };
  if (entry_.ended()) return refused("has ended already");
  if (!rank) {
    fail(wire::NoticeCode::kReplaced, Rank{},
         text("job '%s': the operator of the appliance has ended it", name), now);
    return {};
  }
  if (rank->value >= entry_.world_size())
    return refused(text("has no rank %u: its ranks are 0 to %u", unsigned{rank->value},
                        unsigned{entry_.world_size()} - 1));
  const MemberEntry& member = entry_.member(*rank);
  if (entry_.forming()) return refused("has not started: wait until it runs, or end the whole job");
  if (!member.is(MemberPhase::kJoined))
    return refused(text("has no process at rank %u now", unsigned{rank->value}));
  std::string why = text("job '%s': the operator of the appliance has removed rank %u at %s", name,
                         unsigned{rank->value}, member.address.c_str());
  if (entry_.is_store() && entry_.exchanging())
    return refused("exchanges what its ranks have of a lost appliance: try again in a moment");
  if (entry_.goes_on())
    evict({*rank, std::move(why)}, now);
  else
    fail(wire::NoticeCode::kMemberLeft, *rank,
         std::move(why) + "; a synchronous job needs all ranks: start the job again", now);
  return {};
}

void JobControl::remove_member(Rank rank) {
  if (entry_.in_views()) {
    views_.lose(rank);
    return tell_status();
  }
  ranks_.remove(rank);
  transfers_.forget(rank);
  groups_.remove_member(rank);
}

// The operator reads the last loss. The loss of the last member is also the end of the job.
void JobControl::note_loss(Rank rank, wire::NoticeCode code, std::string why, TimeNs now) {
  CHECK(!why.empty() && !entry_.member(rank).live());
  entry_.loss = std::move(why);
  if (left_count(entry_) != 0 || (!entry_.in_views() && keep(now))) return;
  if (entry_.is_elastic())
    retire(now);  // its next process begins it anew
  else
    fail(code, rank, entry_.loss, now);
}

// ---- the job ----

void JobControl::fail(wire::NoticeCode code, Rank about, std::string why, TimeNs now) {
  CHECK(!why.empty());
  if (entry_.ended()) return;
  // Nothing to refuse a new try for.
  entry_.listed = entry_.running() && code != wire::NoticeCode::kMoved;
  entry_.end(now);
  entry_.failed = true;
  entry_.notice_code = code;
  entry_.notice_rank = about;
  entry_.notice_text = std::move(why);
  if (entry_.job != nullptr) entry_.job->ended.store(true, std::memory_order_release);
  for (std::uint16_t rank = 0; rank < entry_.world_size(); ++rank)
    if (entry_.members[rank].live())
      context_.outbox.send(entry_, Rank{rank}, wire::PacketType::kNotice);
  if (!entry_.listed) release();
}

void JobControl::replace(const Request& request) {
  const wire::Join& join = request.join();
  const bool moved = entry_.run_id == join.run_id;
  const bool resumes = moved && entry_.epoch == join.epoch;
  CHECK(entry_.listed && (!moved || entry_.epoch <= join.epoch));
  const std::string address(request.origin.address);
  if (resumes)
    fail(wire::NoticeCode::kMoved, request.rank(),
         text("job '%s' goes on here from an appliance that is lost (rank %u at %s): join again",
              entry_.name.c_str(), unsigned{request.rank().value}, address.c_str()),
         request.now);
  else if (moved)
    fail(wire::NoticeCode::kMoved, request.rank(),
         text("job '%s' has moved %u times and goes on here anew (rank %u at %s)",
              entry_.name.c_str(), std::uint32_t{join.epoch}, unsigned{request.rank().value},
              address.c_str()),
         request.now);
  else
    fail(wire::NoticeCode::kReplaced, request.rank(),
         text("job '%s': run %016" PRIx64 " was silent for more than %.0f s and gave way to run "
              "%016" PRIx64 " (rank %u at %s)",
              entry_.name.c_str(), entry_.run_id, seconds(kTakeoverSilence), join.run_id,
              unsigned{request.rank().value}, address.c_str()),
         request.now);
  entry_.listed = false;
  release();
}

void JobControl::retire(TimeNs now) {
  CHECK(entry_.live_count() == 0 && !entry_.ended());
  entry_.end(now);
  entry_.listed = false;
  release();
}

// Asks the shards to let go of the job; the last one's kJobReleased sends the memory back. Memory
// that is still being made is not wanted any more.
void JobControl::release() {
  if (entry_.memory() == JobMemory::kMaking)
    entry_.progress->unwanted.store(true, std::memory_order_relaxed);
  if (entry_.memory() != JobMemory::kHeld) return;
  entry_.change_to(JobMemory::kLeaving);
  CHECK(entry_.ended());
  entry_.releases_left = context_.options->shard_count;
  entry_.job->ended.store(true, std::memory_order_release);
  context_.outbox.command(entry_, ShardCommand::Kind::kRemoveJob);
}

// After a failure the job stays until its members know, or could have asked for long enough.
void JobControl::expire(TimeNs now) {
  CHECK(entry_.ended());
  const bool asked_for_long_enough = now - entry_.ended_ns >= kNoticeRepeat;
  if (entry_.count(MemberPhase::kJoined) != 0 && !asked_for_long_enough) return;
  entry_.listed = entry_.listed && !asked_for_long_enough;
  release();
}

void JobControl::give_back(std::unique_ptr<Job> job) {
  CHECK(job != nullptr && entry_.job == nullptr && entry_.ended());
  entry_.change_to(JobMemory::kGoing);
  JobSpec spec;
  spec.id = entry_.id;
  context_.outbox.orders.push_back({.kind = MemoryOrder::Kind::kGiveBack,
                                    .serial = entry_.serial,
                                    .bytes = entry_.memory_bytes,
                                    .spec = std::move(spec),
                                    .job = std::move(job),
                                    .progress = nullptr});
}

}  // namespace sluice::agg
