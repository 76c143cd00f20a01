// A small store and its workers' packets, for the tests of the store's core.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/store/store.h"

namespace sluice::test {

class StoreSubject {
 public:
  static constexpr std::uint16_t kElems = 16;
  TimeNs now = 1;

  // One layer of one block for each entry, with that number of full chunks. All parameters begin as
  // `initial`.
  StoreSubject(agg::StoreSpec spec, const std::vector<std::uint32_t>& layer_chunks,
               std::optional<float> initial = 0.0f, std::uint16_t shard_count = 1)
      : block_chunks_(layer_chunks), shard_count_(shard_count) {
    spec.block_count = static_cast<std::uint32_t>(layer_chunks.size());
    spec.max_elems = kElems;
    for (std::uint16_t id = 0; id < shard_count; ++id)
      shards_.push_back(std::make_unique<agg::StoreShard>(spec, ShardId{id}, shard_count));
    if (!initial) return;
    for (std::uint32_t block = 0; block < layer_chunks.size(); ++block)
      for (std::uint32_t index = 0; index < layer_chunks[block]; ++index)
        push(0, 0, block * kChunksPerBlock + index, *initial);
  }

  agg::StoreShard& shard(std::uint32_t block) { return *shards_[block % shard_count_]; }

  Verdict push(std::uint16_t rank, Step iteration, ChunkIndex chunk, float value, double rate = 1) {
    const std::vector<float> values(kElems, value);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
    return shard(chunk / kChunksPerBlock)
        .push({.rank = Rank{rank},
               .iteration = iteration,
               .chunk = chunk,
               .rate = rate,
               .block_chunks = block_chunks_[chunk / kChunksPerBlock],
               .values = {bytes, values.size() * sizeof(float)},
               .now = now});
  }
  Verdict pull(std::uint16_t rank, std::uint32_t block, Step need, Step own = 0,
               std::uint64_t chunks = 0) {
    if (chunks == 0) chunks = ~std::uint64_t{0} >> (kChunksPerBlock - block_chunks_[block]);
    return shard(block).pull({.rank = Rank{rank},
                              .block = block,
                              .chunks = chunks,
                              .need = need,
                              .own = own,
                              .priority = static_cast<Priority>(block),
                              .now = now});
  }
  // All answers that the shard has now.
  std::vector<agg::StoreAnswer> answers() {
    std::vector<agg::StoreAnswer> all;
    for (auto& shard : shards_)
      for (agg::StoreAnswer answer; shard->poll_answer(answer);) all.push_back(answer);
    return all;
  }
  float value(ChunkIndex chunk) { return shard(chunk / kChunksPerBlock).parameters(chunk).back(); }
  void work() {
    for (auto& shard : shards_)
      while (shard->poll_work()) {
      }
  }
  void remove(std::uint16_t rank) {
    for (auto& shard : shards_) shard->remove(Rank{rank});
    work();
  }
  // Acts as the control side for a rank that joins. Returns the rank's first iteration.
  Step join(std::uint16_t rank) {
    for (auto& shard : shards_) shard->hold(Rank{rank});
    work();
    Step greatest = 0;
    for (auto& shard : shards_) greatest = std::max(greatest, shard->greatest_clock());
    for (auto& shard : shards_) shard->start(Rank{rank}, greatest + 1);
    work();
    return greatest + 1;
  }

 private:
  const std::vector<std::uint32_t> block_chunks_;
  const std::uint16_t shard_count_;
  std::vector<std::unique_ptr<agg::StoreShard>> shards_;
};

}  // namespace sluice::test
