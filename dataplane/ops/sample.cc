#include "dataplane/ops/sample.h"

#include <algorithm>
#include <map>

namespace sluice::dataplane {
namespace {

// Whether a shard's latest probe for the open step found `rank` missing. The step is stored after
// the ranks, and a report about a step that has closed since is of no interest.
bool is_awaited(const agg::Job& job, std::uint16_t rank, Step open_step) {
  for (const agg::JobSlice& slice : job.slices) {
    if (open_step == 0 || slice.awaited.step.load(std::memory_order_acquire) != open_step) continue;
    const std::uint64_t word = slice.awaited.ranks[rank / 64].load(std::memory_order_relaxed);
    if (word >> rank % 64 & 1) return true;
  }
  return false;
}

MemberSample sample_member(const agg::Job& job, const agg::MemberView& view, Step open_step) {
  const std::uint64_t finished =
      job.members[view.rank.value].finished.load(std::memory_order_relaxed);
  MemberSample sample{.rank = view.rank.value,
                      .joined = view.joined,
                      .silent_ns = view.silent_ns,
                      .awaited = is_awaited(job, view.rank.value, open_step),
                      .gradient_step = static_cast<Step>(finished >> 32),
                      .gradient_us = static_cast<std::uint32_t>(finished)};
  if (job.spec.store) {
    sample.suspended_ns = view.suspended_ns;
    sample.oldest_request_iterations = view.oldest_request_iterations;
  }
  for (const agg::JobSlice& slice : job.slices) {
    const agg::Flow& flow = slice.flows[view.rank.value];
    sample.included += flow.included.read();
    sample.late += flow.late.read();
    sample.requeued += flow.requeued.read();
    sample.lag.add(flow.lag);
    if (slice.store == nullptr) continue;
    const Step clock =
        slice.store->gauges().clocks[view.rank.value].load(std::memory_order_relaxed);
    if (clock != agg::StoreGauges::kNoClock)
      sample.clock = std::min(clock, sample.clock.value_or(clock));
  }
  return sample;
}

StoreSample sample_store(const agg::Job& job, const std::vector<MemberSample>& members,
                         TimeNs now) {
  StoreSample sample;
  for (const MemberSample& member : members) {
    if (!member.joined || !member.clock) continue;
    sample.least = std::min(*member.clock, sample.least.value_or(*member.clock));
    sample.greatest = std::max(*member.clock, sample.greatest.value_or(*member.clock));
  }
  std::vector<StoreSample::Layer> layers(job.slices.front().store->gauges().parked.size());
  for (const agg::JobSlice& slice : job.slices) {
    const agg::StoreGauges& gauges = slice.store->gauges();
    for (std::uint32_t index = 0; index < layers.size(); ++index) {
      layers[index].index = index;
      layers[index].parked += gauges.parked[index].now.read();
      layers[index].ever += gauges.parked[index].ever.read();
    }
    const TimeNs since_ns = gauges.oldest_parked_ns.load(std::memory_order_relaxed);
    if (since_ns != 0) sample.oldest_parked_ns = std::max(sample.oldest_parked_ns, now - since_ns);
    sample.waits.add(gauges.waits);
    for (std::size_t bucket = 0; bucket < StoreSample::kBuckets; ++bucket)
      sample.staleness[bucket] += gauges.staleness.bucket(bucket);
    sample.staleness_sum += gauges.staleness.sum();
  }
  std::ranges::copy_if(layers, std::back_inserter(sample.layers),
                       [](const StoreSample::Layer& layer) { return layer.ever != 0; });
  return sample;
}

// Where a store's workers have left it.
Step last_clock(const agg::Job& job) {
  Step clock = 0;
  for (const agg::JobSlice& slice : job.slices)
    clock = std::max(clock, slice.store->greatest_clock());
  return clock;
}

}  // namespace

// The ordinal is left out if it is 0 and the name does not end like one, so that no two jobs have
// one label. The client's pages do the same.
std::string job_label(const agg::JobView& view) {
  std::string label(view.name);
  const std::size_t digits = label.find_last_not_of("0123456789") + 1;
  const bool ambiguous = digits != 0 && digits != label.size() && label[digits - 1] == '/';
  if (view.ordinal != 0 || ambiguous) label.append("/").append(std::to_string(view.ordinal));
  return label;
}

JobSample sample_job(const agg::Jobs& jobs, const agg::JobView& view, TimeNs now) {
  const agg::Job& job = *view.job;
  const Step open_step = job.windows[0].open_step.load(std::memory_order_relaxed);
  JobSample sample{
      .label = job_label(view),
      .state = view.state,
      .joined_count = view.joined_count,
      .world_size = view.world_size,
      .policy = job.spec.policy,
      .open_gradient_step = open_step,
      .gradient_chunks = job.spec.chunk_counts[0],
      .k = job.gauges.k.load(std::memory_order_relaxed),
      .noise_scale = job.gauges.noise_scale.load(std::memory_order_relaxed),
      .noise_scale_valid = job.gauges.noise_scale_valid.load(std::memory_order_relaxed),
      .signs_flipped = job.gauges.signs_flipped.load(std::memory_order_relaxed),
      .memory_bytes = agg::Job::memory_bytes(job.spec)};
  for (const agg::MemberView& member : jobs.members(view.id, now))
    sample.members.push_back(sample_member(job, member, open_step));
  for (const agg::JobSlice& slice : job.slices) {
    sample.contributions += slice.contributions.read();
    sample.steps_closed += slice.steps_closed.read();
    sample.results_sent += slice.results_sent.read();
    sample.results_deferred += slice.results_deferred.read();
    sample.results_pulled += slice.results_pulled.read();
    sample.slots_in_use += slice.slots_in_use.read();
    sample.step_duration.add(slice.step_duration);
  }
  if (job.spec.store) {
    sample.store = sample_store(job, sample.members, now);
    if (job.started())
      sample.open_gradient_step = sample.store->least.value_or(last_clock(job)) + 1;
  }
  return sample;
}

void HistogramSample::add(const Histogram& histogram) noexcept {
  for (std::size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket)
    buckets_[bucket] += histogram.bucket(bucket);
  sum_ns_ += histogram.sum_ns();
}

// A new run may take a job's name while the memory of the old run is still being freed. A label has
// one row: that of the live job, else that of the ended one.
ControlSample sample_jobs(const agg::Jobs& jobs, TimeNs now) {
  ControlSample sample{.memory_bytes = jobs.memory_bytes()};
  for (std::size_t verdict = 0; verdict < kVerdictCount; ++verdict)
    sample.verdicts[verdict] = jobs.verdicts().by_reason[verdict].read();
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
