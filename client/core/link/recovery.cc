#include "client/core/link/recovery.h"

#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
namespace sluice::client {
Recovery::Recovery(ChunkIndex chunk_count, std::uint16_t shard_count,
                   std::span<const ChunkIndex> run_starts)
    : blocks_((chunk_count + kChunksPerBlock - 1) / kChunksPerBlock),
      run_starts_(blocks_.size(), 1),
      numbers_(chunk_count),
      flow_states_(shard_count) {
  CHECK(chunk_count != 0 && shard_count != 0);
  for (const ChunkIndex start : run_starts)
    if (start < chunk_count) run_starts_[start / kChunksPerBlock] |= chunk_bit(start);
}

// What is counted of a flow's blocks is what its open ones say, and no other is linked.
bool Recovery::balanced(std::uint32_t shard) const noexcept {
  const FlowState& state = flow_states_[shard];
  std::uint32_t outstanding_count = 0;
  std::uint32_t asked_count = 0;
  std::uint32_t open_count = 0;
  std::uint32_t last = kNone;
  for (std::uint32_t index = state.open_head; index != kNone; index = blocks_[index].next) {
    const Block& block = blocks_[index];
    if (!block.open() || block.previous != last) return false;
    if (block.deadline_ns < state.deadline_ns) return false;
    outstanding_count += count_of(block.sent);
    asked_count += block.asked();
    ++open_count;
    last = index;
  }
  for (std::uint32_t index = shard; index < blocks_.size(); index += flow_states_.size())
    open_count -= blocks_[index].open();
  return last == state.open_tail && open_count == 0 && asked_count == state.asked_count &&
         outstanding_count == state.outstanding_count;
}

void Recovery::begin_step() noexcept {
  for (std::uint32_t shard = 0; shard < flow_states_.size(); ++shard) DCHECK(balanced(shard));
  std::fill(blocks_.begin(), blocks_.end(), Block{});
  for (FlowState& state : flow_states_) state = {.may_idle_ns = state.may_idle_ns};
  closed_ = false;
}

void Recovery::abandon(std::span<Flow> flows) noexcept {
  CHECK(flows.size() >= flow_states_.size());
  for (std::uint32_t index = 0; index < blocks_.size(); ++index)
    flows[index % flow_states_.size()].release_pulls(count_of(blocks_[index].pulled));
  begin_step();
}

void Recovery::renew(std::uint32_t index, Flow& flow) noexcept {
  Block& block = blocks_[index];
  CHECK(block.lacking() == 0);
  close(flow_state_of(index), index, flow);
  block.active = block.queued = block.absent = block.shared = block.unwanted = 0;
  block.ever_sent = 0;
  block.awaited = block.counted = block.complete = block.done = 0;
  check(block);
}

// What holds for a block between any two events.
void Recovery::check([[maybe_unused]] const Block& block) noexcept {
  DCHECK((block.queued & ~block.active) == 0);
  DCHECK((block.absent & ~block.active) == 0);
  DCHECK((block.shared & (block.absent | ~block.active)) == 0);
  DCHECK((block.unwanted & ~block.active) == 0);
  DCHECK((block.ever_sent & ~block.active) == 0);
  DCHECK((block.sent & ~block.ever_sent) == 0);
  DCHECK((block.awaited & ~block.counted) == 0);
  DCHECK((block.counted & ~block.active) == 0);
  DCHECK((block.complete & ~block.active) == 0);
  DCHECK((block.done & ~block.active) == 0);
  DCHECK((block.pulled & ~block.active) == 0);
  DCHECK((block.done & (block.sent | block.pulled)) == 0);  // its fate is known
  DCHECK((block.sent & (block.queued | block.counted)) == 0);
  DCHECK(block.open() || (block.unknown() | block.sent | block.pulled) == 0);
  DCHECK(block.listed || block.phase != Phase::kDue);
}

// A block that closes while it is listed stays there, and is due again when it opens.
void Recovery::Block::become(Phase other) noexcept {
  DCHECK(other != phase);
  switch (other) {
    case Phase::kClosed: DCHECK(phase != Phase::kAsked && sent == 0); break;
    case Phase::kOpen: DCHECK(!listed); break;
    case Phase::kDue: DCHECK(listed); break;
    case Phase::kAsked: DCHECK(phase == Phase::kOpen); break;
  }
  phase = other;
}

void Recovery::expect_run(ChunkIndex first, ChunkIndex end) noexcept {
  while (first < end) {
    Block& block = blocks_[first / kChunksPerBlock];
    const ChunkIndex next = std::min(end, (first / kChunksPerBlock + 1) * kChunksPerBlock);
    const std::uint64_t chunks = ~std::uint64_t{0} >> (kChunksPerBlock - (next - first))
                                                          << (first % kChunksPerBlock);
    DCHECK((block.active & chunks) == 0);
    block.active |= chunks;
    block.queued |= chunks;
    check(block);
    first = next;
  }
}

void Recovery::want_no_result(ChunkIndex chunk) noexcept {
  Block& block = blocks_[chunk / kChunksPerBlock];
  DCHECK(block.active & chunk_bit(chunk));
  block.unwanted |= chunk_bit(chunk);
}

std::uint64_t Recovery::expect_absent(std::uint32_t index, std::uint64_t chunks) noexcept {
  Block& block = blocks_[index];
  DCHECK((block.active & chunks) == 0);
  block.active |= chunks;
  block.absent |= chunks;
  const std::uint64_t handed = queue(index, chunks);
  check(block);
  return handed;
}

bool Recovery::expect_shared(ChunkIndex chunk) noexcept {
  Block& block = blocks_[chunk / kChunksPerBlock];
  DCHECK((block.active & chunk_bit(chunk)) == 0);
  block.active |= chunk_bit(chunk);
  block.shared |= chunk_bit(chunk);
  const bool shall = queue(chunk / kChunksPerBlock, chunk_bit(chunk)) != 0;
  check(block);
  return shall;
}

// The part in the block of the run that the chunk belongs to.
std::uint64_t Recovery::run_of(std::uint32_t index, std::uint64_t bit) const noexcept {
  const std::uint64_t up_to = bit | (bit - 1);
  const std::uint64_t start = std::bit_floor(run_starts_[index] & up_to);
  DCHECK(start != 0);
  const std::uint64_t after = run_starts_[index] & ~up_to;
  return ((after & -after) - 1) & ~(start - 1);
}

// Returns those that go to the scheduler: of the chunks without data one, and one of each run that
// shares packets, unless one is there.
std::uint64_t Recovery::queue(std::uint32_t index, std::uint64_t chunks) noexcept {
  Block& block = blocks_[index];
  DCHECK((chunks & (block.queued | block.sent | ~block.active)) == 0);
  const std::uint64_t absent = chunks & block.absent;
  std::uint64_t handed = chunks & ~(block.absent | block.shared);
  if ((block.queued & block.absent) == 0) handed |= absent & -absent;
  for (std::uint64_t rest = chunks & block.shared; rest != 0;) {
    const std::uint64_t run = run_of(index, rest & -rest);
    if ((block.queued & block.shared & run) == 0) handed |= rest & -rest;
    rest &= ~run;
  }
  block.queued |= chunks;
  return handed;
}

ChunkIndex Recovery::put_back(std::uint32_t index, std::uint64_t chunks) noexcept {
  Block& block = blocks_[index];
  DCHECK((chunks & ~(block.absent | block.shared)) == 0);
  const std::uint64_t first = queue(index, chunks);
  CHECK(std::has_single_bit(first));
  check(block);
  return first_chunk(index, first);
}

void Recovery::await(ChunkIndex chunk, TimeNs probe_at_ns) noexcept {
  const std::uint32_t index = chunk / kChunksPerBlock;
  Block& block = blocks_[index];
  FlowState& state = flow_state_of(index);
  DCHECK((block.active & chunk_bit(chunk)) == 0);
  block.active |= chunk_bit(chunk);
  block.awaited |= chunk_bit(chunk);
  block.counted |= chunk_bit(chunk);
  open(state, index);
  state.idle_ns = std::min(state.idle_ns, probe_at_ns);
  check(block);
}

void Recovery::close_step(TimeNs probe_at_ns) noexcept {
  CHECK(!closed_);
  closed_ = true;
  for (std::uint32_t index = 0; index < blocks_.size(); ++index) {
    Block& block = blocks_[index];
    const std::uint64_t lacking = block.lacking();
    if (lacking == 0) continue;
    FlowState& state = flow_state_of(index);
    clear_outstanding(state, block, lacking);
    block.awaited |= lacking;
    block.counted |= lacking;
    open(state, index);
    state.idle_ns = std::min(state.idle_ns, probe_at_ns);
    check(block);
  }
}

void Recovery::pull(ChunkIndex chunk) noexcept {
  const std::uint32_t index = chunk / kChunksPerBlock;
  await(chunk, kNever);
  blocks_[index].complete |= chunk_bit(chunk);
  make_due(flow_state_of(index), index);
}

std::uint64_t Recovery::take(ChunkIndex chunk) noexcept {
  Block& block = blocks_[chunk / kChunksPerBlock];
  DCHECK(block.queued & chunk_bit(chunk));
  std::uint64_t taken = chunk_bit(chunk);
  if (block.absent & taken)
    taken = block.queued & block.absent;
  else if (block.shared & taken)
    taken = block.queued & block.shared & run_of(chunk / kChunksPerBlock, taken);
  block.queued &= ~taken;
  check(block);
  return taken & ~(block.done | block.counted);
}

bool Recovery::sent(std::uint32_t index, std::uint64_t chunks, std::uint32_t number, TimeNs now,
                    const Flow& flow) noexcept {
  Block& block = blocks_[index];
  FlowState& state = flow_state_of(index);
  DCHECK(chunks != 0 && (chunks & block.queued) == 0);
  const bool again = block.ever_sent & chunks;
  state.outstanding_count += count_of(chunks & ~block.sent);
  block.ever_sent |= chunks;
  block.sent |= chunks;
  block.highest_number = number;
  for (std::uint64_t rest = chunks; rest != 0; rest &= rest - 1)
    numbers_[first_chunk(index, rest)] = number;
  open(state, index);
  if (state.idle_ns == kNever) state.idle_ns = end_of_silence(state, now, flow);
  if (!block.asked()) arm(state, block, now, flow);
  check(block);
  return again;
}

std::uint64_t Recovery::results(std::uint32_t index, std::uint64_t chunks, TimeNs now,
                                Flow& flow) noexcept {
  Block& block = blocks_[index];
  const std::uint64_t here = chunks & block.lacking();
  if (here == 0) return 0;
  FlowState& state = flow_state_of(index);
  DCHECK(block.open() || (here & ~block.queued) == 0);
  block.done |= here;
  block.backoff = 0;
  clear_outstanding(state, block, here);
  if (const std::uint64_t pulled = block.pulled & here) {
    block.pulled &= ~here;
    flow.release_pulls(count_of(pulled));
  }
  state.idle_ns = end_of_silence(state, now, flow);
  if (block.unknown() == 0) close(state, index, flow);
  check(block);
  return here;
}

std::uint64_t Recovery::answer(const wire::Answer& answer, TimeNs now, Flow& flow) noexcept {
  CHECK(answer.block < blocks_.size());
  Block& block = blocks_[answer.block];
  FlowState& state = flow_state_of(answer.block);
  if (!block.open()) return 0;
  const std::uint64_t pulled = block.pulled;
  const TimeNs pulls_due_ns = pulled != 0 ? block.deadline_ns : kNever;
  end_probe(state, block, flow);
  if (answer.status != wire::AnswerStatus::kOpen) {  // too early: ask again later
    state.idle_ns = now + kIdleProbeInterval;
    block.deadline_ns = now + kIdleProbeInterval;
    state.deadline_ns = std::min(state.deadline_ns, block.deadline_ns);
    return 0;
  }

  const std::uint64_t lacking = block.lacking();
  // What is complete needs no second try, whether or not it was counted: its result is pulled.
  const std::uint64_t known = answer.counted | answer.complete;
  // An answer that tells nothing new is no progress: what was asked for may stand in a queue.
  if ((answer.counted & block.sent) | (answer.complete & lacking & ~block.complete))
    block.backoff = 0;
  clear_outstanding(state, block, known);
  block.counted |= answer.counted & lacking;
  std::uint64_t lost = 0;
  for (std::uint64_t unconfirmed =
           (block.sent | block.counted) & lacking & ~(known | block.awaited | block.queued);
       unconfirmed != 0; unconfirmed &= unconfirmed - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(unconfirmed));
    if (ahead(numbers_[answer.block * kChunksPerBlock + bit], answer.probe_number) <= 0)
      lost |= std::uint64_t{1} << bit;
  }
  clear_outstanding(state, block, lost);
  block.counted &= ~lost;
  const std::uint64_t again = queue(answer.block, lost);

  if (block.idle && (answer.complete & lacking)) {  // a lost tail: no later packet shows the gap
    state.missing = Missing::kCertain;
    state.may_idle_ns = 0;
  }
  block.idle = false;
  block.complete |= answer.complete & lacking;
  block.pulled = pulled & answer.complete & lacking;
  flow.reserve_pulls(count_of(block.pulled));
  if (block.unknown() == 0) {
    close(state, answer.block, flow);
    check(block);
    return again;
  }
  if (block.again || (lacking & block.complete & ~block.pulled)) make_due(state, answer.block);
  // What left after the question, and has arrived while it was under way.
  if (flow.all_arrived_up_to(block.highest_number)) confirm(answer.block);
  if (block.sent != 0 || block.pulled != 0) arm(state, block, now, flow);
  if (block.pulled != 0) block.deadline_ns = std::min(block.deadline_ns, pulls_due_ns);
  check(block);
  return again;
}

Recovery::Lost Recovery::lose(std::uint16_t shard, std::uint32_t number, Flow& flow) noexcept {
  FlowState& state = flow_states_[shard];
  for (std::uint32_t index = state.open_head; index != kNone; index = blocks_[index].next) {
    Block& block = blocks_[index];
    std::uint64_t lost = 0;
    for (std::uint64_t rest = block.sent; rest != 0; rest &= rest - 1) {
      const ChunkIndex chunk = first_chunk(index, rest);
      if (numbers_[chunk] == number) lost |= chunk_bit(chunk);
    }
    if (lost == 0) continue;
    clear_outstanding(state, block, lost);
    const std::uint64_t again = queue(index, lost);
    if (block.unknown() == 0) close(state, index, flow);
    check(block);
    return {.block = index, .chunks = again};
  }
  return {};
}

// ---- the open list ----

void Recovery::open(FlowState& state, std::uint32_t index) noexcept {
  Block& block = blocks_[index];
  if (block.open()) return;
  DCHECK((state.open_head == kNone) == (state.open_tail == kNone));
  block.become(block.listed ? Phase::kDue : Phase::kOpen);
  block.previous = state.open_tail;
  block.next = kNone;
  if (state.open_tail == kNone)
    state.open_head = index;
  else
    blocks_[state.open_tail].next = index;
  state.open_tail = index;
}

// Nothing of the block is on the wire or awaited. It stays in the list of due blocks, which skips
// it.
void Recovery::close(FlowState& state, std::uint32_t index, Flow& flow) noexcept {
  Block& block = blocks_[index];
  end_probe(state, block, flow);
  if (!block.open()) return;  // all its chunks were queued again, and a result came after all
  DCHECK(block.sent == 0 && state.open_head != kNone);
  if (state.sweep_cursor == index) state.sweep_cursor = block.next;
  if (block.previous == kNone)
    state.open_head = block.next;
  else
    blocks_[block.previous].next = block.next;
  if (block.next == kNone)
    state.open_tail = block.previous;
  else
    blocks_[block.next].previous = block.previous;
  block.again = false;
  block.become(Phase::kClosed);
}

void Recovery::clear_outstanding(FlowState& state, Block& block, std::uint64_t chunks) noexcept {
  DCHECK(state.outstanding_count >= count_of(block.sent & chunks));
  state.outstanding_count -= count_of(block.sent & chunks);
  block.sent &= ~chunks;
}

}  // namespace sluice::client
