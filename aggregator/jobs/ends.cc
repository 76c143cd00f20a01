// The ends of single ranks of a synchronous job, each an error only when another rank needs it.
//
// A rank whose LEAVE was lost looks like one that died between two steps, and one that ended in
// order is no loss as long as nobody goes on: what the others have begun tells, and the shards keep
// that for every rank. So nothing is judged by the order in which packets came.
#include <algorithm>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

// A process that is proven gone had this long for the others to end as well. A LEAVE is repeated
// for half a second, so after that it died and did not finish; they must not idle on without it.
constexpr DurationNs kEndTogether = 2 * kSecond;

// The newest gradient step that the rank has contributed to, in any shard; 0: none.
Step newest_contribution(const Job& job, Rank rank) noexcept {
  CHECK(rank.value < job.spec.world_size);
  Step newest = 0;
  for (const JobSlice& slice : job.slices)
    newest = std::max(
        newest, slice.flows[rank.value].last_contribution_step.load(std::memory_order_relaxed));
  return newest;
}

}  // namespace

// Who has begun the newest gradient step. Reads world size x shards counters, so once a tick at
// most and only when somebody is gone or has left: see Jobs::tick().
const Furthest& Jobs::furthest(JobEntry& entry) noexcept {
  CHECK(entry.is_synchronous() && entry.world_size() != 0);
  if (entry.furthest) return *entry.furthest;
  entry.furthest.emplace();
  ++furthest_searches_;
  for (std::uint16_t rank = 0; rank < entry.world_size(); ++rank) {
    const Step step = newest_contribution(*entry.job, Rank{rank});
    if (step > entry.furthest->step) entry.furthest = {.rank = Rank{rank}, .step = step};
  }
  return *entry.furthest;
}

// Whether a step or a collective has been begun that is not complete without the rank, or the rank
// is not where one finishes: it has contributed to every step that is closed, and to one at least.
bool Jobs::is_awaited(JobEntry& entry, Rank rank) noexcept {
  CHECK(entry.is_synchronous() && entry.job != nullptr);
  const Job& job = *entry.job;
  const auto open_step = [&](StreamId stream) {
    return job.windows[index_of(stream)].open_step.load(std::memory_order_acquire);
  };
  const Step open = open_step(StreamId::kGradients);
  const Step newest = newest_contribution(job, rank);
  if (newest == 0 || newest + 1 != open) return true;
  const Step collective = job.collective_begun.load(std::memory_order_relaxed);
  if (collective != 0 && collective >= open_step(StreamId::kCollectives)) return true;
  return furthest(entry).step >= open;
}

// A member that is silent. False: it is missed. Else it may have finished: nobody is told as long
// as nobody waits for it.
bool Jobs::let_go(JobEntry& entry, Rank rank, wire::NoticeCode code, TimeNs now) {
  CHECK(!entry.member(rank).live());
  const bool others = entry.live_count() != 0;
  if ((!others && entry.count(MemberPhase::kLeft) == 0) || is_awaited(entry, rank)) return false;
  MemberEntry& member = entry.member(rank);
  CHECK(member.is(MemberPhase::kGone));
  member.lost_by = code;
  member.left_ns = now;
  if (!others) retire(entry, now);
  return true;
}

// Who is gone or has ended in order, and is needed after all?
void Jobs::check_ends(JobEntry& entry, TimeNs now) {
  CHECK(entry.is_synchronous() && entry.job != nullptr);
  for (std::uint16_t index = 0; index < entry.world_size(); ++index) {
    const Rank rank{index};
    const MemberEntry& member = entry.members[index];
    const bool gone = member.is(MemberPhase::kGone);
    if (gone && last_heard(entry, rank) > member.left_ns)
      revive(entry, rank, now);
    else if (gone && (is_awaited(entry, rank) || (member.lost_by == wire::NoticeCode::kMemberDied &&
                                                  now - member.left_ns > kEndTogether)))
      return fail(entry, member.lost_by, rank, describe_loss_by(entry, rank, member.lost_by, now),
                  now);
    if (!member.is(MemberPhase::kLeft) || member.missing_from == 0) continue;
    if (furthest(entry).step >= member.missing_from)
      return fail(entry, wire::NoticeCode::kMemberLeft, rank, describe_early_end(entry, rank), now);
  }
}

std::string Jobs::describe_early_end(JobEntry& entry, Rank rank) {
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
      unsigned{furthest(entry).rank.value}, furthest(entry).step);
}

}  // namespace sluice::agg
