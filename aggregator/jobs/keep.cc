// Stores between their workers: one that has outlived all of them is kept for those who come next,
// and one whose initial values nobody brings any more ends.
#include <algorithm>
#include <cinttypes>

#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

struct InitialValues {
  std::uint32_t chunks = 0;  // that have theirs
  std::uint32_t blocks = 0;  // of which all have
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

// Whether a shard that lacks some hears of nobody, though whoever waits asks every half second: its
// thread is away, or no worker waits.
bool lacks_silently(const JobSlice& slice, const PausableClock& clock, TimeNs now) noexcept {
  CHECK(slice.store != nullptr);
  if (slice.store->has_initial_values()) return false;
  return std::ranges::all_of(slice.flows, [&](const Flow& flow) {
    return now - clock.active_time(flow.last_heard_ns.load(std::memory_order_relaxed)) >=
           kShardAnswer;
  });
}

}  // namespace

// A job that nobody is left in goes on without workers, if it is a store with something to keep.
// False: it ends.
bool Jobs::keep(JobEntry& entry, TimeNs now) {
  CHECK(entry.live_count() == 0);
  if (!entry.goes_on() || !entry.is_store() || entry.keep == StoreKeep::kEnd ||
      options_.store_keep_ns == 0 || initial_values(entry).blocks != entry.spec.store->block_count)
    return false;
  // Whoever has left in order is no reason any more to refuse its rank to another process.
  for (MemberEntry& member : entry.members)
    if (member.is(MemberPhase::kLeft)) member.change_to(MemberPhase::kAborted);
  entry.kept_since_ns = now;
  entry.was_kept = true;
  entry.loss = text("job '%s': no worker is left; its parameters are kept for %.0f s",
                    entry.name.c_str(), seconds(options_.store_keep_ns));
  return true;
}

void Jobs::check_kept(JobEntry& entry, TimeNs now) {
  if (entry.is_kept() && now - entry.kept_since_ns >= options_.store_keep_ns) retire(entry, now);
}

// Another run goes on where the last one has ended.
void Jobs::adopt(JobEntry& entry, const JoinRequest& request) {
  CHECK(entry.is_kept() && entry.run_id != request.join.run_id);
  entry.run_id = request.join.run_id;
  if (request.join.keep != StoreKeep::kTake) entry.keep = request.join.keep;
  entry.layout_rank = request.rank;
  entry.member(request.rank).address = request.address;
}

// Without the rank that brings them nobody could begin. Nobody knows which one that is, so this
// looks for a rank that is away while none come, to shards that could take them.
void Jobs::check_initial_values(JobEntry& entry, TimeNs now) {
  if (entry.initialised || entry.ended()) return;
  const InitialValues found = initial_values(entry);
  const std::uint32_t wanted = entry.spec.store->block_count;
  CHECK(found.blocks <= wanted);
  entry.initialised = found.blocks == wanted;
  const auto away =
      std::ranges::find_if(entry.members, [](const MemberEntry& one) { return !one.live(); });
  const bool silent = std::ranges::any_of(
      entry.job->slices, [&](const JobSlice& slice) { return lacks_silently(slice, clock_, now); });
  if (away == entry.members.end() || silent || found.chunks != entry.initial_chunks) {
    entry.initial_chunks = found.chunks;
    entry.initial_ns = now;
  }
  if (entry.initialised || now - entry.initial_ns < options_.member_timeout_ns) return;
  CHECK(away != entry.members.end());
  const Rank rank{static_cast<std::uint16_t>(away - entry.members.begin())};
  fail(entry, wire::NoticeCode::kMemberDied, rank,
       text("job '%s': rank %u at %s is gone, %u of %u blocks of the store have their initial "
            "values, and for %.1f s nobody has sent more: start the job again",
            entry.name.c_str(), unsigned{rank.value}, away->address.c_str(), found.blocks, wanted,
            seconds(now - entry.initial_ns)),
       now);
}

}  // namespace sluice::agg
