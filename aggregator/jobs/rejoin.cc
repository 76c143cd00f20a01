// Members that a running job loses and goes on without, and processes that take their ranks again.
//
// Only for jobs whose policy lets a step complete without one of the ranks; a synchronous job ends
// with its first loss (ending.cc).
#include <algorithm>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {

// A second process for a rank is a hint that the first has ended, as when a launcher starts it
// again: the first is pinged before the second is refused. True while that is going on.
bool Jobs::doubt(Entry& entry, Rank rank, TimeNs now) {
  const Member& member = entry.members[rank.value];
  if (member.suspected) return true;
  if (member.cleared && now - member.cleared_ns <= kClearedFor) return false;
  suspect(entry, rank, now);
  return true;
}

// From here on no step waits for the rank and no result is sent to it.
void Jobs::give_up(Entry& entry, Rank rank) noexcept {
  agg::Member& shared = entry.job->members[rank.value];
  for (auto& left_from : shared.left_from) left_from.store(0, std::memory_order_release);
  shared.reachable.store(false, std::memory_order_release);
  entry.members[rank.value].suspected = false;
  commands_.push_back(
      {.kind = ShardCommand::Kind::kMemberGone, .job = entry.job.get(), .rank = rank});
  forget_resync(entry, rank);
}

// The rest of a sentence about a loss, once the rank is given up.
std::string Jobs::describe_shrinking(const Entry& entry, std::string what) const {
  if (entry.live_count() == 0)
    return what + "; nobody is left in the job: start it again from a checkpoint";
  return what + text("; the job goes on with %u of %u ranks, and this one may join again",
                     unsigned{entry.live_count()}, unsigned{entry.world_size()});
}

// What the operator reads; the last loss is also the end of the job.
void Jobs::note_loss(Entry& entry, Rank rank, wire::NoticeCode code, std::string why, TimeNs now) {
  entry.loss = std::move(why);
  if (entry.live_count() == 0) fail(entry, code, rank, entry.loss, now);
}

// The rank is held by a process again, a new one or the old one after a pause. It contributes from
// a step on whose record no shard has yet, and is accepted when shard 0 knows it.
void Jobs::readmit(Entry& entry, Rank rank, TimeNs now) {
  Member& member = entry.members[rank.value];
  agg::Member& shared = entry.job->members[rank.value];
  // In no step until shard 0 has said from which on. Asked again, it may have done so: then records
  // with the rank are out.
  if (member.phase != Member::Phase::kReturning)
    for (const StreamId stream : {StreamId::kGradients, StreamId::kCollectives})
      shared.joined_from[index_of(stream)].store(kNoStep, std::memory_order_release);
  member.phase = Member::Phase::kReturning;
  member.heard_control_ns = now;
  member.suspected = false;
  member.readmitted_ns = now;
  ++member.admissions_due;

  for (auto& left_from : shared.left_from) left_from.store(kNoStep, std::memory_order_release);
  shared.reachable.store(true, std::memory_order_release);
  commands_.push_back(
      {.kind = ShardCommand::Kind::kMemberJoined, .job = entry.job.get(), .rank = rank});
}

// A shard drops events when too many wait; the member that speaks while it waits asks for them.
void Jobs::readmit_again(Entry& entry, Rank rank, TimeNs now) {
  Member& member = entry.members[rank.value];
  if (!entry.goes_on() || now - member.readmitted_ns < kShardAnswer) return;
  member.admissions_due = 0;
  readmit(entry, rank, now);
}

void Jobs::admitted(Entry& entry, Rank rank, TimeNs now) {
  Member& member = entry.members[rank.value];
  if (member.admissions_due != 0) --member.admissions_due;
  // Another process may have claimed the rank since: its own admission is still to come.
  if (member.phase != Member::Phase::kReturning || member.admissions_due != 0) return;
  member.phase = Member::Phase::kJoined;
  member.heard_control_ns = now;
  member.next_ping_ns = now;
  member.admitted_ns = now;
  const auto away = [](const Member& other) { return other.lost(); };
  if (std::none_of(entry.members.begin(), entry.members.end(), away)) entry.loss.clear();
}

// Ends one member's part against its will and tells it why; another process may take the rank.
void Jobs::expel(Entry& entry, Rank rank, std::string why, TimeNs now) {
  Member& member = entry.members[rank.value];
  member.phase = Member::Phase::kExpelled;
  member.notice = why;
  give_up(entry, rank);
  queue(entry, rank, wire::PacketType::kNotice);
  note_loss(entry, rank, wire::NoticeCode::kResyncHold, describe_shrinking(entry, std::move(why)),
            now);
}

}  // namespace sluice::agg
