#include "dataplane/ops/families.h"
#include "dataplane/ops/family_builder.h"

namespace sluice::dataplane {
namespace {

struct JobMetric {
  bool is_counter;
  const char* name;
  const char* help;
  std::uint64_t (*value)(const JobSample&);
};

constexpr JobMetric kJobMetrics[] = {
    {false, "sluice_job_members", "Ranks that have joined and are neither gone nor finished.",
     [](const JobSample& job) { return std::uint64_t{job.joined_count}; }},
    {false, "sluice_job_world_size", "Ranks that the job has when it is complete.",
     [](const JobSample& job) { return std::uint64_t{job.world_size}; }},
    {false, "sluice_job_running", "1 while the job runs; 0 while it forms or after it has ended.",
     [](const JobSample& job) { return std::uint64_t{job.state == wire::JobState::kRunning}; }},
    {false, "sluice_job_step",
     "The gradient step that is being summed, from 1; 0 before the start.",
     [](const JobSample& job) { return job.open_gradient_step; }},
    {false, "sluice_job_chunks", "Chunks of one gradient step.",
     [](const JobSample& job) { return job.gradient_chunks; }},
    {false, "sluice_job_k", "Gradients that complete a chunk of the open step; k of n.",
     [](const JobSample& job) { return job.k; }},
    {false, "sluice_job_noise_scale_valid",
     "1 while the noise scale is known; 0 before enough steps were seen.",
     [](const JobSample& job) { return std::uint64_t{job.noise_scale_valid}; }},
    {false, "sluice_job_memory_bytes", "Memory of the job's slots and flows.",
     [](const JobSample& job) { return job.memory_bytes; }},
    {false, "sluice_job_slots_in_use",
     "Slots with contributions that wait for others: while it does not fall, a rank is missing.",
     [](const JobSample& job) { return job.slots_in_use; }},
    {true, "sluice_job_contributions_total", "Contributions added into sums.",
     [](const JobSample& job) { return job.contributions; }},
    {true, "sluice_job_shard_steps_total", "Steps closed, counted once in each shard and stream.",
     [](const JobSample& job) { return job.steps_closed; }},
    {true, "sluice_job_results_total", "Result packets pushed to members.",
     [](const JobSample& job) { return job.results_sent; }},
    {true, "sluice_job_results_deferred_total",
     "Results withheld because the worker had no room; it pulls them.",
     [](const JobSample& job) { return job.results_deferred; }},
    {true, "sluice_job_results_pulled_total",
     "Results sent because a probe asked: they were deferred or lost.",
     [](const JobSample& job) { return job.results_pulled; }},
};

struct MemberMetric {
  bool is_counter;
  const char* name;
  const char* help;
  std::uint64_t (*value)(const MemberSample&);
};

constexpr MemberMetric kMemberMetrics[] = {
    {true, "sluice_job_included_chunks_total",
     "Chunks of closed and open steps that have a part of this rank.",
     [](const MemberSample& member) { return member.included; }},
    {true, "sluice_job_late_chunks_total",
     "Chunks of this rank that came when their sum was complete: lost, unless requeued.",
     [](const MemberSample& member) { return member.late; }},
    {true, "sluice_job_requeued_chunks_total",
     "Of the included chunks, those that the rank computed on an earlier step.",
     [](const MemberSample& member) { return member.requeued; }},
    {false, "sluice_job_missing",
     "1 while others wait for this rank: it is missing from the oldest open chunk of the open "
     "step.",
     [](const MemberSample& member) { return std::uint64_t{member.awaited}; }},
};

Labels rank_labels(const JobSample& job, const MemberSample& member) {
  return {{"job", job.label}, {"rank", std::to_string(member.rank)}};
}

void add_policy_families(const ControlSample& control, Families& families) {
  FamilyBuilder info = gauge("sluice_job_policy_info",
                             "1, with how the job chooses k and what it does with late gradients.");
  FamilyBuilder noise = gauge("sluice_job_noise_scale",
                              "Gradient noise scale in units of one worker's batch; means "
                              "something while sluice_job_noise_scale_valid is 1.");
  FamilyBuilder signs = gauge("sluice_job_signs_flipped_ratio",
                              "Share of the sum's signs that flipped in the last detection round; "
                              "no row before the first.");
  for (const JobSample& job : control.jobs) {
    info.row({{"job", job.label},
              {"policy", name_of(job.policy.kind)},
              {"late", name_of(job.policy.late)}},
             std::uint64_t{1});
    noise.row({{"job", job.label}}, job.noise_scale);
    if (job.signs_flipped >= 0) signs.row({{"job", job.label}}, job.signs_flipped);
  }
  families.push_back(info.take());
  families.push_back(noise.take());
  families.push_back(signs.take());
}

// Rows only for ranks that have joined and are not gone: that bounds them by the workers there are.
void add_member_families(const ControlSample& control, Families& families) {
  const auto each_member = [&](FamilyBuilder family, auto&& add_row) {
    for (const JobSample& job : control.jobs)
      for (const MemberSample& member : job.members)
        if (member.joined) add_row(family, rank_labels(job, member), member);
    families.push_back(family.take());
  };
  for (const MemberMetric& metric : kMemberMetrics)
    each_member(
        metric.is_counter ? counter(metric.name, metric.help) : gauge(metric.name, metric.help),
        [&](FamilyBuilder& family, Labels labels, const MemberSample& member) {
          family.row(std::move(labels), metric.value(member));
        });
  each_member(gauge("sluice_job_gradient_seconds",
                    "D_i: from the release of a step to this rank's finished gradient of it, the "
                    "newest one; no row before the first, or when k is always n."),
              [](FamilyBuilder& family, Labels labels, const MemberSample& member) {
                if (member.gradient_step != 0)
                  family.row(std::move(labels), static_cast<double>(member.gradient_us) * 1e-6);
              });
  each_member(gauge("sluice_job_gradient_step",
                    "The step of that gradient: a rank that keeps up is at sluice_job_step or one "
                    "before it."),
              [](FamilyBuilder& family, Labels labels, const MemberSample& member) {
                if (member.gradient_step != 0)
                  family.row(std::move(labels), std::uint64_t{member.gradient_step});
              });
  each_member(
      histogram("sluice_job_arrival_lag_seconds",
                "How long after the step's first finisher a rank's gradient was complete, once in "
                "each shard: the rank with the highest lag is the straggler."),
      [](FamilyBuilder& family, Labels labels, const MemberSample& member) {
        family.row(std::move(labels), member.lag);
      });
  each_member(gauge("sluice_job_member_silent_seconds",
                    "Time since anything was heard of a member; above 1 s it is being asked."),
              [](FamilyBuilder& family, Labels labels, const MemberSample& member) {
                family.row(std::move(labels), static_cast<double>(member.silent_ns) * 1e-9);
              });
}

}  // namespace

void add_job_families(const ControlSample& control, Families& families) {
  families.push_back(gauge("sluice_jobs", "Jobs that hold memory: forming, running or ending.")
                         .row({}, std::uint64_t{control.jobs.size()})
                         .take());
  families.push_back(gauge("sluice_jobs_memory_bytes", "Memory of all jobs.")
                         .row({}, control.memory_bytes)
                         .take());
  for (const JobMetric& metric : kJobMetrics) {
    FamilyBuilder family =
        metric.is_counter ? counter(metric.name, metric.help) : gauge(metric.name, metric.help);
    for (const JobSample& job : control.jobs) family.row({{"job", job.label}}, metric.value(job));
    families.push_back(family.take());
  }

  FamilyBuilder duration =
      histogram("sluice_job_step_duration_seconds",
                "From a step's first contribution to its last result, once in each shard.");
  for (const JobSample& job : control.jobs) duration.row({{"job", job.label}}, job.step_duration);
  families.push_back(duration.take());
  add_policy_families(control, families);
  add_member_families(control, families);
}

}  // namespace sluice::dataplane
