#include "aggregator/store/spec.h"

#include <string>

#include "aggregator/store/optimizer.h"

namespace sluice::agg {

Status check_store(const StoreSpec& spec) {
  if (spec.world_size == 0 || spec.world_size > kMaxWorkers)
    return {StatusCode::kInvalidArgument, "world size " + std::to_string(spec.world_size) +
                                              ": a store has 1 to " + std::to_string(kMaxWorkers) +
                                              " workers"};
  if (spec.block_count == 0 || spec.block_count > kMaxChunks / kChunksPerBlock)
    return {StatusCode::kInvalidArgument,
            "a store of " + std::to_string(spec.block_count) + " blocks: it has 1 to " +
                std::to_string(kMaxChunks / kChunksPerBlock) + ", a layer one or more"};
  if (spec.max_elems == 0 || spec.max_elems * sizeof(float) > kMaxChunkBytes)
    return {StatusCode::kInvalidArgument, "chunks of " + std::to_string(spec.max_elems) +
                                              " elements: at most " +
                                              std::to_string(kMaxChunkBytes / sizeof(float))};
  if (Status status = check_update(spec.update); !status.ok()) return status;
  if (spec.gathers()) return {};
  const std::string with = "with a staleness bound above 0 ";
  if (spec.update.rule == UpdateRule::kAdam)
    return {StatusCode::kRefused, with +
                                      "the store updates at every push, and Adam's moments would "
                                      "count each worker's gradient as a step of their own: use "
                                      "bound 0, or run Adam in the workers"};
  if (spec.update.nesterov || spec.update.weight_decay != 0)
    return {StatusCode::kRefused, with +
                                      "the store updates at every push, and weight decay and "
                                      "Nesterov's step would apply once a worker instead of "
                                      "once an iteration: use bound 0, or run the optimizer in "
                                      "the workers"};
  if (spec.in_rank_order)
    return {StatusCode::kRefused,
            with + "updates apply as they arrive, so no order of ranks can be kept: use bound 0"};
  return {};
}

}  // namespace sluice::agg
