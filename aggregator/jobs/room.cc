// Whether another job fits into the appliance and into the shares of its address and its prefix,
// and which job gives way to a job that finds no room.
#include <algorithm>

#include "aggregator/jobs/job_control.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

// The memory that the job needs for `reproducible` alone, as a part of a sentence.
std::string part_of_order(const JobSpec& spec) {
  if (!spec.reproducible) return {};
  if (spec.operations)
    return text(" (it sums %u ranks in their order: reproducible)", unsigned{spec.world_size});
  return text(" (%zu of them to sum %u ranks in their order: reproducible)",
              mebibytes(Job::reproducible_bytes(spec)), unsigned{spec.world_size});
}

}  // namespace

// Whether another job fits, once the shards have released the jobs that are being removed.
Refusal check_room(const JobSpec& spec, const JobsOptions& options, const Usage& usage) {
  CHECK(usage.returning_jobs <= usage.jobs && usage.returning_bytes <= usage.bytes);
  using wire::RefuseCode;
  const std::string name = printable(spec.name);
  const std::size_t needed_bytes = Job::memory_bytes(spec);
  const std::size_t job_count = usage.jobs - usage.returning_jobs;
  const std::size_t used_bytes = usage.bytes - usage.returning_bytes;
  const std::size_t total_bytes = options.max_total_memory_bytes;
  if (needed_bytes > options.max_job_memory_bytes)
    return no(
        RefuseCode::kLimit,
        text("job '%s' needs %zu MiB%s, a job may have %zu MiB: raise limits.job_memory_mib to %zu",
             name.c_str(), mebibytes(needed_bytes), part_of_order(spec).c_str(),
             options.max_job_memory_bytes >> 20, mebibytes(needed_bytes)));
  if (needed_bytes > total_bytes - std::min(total_bytes, used_bytes))
    return no(RefuseCode::kLimit,
              text("job '%s' needs %zu MiB%s, %zu of %zu MiB are in use by %zu jobs: raise "
                   "limits.total_memory_mib to %zu or wait for a job to end",
                   name.c_str(), mebibytes(needed_bytes), part_of_order(spec).c_str(),
                   mebibytes(used_bytes), total_bytes >> 20, job_count,
                   mebibytes(used_bytes + needed_bytes)));
  if (job_count >= options.max_jobs)
    return no(RefuseCode::kLimit,
              text("job '%s' would be job %zu, this appliance serves %zu: raise limits.jobs or "
                   "wait for a job to end",
                   name.c_str(), job_count + 1, options.max_jobs));
  return {};
}

// Whether the founder's host, or the jobs of the name's prefix, have their share already.
Refusal check_shares(const JoinRequest& request, const JobSpec& spec, const JobsOptions& options,
                     const Usage& usage) {
  const std::size_t needed_bytes = Job::memory_bytes(spec);
  const auto check = [&](const char* what, std::string_view who, const Share& taken,
                         const Share& limit) -> Refusal {
    const std::string whose = text("%s '%s'", what, printable(who).c_str());
    if (taken.jobs >= limit.jobs)
      return no(wire::RefuseCode::kLimit,
                text("job '%s' would be job %zu of %s, this appliance serves %zu: raise "
                     "limits.%s_jobs or wait for a job to end",
                     spec.name.c_str(), taken.jobs + 1, whose.c_str(), limit.jobs, what));
    if (needed_bytes > limit.bytes - std::min(limit.bytes, taken.bytes))
      return no(wire::RefuseCode::kLimit,
                text("job '%s' needs %zu MiB, %s may have %zu MiB and has %zu: raise "
                     "limits.%s_memory_mib or wait for a job to end",
                     spec.name.c_str(), mebibytes(needed_bytes), whose.c_str(), limit.bytes >> 20,
                     mebibytes(taken.bytes), what));
    return {};
  };
  Refusal refusal =
      check("address", host_of(request.address), usage.of_address, options.per_address);
  if (refusal.ok())
    refusal = check("prefix", prefix_of(request.name()), usage.of_prefix, options.per_prefix);
  return refusal;
}

// Notes a rank that asks for room which another job would have to make. True: all ranks of its job
// have asked within a moment. One job at a time may claim room, for kYieldAfter at most.
bool Jobs::all_ask(const JoinRequest& asked) {
  const wire::Join& join = asked.join;
  const bool same = claim_.run_id == join.run_id && claim_.ordinal == join.ordinal &&
                    claim_.world_size == join.world_size && claim_.name == asked.name();
  const bool over = claim_.name.empty() || asked.now - claim_.asked_ns > kJoinDeadline ||
                    asked.now - claim_.since_ns > kYieldAfter;
  if (!same && !over) return false;
  if (over)
    claim_ = {.name = std::string(asked.name()),
              .run_id = join.run_id,
              .ordinal = join.ordinal,
              .world_size = join.world_size,
              .ranks = {},
              .since_ns = asked.now};
  claim_.asked_ns = asked.now;
  claim_.ranks.set(asked.rank);
  CHECK(claim_.ranks.count() <= claim_.world_size);
  return claim_.ranks.count() == claim_.world_size;
}

// The job that has waited for its ranks longest, else the store that was kept longest.
void Jobs::make_room(const JoinRequest& asked) {
  JobControl* oldest = nullptr;
  const auto goes_before = [](const JobEntry& one, const JobEntry& other) {
    if (one.is_kept() != other.is_kept()) return other.is_kept();
    return one.is_kept() ? one.kept_since_ns < other.kept_since_ns
                         : one.held_since_ns < other.held_since_ns;
  };
  for (const auto& control : controls_)
    if (control != nullptr && control->entry().may_yield(asked.now) &&
        (oldest == nullptr || goes_before(control->entry(), oldest->entry())))
      oldest = control.get();
  CHECK(oldest != nullptr);
  const JobEntry& entry = oldest->entry();
  if (entry.is_kept()) return oldest->retire(asked.now);
  oldest->fail(
      wire::NoticeCode::kReplaced, Rank{},
      text(
          "job '%s' has waited %.0f s for its ranks (%u of %u are here), and gave its place to job "
          "'%s', whose ranks are all here: start it again when all can come",
          entry.name.c_str(), seconds(asked.now - entry.held_since_ns),
          unsigned{entry.live_count()}, unsigned{entry.world_size()},
          printable(asked.name()).c_str()),
      asked.now);
}

}  // namespace sluice::agg
