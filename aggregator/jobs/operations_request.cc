// The job of operations that a join asks for, and how much memory it gets.
#include "aggregator/jobs/admission.h"
#include "aggregator/jobs/text.h"
#include "aggregator/operations/operations.h"

namespace sluice::agg {
namespace {

// A job of operations takes this part of what a job may have, and no more than that: its pages are
// made at the join, a second a GiB, and its groups share them. It has the first slots of some 60
// sequences with chunks for an MTU of 9,000, and of 340 for 1,500.
constexpr std::size_t kShare = 8;
constexpr std::size_t kMostBytes = std::size_t{256} << 20;

}  // namespace

OperationsSpec operations_spec(const JoinRequest& request, const JobsOptions& options) noexcept {
  OperationsSpec spec{.world_size = request.join.world_size,
                      .chunk_bytes = request.join.chunk_bytes,
                      .shard_count = options.shard_count};
  const std::size_t least = first_slots(spec.shard_count) / kChunksPerBlock / spec.shard_count;
  const std::size_t fixed_bytes = OperationShard::memory_bytes(spec);
  spec.page_count = 1;
  const std::size_t page_bytes = OperationShard::memory_bytes(spec) - fixed_bytes;
  const std::size_t shard_bytes =
      std::min(options.max_job_memory_bytes / kShare, kMostBytes) / spec.shard_count;
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
      join.averaging == AveragingChoice::kDefault && join.resume_step == 0;
  if (plain) return {};
  return no(
      wire::RefuseCode::kBadRequest,
      text("job '%s' of kind operations has tensors, a policy, an averaging or a wire format, "
           "or goes on from another appliance: leave all of these out",
           printable(request.name()).c_str()));
}

}  // namespace sluice::agg
