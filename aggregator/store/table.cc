#include "aggregator/store/table.h"

#include "aggregator/core/mask.h"

namespace sluice::agg {
namespace {

std::size_t floats_of_chunk(const StoreSpec& spec) noexcept {
  return spec.stride_floats() * (1 + spec.update.state_count());
}

std::size_t odd_words_of_chunk(const StoreSpec& spec) noexcept {
  return spec.gathers() ? 0 : mask_words(spec.world_size);
}

}  // namespace

std::size_t StoreTable::memory_bytes(const StoreSpec& spec, std::uint32_t block_count) noexcept {
  const std::size_t chunk_bytes = floats_of_chunk(spec) * sizeof(float) + sizeof(Chunk) +
                                  odd_words_of_chunk(spec) * sizeof(std::uint64_t);
  return block_count *
         (sizeof(Block) + spec.world_size * sizeof(Row) + kChunksPerBlock * chunk_bytes);
}

StoreTable::StoreTable(const StoreSpec& spec, std::uint32_t block_count, BuildProgress* progress)
    : world_size_(spec.world_size),
      floats_per_chunk_(floats_of_chunk(spec)),
      odd_words_(odd_words_of_chunk(spec)),
      blocks_(block_count),
      rows_(std::size_t{block_count} * spec.world_size),
      chunks_(std::size_t{block_count} * kChunksPerBlock),
      odd_(chunks_.size() * odd_words_),
      memory_(allocate_prefaulted(chunks_.size() * floats_per_chunk_, progress)) {
  for (Block& block : blocks_) block.at_clock = block.present = world_size_;
  for (Chunk& chunk : chunks_) chunk.missing = world_size_;
}

void StoreTable::note_last(std::uint32_t at, std::uint32_t index, Rank rank,
                           Step iteration) noexcept {
  const std::span<std::uint64_t> ranks = odd(at, index);
  if (ranks.empty()) return;
  if (iteration % 2 != 0)
    set_bit(ranks.data(), rank);
  else
    clear_bit(ranks.data(), rank);
}

}  // namespace sluice::agg
