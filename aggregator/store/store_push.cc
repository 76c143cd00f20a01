// Pushes: each is counted once and in order, applied or gathered, and moves clocks.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/mask.h"
#include "aggregator/store/optimizer.h"
#include "aggregator/store/store.h"

namespace sluice::agg {

Verdict StoreShard::push(const StorePush& push) noexcept {
  now_ns_ = push.now;
  const std::uint32_t block_index = push.chunk / kChunksPerBlock;
  const std::uint32_t index = push.chunk % kChunksPerBlock;
  if (block_index >= spec_.block_count) return Verdict::kBadChunk;
  if (!owns(block_index)) return Verdict::kWrongShard;
  if (push.rank.value >= spec_.world_size) return Verdict::kBadRank;
  if (members_[push.rank.value] != MemberState::kLive) return Verdict::kNotAllowed;
  if (resumes()) return Verdict::kNotStarted;
  const std::uint32_t at = local(block_index);
  if (const Chunk& one = table_.chunk(at, index); one.gathered != 0)
    prefetch_front<Use::kWrite>(
        place(one.place) + (spec_.in_rank_order ? spec_.stride_floats() * push.rank.value : 0),
        push.values.size());
  // Gathered pushes are applied with the last push of a clock.
  if (!spec_.gathers() || table_.chunk(at, index).missing == 1)
    for (std::size_t first = 0; first != table_.floats_per_chunk(); first += spec_.stride_floats())
      prefetch_front<Use::kWrite>(table_.values(at, index) + first, push.values.size());
  if (push.iteration == 0) return initialise(at, index, push);

  const Block& block = table_.block(at);
  if (!block.is_known()) return Verdict::kNotStarted;
  if (!(block.all >> index & 1)) return Verdict::kBadChunk;
  if (push.values.size() != table_.chunk(at, index).elem_count * sizeof(float))
    return Verdict::kShapeMismatch;
  Row& row = table_.row(at, push.rank);
  DCHECK(row.pushed != kAbsent && row.pushed >= block.clock);
  if (push.iteration <= row.pushed || push.iteration > kLastStep) return Verdict::kDuplicate;
  if (push.iteration != row.pushed + 1) return Verdict::kTooNew;
  if (spec_.bound != kNoBound && push.iteration - block.clock - 1 > spec_.bound)
    return Verdict::kTooNew;
  if (row.counted >> index & 1) return Verdict::kDuplicate;

  if (spec_.gathers())
    gather(at, index, push);
  else
    apply(at, index, push.rate, block.present, push.values.data());
  table_.note_last(at, index, push.rank, push.iteration);
  const bool moved = count(at, index, push.rank, push.iteration);
  if (moved)
    wake(at);
  else
    consider(at, push.rank);  // its own push may be all that it waits for
  DCHECK(consistent(at));
  return moved ? Verdict::kCompleted : Verdict::kFolded;
}

// The first initial values of a block fix its number of chunks, and those of a chunk its number of
// elements.
Verdict StoreShard::initialise(std::uint32_t at, std::uint32_t index,
                               const StorePush& push) noexcept {
  Block& block = table_.block(at);
  const std::size_t elem_count = push.values.size() / sizeof(float);
  if (push.block_chunks == 0 || push.block_chunks > kChunksPerBlock || index >= push.block_chunks)
    return Verdict::kBadChunk;
  const std::uint64_t all = ~std::uint64_t{0} >> (kChunksPerBlock - push.block_chunks);
  if (elem_count == 0 || elem_count > spec_.max_elems || push.values.size() % sizeof(float) != 0 ||
      (block.all != 0 && block.all != all))
    return Verdict::kShapeMismatch;
  if (block.known >> index & 1) return Verdict::kDuplicate;
  block.all = all;
  table_.chunk(at, index).elem_count = static_cast<std::uint16_t>(elem_count);
  std::memcpy(table_.values(at, index), push.values.data(), push.values.size());
  table_.chunk(at, index).version = kFirstVersion;
  block.known |= std::uint64_t{1} << index;
  gauges_.initial_chunks.fetch_add(1, std::memory_order_relaxed);
  const bool completed = block.is_known();
  if (completed) {
    gauges_.initial_blocks.fetch_add(1, std::memory_order_relaxed);
    wake(at);
  }
  DCHECK(consistent(at));
  return completed ? Verdict::kCompleted : Verdict::kFolded;
}

// Counts a chunk of the rank's push. True: the block's clock has moved.
bool StoreShard::count(std::uint32_t at, std::uint32_t index, Rank rank, Step iteration) noexcept {
  Row& row = table_.row(at, rank);
  row.counted |= std::uint64_t{1} << index;
  Block& block = table_.block(at);
  DCHECK(block.is_known());
  if (row.counted != block.all) return false;
  row.counted = 0;
  row.pushed = iteration;
  note_pushed(rank, iteration);
  if (iteration - 1 != block.clock) return false;
  CHECK(block.at_clock != 0);
  return --block.at_clock == 0 && advance(at);
}

// Notes that one of the rank's blocks has reached `iteration`.
void StoreShard::note_pushed(Rank rank, Step iteration) noexcept {
  Progress& progress = progress_[rank.value];
  progress.at_least -= iteration == progress.least + 1;
  progress.at_next += iteration == progress.least + 1;
  progress.at_next -= iteration == progress.least + 2;
  if (progress.at_least != 0) return;
  if (progress.at_next != block_count_) return survey(rank);  // some are further already
  progress = {.least = progress.least + 1, .at_least = block_count_, .at_next = 0};
  gauges_.clocks[rank.value].store(progress.least, std::memory_order_relaxed);
}

// Counts anew how far the rank has pushed all blocks.
void StoreShard::survey(Rank rank) noexcept {
  Progress progress{.least = kAbsent};
  for (std::uint32_t at = 0; at < block_count_; ++at)
    progress.least = std::min(progress.least, table_.row(at, rank).pushed);
  for (std::uint32_t at = 0; at < block_count_; ++at) {
    progress.at_least += table_.row(at, rank).pushed == progress.least;
    progress.at_next += table_.row(at, rank).pushed == progress.least + 1;
  }
  progress_[rank.value] = progress;
  static_assert(kAbsent == StoreGauges::kNoClock);
  gauges_.clocks[rank.value].store(progress.least, std::memory_order_relaxed);
}

void StoreShard::gather(std::uint32_t at, std::uint32_t index, const StorePush& push) noexcept {
  Block& block = table_.block(at);
  Chunk& chunk = table_.chunk(at, index);
  CHECK(!(block.applied >> index & 1) && chunk.missing != 0);
  if (!block.rate_known) block.rate = push.rate;  // all chunks of a clock have one
  block.rate_known = true;
  bool first = chunk.gathered == 0;
  if (first) {
    CHECK(!free_places_.empty());
    chunk.place = free_places_.back();
    free_places_.pop_back();
  }
  float* place = this->place(chunk.place);
  if (spec_.in_rank_order) {
    const std::size_t words = mask_words(spec_.world_size);
    std::uint64_t* ranks = &gathered_ranks_[(at * std::size_t{kChunksPerBlock} + index) * words];
    first = !test_bit(ranks, push.rank);  // else the process that had the rank before
    set_bit(ranks, push.rank);
    place += spec_.stride_floats() * push.rank.value;
  }
  const std::size_t elem_count = push.values.size() / sizeof(float);
  if (first)
    fold_store(place, push.values.data(), elem_count, Dtype::kFloat32);
  else
    fold_add(place, push.values.data(), elem_count, Dtype::kFloat32);
  ++chunk.gathered;
  if (--chunk.missing == 0) apply_gathered(at, index);
}

void StoreShard::apply_gathered(std::uint32_t at, std::uint32_t index) noexcept {
  Block& block = table_.block(at);
  Chunk& chunk = table_.chunk(at, index);
  CHECK(chunk.gathered != 0 && block.rate_known);
  float* sum = place(chunk.place);
  if (spec_.in_rank_order) {
    const std::size_t words = mask_words(spec_.world_size);
    std::uint64_t* ranks = &gathered_ranks_[(at * std::size_t{kChunksPerBlock} + index) * words];
    float* places = sum;
    sum = nullptr;
    for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
      if (!test_bit(ranks, Rank{rank})) continue;
      float* place = places + spec_.stride_floats() * rank;
      if (sum == nullptr)
        sum = place;
      else
        fold_add(sum, reinterpret_cast<const std::uint8_t*>(place), spec_.stride_floats(),
                 Dtype::kFloat32);
    }
    std::fill_n(ranks, words, 0);
  }
  apply(at, index, block.rate, static_cast<float>(chunk.gathered),
        reinterpret_cast<const std::uint8_t*>(sum));
  chunk.gathered = 0;
  free_places_.push_back(chunk.place);
  block.applied |= std::uint64_t{1} << index;
  note_clock(block.clock + 1);
}

void StoreShard::apply(std::uint32_t at, std::uint32_t index, double rate, float divisor,
                       const std::uint8_t* values) noexcept {
  float* parameters = table_.values(at, index);
  std::array<float*, 2> states{parameters + spec_.stride_floats(),
                               parameters + 2 * spec_.stride_floats()};
  ++table_.chunk(at, index).version;
  apply_update(spec_.update,
               {.divisor = divisor, .rate = rate, .ordinal = ++table_.chunk(at, index).updates},
               parameters, std::span(states).first(spec_.update.state_count()), values,
               table_.chunk(at, index).elem_count);
}

// Sets the block's clock to the least v of its members. True: it has moved. Without members it
// stays, for those that join later.
bool StoreShard::advance(std::uint32_t at) noexcept {
  Block& block = table_.block(at);
  Step least = kAbsent;
  std::uint16_t count = 0;
  for (const Row& row : table_.rows(at)) {
    if (row.pushed < least) count = 0;
    least = std::min(least, row.pushed);
    count += row.pushed != kAbsent && row.pushed == least;
  }
  block.at_clock = count;
  if (count == 0) return false;
  CHECK(least >= block.clock);
  if (least == block.clock) return false;
  if (spec_.gathers()) {
    for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
      CHECK(table_.chunk(at, index).gathered == 0);  // no v passes what is not applied
      table_.chunk(at, index).missing = count;
    }
    block.applied = 0;
    block.rate_known = false;
  }
  block.clock = least;
  note_clock(least);
  return true;
}

}  // namespace sluice::agg
