// A shard's memory, and reading its state.
#include "aggregator/store/store.h"

#include "aggregator/base/check.h"
#include "aggregator/core/mask.h"

namespace sluice::agg {
namespace {

std::uint32_t blocks_of(const StoreSpec& spec, ShardId id, std::uint16_t shard_count) noexcept {
  return (spec.block_count + shard_count - 1u - id.value) / shard_count;
}

std::size_t floats_of_chunk(const StoreSpec& spec) noexcept {
  return spec.stride_floats() * (1 + spec.update.state_count());
}

std::size_t floats_of_place(const StoreSpec& spec) noexcept {
  return !spec.gathers() ? 0 : spec.stride_floats() * (spec.in_rank_order ? spec.world_size : 1);
}

// The pages are touched now, not by the first push.
template <class T>
void reserve_touched(std::vector<T>& vector, std::size_t size) {
  vector.resize(size);
  vector.clear();
}

}  // namespace

std::size_t StoreShard::memory_bytes(const StoreSpec& spec, ShardId id,
                                     std::uint16_t shard_count) noexcept {
  const std::size_t blocks = blocks_of(spec, id, shard_count);
  const std::size_t chunks = blocks * kChunksPerBlock;
  const std::size_t masks = spec.in_rank_order ? mask_words(spec.world_size) : 0;
  const std::size_t floats = floats_of_chunk(spec) + floats_of_place(spec);
  const std::size_t place = spec.gathers() ? sizeof(std::uint32_t) : 0;
  const std::size_t odd = spec.gathers() ? 0 : mask_words(spec.world_size);
  const std::size_t resumed =
      spec.resumes ? sizeof(Resumed) + spec.world_size * sizeof(Resumed::OfMember) : 0;
  return blocks * resumed +
         chunks * (floats * sizeof(float) + sizeof(Chunk) + place + (masks + odd) * 8) +
         blocks * (sizeof(Block) + spec.world_size * (sizeof(Row) + sizeof(Turn)));
}

StoreShard::StoreShard(const StoreSpec& spec, ShardId id, std::uint16_t shard_count,
                       BuildProgress* progress, std::uint64_t updates)
    : spec_(spec),
      id_(id),
      shard_count_(shard_count),
      block_count_(blocks_of(spec, id, shard_count)),
      area_floats_(floats_of_chunk(spec)),
      place_floats_(floats_of_place(spec)),
      memory_(nullptr, std::free),
      places_(nullptr, std::free),
      blocks_(block_count_),
      rows_(std::size_t{block_count_} * spec.world_size),
      chunks_(std::size_t{block_count_} * kChunksPerBlock),
      members_(spec.world_size, MemberState::kLive),
      gauges_(spec.world_size),
      progress_(spec.world_size) {
  CHECK(check_store(spec).ok() && id.value < shard_count);
  memory_ = allocate_prefaulted(chunks_.size() * area_floats_, progress);
  places_ = allocate_prefaulted(chunks_.size() * place_floats_, progress);
  if (spec.gathers()) free_places_.resize(chunks_.size());
  for (std::uint32_t i = 0; i < free_places_.size(); ++i)
    free_places_[i] = static_cast<std::uint32_t>(free_places_.size()) - 1 - i;
  if (spec.in_rank_order) gathered_ranks_.resize(chunks_.size() * mask_words(spec.world_size));
  if (!spec.gathers()) odd_.resize(chunks_.size() * mask_words(spec.world_size));
  if (spec.resumes) resumed_.resize(block_count_);
  for (Resumed& each : resumed_) each.members.resize(spec.world_size);
  reserve_touched(turns_, rows_.size());
  reserve_touched(changes_, 4u * spec.world_size);
  for (Block& block : blocks_) block.at_clock = block.present = spec.world_size;
  for (Chunk& chunk : chunks_) {
    chunk.updates = updates;
    chunk.missing = spec.world_size;
  }
  for (std::uint16_t rank = 0; rank < spec.world_size; ++rank) survey(Rank{rank});
  note_made(progress, memory_bytes(spec, id, shard_count) -
                          chunks_.size() * (area_floats_ + place_floats_) * sizeof(float));
}

bool StoreShard::consistent(std::uint32_t at) const noexcept {
  const Block& block = blocks_[at];
  if ((block.known & ~block.all) != 0 || (block.applied & ~block.known) != 0) return false;
  if (block.applied != 0 && !(spec_.gathers() && is_known(block))) return false;
  std::size_t present = 0, at_clock = 0, parked = 0;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
    const Row& row = this->row(at, Rank{rank});
    const bool counts = row.pushed != kAbsent;
    present += counts;
    at_clock += row.pushed == block.clock;
    parked += row.parked;
    if (counts && row.pushed < block.clock) return false;
    // A row does not stay at an iteration whose chunks are all in. An applied chunk has the pushes
    // of all members.
    if ((row.counted & ~block.all) != 0 || (block.all != 0 && row.counted == block.all))
      return false;
    if (members_[rank] == MemberState::kLive && row.pushed == block.clock &&
        (block.applied & ~row.counted) != 0)
      return false;
    if (is_known(block) && (row.wanted & ~block.all) != 0) return false;
    // A pull that no later event would bring to mind.
    if ((row.wanted != 0) != row.parked && !row.queued) return false;
    if (row.parked && (!row.pulled || row.wanted == 0 || ready(block, row))) return false;
  }
  if (spec_.gathers() && !counts_missing(at)) return false;
  return present == block.present && at_clock == block.at_clock && parked == block.parked;
}

bool StoreShard::counts_missing(std::uint32_t at) const noexcept {
  for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
    if (!(blocks_[at].all >> index & 1)) continue;
    std::size_t missing = 0;
    for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
      const Row& row = this->row(at, Rank{rank});
      missing += row.pushed == blocks_[at].clock && !(row.counted >> index & 1);
    }
    if (missing != chunk(at, index).missing) return false;
  }
  return true;
}

std::span<const float> StoreShard::parameters(ChunkIndex index) const noexcept {
  const std::uint32_t at = local(index / kChunksPerBlock);
  return {area(at, index % kChunksPerBlock), chunk(at, index % kChunksPerBlock).elem_count};
}

}  // namespace sluice::agg
