// How a job chooses k: the options that a join carries or the appliance's configuration gives,
// whether they make sense, and whether all ranks mean the same.
#include <algorithm>

#include "aggregator/base/policy_fields.h"
#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

// "saina (k 4, sign_threshold 0.500, ...)": all that the policy reads, in the words of its options.
std::string describe(const PolicyOptions& options) {
  std::string result = name_of(options.kind);
  if (!options.tolerates_stragglers()) return result;
  result += " (";
  if (options.kind == PolicyKind::kFixed || options.kind == PolicyKind::kSaina)
    result += text("k %u, ", unsigned{options.k});
  if (options.kind == PolicyKind::kSaina) {
    result += text("sign_threshold %.3f, ", options.sign_threshold_permille / 1000.0);
    result += options.count_threshold == 0
                  ? "count_threshold k, "
                  : text("count_threshold %u, ", unsigned{options.count_threshold});
    result += options.sign_stride == kAllSigns ? "signs all, " : "signs one-in-32, ";
    result += text("round_steps %u, ", std::uint32_t{options.round_steps});
  }
  if (options.kind == PolicyKind::kRamp)
    result += text("planned_steps %u, ", std::uint32_t{options.planned_steps});
  result += text("late %s", name_of(options.late));
  if (options.late == LateMode::kRequeue)
    result += text(", max_staleness %u", std::uint32_t{options.max_staleness});
  return result + ")";
}

// The value of a field that makes no sense, and what it may be.
std::string describe_field(const PolicyField& field, const PolicyOptions& options,
                           unsigned world_size) {
  if (field.name == "k")
    return text("k %u for %u workers: give 1 to %u", unsigned{options.k}, world_size, world_size);
  if (field.name == "sign_threshold")  // users write a share
    return text("sign_threshold %.3f: give 0 to 1", options.sign_threshold_permille / 1000.0);
  if (field.name == "signs")
    return text("every sign in %u: give 1 (all signs) or 32 (one in 32)",
                unsigned{options.sign_stride});
  return text("%s %u: give %s", std::string(field.name).c_str(), field.get(options),
              std::string(field.rule).c_str());
}

// Who chose the options, as the start of a sentence.
std::string policy_source(const JoinRequest& request) {
  const unsigned rank = request.rank.value;
  if (request.join.has_policy != 0)
    return text("rank %u at %s asks for", rank, std::string(request.address).c_str());
  return text("rank %u at %s leaves the policy to the appliance, whose configuration says", rank,
              std::string(request.address).c_str());
}

}  // namespace

PolicyOptions effective_policy(const JoinRequest& request, const JobsOptions& options) noexcept {
  if (request.join.has_policy != 0) return request.join.policy;
  const auto named =
      std::find_if(options.job_policies.begin(), options.job_policies.end(),
                   [&](const NamedPolicy& one) { return one.job_name == request.name(); });
  return named == options.job_policies.end() ? options.policy : named->policy;
}

bool check_policy(const JoinRequest& request, const JobsOptions& options, Refusal& refusal) {
  const PolicyOptions policy = effective_policy(request, options);
  const unsigned world_size = request.join.world_size;
  // The kind exists: the parser and the configuration have seen to that.
  const PolicyField* field = wrong_field(policy, static_cast<std::uint16_t>(world_size));
  if (field == nullptr) return true;
  refusal = {.code = wire::RefuseCode::kPolicy,
             .text = text("job '%s': %s policy %s with %s", printable(request.name()).c_str(),
                          policy_source(request).c_str(), name_of(policy.kind),
                          describe_field(*field, policy, world_size).c_str())};
  return false;
}

bool check_policy_agreement(const JoinRequest& request, const JobsOptions& options,
                            const JobEntry& entry, Refusal& refusal) {
  const PolicyOptions asked = without_unread(effective_policy(request, options));
  const PolicyOptions running = without_unread(entry.spec.policy);
  if (asked == running) return true;
  refusal = {
      .code = wire::RefuseCode::kPolicy,
      .text = text("%s policy %s, job '%s' has %s (set by rank %u at %s): give all ranks "
                   "the same options",
                   policy_source(request).c_str(), describe(asked).c_str(), entry.name.c_str(),
                   describe(running).c_str(), unsigned{entry.layout_rank.value},
                   entry.member(entry.layout_rank).address.c_str())};
  return false;
}

// They can also carry one rank's state to another.
void size_windows(JobSpec& spec, std::size_t max_job_bytes) noexcept {
  const bool goes_on = spec.policy.tolerates_stragglers();
  spec.chunk_counts[index_of(StreamId::kState)] = goes_on ? kCollectiveChunks : 0;
  spec.windows = {goes_on ? kAsyncWindow : kSyncWindow, kMaxWindow, goes_on ? kSyncWindow : 0};
  std::uint32_t& window = spec.windows[index_of(StreamId::kGradients)];
  while (window > kSyncWindow && Job::memory_bytes(spec) > max_job_bytes) --window;
  CHECK(window >= kSyncWindow);
}

}  // namespace sluice::agg
