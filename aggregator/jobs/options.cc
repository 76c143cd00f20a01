// How a job chooses k: the options that a join carries or the appliance's configuration gives,
// whether they make sense, and whether all ranks mean the same.
#include <algorithm>

#include "aggregator/base/policy_text.h"
#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

// "saina (k 4, sign_threshold 0.5, ...)": all that the policy reads, in the words of its options.
std::string describe(const PolicyOptions& options) {
  std::string read;
  for (const PolicyField& field : kPolicyFields.subspan(1)) {
    if (!is_read(field, options.kind, options.late)) continue;
    read += (read.empty() ? " (" : ", ") + std::string(field.name) + " " +
            policy_text(field, field.get(options));
  }
  return name_of(options.kind) + (read.empty() ? "" : read + ")");
}

// The chooser of the options, as the start of a sentence.
std::string policy_source(const JoinRequest& request) {
  const unsigned rank = request.rank.value;
  if (request.join.has_policy != 0)
    return text("rank %u at %s asks for", rank, std::string(request.address).c_str());
  return text("rank %u at %s leaves the policy to the appliance, whose configuration says", rank,
              std::string(request.address).c_str());
}

// Null: the configuration does not name the job.
const NamedOptions* find_named(const JoinRequest& request, const JobsOptions& options) noexcept {
  const auto named =
      std::find_if(options.named_jobs.begin(), options.named_jobs.end(),
                   [&](const NamedOptions& one) { return one.job_name == request.name(); });
  return named == options.named_jobs.end() ? nullptr : &*named;
}

}  // namespace

// Only sums have steps, and a policy.
PolicyOptions effective_policy(const JoinRequest& request, const JobsOptions& options) noexcept {
  if (request.join.kind != JobKind::kSums) return {};
  if (request.join.has_policy != 0) return request.join.policy;
  const NamedOptions* named = find_named(request, options);
  return named == nullptr ? options.policy : named->policy;
}

bool effective_reproducible(const JoinRequest& request, const JobsOptions& options) noexcept {
  if (wire::asks_reproducible(request.join.features)) return true;
  const NamedOptions* named = find_named(request, options);
  return named != nullptr && named->reproducible;
}

Refusal check_policy(const JoinRequest& request, const JobsOptions& options) {
  const PolicyOptions policy = effective_policy(request, options);
  const unsigned world_size = request.join.world_size;
  // The kind exists: the parser and the configuration have seen to that.
  const PolicyField* field = wrong_field(policy, world_size);
  CHECK(request.join.kind == JobKind::kSums);
  if (field == nullptr && effective_reproducible(request, options) &&
      policy.tolerates_stragglers()) {
    const bool asked = wire::asks_reproducible(request.join.features);
    return no(wire::RefuseCode::kPolicy,
              text("job '%s': %s policy %s and %s asks for reproducible sums, but with k < n = %u "
                   "it is a matter of time who is in a sum: give policy sync, or leave "
                   "reproducible out",
                   printable(request.name()).c_str(), policy_source(request).c_str(),
                   name_of(policy.kind), asked ? "the rank" : "the configuration", world_size));
  }
  if (field == nullptr) return {};
  return no(wire::RefuseCode::kPolicy,
            text("job '%s': %s policy %s with %s %s: give %s", printable(request.name()).c_str(),
                 policy_source(request).c_str(), name_of(policy.kind),
                 std::string(field->name).c_str(), policy_text(*field, field->get(policy)).c_str(),
                 policy_range(*field, world_size, false).c_str()));
}

Refusal check_policy_agreement(const JoinRequest& request, const JobsOptions& options,
                               const JobEntry& entry) {
  const PolicyOptions asked = without_unread(effective_policy(request, options));
  const PolicyOptions running = without_unread(entry.spec.policy);
  CHECK(wrong_field(running, entry.world_size()) == nullptr);
  if (asked == running) return {};
  return no(wire::RefuseCode::kPolicy,
            text("%s policy %s, job '%s' has %s (set by rank %u at %s): give all ranks "
                 "the same options",
                 policy_source(request).c_str(), describe(asked).c_str(), entry.name.c_str(),
                 describe(running).c_str(), unsigned{entry.layout_rank.value},
                 entry.member(entry.layout_rank).address.c_str()));
}

// Such a job can also carry one rank's state to another.
void size_windows(JobSpec& spec, std::size_t max_job_bytes) noexcept {
  const bool goes_on = spec.policy.tolerates_stragglers();
  spec.chunk_counts[index_of(StreamId::kState)] = goes_on ? kCollectiveChunks : 0;
  spec.windows = {goes_on ? kAsyncWindow : kSyncWindow, kMaxWindow, goes_on ? kSyncWindow : 0};
  std::uint32_t& window = spec.windows[index_of(StreamId::kGradients)];
  while (window > kSyncWindow && Job::memory_bytes(spec) > max_job_bytes) --window;
  CHECK(kSyncWindow <= window && window <= kMaxWindow);
}

}  // namespace sluice::agg
