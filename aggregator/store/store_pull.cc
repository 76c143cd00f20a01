// Pulls: parked until their block has reached the iterations that they name, then answered in this
// order: pulls that have waited before others, blocks whose clock few members hold back before
// others, and the front of the model first.
#include <algorithm>
#include <bit>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/mask.h"
#include "aggregator/store/store.h"

namespace sluice::agg {

Verdict StoreShard::pull(const StorePull& pull) noexcept {
  if (pull.block >= spec_.block_count) return Verdict::kBadChunk;
  if (!owns(pull.block)) return Verdict::kWrongShard;
  if (pull.rank.value >= spec_.world_size) return Verdict::kBadRank;
  const std::uint32_t at = local(pull.block);
  // Before the initial values are there, the number of chunks is unknown: see consider().
  const std::uint64_t all = table_.block(at).is_known() ? table_.block(at).all : ~std::uint64_t{0};
  if (pull.chunks == 0 || (pull.chunks & ~all) != 0) return Verdict::kBadChunk;
  if (members_[pull.rank.value] != MemberState::kLive) return Verdict::kNotAllowed;
  if (resumes()) return Verdict::kNotStarted;
  Row& row = table_.row(at, pull.rank);
  if (pull.need < row.need || pull.own < row.own) return Verdict::kDuplicate;
  now_ns_ = pull.now;
  if (pull.need > row.need || pull.own > row.own) {
    row.wanted = 0;  // of no use any more
    if (row.parked) unpark(at, pull.rank);
  }
  row.need = pull.need;
  row.own = pull.own;
  row.pulled = true;
  if (!row.parked) row.priority = pull.priority;
  row.wanted |= pull.chunks;
  consider(at, pull.rank);
  DCHECK(consistent(at));
  return Verdict::kProbe;
}

// Queues the row's pull or parks it, whatever its state was.
void StoreShard::consider(std::uint32_t at, Rank rank) noexcept {
  Block& block = table_.block(at);
  Row& row = table_.row(at, rank);
  if (block.is_known()) row.wanted &= block.all;
  const bool may_go = row.wanted != 0 && row.may_read(block);
  const bool waited = row.parked;
  if (waited && (may_go || row.wanted == 0)) {
    if (may_go) gauges_.waits.observe(now_ns_ - row.parked_ns);
    unpark(at, rank);
  } else if (!waited && row.wanted != 0 && !may_go) {
    park(at, rank);
  }
  if (!may_go || row.queued) return;
  row.queued = true;
  static_assert(kMaxChunks / kChunksPerBlock <= 1u << 24);
  const std::uint64_t urgency = std::uint64_t{!waited} << 63 | std::uint64_t{block.at_clock} << 32 |
                                std::uint64_t{row.priority} << 24 |
                                (at * std::uint32_t{shard_count_} + id_.value);
  CHECK(turns_.size() < turns_.capacity());
  turns_.push_back({.urgency = urgency, .number = turn_number_++, .block = at, .rank = rank});
  std::push_heap(turns_.begin(), turns_.end());
}

// Appends the row to the list: it waits from now on.
void StoreShard::park(std::uint32_t at, Rank rank) noexcept {
  const std::uint32_t index = at * spec_.world_size + rank.value;
  Row& row = table_.rows()[index];
  CHECK(!row.parked);
  row.parked = true;
  row.parked_ns = now_ns_;
  row.older = newest_parked_;
  row.newer = kNoRow;
  if (newest_parked_ != kNoRow)
    table_.rows()[newest_parked_].newer = index;
  else
    oldest_parked_ = index;
  newest_parked_ = index;
  ++table_.block(at).parked;
  StoreGauges::Parked& layer = gauges_.parked[row.priority];
  layer.now.add(1);
  layer.ever.add(1);
  gauges_.oldest_parked_ns.store(table_.rows()[oldest_parked_].parked_ns,
                                 std::memory_order_relaxed);
}

void StoreShard::unpark(std::uint32_t at, Rank rank) noexcept {
  Row& row = table_.row(at, rank);
  CHECK(row.parked && table_.block(at).parked != 0);
  row.parked = false;
  (row.older != kNoRow ? table_.rows()[row.older].newer : oldest_parked_) = row.newer;
  (row.newer != kNoRow ? table_.rows()[row.newer].older : newest_parked_) = row.older;
  --table_.block(at).parked;
  Counter& waiting = gauges_.parked[row.priority].now;
  waiting.set(waiting.read() - 1);
  gauges_.oldest_parked_ns.store(
      oldest_parked_ != kNoRow ? table_.rows()[oldest_parked_].parked_ns : 0,
      std::memory_order_relaxed);
}

void StoreShard::wake(std::uint32_t at) noexcept {
  for (std::uint16_t rank = 0; rank < spec_.world_size; ++rank)
    if (table_.row(at, Rank{rank}).wanted != 0) consider(at, Rank{rank});
}

bool StoreShard::poll_answer(StoreAnswer& answer) noexcept {
  while (!turns_.empty()) {
    const Turn turn = turns_.front();
    const Block& block = table_.block(turn.block);
    Row& row = table_.row(turn.block, turn.rank);
    DCHECK(row.queued);
    const bool answers = row.wanted != 0 && row.may_read(block);
    if (answers) {
      const auto index = static_cast<std::uint32_t>(std::countr_zero(row.wanted));
      row.wanted &= row.wanted - 1;
      if (row.wanted == 0)
        gauges_.staleness.observe(row.own > block.clock ? row.own - block.clock : 0);
      const ChunkIndex chunk = (turn.block * shard_count_ + id_.value) * kChunksPerBlock + index;
      CHECK(read(chunk, turn.rank, answer));
    }
    if (row.wanted == 0 || !answers) {
      std::pop_heap(turns_.begin(), turns_.end());
      turns_.pop_back();
      row.queued = false;
      consider(turn.block, turn.rank);  // another pull has taken its place, of which it parks
    }
    DCHECK(consistent(turn.block));
    if (answers) return true;
  }
  return false;
}

bool StoreShard::read(ChunkIndex chunk, Rank rank, StoreAnswer& answer) const noexcept {
  const std::uint32_t at = local(chunk / kChunksPerBlock);
  const Block& block = table_.block(at);
  const Row& row = table_.row(at, rank);
  if (!row.may_read(block) || !has_chunk(block.all, chunk)) return false;
  answer = {.rank = rank,
            .chunk = chunk,
            .clock = block.clock,
            .at_clock = block.at_clock,
            .waiting = block.parked,
            .own = row.pushed,
            .priority = row.priority,
            .values = parameters(chunk),
            .version = table_.chunk(at, chunk % kChunksPerBlock).version,
            .odd = table_.odd(at, chunk % kChunksPerBlock)};
  return true;
}

std::uint64_t StoreShard::counted(std::uint32_t block_index, Rank rank,
                                  Step iteration) const noexcept {
  const Block& block = table_.block(local(block_index));
  const Row& row = table_.row(local(block_index), rank);
  if (iteration == 0) return block.known;
  if (row.pushed == kAbsent || iteration > row.pushed + 1) return 0;
  return iteration <= row.pushed ? block.all : row.counted;
}

StoreShard::PullState StoreShard::pull_state(std::uint32_t block_index, Rank rank,
                                             Step own) const noexcept {
  const Block& block = table_.block(local(block_index));
  const Row& row = table_.row(local(block_index), rank);
  if (row.own != own || !row.pulled) return {};
  const bool is_ready = row.may_read(block);
  return {.taken = block.is_known() ? block.all : ~std::uint64_t{0},
          .ready = is_ready ? block.all & ~row.wanted : 0,
          .waits = !is_ready,
          .priority = row.priority};
}

void StoreShard::find_missing(std::uint32_t block_index, Rank rank,
                              std::span<std::uint64_t> ranks) const noexcept {
  const std::uint32_t at = local(block_index);
  const Row& reader = table_.row(at, rank);
  for (std::uint16_t other = 0; other < spec_.world_size; ++other) {
    const Row& each = table_.row(at, Rank{other});
    const Step needed = Rank{other} == rank ? std::max(reader.need, reader.own) : reader.need;
    if (each.pushed != kAbsent && each.pushed < needed) set_bit(ranks.data(), Rank{other});
  }
}

}  // namespace sluice::agg
