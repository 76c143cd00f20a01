// The production job of which every state is visited: chunks of one element, and with two shards
// one chunk in each.
#pragma once

#include "aggregator/base/block.h"
#include "aggregator/core/job.h"

namespace sluice::exhaustive {

inline agg::JobSpec small_job_spec(const char* name, std::uint16_t worker_count,
                                   std::uint16_t shard_count, std::size_t chunk_count,
                                   std::uint32_t window) {
  agg::JobSpec spec{.id = JobId{0},
                    .name = name,
                    .world_size = worker_count,
                    .chunk_bytes = kMinChunkBytes,
                    .shard_count = shard_count};
  // Two shards: 65 chunks are the fewest that reach the second one.
  spec.chunk_counts[0] =
      shard_count == 1 ? static_cast<std::uint32_t>(chunk_count) : kChunksPerBlock + 1;
  spec.max_elems[0] = 1;
  spec.windows[0] = window;
  return spec;
}

// Two shards have a chunk each: the 63 between them are taken out of the first.
inline void cut_to_a_chunk_each(agg::Job& job) {
  if (job.spec.shard_count == 1) return;
  job.slices[0].gradients.chunk_count = 1;
  job.slices[0].gradients.by_chunk_count = Divisor(1);
}

}  // namespace sluice::exhaustive
