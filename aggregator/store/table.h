// What a store's shard keeps of each of its blocks, of each rank in a block, and of each chunk, and
// the chunks' values. The arrays are allocated once, by the constructor. It decides nothing: the
// rules are store.h's. Blocks are numbered as they lie in this shard, chunks as in their block. The
// shard's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/prefault.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"
#include "aggregator/store/spec.h"

namespace sluice::agg {

class StoreTable {
 public:
  static constexpr Step kAbsent = UINT32_MAX;  // v of a rank that counts in no minimum
  static constexpr std::uint32_t kNoRow = UINT32_MAX;

  struct Block {
    Step clock = 0;
    std::uint16_t at_clock = 0;
    std::uint16_t present = 0;  // ranks that count in its clock
    std::uint16_t parked = 0;   // parked pulls
    bool rate_known = false;    // `rate` is that of the clock that is being gathered
    double rate = 0;
    std::uint64_t all = 0;      // its chunks; 0: not known yet
    std::uint64_t known = 0;    // chunks that have their initial values
    std::uint64_t applied = 0;  // gathering: chunks that have been applied for the next clock

    // Whether all of its chunks have their initial values.
    bool is_known() const noexcept { return all != 0 && known == all; }
  };
  // A rank in a block.
  struct Row {
    Step pushed = 0;  // v
    Step need = 0;    // of its last pull
    Step own = 0;
    Priority priority = 0;
    bool pulled = false;  // the rank has pulled: need and own are those of the last pull
    bool queued = false;
    bool parked = false;
    std::uint64_t counted = 0;                     // chunks of iteration v + 1
    std::uint64_t wanted = 0;                      // chunks to answer with
    TimeNs parked_ns = 0;                          // since when it is parked
    std::uint32_t older = kNoRow, newer = kNoRow;  // neighbours in the list of parked rows

    // Whether the block has what the last pull asks for.
    bool may_read(const Block& block) const noexcept {
      return block.is_known() && block.clock >= need && pushed != kAbsent && pushed >= own;
    }
  };
  struct Chunk {
    std::uint64_t updates = 0;
    StoreVersion version = 0;
    // Gathered pushes. There are more than ranks when processes push, are lost, and push again
    // within one clock.
    std::uint32_t gathered = 0;
    std::uint32_t place = 0;       // of the gathered pushes, if there are any
    std::uint16_t elem_count = 0;  // 0: not known yet
    std::uint16_t missing = 0;     // members at the clock whose push has not arrived
  };

  // All ranks are present at iteration 0 of all blocks. Throws as StoreShard's constructor does;
  // `progress` is told of the values, not of the rest.
  StoreTable(const StoreSpec& spec, std::uint32_t block_count, BuildProgress* progress);
  // The bytes that it allocates.
  static std::size_t memory_bytes(const StoreSpec& spec, std::uint32_t block_count) noexcept;

  std::span<Block> blocks() noexcept { return blocks_; }
  Block& block(std::uint32_t at) noexcept { return blocks_[at]; }
  const Block& block(std::uint32_t at) const noexcept { return blocks_[at]; }

  std::span<Row> rows() noexcept { return rows_; }
  std::span<Row> rows(std::uint32_t at) noexcept {
    return rows().subspan(std::size_t{at} * world_size_, world_size_);
  }
  Row& row(std::uint32_t at, Rank rank) noexcept {
    return rows_[std::size_t{at} * world_size_ + rank.value];
  }
  const Row& row(std::uint32_t at, Rank rank) const noexcept {
    return rows_[std::size_t{at} * world_size_ + rank.value];
  }

  std::span<Chunk> chunks() noexcept { return chunks_; }
  Chunk& chunk(std::uint32_t at, std::uint32_t index) noexcept {
    return chunks_[number(at, index)];
  }
  const Chunk& chunk(std::uint32_t at, std::uint32_t index) const noexcept {
    return chunks_[number(at, index)];
  }
  // Its parameters, then the states of the optimizer, each StoreSpec::stride_floats() long.
  float* values(std::uint32_t at, std::uint32_t index) const noexcept {
    return memory_.get() + number(at, index) * floats_per_chunk_;
  }
  std::size_t floats_per_chunk() const noexcept { return floats_per_chunk_; }

  // The ranks whose last iteration in the chunk is odd. With bound 0 the clock tells as much, and
  // there are no words.
  std::span<std::uint64_t> odd(std::uint32_t at, std::uint32_t index) noexcept {
    return std::span(odd_).subspan(number(at, index) * odd_words_, odd_words_);
  }
  std::span<const std::uint64_t> odd(std::uint32_t at, std::uint32_t index) const noexcept {
    return std::span(odd_).subspan(number(at, index) * odd_words_, odd_words_);
  }
  void note_last(std::uint32_t at, std::uint32_t index, Rank rank, Step iteration) noexcept;

 private:
  static std::size_t number(std::uint32_t at, std::uint32_t index) noexcept {
    return std::size_t{at} * kChunksPerBlock + index;
  }

  const std::uint16_t world_size_;
  const std::size_t floats_per_chunk_;
  const std::size_t odd_words_;  // of a chunk
  std::vector<Block> blocks_;
  std::vector<Row> rows_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint64_t> odd_;
  FloatArray memory_;
};

}  // namespace sluice::agg
