// The table of jobs: which job a name or an id means, the place of a new job, and the memory in
// use.
#include <algorithm>

#include "aggregator/jobs/job_control.h"

namespace sluice::agg {

Usage Jobs::usage(const JoinRequest& request) const noexcept {
  Usage usage;
  for (const auto& control : controls_) {
    if (control == nullptr || control->entry().memory() == JobMemory::kNone) continue;
    const JobEntry& entry = control->entry();
    CHECK(entry.memory_bytes != 0);
    ++usage.jobs;
    usage.bytes += entry.memory_bytes;
    const bool yields = entry.may_yield(request.now);
    usage.yielding_jobs += yields;
    usage.yielding_bytes += yields ? entry.memory_bytes : 0;
    if (entry.memory_returns()) {
      ++usage.returning_jobs;
      usage.returning_bytes += entry.memory_bytes;
      continue;
    }
    for (Share* share :
         {entry.founder_host == host_of(request.address) ? &usage.of_address : nullptr,
          prefix_of(entry.name) == prefix_of(request.name()) ? &usage.of_prefix : nullptr}) {
      if (share == nullptr) continue;
      ++share->jobs;
      share->bytes += entry.memory_bytes;
    }
  }
  return usage;
}

// A new job, whose memory is ordered. Null: no id is free.
JobControl* Jobs::create(const JoinRequest& founder, JobSpec spec) {
  CHECK(find(founder.name(), founder.join.ordinal) == nullptr);
  if (!pick_id(spec.id)) return nullptr;
  std::unique_ptr<JobControl>& place = controls_[spec.id.value];
  CHECK(place == nullptr);
  place = std::make_unique<JobControl>(*context_, founder, std::move(spec));
  return place.get();
}

// Null: no job has the id.
JobControl* Jobs::find(std::size_t id) const noexcept {
  JobControl* control = id < controls_.size() ? controls_[id].get() : nullptr;
  CHECK(control == nullptr || control->entry().id.value == id);
  return control;
}

JobControl* Jobs::find(std::string_view name, std::uint16_t ordinal) const noexcept {
  for (const auto& control : controls_)
    if (control != nullptr && control->entry().listed && control->entry().ordinal == ordinal &&
        control->entry().name == name)
      return control.get();
  return nullptr;
}

// Whether the join is a late copy whose job is over: it must not found a new job.
bool Jobs::is_echo(const JoinRequest& request) const noexcept {
  const wire::Join& join = request.join;
  return std::any_of(controls_.begin(), controls_.end(), [&](const auto& control) {
    if (control == nullptr) return false;
    const JobEntry& entry = control->entry();
    if (entry.listed || entry.run_id != join.run_id || entry.ordinal != join.ordinal ||
        entry.name != request.name() || request.rank.value >= entry.world_size())
      return false;
    const MemberEntry& member = entry.member(request.rank);
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
    if (controls_[candidate] == nullptr) {
      id = JobId{candidate};
      return true;
    }
    const JobEntry& entry = controls_[candidate]->entry();
    if (entry.memory() == JobMemory::kNone &&
        (oldest == kMaxJobs || entry.ended_ns < controls_[oldest]->entry().ended_ns))
      oldest = candidate;
  }
  if (oldest == kMaxJobs) return false;
  CHECK(controls_[oldest]->entry().ended());
  controls_[oldest].reset();
  id = JobId{oldest};
  return true;
}

}  // namespace sluice::agg
