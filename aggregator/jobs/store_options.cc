// The store that a join asks for: whether there is such a store, and whether all ranks mean the
// same.
#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

const char* name_of(UpdateRule rule) noexcept {
  switch (rule) {
    case UpdateRule::kDelta: return "the workers' own updates";
    case UpdateRule::kSgd: return "SGD at the store";
    case UpdateRule::kAdam: return "Adam at the store";
  }
  return "?";
}

const char* name_of(StoreKeep keep) noexcept {
  switch (keep) {
    case StoreKeep::kKeep: return "keep";
    case StoreKeep::kEnd: return "end";
    case StoreKeep::kAnew: return "anew";
    case StoreKeep::kTake: return "take";
  }
  return "?";
}

// Whether the rank agrees with the job about keeping the store. A rank that takes a kept store has
// no wish of its own, and a run that goes on with one need not say why it was kept.
bool agree(StoreKeep asked, const JobEntry& entry) noexcept {
  if (asked == StoreKeep::kTake || asked == entry.keep) return true;
  return entry.is_kept() && asked == StoreKeep::kKeep;
}

std::string describe(JobKind kind, const StoreOptions& store) {
  if (kind == JobKind::kSums) return "sums of gradients";
  if (kind == JobKind::kOperations) return "operations of groups";
  const std::string bound =
      store.bound == kNoBound ? "no bound" : "bound " + std::to_string(store.bound);
  return "a store with " + bound + " and " + name_of(store.update.rule);
}

}  // namespace

StoreSpec store_spec(const JoinRequest& request, const JobsOptions& options) noexcept {
  const wire::StreamLayout& layout = request.join.layouts[kTensorStream];
  return {.world_size = request.join.world_size,
          .block_count = layout.chunk_count / kChunksPerBlock,
          .max_elems = layout.max_elems,
          .bound = request.join.store.bound,
          .update = request.join.store.update,
          .in_rank_order = effective_reproducible(request, options),
          .resumes = request.join.resume_step != 0};
}

Refusal check_store_request(const JoinRequest& request, const JobsOptions& options) {
  const wire::Join& join = request.join;
  CHECK(join.kind == JobKind::kStore);
  const wire::StreamLayout& layout = join.layouts[kTensorStream];
  const std::string job = "job '" + printable(request.name()) + "' of kind store: ";
  const auto refuse = [&](std::string why) {
    return no(wire::RefuseCode::kBadRequest, job + std::move(why));
  };
  if (layout.chunk_count % kChunksPerBlock != 0)
    return refuse(text("%u chunks are no whole number of blocks of %u",
                       std::uint32_t{layout.chunk_count}, kChunksPerBlock));
  if (layout.max_elems * sizeof(float) > join.chunk_bytes)
    return refuse(text("chunks of %u bytes do not hold %u elements of float32",
                       unsigned{join.chunk_bytes}, std::uint32_t{layout.max_elems}));
  if (join.wire != Dtype::kFloat32) return refuse("its values travel as float32: leave wire out");
  if (join.averaging != AveragingChoice::kDefault)
    return refuse("what a push counts is up to the store: leave averaging out");
  if (join.has_policy != 0 && join.policy.tolerates_stragglers())
    return refuse(text("it has a bound on staleness instead of policy %s: leave the policy out",
                       name_of(join.policy.kind)));
  if (const Status status = check_store(store_spec(request, options)); !status.ok())
    return refuse(status.message());
  return {};
}

Refusal check_store_agreement(const JoinRequest& request, const JobEntry& entry) {
  const wire::Join& join = request.join;
  const JobKind kind = entry.spec.kind();
  CHECK(!entry.is_store() || entry.spec.store->bound == entry.store.bound);
  if (join.kind == kind && join.store == entry.store) {
    if (!entry.is_store() || agree(join.keep, entry)) return {};
    return no(
        wire::RefuseCode::kPolicy,
        text("rank %u at %s says keep '%s', store '%s' has '%s' (set by rank %u at %s)",
             unsigned{request.rank.value}, std::string(request.address).c_str(), name_of(join.keep),
             entry.name.c_str(), name_of(entry.keep), unsigned{entry.layout_rank.value},
             entry.member(entry.layout_rank).address.c_str()));
  }
  return no(wire::RefuseCode::kPolicy,
            text("rank %u at %s asks for %s, job '%s' has %s (set by rank %u at %s): give "
                 "all ranks the same options",
                 unsigned{request.rank.value}, std::string(request.address).c_str(),
                 describe(join.kind, join.store).c_str(), entry.name.c_str(),
                 describe(kind, entry.store).c_str(), unsigned{entry.layout_rank.value},
                 entry.member(entry.layout_rank).address.c_str()));
}

}  // namespace sluice::agg
