#include "aggregator/store/layout.h"

#include <algorithm>
#include <string>

namespace sluice::agg {

Status check_store(const StoreSpec& spec) {
  if (spec.world_size == 0 || spec.world_size > kMaxWorkers)
    return {StatusCode::kInvalidArgument, "world size " + std::to_string(spec.world_size) +
                                              ": a store has 1 to " + std::to_string(kMaxWorkers) +
                                              " workers"};
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

Result<StoreLayout> StoreLayout::make(const std::vector<std::vector<std::uint64_t>>& layers,
                                      std::uint16_t chunk_elems) {
  StoreLayout layout;
  if (chunk_elems == 0 || chunk_elems * sizeof(float) > kMaxChunkBytes)
    return Status(StatusCode::kInvalidArgument, "chunks of " + std::to_string(chunk_elems) +
                                                    " elements: at most " +
                                                    std::to_string(kMaxChunkBytes / sizeof(float)));
  layout.stride_floats_ = (chunk_elems + 15u) / 16 * 16;
  for (const std::vector<std::uint64_t>& tensors : layers) {
    const std::uint32_t layer = layout.layer_count_++;
    std::uint64_t chunks = 0;
    for (const std::uint64_t elems : tensors) {
      for (std::uint64_t rest = elems; rest != 0; ++chunks) {
        if (layout.elem_counts_.size() >= kMaxChunks)
          return Status(StatusCode::kExhausted,
                        "more than " + std::to_string(kMaxChunks) + " chunks: use larger ones");
        if (chunks % kChunksPerBlock == 0) {
          layout.elem_counts_.resize(layout.blocks_.size() * kChunksPerBlock);
          layout.blocks_.push_back({.layer = layer});
        }
        const std::uint64_t taken = std::min<std::uint64_t>(rest, chunk_elems);
        layout.elem_counts_.push_back(static_cast<std::uint16_t>(taken));
        ++layout.blocks_.back().chunk_count;
        rest -= taken;
      }
    }
    if (chunks == 0)
      return Status(StatusCode::kInvalidArgument,
                    "layer " + std::to_string(layer) + " has no parameters");
  }
  if (layout.layer_count_ == 0)
    return Status(StatusCode::kInvalidArgument, "a store without layers");
  return layout;
}

}  // namespace sluice::agg
