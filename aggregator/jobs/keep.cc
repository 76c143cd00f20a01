// Stores between their workers: a store that has outlived all of its workers is kept for the next,
// and a store whose initial values no worker brings any more ends.
#include <algorithm>

#include "aggregator/jobs/job_control.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

struct InitialValues {
  std::uint32_t chunks = 0;  // chunks with initial values
  std::uint32_t blocks = 0;  // blocks of which all chunks have them
};

InitialValues initial_values(const JobEntry& entry) noexcept {
  CHECK(entry.is_store() && entry.job != nullptr);
  InitialValues found;
  for (const JobSlice& slice : entry.job->slices) {
    const StoreGauges& gauges = slice.store->gauges();
    found.chunks += gauges.initial_chunks.load(std::memory_order_relaxed);
    found.blocks += gauges.initial_blocks.load(std::memory_order_relaxed);
  }
  return found;
}

// Whether a shard that lacks initial values hears no worker, though a worker that waits asks every
// half second: the shard's thread is away, or no worker waits.
bool lacks_silently(const JobSlice& slice, const PausableClock& clock, TimeNs now) noexcept {
  CHECK(slice.store != nullptr);
  if (slice.store->has_initial_values()) return false;
  return std::ranges::all_of(slice.flows, [&](const Flow& flow) {
    return now - clock.active_time(flow.last_heard_ns.load(std::memory_order_relaxed)) >=
           kShardAnswer;
  });
}

}  // namespace

// A job without members goes on if it is a store with all of its initial values. False: it ends.
bool JobControl::keep(TimeNs now) {
  CHECK(entry_.live_count() == 0);
  if (!entry_.goes_on() || !entry_.is_store() || entry_.keep == StoreKeep::kEnd ||
      context_.options->store_keep_ns == 0 ||
      initial_values(entry_).blocks != entry_.spec.store->block_count)
    return false;
  if (std::ranges::any_of(entry_.members, &MemberEntry::moved)) return false;  // it is elsewhere
  // A worker that left in order is no reason any more to refuse its rank to another process.
  for (MemberEntry& member : entry_.members)
    if (member.is(MemberPhase::kLeft)) member.change_to(MemberPhase::kAborted);
  entry_.kept_since_ns = now;
  entry_.was_kept = true;
  entry_.loss = text("job '%s': no worker is left; its parameters are kept for %.0f s",
                     entry_.name.c_str(), seconds(context_.options->store_keep_ns));
  return true;
}

void JobControl::adopt(const JoinRequest& asked) {
  CHECK(entry_.is_kept() && entry_.run_id != asked.join.run_id);
  entry_.run_id = asked.join.run_id;
  if (asked.join.keep != StoreKeep::kTake) entry_.keep = asked.join.keep;
  entry_.layout_rank = asked.rank;
  entry_.member(asked.rank).address = asked.address;
}

// No worker can begin without the rank that brings the initial values, and the appliance does not
// know which rank that is. So a store ends when some rank is away and no values come to shards that
// could take them.
void JobControl::check_initial_values(TimeNs now) {
  if (entry_.initialised || entry_.ended()) return;
  const InitialValues found = initial_values(entry_);
  const std::uint32_t wanted = entry_.spec.store->block_count;
  CHECK(found.blocks <= wanted);
  entry_.initialised = found.blocks == wanted;
  const auto away =
      std::ranges::find_if(entry_.members, [](const MemberEntry& one) { return !one.live(); });
  const bool silent = std::ranges::any_of(entry_.job->slices, [&](const JobSlice& slice) {
    return lacks_silently(slice, context_.clock, now);
  });
  if (away == entry_.members.end() || silent || found.chunks != entry_.initial_chunks) {
    entry_.initial_chunks = found.chunks;
    entry_.initial_ns = now;
  }
  if (entry_.initialised || now - entry_.initial_ns < context_.options->member_timeout_ns) return;
  CHECK(away != entry_.members.end());
  const Rank rank{static_cast<std::uint16_t>(away - entry_.members.begin())};
  fail(wire::NoticeCode::kMemberDied, rank,
       text("job '%s': rank %u at %s is gone, %u of %u blocks of the store have their initial "
            "values, and for %.1f s nobody has sent more: start the job again",
            entry_.name.c_str(), unsigned{rank.value}, away->address.c_str(), found.blocks, wanted,
            seconds(now - entry_.initial_ns)),
       now);
}

}  // namespace sluice::agg
