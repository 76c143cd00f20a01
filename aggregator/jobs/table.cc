// The table of jobs: which job a name or an id means, a new one's place in it, and what all take.
#include <algorithm>

#include "aggregator/jobs/admission.h"

namespace sluice::agg {

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

Usage Jobs::usage(const JoinRequest& request) const noexcept {
  Usage usage;
  for (const auto& entry : entries_) {
    if (entry == nullptr || entry->memory() == JobMemory::kNone) continue;
    CHECK(entry->memory_bytes != 0);
    ++usage.jobs;
    usage.bytes += entry->memory_bytes;
    const bool yields = entry->may_yield(request.now);
    usage.yielding_jobs += yields;
    usage.yielding_bytes += yields ? entry->memory_bytes : 0;
    if (entry->memory_returns()) {
      ++usage.returning_jobs;
      usage.returning_bytes += entry->memory_bytes;
      continue;
    }
    for (Share* share :
         {entry->founder_host == host_of(request.address) ? &usage.of_address : nullptr,
          prefix_of(entry->name) == prefix_of(request.name()) ? &usage.of_prefix : nullptr}) {
      if (share == nullptr) continue;
      ++share->jobs;
      share->bytes += entry->memory_bytes;
    }
  }
  return usage;
}

// A new job, whose memory is ordered. Null: no id is free.
JobEntry* Jobs::found(const JoinRequest& request, JobSpec spec) {
  CHECK(find(request.name(), request.join.ordinal) == nullptr);
  CHECK(request.rank.value < spec.world_size);
  if (!pick_id(spec.id)) return nullptr;
  auto entry = std::make_unique<JobEntry>();
  entry->id = spec.id;
  entry->serial = next_serial_++;
  entry->name = spec.name;
  entry->ordinal = request.join.ordinal;
  entry->run_id = request.join.run_id;
  entry->gradients = request.join.layouts[kTensorStream];
  entry->averaging = request.join.averaging;
  entry->wire = request.join.wire;
  entry->store = request.join.store;
  entry->keep = request.join.keep;
  entry->prune = request.join.prune;
  entry->tensor_count = request.join.tensor_count;
  entry->print_tensors = request.join.print_tensors;
  entry->prints.assign(request.prints.begin(), request.prints.end());
  entry->layout_rank = request.rank;
  entry->founder_host = host_of(request.address);
  entry->datagram_bytes = request.join.datagram_bytes;
  entry->members.resize(spec.world_size);
  entry->member(request.rank).address = request.address;
  entry->memory_bytes = Job::memory_bytes(spec);
  entry->spec = std::move(spec);
  order_job(*entry);
  std::unique_ptr<JobEntry>& place = entries_[entry->id.value];
  CHECK(place == nullptr);
  place = std::move(entry);
  return place.get();
}

JobEntry* Jobs::find(std::string_view name, std::uint16_t ordinal) const noexcept {
  for (const auto& entry : entries_)
    if (entry != nullptr && entry->listed && entry->ordinal == ordinal && entry->name == name)
      return entry.get();
  return nullptr;
}

// Whether this is a late copy of a join whose job is over: it must not found a new one.
bool Jobs::is_echo(const JoinRequest& request) const noexcept {
  const wire::Join& join = request.join;
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    if (entry == nullptr || entry->listed || entry->run_id != join.run_id ||
        entry->ordinal != join.ordinal || entry->name != request.name() ||
        request.rank.value >= entry->world_size())
      return false;
    const MemberEntry& member = entry->member(request.rank);
    return member.nonce == join.nonce && member.has_left();
  });
}

// Ids go round, so that a late packet of an old job meets no new one. When none is free, the job
// that has been over for longest stops answering questions.
bool Jobs::pick_id(JobId& id) noexcept {
  std::uint16_t oldest = kMaxJobs;
  for (std::size_t tries = 0; tries < kMaxJobs; ++tries) {
    const std::uint16_t candidate = next_id_;
    next_id_ = static_cast<std::uint16_t>((next_id_ + 1) % kMaxJobs);
    const JobEntry* entry = entries_[candidate].get();
    if (entry == nullptr) {
      id = JobId{candidate};
      return true;
    }
    if (entry->memory() == JobMemory::kNone &&
        (oldest == kMaxJobs || entry->ended_ns < entries_[oldest]->ended_ns))
      oldest = candidate;
  }
  if (oldest == kMaxJobs) return false;
  CHECK(entries_[oldest]->ended());
  entries_[oldest].reset();
  id = JobId{oldest};
  return true;
}

}  // namespace sluice::agg
