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
    {false, "sluice_job_open_step", "The gradient step that is being summed, from 1.",
     [](const JobSample& job) { return job.open_gradient_step; }},
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

Labels rank_labels(const JobSample& job, const MemberSample& member) {
  return {{"job", job.label}, {"rank", std::to_string(member.rank)}};
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
  FamilyBuilder lag =
      histogram("sluice_job_arrival_lag_seconds",
                "How long after the step's first finisher a rank's gradient was complete, once in "
                "each shard: the rank with the highest lag is the straggler.");
  FamilyBuilder silence =
      gauge("sluice_job_member_silent_seconds",
            "Time since anything was heard of a member; above 1 s it is being asked.");
  for (const JobSample& job : control.jobs) {
    duration.row({{"job", job.label}}, job.step_duration);
    for (const MemberSample& member : job.members) {
      lag.row(rank_labels(job, member), member.lag);
      if (member.joined)
        silence.row(rank_labels(job, member), static_cast<double>(member.silent_ns) * 1e-9);
    }
  }
  families.push_back(duration.take());
  families.push_back(lag.take());
  families.push_back(silence.take());
}

}  // namespace sluice::dataplane
