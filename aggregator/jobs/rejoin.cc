// Members that a running job loses and goes on without, and processes that take their ranks again.
//
// Only for stores, and for jobs whose policy lets a step complete without one of the ranks; a
// synchronous job ends with its first loss (ending.cc).
#include <algorithm>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {

// From here on no step waits for the rank and no result is sent to it.
void Jobs::remove_member(JobEntry& entry, Rank rank) noexcept {
  CHECK(entry.goes_on());
  Member& shared = entry.shared(rank);
  for (auto& left_from : shared.left_from) left_from.store(0, std::memory_order_release);
  shared.reachable.store(false, std::memory_order_release);
  entry.member(rank).liveness.reset_suspicion();
  command(ShardCommand::Kind::kMemberGone, entry, rank);
  forget_resync(entry, rank);
}

// The rest of a sentence about a loss, once the rank is removed.
std::string Jobs::describe_shrinking(const JobEntry& entry, std::string what) const {
  if (entry.live_count() == 0)
    return what + "; nobody is left in the job: start it again" +
           (entry.is_store() ? "" : " from a checkpoint");
  return what + text("; the job goes on with %u of %u ranks, and this one may join again",
                     unsigned{entry.live_count()}, unsigned{entry.world_size()});
}

// What the operator reads; the last loss is also the end of the job.
void Jobs::note_loss(JobEntry& entry, Rank rank, wire::NoticeCode code, std::string why,
                     TimeNs now) {
  CHECK(!why.empty() && !entry.member(rank).live());
  entry.loss = std::move(why);
  if (entry.live_count() == 0 && !keep(entry, now)) fail(entry, code, rank, entry.loss, now);
}

// The rank is held by a process again, a new one or the old one after a pause. It contributes from
// a step on whose record no shard has yet, and is accepted when shard 0 knows it.
void Jobs::rejoin(JobEntry& entry, Rank rank, TimeNs now) {
  CHECK(entry.goes_on());
  MemberEntry& member = entry.member(rank);
  Member& shared = entry.shared(rank);
  // In no step until shard 0 has said from which on. Asked again, it may have done so: then records
  // with the rank are out.
  if (!member.is(MemberPhase::kReturning))
    for (const std::size_t stream : {kTensorStream, index_of(StreamId::kCollectives)})
      shared.joined_from[stream].store(kNoStep, std::memory_order_release);
  CHECK(member.cookie != 0 && !entry.resyncs.is_target(rank) && !entry.resyncs.in_line(rank));
  member.change_to(MemberPhase::kReturning);
  member.liveness.hear(now);
  member.liveness.reset_suspicion();
  member.rejoined_ns = now;
  ++member.admissions_due;
  if (++member.admission == 0) ++member.admission;  // which says that no shard holds for it yet

  for (auto& left_from : shared.left_from) left_from.store(kNoStep, std::memory_order_release);
  shared.reachable.store(true, std::memory_order_release);
  command(entry.is_store() ? ShardCommand::Kind::kHoldClocks : ShardCommand::Kind::kMemberJoined,
          entry, rank);
}

// A shard drops events when too many wait; the member that speaks while it waits asks for them.
void Jobs::repeat_rejoin(JobEntry& entry, Rank rank, TimeNs now) {
  MemberEntry& member = entry.member(rank);
  CHECK(member.is(MemberPhase::kReturning));
  if (!entry.goes_on() || now - member.rejoined_ns < kShardAnswer) return;
  member.admissions_due = 0;
  rejoin(entry, rank, now);
}

void Jobs::admitted(JobEntry& entry, Rank rank, TimeNs now) {
  MemberEntry& member = entry.member(rank);
  CHECK(!entry.is_synchronous() && !entry.forming());
  if (member.admissions_due != 0) --member.admissions_due;
  // Another process may have claimed the rank since: its own admission is still to come.
  if (!member.is(MemberPhase::kReturning) || member.admissions_due != 0) return;
  member.change_to(MemberPhase::kJoined);
  member.liveness.hear(now);
  member.admitted_ns = now;
  const auto away = [](const MemberEntry& other) { return other.lost(); };
  if (std::none_of(entry.members.begin(), entry.members.end(), away)) entry.loss.clear();
}

// Of a store: processes for whom every shard holds its clocks now. They start behind the greatest.
void Jobs::start_joiners(JobEntry& entry, TimeNs now) {
  CHECK(entry.goes_on() && entry.is_store());
  for (std::uint16_t index = 0; index < entry.world_size(); ++index) {
    const Rank rank{index};
    MemberEntry& member = entry.member(rank);
    if (!member.is(MemberPhase::kReturning)) continue;
    Step first = 1;
    const bool all_hold = std::ranges::all_of(entry.job->slices, [&](const JobSlice& slice) {
      const std::uint64_t held = slice.joiners[index].held.load(std::memory_order_acquire);
      first = std::max(first, static_cast<Step>(held));
      return held >> 32 == member.admission;
    });
    if (!all_hold) continue;
    entry.shared(rank).joined_from[index_of(StreamId::kPushes)].store(first,
                                                                      std::memory_order_release);
    command(ShardCommand::Kind::kMemberStarts, entry, rank, first);
    member.admissions_due = 0;
    admitted(entry, rank, now);
  }
}

// Ends one member's part against its will and tells it why; another process may take the rank.
void Jobs::evict(JobEntry& entry, Rank rank, std::string why, TimeNs now) {
  MemberEntry& member = entry.member(rank);
  CHECK(entry.goes_on() && !why.empty());
  member.change_to(MemberPhase::kEvicted);
  member.notice = why;
  remove_member(entry, rank);
  queue(entry, rank, wire::PacketType::kNotice);
  note_loss(entry, rank, wire::NoticeCode::kResyncHold, describe_shrinking(entry, std::move(why)),
            now);
}

}  // namespace sluice::agg
