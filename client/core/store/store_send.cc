// What a store's worker sends: what was lost first, then what the pool says, then questions.
#include <algorithm>
#include <bit>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"
#include "client/core/store/store.h"

namespace sluice::client {

// The pool's next block, from now on looked after by its Recovery.
bool Store::next_unit() {
  if (!pool_.next(suspended_, unit_)) return false;
  note_age();
  const std::uint32_t block = layers_[unit_.layer].block_begin + unit_.unit;
  const bool of_push = unit_.direction == Direction::kPush;
  const std::uint64_t all = blocks_[block].all();
  unit_chunks_ = of_push ? all : 1;  // one packet pulls a block
  for (std::uint64_t rest = all; rest != 0; rest &= rest - 1) {
    const ChunkIndex chunk = first_chunk(block, rest);
    if (of_push)
      pushes_->expect(chunk);
    else
      pulls_->expect_absent(chunk);
  }
  return true;
}

bool Store::may_send(bool of_push, std::uint16_t shard) const noexcept {
  const Flow& flow = link_.flows[shard];
  const bool outstanding =
      !pushes_->nothing_outstanding(shard) || !pulls_->nothing_outstanding(shard);
  return flow.may_send(outstanding) || (!of_push && flow.window_open_for_urgent());
}

bool Store::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  if (!started_) return false;
  for (std::uint16_t shard = 0; shard < link_.shard_count(); ++shard) {
    for (auto& pulls = lost_pulls_[shard]; !pulls.empty() && may_send(false, shard);) {
      const ChunkIndex chunk = pulls.back();
      pulls.pop_back();
      if (write_pull(chunk, transmit, out, now)) return true;
    }
    for (auto& pushes = lost_pushes_[shard]; !pushes.empty() && may_send(true, shard);) {
      const ChunkIndex chunk = pushes.back();
      pushes.pop_back();
      if (write_push(chunk, transmit, out, now)) return true;
    }
  }
  while (unit_chunks_ != 0 || next_unit()) {
    const std::uint32_t block = layers_[unit_.layer].block_begin + unit_.unit;
    const ChunkIndex chunk = first_chunk(block, unit_chunks_);
    const bool of_push = unit_.direction == Direction::kPush;
    if (!may_send(of_push, shard_of_block(block))) return false;
    unit_chunks_ &= unit_chunks_ - 1;
    if (of_push ? write_push(chunk, transmit, out, now) : write_pull(chunk, transmit, out, now))
      return true;
  }
  return false;
}

// A push belongs to the iteration that it is read back for.
void Store::note_sent(LayerIndex layer, Step iteration, bool again, TimeNs now) noexcept {
  if (!trace_.on()) return;
  const std::uint32_t tensor = layers_[layer].tensor_begin;
  if (!trace_.has(tensor, iteration))
    trace_.queued(tensor, iteration, priority_of(layer), true, now, now);
  trace_.sent(tensor, iteration, again, now);
}

// False: its fate is known, it need not leave.
bool Store::write_push(ChunkIndex chunk, Transmit& transmit, std::span<std::uint8_t> out,
                       TimeNs now) {
  if (pushes_->take(chunk) == 0) return false;
  const std::uint32_t index = chunk / kChunksPerBlock;
  const std::uint16_t shard = shard_of_block(index);
  const Layer& layer = layers_[blocks_[index].layer];
  CHECK(layer.pushing);
  Flow& flow = link_.flows[shard];
  const ChunkSpan span = layout_.chunk(chunk);
  wire::Push body{.flow = flow.next_header(now),
                  .iteration = layer.push_step,
                  .chunk = chunk,
                  .rate = layer.rate,
                  .elem_count = span.elem_count,
                  .block_chunks = blocks_[index].chunk_count};
  body.flow.priority = priority_of(blocks_[index].layer);
  const bool last = unit_chunks_ == 0 && pool_.empty(Direction::kPush);
  if (flow.take_report_flag(last)) body.flow.flags |= wire::kFlagReport;
  const bool again = pushes_->sent(chunk, body.flow.number, now, flow);
  link_.counters.retransmissions += again;
  note_sent(blocks_[index].layer, layer.push_step + 1, again, now);
  const std::span<const std::uint8_t> payload{
      reinterpret_cast<const std::uint8_t*>(inputs_[span.tensor] + span.first_elem),
      span.elem_count * sizeof(float)};
  prefetch<Use::kRead>(payload.data(), payload.size());
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .payload = payload,
              .port_offset = static_cast<std::uint16_t>(1 + shard),
              .priority = body.flow.priority};
  return true;
}

// All chunks of the block that wait for that, in one packet. False: none does any more.
bool Store::write_pull(ChunkIndex first, Transmit& transmit, std::span<std::uint8_t> out,
                       TimeNs now) {
  const std::uint64_t chunks = pulls_->take(first);
  if (chunks == 0) return false;
  const std::uint32_t index = first / kChunksPerBlock;
  const std::uint16_t shard = shard_of_block(index);
  const Layer& layer = layers_[blocks_[index].layer];
  CHECK(layer.pulling);
  Flow& flow = link_.flows[shard];
  wire::Pull body{.flow = flow.next_header(now),
                  .block = index,
                  .chunks = chunks,
                  .need = layer.need,
                  .own = layer.own};
  body.flow.priority = priority_of(blocks_[index].layer);
  const bool last = pool_.empty(Direction::kPush) && pool_.empty(Direction::kPull);
  if (flow.take_report_flag(last)) body.flow.flags |= wire::kFlagReport;
  const bool again = pulls_->sent(index, chunks, body.flow.number, now, flow);
  link_.counters.retransmissions += again;
  note_sent(blocks_[index].layer, layer.own + 1, again, now);
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .port_offset = static_cast<std::uint16_t>(1 + shard),
              .priority = body.flow.priority};
  return true;
}

bool Store::write_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                        TimeNs now) {
  Flow& flow = link_.flows[shard];
  Recovery::ProbePlan plan;
  for (const bool of_push : {false, true}) {
    Recovery& recovery = of_push ? *pushes_ : *pulls_;
    if (!recovery.may_probe(shard) || !recovery.plan_probe(shard, flow, plan)) continue;
    recovery.probe_sent(shard, plan, now, flow);
    ++link_.counters.probes;
    const LayerIndex index = blocks_[plan.block].layer;
    const Layer& layer = layers_[index];
    wire::Probe body{.flow = flow.next_header(now),
                     .step = of_push ? layer.push_step : layer.own + 1,
                     .block = plan.block,
                     .want = plan.want,
                     .stream = of_push ? StreamId::kPushes : StreamId::kPulls};
    body.flow.priority = priority_of(index);
    transmit = {.bytes = wire::encode(out, link_.identity, body),
                .port_offset = static_cast<std::uint16_t>(1 + shard),
                .priority = body.flow.priority};
    return true;
  }
  return false;
}

}  // namespace sluice::client
