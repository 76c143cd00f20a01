// A shard's memory, and reading its state.
#include "aggregator/store/store.h"

#include "aggregator/base/check.h"
#include "aggregator/core/mask.h"

namespace sluice::agg {
namespace {

std::uint32_t blocks_of(const StoreSpec& spec, ShardId id, std::uint16_t shard_count) noexcept {
  return (spec.block_count + shard_count - 1u - id.value) / shard_count;
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
  const std::uint32_t blocks = blocks_of(spec, id, shard_count);
  const std::size_t chunks = std::size_t{blocks} * kChunksPerBlock;
  const std::size_t masks = spec.in_rank_order ? mask_words(spec.world_size) : 0;
  const std::size_t place = spec.gathers() ? sizeof(std::uint32_t) : 0;
  const std::size_t resumed =
      spec.resumes ? sizeof(Resumed) + spec.world_size * sizeof(Resumed::OfMember) : 0;
  return StoreTable::memory_bytes(spec, blocks) +
         chunks * (floats_of_place(spec) * sizeof(float) + place + masks * 8) +
         blocks * (resumed + spec.world_size * sizeof(Turn));
}

StoreShard::StoreShard(const StoreSpec& spec, ShardId id, std::uint16_t shard_count,
                       BuildProgress* progress, std::uint64_t updates)
    : spec_(spec),
      id_(id),
      shard_count_(shard_count),
      block_count_(blocks_of(spec, id, shard_count)),
      place_floats_(floats_of_place(spec)),
      table_(spec, block_count_, progress),
      places_(nullptr, std::free),
      members_(spec.world_size, MemberState::kLive),
      gauges_(spec.world_size),
      progress_(spec.world_size) {
  CHECK(check_store(spec).ok() && id.value < shard_count);
  const std::size_t chunk_count = table_.chunks().size();
  places_ = allocate_prefaulted(chunk_count * place_floats_, progress);
  if (spec.gathers()) free_places_.resize(chunk_count);
  for (std::uint32_t i = 0; i < free_places_.size(); ++i)
    free_places_[i] = static_cast<std::uint32_t>(free_places_.size()) - 1 - i;
  if (spec.in_rank_order) gathered_ranks_.resize(chunk_count * mask_words(spec.world_size));
  if (spec.resumes) resumed_.resize(block_count_);
  for (Resumed& each : resumed_) each.members.resize(spec.world_size);
  reserve_touched(turns_, table_.rows().size());
  reserve_touched(changes_, 4u * spec.world_size);
  for (Chunk& chunk : table_.chunks()) chunk.updates = updates;
  for (std::uint16_t rank = 0; rank < spec.world_size; ++rank) survey(Rank{rank});
  note_made(progress,
            memory_bytes(spec, id, shard_count) -
                chunk_count * (table_.floats_per_chunk() + place_floats_) * sizeof(float));
}

bool StoreShard::consistent(std::uint32_t at) const noexcept {
  const Block& block = table_.block(at);
  if ((block.known & ~block.all) != 0 || (block.applied & ~block.known) != 0) return false;
  if (block.applied != 0 && !(spec_.gathers() && block.is_known())) return false;
  std::size_t present = 0, at_clock = 0, parked = 0;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
    const Row& row = table_.row(at, Rank{rank});
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
    if (block.is_known() && (row.wanted & ~block.all) != 0) return false;
    // A pull that no later event would bring to mind.
    if ((row.wanted != 0) != row.parked && !row.queued) return false;
    if (row.parked && (!row.pulled || row.wanted == 0 || row.may_read(block))) return false;
  }
  if (spec_.gathers() && !counts_missing(at)) return false;
  return present == block.present && at_clock == block.at_clock && parked == block.parked;
}

bool StoreShard::counts_missing(std::uint32_t at) const noexcept {
  for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
    if (!(table_.block(at).all >> index & 1)) continue;
    std::size_t missing = 0;
    for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
      const Row& row = table_.row(at, Rank{rank});
      missing += row.pushed == table_.block(at).clock && !(row.counted >> index & 1);
    }
    if (missing != table_.chunk(at, index).missing) return false;
  }
  return true;
}

std::span<const float> StoreShard::parameters(ChunkIndex index) const noexcept {
  const std::uint32_t at = local(index / kChunksPerBlock);
  return {table_.values(at, index % kChunksPerBlock),
          table_.chunk(at, index % kChunksPerBlock).elem_count};
}

}  // namespace sluice::agg
