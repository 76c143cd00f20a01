#include "client/core/store/pull_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"

namespace sluice::client {

// One packet pulls a block.
std::uint64_t PullStream::expect(std::uint32_t block) {
  recovery_->expect_absent(block, layers_.blocks[block].all());
  return 1;
}

// Writes the chunks of the block that wait for this clock into one packet.
bool PullStream::write(ChunkIndex first, Transmit& transmit, std::span<std::uint8_t> out,
                       TimeNs now) {
  const std::uint64_t chunks = recovery_->take(first);
  if (chunks == 0) return false;
  const std::uint32_t block = first / kChunksPerBlock;
  const std::uint16_t shard = shard_of_block(block);
  const LayerIndex index = layers_.blocks[block].layer;
  const Layer& layer = layers_.layers[index];
  CHECK(layer.pulling);
  Flow& flow = link_.flows[shard];
  wire::Pull body{.flow = flow.next_header(now, queue_.priority_of(index)),
                  .block = block,
                  .chunks = chunks,
                  .need = layer.need,
                  .own = layer.own};
  if (flow.take_report_flag(queue_.is_last_pull(), now)) body.flow.flags |= wire::kFlagReport;
  const bool again = recovery_->sent(block, chunks, body.flow.number, now, flow);
  link_.counters.retransmissions += again;
  queue_.note_sent(index, layer.own + 1, again, now);
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .port_offset = static_cast<std::uint16_t>(1 + shard),
              .priority = body.flow.priority};
  return true;
}

Verdict PullStream::handle_result(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Values>();
  const std::uint32_t index = body.chunk / kChunksPerBlock;
  if (!layers_.started) return Verdict::kNotStarted;
  if (index >= layers_.blocks.size() ||
      body.chunk % kChunksPerBlock >= layers_.blocks[index].chunk_count)
    return Verdict::kBadChunk;
  const ChunkSpan span = layout_.chunk(body.chunk);
  if (body.elem_count != span.elem_count) return Verdict::kShapeMismatch;
  LayerBlock& block = layers_.blocks[index];
  Layer& layer = layers_.layers[block.layer];
  const bool changed = body.clock > block.clock ||
                       (body.clock == block.clock &&
                        (body.at_clock != block.at_clock || body.waiting != block.parked));
  if (changed) {
    block.clock = body.clock;
    block.at_clock = body.at_clock;
    block.parked = body.waiting;
  }
  if (kept_ != nullptr) kept_->keep(packet);
  // A rank gets an answer when the initial values and its own pushes are in.
  const bool counted = layer.pushing && (layer.push_step == 0 || body.own >= layer.push_step);
  Verdict verdict = Verdict::kDuplicate;
  if (layer.pulling && body.clock >= layer.need && body.own >= layer.own &&
      recovery_->lacks(body.chunk)) {
    verdict = Verdict::kFolded;
    float* const output = layers_.outputs[span.tensor] + span.first_elem;
    std::memcpy(output, packet.payload().data(), packet.payload().size());
    // Values come mostly in order.
    if (body.chunk + 1 != layout_.end_chunk(span.tensor))
      prefetch<Use::kWrite>(output + span.elem_count, packet.payload().size());
    recovery_->result(body.chunk, now, flow_of(index));
    layer.least = std::min<Step>(layer.least, body.clock);
    layers_.last_progress_ns = now;
    CHECK(layer.pull_left != 0);
    if (--layer.pull_left == 0) {
      finish(block.layer, now);
      verdict = Verdict::kCompleted;
    }
  } else {
    ++link_.counters.duplicate_results;
  }
  if (counted) pushes_.note_counted(index, block.all(), now);
  // A layer's clock is the least of all its blocks, and too much work for every packet.
  if (changed || verdict == Verdict::kCompleted)
    queue_.pool().told(block.layer, layers_.clocks(block.layer));
  DCHECK(layers_.consistent(layer));
  return verdict;
}

// All chunks of the layer are here.
void PullStream::finish(LayerIndex index, TimeNs now) {
  Layer& layer = layers_.layers[index];
  renew(index);
  layer.pulling = false;
  layer.has_copy = true;
  layer.held = layer.least;
  layer.read = layer.own;
  CHECK(layer.held >= layer.need);
  const LayerClocks known = layers_.clocks(index);
  TensorTrace& trace = queue_.trace();
  trace.read(layer.tensor_begin, layer.own + 1,
             {.staleness = layer.own - std::min(layer.own, layer.held),
              .clock = known.clock,
              .parked = known.parked,
              .oldest_request_iterations = queue_.pool().oldest_age()});
  trace.done(layer.tensor_begin, layer.own + 1, now);
  --layers_.pulling_count;
  link_.events.push({.kind = Event::Kind::kPullDone, .tensor = index, .step = layer.held});
}

// A gap is left to a stream with requests under way. Where neither has any, it is closed here.
void PullStream::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
  Flow::LossSignals mine = signals;
  mine.gap &= queue_.has_out(Direction::kPull, shard) || !queue_.has_out(Direction::kPush, shard);
  recovery_->hint(shard, mine, now, link_.flows[shard]);
}

std::string PullStream::describe(TimeNs now) const {
  if (!in_progress()) return {};
  const auto waiting = std::ranges::find_if(layers_.layers, &Layer::pulling);
  const auto index = static_cast<LayerIndex>(waiting - layers_.layers.begin());
  return describe_wait(now) + ": layer " + std::to_string(index) + " is needed with clock " +
         std::to_string(waiting->need) + " and stands at " +
         std::to_string(layers_.clocks(index).clock) + " (" +
         std::to_string(layers_.pulling_count) + " pulls wait)";
}

void PullStream::give_up(const Status& why) {
  for (LayerIndex index = 0; index < layers_.count(); ++index)
    if (std::exchange(layers_.layers[index].pulling, false))
      link_.events.push({.kind = Event::Kind::kPullDone, .tensor = index, .status = why});
  layers_.pulling_count = 0;
}

}  // namespace sluice::client
