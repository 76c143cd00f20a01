// A store that goes on from an appliance that is lost, with the values and iterations of its
// members' copies.
//
// Members state, block by block, which version of each chunk they have and how far their own pushes
// are in it. Once all have, the first member with the newest version of a chunk gives it. So no
// member reads what is older than what it or another one has read. A member that has a push behind
// its last whole copy pushes it again, if need be: the newest values say whether it is in them
// (wire::Values), so it counts once.
#include <algorithm>
#include <bit>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/mask.h"
#include "aggregator/store/store.h"

namespace sluice::agg {

void StoreShard::resume(std::span<const std::uint64_t> ranks) noexcept {
  CHECK(spec_.resumes && changes_.empty() && gauges_.initial_chunks.load() == 0);
  closed_blocks_ = block_count_;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank)
    if (!test_bit(ranks.data(), Rank{rank})) members_[rank] = MemberState::kGone;
  for (Row& row : table_.rows()) row.pushed = kAbsent;
  for (Block& block : table_.blocks()) block.present = block.at_clock = 0;
  for (Chunk& chunk : table_.chunks()) chunk.missing = 0;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) survey(Rank{rank});
}

Verdict StoreShard::state(const StoreCopies& copies) noexcept {
  if (copies.block >= spec_.block_count) return Verdict::kBadChunk;
  if (!owns(copies.block)) return Verdict::kWrongShard;
  if (copies.rank.value >= spec_.world_size) return Verdict::kBadRank;
  if (!resumes() || members_[copies.rank.value] != MemberState::kLive) return Verdict::kNotAllowed;
  const std::uint32_t at = local(copies.block);
  Resumed& resumed = resumed_[at];
  Resumed::OfMember& member = resumed.members[copies.rank.value];
  if (member.stated || resumed.open) return Verdict::kDuplicate;
  Block& block = table_.block(at);
  const std::uint64_t all = ~std::uint64_t{0} >> (kChunksPerBlock - copies.chunk_count);
  if (block.all != 0 && block.all != all) return Verdict::kShapeMismatch;
  block.all = all;
  member = {.stated = true, .pushes = copies.pushes, .pushed = copies.pushed};
  for (std::uint32_t index = 0; index < copies.chunk_count; ++index) {
    Resumed::Newest& newest = resumed.newest[index];
    const StoreVersion version = copies.versions[index];
    if (version > newest.version || (version == newest.version && copies.rank < newest.giver))
      newest = {.version = version, .giver = copies.rank};
    if (newest.version != kNoVersion) resumed.left |= std::uint64_t{1} << index;
  }
  const auto live = std::ranges::count(members_, MemberState::kLive);
  if (++resumed.stated == live && resumed.left == 0) open(at);
  return Verdict::kFolded;
}

StoreShard::Awaited StoreShard::awaited(std::uint32_t block, Rank rank) const noexcept {
  using Stated = Awaited::Stated;
  if (resumed_.empty()) return {};
  const Resumed& resumed = resumed_[local(block)];
  if (!resumed.members[rank.value].stated) return {};
  if (!resumed.open && resumed.stated != std::ranges::count(members_, MemberState::kLive))
    return {.stated = Stated::kByThisMember};
  Awaited awaited{.stated = Stated::kByAll};
  for (std::uint64_t rest = resumed.left; rest != 0; rest &= rest - 1)
    if (resumed.newest[static_cast<std::size_t>(std::countr_zero(rest))].giver == rank)
      awaited.chunks |= rest & -rest;
  return awaited;
}

Verdict StoreShard::give(const StoreCopy& copy) noexcept {
  const std::uint32_t block_index = copy.chunk / kChunksPerBlock;
  const std::uint32_t index = copy.chunk % kChunksPerBlock;
  if (block_index >= spec_.block_count) return Verdict::kBadChunk;
  if (!owns(block_index)) return Verdict::kWrongShard;
  if (copy.rank.value >= spec_.world_size) return Verdict::kBadRank;
  if (awaited(block_index, copy.rank).stated != Awaited::Stated::kByAll)
    return Verdict::kNotAllowed;
  const std::uint32_t at = local(block_index);
  Resumed& resumed = resumed_[at];
  Resumed::Newest& newest = resumed.newest[index];
  if (!has_chunk(resumed.left, copy.chunk)) return Verdict::kDuplicate;
  if (newest.giver != copy.rank || newest.version != copy.version) return Verdict::kNotAllowed;
  const std::size_t elem_count = copy.values.size() / sizeof(float);
  if (elem_count == 0 || elem_count > spec_.max_elems ||
      copy.odd.size() != table_.odd(at, index).size())
    return Verdict::kShapeMismatch;
  Chunk& chunk = table_.chunk(at, index);
  chunk.elem_count = static_cast<std::uint16_t>(elem_count);
  // Its copies have other masks from here on: of members that are away nothing is known.
  chunk.version = std::max(copy.version, kFirstVersion) + 1;
  newest.clock = copy.clock;
  std::ranges::copy(copy.odd, table_.odd(at, index).begin());
  std::memcpy(table_.values(at, index), copy.values.data(), copy.values.size());
  resumed.left &= ~chunk_bit(copy.chunk);
  if (resumed.left == 0) open(at);
  return Verdict::kFolded;
}

// All newest values are here.
void StoreShard::open(std::uint32_t at) noexcept {
  Resumed& resumed = resumed_[at];
  CHECK(!resumed.open && closed_blocks_ != 0);
  Block& block = table_.block(at);
  Step least_given = kAbsent;
  for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
    if (resumed.newest[index].version == kNoVersion) continue;
    block.known |= std::uint64_t{1} << index;
    least_given = std::min(least_given, resumed.newest[index].clock);
  }
  block.clock = kAbsent;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
    if (members_[rank] != MemberState::kLive) continue;
    // Where the member stands, and which chunks of its next push are counted.
    const Resumed::OfMember& member = resumed.members[rank];
    Row& row = table_.row(at, Rank{rank}) = {.pushed = member.pushed};
    const bool is_next_odd = (member.pushed + 1) % 2 != 0;
    for (std::uint32_t index = 0; member.pushes && block.is_known() && index < kChunksPerBlock;
         ++index) {
      const bool is_in = spec_.gathers()
                             ? resumed.newest[index].clock > member.pushed
                             : test_bit(table_.odd(at, index).data(), Rank{rank}) == is_next_odd;
      if (is_in && (block.all >> index & 1)) row.counted |= std::uint64_t{1} << index;
    }
    if (row.counted == block.all) row = {.pushed = member.pushed + 1};
    // What all have pushed is in every chunk.
    if (spec_.gathers() && least_given != kAbsent && row.pushed < least_given)
      row = {.pushed = least_given};
    block.clock = std::min(block.clock, row.pushed);
    ++block.present;
  }
  CHECK(block.present != 0);
  const bool may_gather = spec_.gathers() && block.is_known();
  for (std::uint32_t index = 0; may_gather && index < kChunksPerBlock; ++index)
    if ((block.known >> index & 1) && resumed.newest[index].clock > block.clock)
      block.applied |= std::uint64_t{1} << index;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) {
    Row& row = table_.row(at, Rank{rank});
    if (row.pushed == kAbsent) continue;
    const bool is_at_clock = row.pushed == block.clock;
    block.at_clock = static_cast<std::uint16_t>(block.at_clock + is_at_clock);
    if (spec_.gathers()) row.counted = is_at_clock ? block.applied : 0;
    for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) {
      const bool is_in = row.counted >> index & 1;
      table_.note_last(at, index, Rank{rank}, row.pushed + is_in);
      table_.chunk(at, index).missing = static_cast<std::uint16_t>(
          table_.chunk(at, index).missing + (spec_.gathers() && is_at_clock && !is_in));
    }
  }
  note_clock(block.clock + (block.applied != 0));
  resumed.open = true;
  gauges_.initial_chunks.fetch_add(static_cast<std::uint32_t>(std::popcount(block.known)),
                                   std::memory_order_relaxed);
  if (block.is_known()) gauges_.initial_blocks.fetch_add(1, std::memory_order_relaxed);
  DCHECK(consistent(at));
  if (--closed_blocks_ != 0) return;
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank) survey(Rank{rank});
}

}  // namespace sluice::agg
