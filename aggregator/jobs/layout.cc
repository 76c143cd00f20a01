// Whether a rank registers the tensors that the job has, and prunes as it does.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

const char* name_of(PruneRule rule) noexcept {
  switch (rule) {
    case PruneRule::kOff: return "off";
    case PruneRule::kStatic: return "static";
    case PruneRule::kSampled: return "sampled";
    case PruneRule::kSigma: return "sigma";
    case PruneRule::kDynamic: return "dynamic";
    case PruneRule::kDynamicRaw: return "dynamic_raw";
  }
  return "?";
}

struct PruneField {
  const char* name;
  double value;
};

// All that a join can say of pruning, by the names that users know.
std::array<PruneField, 5> fields_of(const PruneOptions& prune) noexcept {
  return {{{"prune_fraction", prune.fraction},
           {"prune_sigmas", prune.sigmas},
           {"prune_warmup", static_cast<double>(prune.warmup_steps)},
           {"prune_min_elems", static_cast<double>(prune.min_elems)},
           {"prune_momentum", prune.momentum}}};
}

Refusal check_prune_agreement(const JoinRequest& request, const JobEntry& entry) {
  const PruneOptions asked = request.join.prune;
  if (asked == entry.prune) return {};
  std::string here = text("prune '%s'", name_of(asked.rule));
  std::string there = text("'%s'", name_of(entry.prune.rule));
  if (asked.rule == entry.prune.rule) {
    const auto left = fields_of(asked), right = fields_of(entry.prune);
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i].value == right[i].value) continue;
      here = text("%s %g", left[i].name, left[i].value);
      there = text("%g", right[i].value);
      break;
    }
  }
  return no(wire::RefuseCode::kLayout,
            text("rank %u at %s says %s, job '%s' has %s (set by rank %u at %s): give all ranks "
                 "the same options",
                 unsigned{request.rank.value}, std::string(request.address).c_str(), here.c_str(),
                 entry.name.c_str(), there.c_str(), unsigned{entry.layout_rank.value},
                 entry.member(entry.layout_rank).address.c_str()));
}

// The first fingerprint that differs. None: the rank or the job has none, their fingerprints cover
// different numbers of tensors, or all that both have are equal.
std::optional<wire::Differs> first_difference(const JoinRequest& request, const JobEntry& entry) {
  const wire::Join& join = request.join;
  if (join.print_tensors != entry.print_tensors || request.prints.empty() || entry.prints.empty())
    return std::nullopt;
  constexpr std::size_t kBytes = sizeof(std::uint32_t);
  const auto [ours, theirs] = std::ranges::mismatch(request.prints, entry.prints);
  const std::size_t index = static_cast<std::size_t>(theirs - entry.prints.begin()) / kBytes;
  if (ours == request.prints.end() && theirs == entry.prints.end()) return std::nullopt;
  wire::Differs found{
      .first_tensor = static_cast<std::uint32_t>(index) * std::uint32_t{join.print_tensors},
      .print_tensors = join.print_tensors,
      .job_tensor_count = entry.tensor_count};
  if (theirs != entry.prints.end())
    std::memcpy(&found.job_print, &entry.prints[index * kBytes], kBytes);
  return found;
}

}  // namespace

Refusal check_layout_agreement(const JoinRequest& request, const JobEntry& entry) {
  const wire::StreamLayout given = request.join.layouts[kTensorStream];
  CHECK(entry.layout_rank.value < entry.world_size());
  if (entry.gradients.hash == given.hash && entry.gradients.chunk_count == given.chunk_count &&
      entry.gradients.max_elems == given.max_elems)
    return check_prune_agreement(request, entry);
  Refusal refusal =
      no(wire::RefuseCode::kLayout,
         text("gradient layout of rank %u (hash %016" PRIx64
              ", %u chunks of up to %u elements) differs from job '%s' (hash %016" PRIx64
              ", %u chunks of up to %u, set by rank %u): all ranks need the same tensors with the "
              "same names in the same order",
              unsigned{request.rank.value}, std::uint64_t{given.hash},
              std::uint32_t{given.chunk_count}, std::uint32_t{given.max_elems}, entry.name.c_str(),
              std::uint64_t{entry.gradients.hash}, std::uint32_t{entry.gradients.chunk_count},
              std::uint32_t{entry.gradients.max_elems}, unsigned{entry.layout_rank.value}));
  refusal.difference = first_difference(request, entry);
  return refusal;
}

}  // namespace sluice::agg
