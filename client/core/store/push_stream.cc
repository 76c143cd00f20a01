#include "client/core/store/push_stream.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"

namespace sluice::client {

void PushStream::make_flows(std::uint16_t shards) {
  RequestStream::make_flows(shards);
  recovery_->close_step(kNever);  // what is counted is done: each block's fate is asked about
}

Status PushStream::join(const wire::Accept& accept) {
  Status status = RequestStream::join(accept);
  const Step first = std::max<Step>(1, accept.first_steps[index_of(id())]);
  for (Layer& layer : layers_.layers) layer.pushed = layer.read = first - 1;
  layers_.kept = accept.kept != 0;
  return status;
}

std::uint64_t PushStream::expect(std::uint32_t block) {
  const std::uint64_t chunks = layers_.blocks[block].all() & ~layers_.blocks[block].counted;
  for (std::uint64_t rest = chunks; rest != 0; rest &= rest - 1)
    recovery_->expect(first_chunk(block, rest));
  return chunks;
}

bool PushStream::write(ChunkIndex chunk, Transmit& transmit, std::span<std::uint8_t> out,
                       TimeNs now) {
  if (recovery_->take(chunk) == 0) return false;
  const std::uint32_t block = chunk / kChunksPerBlock;
  const std::uint16_t shard = shard_of_block(block);
  const LayerIndex index = layers_.blocks[block].layer;
  const Layer& layer = layers_.layers[index];
  CHECK(layer.pushing);
  Flow& flow = link_.flows[shard];
  const ChunkSpan span = layout_.chunk(chunk);
  wire::Push body{.flow = flow.next_header(now, queue_.priority_of(index)),
                  .iteration = layer.push_step,
                  .chunk = chunk,
                  .rate = layer.rate,
                  .elem_count = span.elem_count,
                  .block_chunks = layers_.blocks[block].chunk_count};
  if (flow.take_report_flag(queue_.is_last_push(), now)) body.flow.flags |= wire::kFlagReport;
  const bool again = recovery_->sent(chunk, body.flow.number, now, flow);
  link_.counters.retransmissions += again;
  queue_.note_sent(index, layer.push_step + 1, again, now);
  const std::span<const std::uint8_t> payload{
      reinterpret_cast<const std::uint8_t*>(layers_.inputs[span.tensor] + span.first_elem),
      span.elem_count * sizeof(float)};
  prefetch<Use::kRead>(payload.data(), payload.size());
  if (kept_ != nullptr && !again && !layer.again) {
    if (layer.push_step == 0)
      kept_->keep_initial(chunk, payload);
    else
      kept_->keep_push(chunk, payload);
  }
  transmit = {.bytes = wire::encode(out, link_.identity, body),
              .payload = payload,
              .port_offset = static_cast<std::uint16_t>(1 + shard),
              .priority = body.flow.priority};
  return true;
}

void PushStream::note_counted(std::uint32_t block, std::uint64_t counted, TimeNs now) {
  Layer& layer = layers_.of_block(block);
  CHECK(layer.pushing);
  std::uint64_t& known = layers_.blocks[block].counted;
  // Also what has not left: initial values may be another rank's, and what a lost appliance had
  // counted may be in the values that the store has gone on with.
  const std::uint64_t fresh = counted & layers_.blocks[block].all() & ~known;
  if (fresh != 0) {
    recovery_->results(block, fresh, now, flow_of(block));
    known |= fresh;
    CHECK(layer.push_left >= count_of(fresh));
    layer.push_left -= count_of(fresh);
    layers_.last_progress_ns = now;
  }
  if (layer.push_left != 0) return;
  const LayerIndex index = layers_.blocks[block].layer;
  renew(index);
  queue_.pool().withdraw_push(index);
  layer.pushing = false;
  --layers_.pushing_count;
  if (std::exchange(layer.again, false)) return;
  link_.events.push({.kind = Event::Kind::kPushDone, .tensor = index, .step = layer.push_step});
}

// A push has no result that could be missing. A gap is left to a stream with requests under way:
// another one would close it as no loss.
void PushStream::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
  const bool gap = signals.gap && queue_.has_out(Direction::kPush, shard);
  recovery_->hint(shard, {.gap = gap}, now, link_.flows[shard]);
}

// Of a push that the application knows as done nobody waits for the rest.
bool PushStream::owes_others() const noexcept {
  return std::ranges::any_of(layers_.layers,
                             [](const Layer& one) { return one.pushing && !one.again; });
}

// Pulls that wait tell more.
std::string PushStream::describe(TimeNs now) const {
  if (!in_progress() || layers_.pulling_count != 0) return {};
  return describe_wait(now) + ": " + std::to_string(layers_.pushing_count) +
         " pushes are not counted";
}

void PushStream::give_up(const Status& why) {
  for (LayerIndex index = 0; index < layers_.count(); ++index)
    if (std::exchange(layers_.layers[index].pushing, false) && !layers_.layers[index].again)
      link_.events.push({.kind = Event::Kind::kPushDone, .tensor = index, .status = why});
  layers_.pushing_count = 0;
}

}  // namespace sluice::client
