// The job of operations that a join asks for, and how much memory it gets.
#include <algorithm>

#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"
#include "aggregator/operations/operations.h"

namespace sluice::agg {
namespace {

// A job of operations takes this part of what a job may have, and no more than that: its pages are
// made at the join, a second a GiB, and its groups share them. It has the first slots of some 55
// sequences with chunks for an MTU of 9,000, and of 300 for 1,500. A quarter at most is for the
// groups themselves, which are made as they are asked for.
constexpr std::size_t kShare = 8;
constexpr std::size_t kMostBytes = std::size_t{256} << 20;
constexpr std::size_t kGroupsShare = 4;

}  // namespace

OperationsSpec operations_spec(const JoinRequest& request, const JobsOptions& options) noexcept {
  OperationsSpec spec{.world_size = request.join.world_size,
                      .chunk_bytes = request.join.chunk_bytes,
                      .shard_count = options.shard_count};
  const std::size_t job_bytes = std::min(options.max_job_memory_bytes / kShare, kMostBytes);
  const std::size_t one_group_bytes =
      Group::memory_bytes(spec.world_size, spec.world_size, spec.shard_count);
  spec.group_bytes =
      std::clamp(job_bytes / kGroupsShare, one_group_bytes, kMaxGroups * one_group_bytes);
  spec.elastic = request.asks_any_rank();
  spec.reproducible = effective_reproducible(request, options);
  const std::size_t least = first_slots(spec.shard_count) / kChunksPerBlock / spec.shard_count *
                            pages_per_block(spec, spec.world_size);
  const std::size_t fixed_bytes = OperationShard::memory_bytes(spec);
  spec.page_count = 1;
  const std::size_t page_bytes = OperationShard::memory_bytes(spec) - fixed_bytes;
  const std::size_t shard_bytes =
      (job_bytes - std::min(job_bytes, spec.group_bytes)) / spec.shard_count;
  const std::size_t pages =
      shard_bytes > fixed_bytes ? (shard_bytes - fixed_bytes) / page_bytes : 0;
  spec.page_count = static_cast<std::uint32_t>(std::max(pages, least));
  return spec;
}

Refusal check_operations_request(const JoinRequest& request, const JobsOptions&) {
  const wire::Join& join = request.join;
  CHECK(join.kind == JobKind::kOperations);
  const bool plain =
      join.tensor_count == 0 && join.layouts[kTensorStream].chunk_count == 0 &&
      join.layouts[index_of(StreamId::kState)].chunk_count == 0 &&
      join.layouts[index_of(StreamId::kCollectives)].chunk_count == kCollectiveChunks &&
      join.has_policy == 0 && join.wire == Dtype::kFloat32 &&
      join.averaging == AveragingChoice::kDefault &&
      (join.resume_step == 0 || !request.asks_any_rank());
  if (plain) return {};
  return no(
      wire::RefuseCode::kBadRequest,
      text("job '%s' of kind operations has tensors, a policy, an averaging or a wire format, "
           "or goes on from another appliance: leave all of these out",
           printable(request.name()).c_str()));
}

Refusal check_operations_agreement(const JoinRequest& request, const JobEntry& entry) {
  const bool any = request.asks_any_rank();
  if (!entry.is_operations() || any == entry.is_elastic()) return {};
  const std::string address(request.address);
  if (any)
    return no(
        wire::RefuseCode::kBadRequest,
        text("the process at %s asks job '%s' for any rank, and the job's processes have said "
             "theirs: give it one of ranks 0 to %u",
             address.c_str(), entry.name.c_str(), unsigned{entry.world_size()} - 1));
  return no(wire::RefuseCode::kBadRequest,
            text("the process at %s asks job '%s' for rank %u, and the job is elastic, so it gives "
                 "ranks out itself: ask for any (elastic=True)",
                 address.c_str(), entry.name.c_str(), unsigned{request.rank.value}));
}

}  // namespace sluice::agg
