#include "client/core/recovery.h"

#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
namespace sluice::client {
namespace {

constexpr std::uint64_t bit_of(ChunkIndex chunk) noexcept {
  return std::uint64_t{1} << (chunk % kChunksPerBlock);
}

constexpr std::uint32_t count_of(std::uint64_t chunks) noexcept {
  return static_cast<std::uint32_t>(std::popcount(chunks));
}

}  // namespace

Recovery::Recovery(ChunkIndex chunk_count, std::uint16_t shard_count)
    : blocks_((chunk_count + kChunksPerBlock - 1) / kChunksPerBlock),
      numbers_(chunk_count),
      lanes_(shard_count) {}

void Recovery::begin_step() noexcept {
  std::fill(blocks_.begin(), blocks_.end(), Block{});
  std::fill(lanes_.begin(), lanes_.end(), Lane{});
  closed_ = false;
}

void Recovery::abandon(std::span<Flow> flows) noexcept {
  for (std::uint32_t index = 0; index < blocks_.size(); ++index)
    flows[index % lanes_.size()].release_pulls(count_of(blocks_[index].pulled));
  begin_step();
}

// What holds for a block between any two events.
void Recovery::check([[maybe_unused]] const Block& block) noexcept {
  DCHECK((block.queued & ~block.active) == 0);
  DCHECK((block.ever_sent & ~block.active) == 0);
  DCHECK((block.sent & ~block.ever_sent) == 0);
  DCHECK((block.awaited & ~block.counted) == 0);
  DCHECK((block.counted & ~block.active) == 0);
  DCHECK((block.complete & ~block.active) == 0);
  DCHECK((block.done & ~block.active) == 0);
  DCHECK((block.pulled & ~block.active) == 0);
  DCHECK((block.done & (block.sent | block.pulled)) == 0);  // its fate is known
  DCHECK(block.open || block.sent == 0);
}

void Recovery::expect(ChunkIndex chunk) noexcept {
  Block& block = blocks_[chunk / kChunksPerBlock];
  DCHECK((block.active & bit_of(chunk)) == 0);
  block.active |= bit_of(chunk);
  block.queued |= bit_of(chunk);
  check(block);
}

void Recovery::await(ChunkIndex chunk, TimeNs probe_at_ns) noexcept {
  const std::uint32_t index = chunk / kChunksPerBlock;
  Block& block = blocks_[index];
  Lane& lane = lane_of(index);
  block.active |= bit_of(chunk);
  block.awaited |= bit_of(chunk);
  block.counted |= bit_of(chunk);
  open(lane, index);
  lane.idle_ns = std::min(lane.idle_ns, probe_at_ns);
  check(block);
}

void Recovery::close_step(TimeNs probe_at_ns) noexcept {
  closed_ = true;
  for (std::uint32_t index = 0; index < blocks_.size(); ++index) {
    Block& block = blocks_[index];
    const std::uint64_t lacking = block.lacking();
    if (lacking == 0) continue;
    Lane& lane = lane_of(index);
    settle(lane, block, lacking);
    block.awaited |= lacking;
    block.counted |= lacking;
    open(lane, index);
    lane.idle_ns = std::min(lane.idle_ns, probe_at_ns);
    check(block);
  }
}

void Recovery::pull(ChunkIndex chunk) noexcept {
  const std::uint32_t index = chunk / kChunksPerBlock;
  await(chunk, kNever);
  blocks_[index].complete |= bit_of(chunk);
  make_due(lane_of(index), index);
}

bool Recovery::take(ChunkIndex chunk) noexcept {
  Block& block = blocks_[chunk / kChunksPerBlock];
  block.queued &= ~bit_of(chunk);
  return ((block.done | block.counted) & bit_of(chunk)) == 0;
}

bool Recovery::sent(ChunkIndex chunk, std::uint32_t number, TimeNs now, const Flow& flow) noexcept {
  const std::uint32_t index = chunk / kChunksPerBlock;
  Block& block = blocks_[index];
  Lane& lane = lane_of(index);
  const std::uint64_t bit = bit_of(chunk);
  const bool again = block.ever_sent & bit;
  lane.unsettled_count += (block.sent & bit) == 0;
  block.ever_sent |= bit;
  block.sent |= bit;
  block.highest_number = number;
  numbers_[chunk] = number;
  open(lane, index);
  if (lane.idle_ns == kNever) lane.idle_ns = now + kIdleProbeInterval;
  if (!block.probed) arm(lane, block, now, flow);
  check(block);
  return again;
}

bool Recovery::result(ChunkIndex chunk, TimeNs now, Flow& flow) noexcept {
  const std::uint32_t index = chunk / kChunksPerBlock;
  Block& block = blocks_[index];
  const std::uint64_t bit = bit_of(chunk);
  if (!(block.lacking() & bit)) return false;
  Lane& lane = lane_of(index);
  block.done |= bit;
  block.backoff = 0;
  settle(lane, block, bit);
  if (block.pulled & bit) {
    block.pulled &= ~bit;
    flow.release_pulls(1);
  }
  lane.idle_ns = now + kIdleProbeInterval;
  if (!(block.lacking() & (block.sent | block.counted | block.complete))) close(lane, index, flow);
  check(block);
  return true;
}

std::uint64_t Recovery::answer(const wire::Answer& answer, TimeNs now, Flow& flow) noexcept {
  Block& block = blocks_[answer.block];
  Lane& lane = lane_of(answer.block);
  if (!block.open) return 0;
  const std::uint64_t pulled = block.pulled;
  const TimeNs pulls_due_ns = pulled != 0 ? block.deadline_ns : kNever;
  end_probe(lane, block, flow);
  if (answer.status != wire::AnswerStatus::kOpen) {  // too early: ask again later
    lane.idle_ns = now + kIdleProbeInterval;
    block.deadline_ns = now + kIdleProbeInterval;
    lane.deadline_ns = std::min(lane.deadline_ns, block.deadline_ns);
    return 0;
  }

  const std::uint64_t lacking = block.lacking();
  // What is complete needs no second try, whether or not it was counted: its result is pulled.
  const std::uint64_t known = answer.counted | answer.complete;
  // An answer without news is no progress: what was asked for may stand in a queue.
  if ((answer.counted & block.sent) | (answer.complete & lacking & ~block.complete))
    block.backoff = 0;
  settle(lane, block, known);
  block.counted |= answer.counted & lacking;
  std::uint64_t lost = 0;
  for (std::uint64_t doubtful =
           (block.sent | block.counted) & lacking & ~(known | block.awaited | block.queued);
       doubtful != 0; doubtful &= doubtful - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(doubtful));
    if (ahead(numbers_[answer.block * kChunksPerBlock + bit], answer.probe_number) <= 0)
      lost |= std::uint64_t{1} << bit;
  }
  if (lost != 0) flow.on_loss(now);
  settle(lane, block, lost);
  block.counted &= ~lost;
  block.queued |= lost;

  if (block.idle && (answer.complete & lacking)) {  // a lost tail: no later packet shows the gap
    flow.suspect_all_results();
    lane.missing = true;
  }
  block.idle = false;
  block.complete |= answer.complete & lacking;
  block.pulled = pulled & answer.complete & lacking;
  flow.reserve_pulls(count_of(block.pulled));
  if (!(lacking & (block.sent | block.counted | block.complete))) {
    close(lane, answer.block, flow);
    check(block);
    return lost;
  }
  if (lacking & block.complete & ~block.pulled) make_due(lane, answer.block);
  if (block.sent != 0 || block.pulled != 0) arm(lane, block, now, flow);
  if (block.pulled != 0) block.deadline_ns = std::min(block.deadline_ns, pulls_due_ns);
  check(block);
  return lost;
}

// ---- the open list ----

void Recovery::open(Lane& lane, std::uint32_t index) noexcept {
  Block& block = blocks_[index];
  if (block.open) return;
  block.open = true;
  block.previous = lane.open_tail;
  block.next = kNone;
  if (lane.open_tail == kNone)
    lane.open_head = index;
  else
    blocks_[lane.open_tail].next = index;
  lane.open_tail = index;
}

// Nothing of the block is on the wire or awaited. It stays in the list of due blocks, which skips
// it.
void Recovery::close(Lane& lane, std::uint32_t index, Flow& flow) noexcept {
  Block& block = blocks_[index];
  end_probe(lane, block, flow);
  if (!block.open) return;  // all its chunks were queued again, and a result came after all
  if (lane.sweep_cursor == index) lane.sweep_cursor = block.next;
  if (block.previous == kNone)
    lane.open_head = block.next;
  else
    blocks_[block.previous].next = block.next;
  if (block.next == kNone)
    lane.open_tail = block.previous;
  else
    blocks_[block.next].previous = block.previous;
  block.open = false;
}

void Recovery::settle(Lane& lane, Block& block, std::uint64_t chunks) noexcept {
  DCHECK(lane.unsettled_count >= count_of(block.sent & chunks));
  lane.unsettled_count -= count_of(block.sent & chunks);
  block.sent &= ~chunks;
}

}  // namespace sluice::client
