// A store's layers as blocks of chunks, and what a job asks of its store.
//
// A layer (of one tensor or several) begins a block of its own, so that every block has one layer
// and a clock of its own; what is left of a layer's last block stays empty. Chunks never cross a
// tensor. Chunk i of block b has the index b * 64 + i; blocks are dealt out to shards in turn, as
// those of sums are. Plain values; made at the join.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"
#include "aggregator/base/types.h"
#include "aggregator/store/optimizer.h"

namespace sluice::agg {

inline constexpr Step kNoBound = UINT32_MAX;  // asynchronous

struct StoreSpec {
  std::uint16_t world_size = 0;
  // Iteration t may read what holds all iterations up to t - 1 - bound of everybody. 0:
  // contributions are gathered and applied together, once.
  Step bound = 0;
  UpdateOptions update;
  bool in_rank_order = false;  // with bound 0: sums that do not depend on the order of arrival

  bool gathers() const noexcept { return bound == 0; }
};

// Ok, or why there is no such store.
Status check_store(const StoreSpec& spec);

class StoreLayout {
 public:
  struct Block {
    std::uint32_t layer = 0;
    std::uint32_t chunk_count = 0;  // 1 .. 64
    std::uint64_t all() const noexcept {
      return chunk_count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << chunk_count) - 1;
    }
  };

  // `layers`: the elements of each layer's tensors, in forward order. Refused: empty ones, or more
  // than a stream's chunks.
  static Result<StoreLayout> make(const std::vector<std::vector<std::uint64_t>>& layers,
                                  std::uint16_t chunk_elems);

  std::uint32_t block_count() const noexcept { return static_cast<std::uint32_t>(blocks_.size()); }
  std::uint32_t layer_count() const noexcept { return layer_count_; }
  const Block& block(std::uint32_t index) const noexcept {
    DCHECK(index < blocks_.size());
    return blocks_[index];
  }
  // 0: there is no such chunk.
  std::uint16_t elem_count(ChunkIndex chunk) const noexcept {
    return chunk < elem_counts_.size() ? elem_counts_[chunk] : std::uint16_t{0};
  }
  // Floats set aside for one array of a chunk.
  std::size_t stride_floats() const noexcept { return stride_floats_; }

 private:
  std::vector<Block> blocks_;
  std::vector<std::uint16_t> elem_counts_;  // by chunk index
  std::uint32_t layer_count_ = 0;
  std::size_t stride_floats_ = 0;
};

}  // namespace sluice::agg
