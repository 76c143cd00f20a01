// The specification of a store, as a job's join gives it, and its checks. Plain values.
//
// A layer (one tensor or several) begins a block of its own, so that every block belongs to one
// layer and has a clock; the rest of a layer's last block is empty. Chunk i of block b has the
// index b * 64 + i. Blocks are assigned to shards in turn, as those of sums. The specification does
// not have the number of chunks of each block and of their elements: initial values fix them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

struct StoreSpec {
  std::uint16_t world_size = 0;
  std::uint32_t block_count = 0;
  std::uint32_t max_elems = 0;  // of a chunk
  Step bound = 0;               // see StoreOptions
  UpdateOptions update;
  bool in_rank_order = false;  // with bound 0: sums do not depend on the order of arrival
  bool resumes = false;        // it has room for what resume() needs

  bool gathers() const noexcept { return bound == 0; }
  // Floats reserved for one array of a chunk.
  std::size_t stride_floats() const noexcept { return (max_elems + 15u) / 16 * 16; }
};

// Ok, or why there is no such store.
Status check_store(const StoreSpec& spec);

}  // namespace sluice::agg
