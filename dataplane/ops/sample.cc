#include "dataplane/ops/sample.h"

#include <map>

namespace sluice::dataplane {
namespace {

std::string job_label(const agg::JobView& view) {
  std::string label(view.name);
  if (view.ordinal != 0) label.append("/").append(std::to_string(view.ordinal));
  return label;
}

JobSample sample_job(const agg::Jobs& jobs, const agg::JobView& view, TimeNs now) {
  const agg::Job& job = *view.job;
  JobSample sample{.label = job_label(view),
                   .state = view.state,
                   .joined_count = view.joined_count,
                   .world_size = view.world_size,
                   .open_gradient_step = job.windows[0].open_step.load(std::memory_order_relaxed),
                   .memory_bytes = agg::Job::memory_bytes(job.spec)};
  for (const agg::MemberView& member : jobs.members(view.id, now)) {
    MemberSample one{
        .rank = member.rank.value, .joined = member.joined, .silent_ns = member.silent_ns};
    for (const agg::JobSlice& slice : job.slices) one.lag.add(slice.flows[one.rank].lag);
    sample.members.push_back(one);
  }
  for (const agg::JobSlice& slice : job.slices) {
    sample.contributions += slice.contributions.read();
    sample.steps_closed += slice.steps_closed.read();
    sample.results_sent += slice.results_sent.read();
    sample.results_deferred += slice.results_deferred.read();
    sample.results_pulled += slice.results_pulled.read();
    sample.slots_in_use += slice.slots_in_use.read();
    sample.step_duration.add(slice.step_duration);
  }
  return sample;
}

}  // namespace

void HistogramSample::add(const Histogram& histogram) noexcept {
  for (std::size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket)
    buckets[bucket] += histogram.bucket(bucket);
  sum_ns += histogram.sum_ns();
}

// A name may be taken by a new run while the old one's memory is still on its way back: one row a
// label, the live one before the ended one.
ControlSample sample_jobs(const agg::Jobs& jobs, TimeNs now) {
  ControlSample sample{.memory_bytes = jobs.memory_bytes()};
  for (std::size_t verdict = 0; verdict < kVerdictCount; ++verdict)
    sample.verdicts[verdict] = jobs.verdicts().by_verdict[verdict].read();
  std::map<std::string, agg::JobView> rows;
  for (const agg::JobView& view : jobs.views()) {
    if (view.job == nullptr) continue;
    const auto [row, fresh] = rows.emplace(job_label(view), view);
    if (!fresh && view.state != wire::JobState::kEnded) row->second = view;
  }
  for (const auto& [label, view] : rows) sample.jobs.push_back(sample_job(jobs, view, now));
  return sample;
}

}  // namespace sluice::dataplane
