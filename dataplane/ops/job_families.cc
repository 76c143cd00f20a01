#include "dataplane/ops/families.h"

namespace sluice::dataplane {
namespace {

// Reads a member that is a number, for the tables.
template <auto kMember>
constexpr auto number_of =
    [](const auto& sample) -> double { return static_cast<double>(sample.*kMember); };

constexpr Metric<ControlSample> kControlMetrics[] = {
    {"sluice_jobs", "Jobs that hold memory: forming, running or ending.",
     [](const ControlSample& control) { return static_cast<double>(control.jobs.size()); }},
    {"sluice_jobs_memory_bytes", "Memory of all jobs.", number_of<&ControlSample::memory_bytes>},
};

constexpr Metric<JobSample> kJobMetrics[] = {
    {"sluice_job_members", "Ranks that have joined and are neither gone nor finished.",
     number_of<&JobSample::joined_count>},
    {"sluice_job_world_size", "Ranks that the job has when it is complete.",
     number_of<&JobSample::world_size>},
    {"sluice_job_running", "1 while the job runs; 0 while it forms or after it has ended.",
     [](const JobSample& job) { return job.state == wire::JobState::kRunning ? 1.0 : 0.0; }},
    {"sluice_job_step",
     "The gradient step that is being summed, from 1, of a store the iteration after the least "
     "clock, without workers after the last; 0 before the start.",
     number_of<&JobSample::open_gradient_step>},
    {"sluice_job_chunks", "Chunks of one gradient step.", number_of<&JobSample::gradient_chunks>},
    {"sluice_job_k", "Gradients that complete a chunk of the open step; k of n.",
     number_of<&JobSample::k>},
    {"sluice_job_noise_scale_valid",
     "1 while the noise scale is known; 0 before enough steps were seen.",
     number_of<&JobSample::noise_scale_valid>},
    {"sluice_job_memory_bytes", "Memory of the job's slots and flows.",
     number_of<&JobSample::memory_bytes>},
    {"sluice_job_slots_in_use",
     "Slots with contributions that wait for others: while it does not fall, a rank is missing.",
     number_of<&JobSample::slots_in_use>},
    {"sluice_job_contributions_total", "Contributions added into sums.",
     number_of<&JobSample::contributions>},
    {"sluice_job_shard_steps_total", "Steps closed, counted once in each shard and stream.",
     number_of<&JobSample::steps_closed>},
    {"sluice_job_results_total", "Result packets pushed to members.",
     number_of<&JobSample::results_sent>},
    {"sluice_job_results_deferred_total",
     "Results withheld because the worker had no room; it pulls them.",
     number_of<&JobSample::results_deferred>},
    {"sluice_job_results_pulled_total",
     "Results sent because a probe asked: they were deferred or lost.",
     number_of<&JobSample::results_pulled>},
    {"sluice_job_noise_scale",
     "Gradient noise scale in units of one worker's batch; means something while "
     "sluice_job_noise_scale_valid is 1.",
     number_of<&JobSample::noise_scale>},
    {"sluice_job_signs_flipped_ratio",
     "Share of the sum's signs that flipped in the last detection round; no row before the first.",
     [](const JobSample& job) { return job.signs_flipped >= 0 ? job.signs_flipped : kUnknown; }},
};

template <auto kMember>
constexpr auto known_number_of = [](const auto& sample) -> double {
  return (sample.*kMember) ? static_cast<double>(*(sample.*kMember)) : kUnknown;
};

// Of parameter stores only.
constexpr Metric<StoreSample> kStoreMetrics[] = {
    {"sluice_job_least_clock", "Iterations that every live member has pushed whole.",
     known_number_of<&StoreSample::least>},
    {"sluice_job_greatest_clock",
     "Iterations that the foremost member has pushed whole: beyond the least by more than the "
     "staleness bound it would wait.",
     known_number_of<&StoreSample::greatest>},
    {"sluice_job_oldest_pull_seconds",
     "How long the oldest parked pull has waited for pushes of others; 0 while none waits.",
     [](const StoreSample& store) { return static_cast<double>(store.oldest_parked_ns) * 1e-9; }},
};

constexpr Metric<StoreSample::Layer> kLayerMetrics[] = {
    {"sluice_job_parked_pulls",
     "Pulls of a block of the layer that wait for pushes of others; the label is the layer's place "
     "in the model, 255 all from there on.",
     number_of<&StoreSample::Layer::parked>},
    {"sluice_job_waited_pulls_total", "Pulls of a block of the layer that have had to wait.",
     number_of<&StoreSample::Layer::ever>},
};

constexpr Metric<MemberSample> kMemberMetrics[] = {
    {"sluice_job_clock", "Iterations that a store's worker has pushed whole, in all layers.",
     known_number_of<&MemberSample::clock>},
    {"sluice_job_suspended_seconds_total",
     "How long a store's worker has waited for layers instead of computing, as it says itself.",
     [](const MemberSample& member) {
       return member.suspended_ns ? static_cast<double>(*member.suspended_ns) * 1e-9 : kUnknown;
     }},
    {"sluice_job_oldest_request_iterations",
     "By how many iterations the oldest push or pull that a store's worker has yet to send is "
     "behind, as it says itself: above 2 its link cannot keep up.",
     known_number_of<&MemberSample::oldest_request_iterations>},
    {"sluice_job_included_chunks_total",
     "Chunks of closed and open steps that have a part of this rank.",
     number_of<&MemberSample::included>},
    {"sluice_job_late_chunks_total",
     "Chunks of this rank that came when their sum was complete: lost, unless requeued.",
     number_of<&MemberSample::late>},
    {"sluice_job_requeued_chunks_total",
     "Of the included chunks, those that the rank computed on an earlier step.",
     number_of<&MemberSample::requeued>},
    {"sluice_job_missing",
     "1 while others wait for this rank: it is missing from the oldest open chunk of the open "
     "step.",
     number_of<&MemberSample::awaited>},
    {"sluice_job_gradient_seconds",
     "D_i: from the release of a step to this rank's finished gradient of it, the newest one; no "
     "row before the first, or when k is always n.",
     [](const MemberSample& member) {
       return member.gradient_step != 0 ? member.gradient_us * 1e-6 : kUnknown;
     }},
    {"sluice_job_gradient_step",
     "The step of that gradient: a rank that keeps up is at sluice_job_step or one before it.",
     [](const MemberSample& member) {
       return member.gradient_step != 0 ? static_cast<double>(member.gradient_step) : kUnknown;
     }},
    {"sluice_job_member_silent_seconds",
     "Time since anything was heard of a member; above 1 s it is being asked.",
     [](const MemberSample& member) { return static_cast<double>(member.silent_ns) * 1e-9; }},
};

}  // namespace

void add_job_families(const ControlSample& control, Families& families) {
  const auto each_job = [&](auto&& add) {
    for (const JobSample& job : control.jobs) add(Labels{{"job", job.label}}, job);
  };
  // Only ranks that have joined and are not gone have rows, so the number of workers bounds them.
  const auto each_member = [&](auto&& add) {
    for (const JobSample& job : control.jobs)
      for (const MemberSample& member : job.members)
        if (member.joined)
          add(Labels{{"job", job.label}, {"rank", std::to_string(member.rank)}}, member);
  };
  add_families<ControlSample>(
      kControlMetrics, [&](auto&& add) { add(Labels{}, control); }, families);
  // Layers whose pulls have waited: at most 256 rows a job.
  const auto each_store = [&](auto&& add) {
    for (const JobSample& job : control.jobs)
      if (job.store) add(Labels{{"job", job.label}}, *job.store);
  };
  const auto each_layer = [&](auto&& add) {
    for (const JobSample& job : control.jobs)
      if (job.store)
        for (const StoreSample::Layer& layer : job.store->layers)
          add(Labels{{"job", job.label}, {"layer", std::to_string(layer.index)}}, layer);
  };
  add_families<JobSample>(kJobMetrics, each_job, families);
  add_families<StoreSample>(kStoreMetrics, each_store, families);
  add_families<StoreSample::Layer>(kLayerMetrics, each_layer, families);
  add_histogram(
      "sluice_job_pull_wait_seconds",
      "How long pulls of a block that had to wait were parked: what the staleness bound costs.",
      each_store, [](const StoreSample& store) -> auto& { return store.waits; }, families);
  add_histogram(
      "sluice_job_staleness_iterations",
      "Iterations that a pulled block lacked of others beside the reader's own, once a pull.",
      each_store, [](const StoreSample& store) -> auto& { return store; }, families);
  FamilyBuilder policy("sluice_job_policy_info",
                       "1, with how the job chooses k and what it does with late gradients.");
  for (const JobSample& job : control.jobs)
    policy.row({{"job", job.label},
                {"policy", name_of(job.policy.kind)},
                {"late", name_of(job.policy.late)}},
               1);
  families.push_back(policy.take());
  add_histogram(
      "sluice_job_step_duration_seconds",
      "From a step's first contribution to its last result, once in each shard.", each_job,
      [](const JobSample& job) -> auto& { return job.step_duration; }, families);
  add_families<MemberSample>(kMemberMetrics, each_member, families);
  add_histogram(
      "sluice_job_arrival_lag_seconds",
      "How long after the step's first finisher a rank's gradient was complete, once in each "
      "shard: the rank with the highest lag is the straggler.",
      each_member, [](const MemberSample& member) -> auto& { return member.lag; }, families);
}

}  // namespace sluice::dataplane
