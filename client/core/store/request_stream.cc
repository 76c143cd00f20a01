#include "client/core/store/request_stream.h"

#include <bit>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "client/core/calls/text.h"

namespace sluice::client {

// ---- the queue ----

RequestQueue::RequestQueue(const SessionOptions& options, const Layers& layers, Link& link)
    : layers_(layers),
      link_(link),
      pool_({.policy = options.requests, .layer_count = layers.count(), .pushes_per_layer = 1}) {
  if (options.trace) trace_.enable(static_cast<std::uint32_t>(layers.inputs.size()));
}

void RequestQueue::suspend(bool suspended, TimeNs now) noexcept {
  count_suspension(now);
  suspended_ = suspended;
  suspended_since_ns_ = now;
}

void RequestQueue::count_suspension(TimeNs now) noexcept {
  if (!suspended_ || now <= suspended_since_ns_) return;  // two threads read the clock
  link_.counters.suspended_ns += static_cast<std::uint64_t>(now - suspended_since_ns_);
  suspended_since_ns_ = now;
}

void RequestQueue::begin_anew() noexcept {
  pool_.clear();
  unit_chunks_ = 0;
}

// The pool's next block, which its Recovery looks after from now on.
bool RequestQueue::next_unit() {
  if (!pool_.next(suspended_, unit_)) return false;
  note_age();
  unit_chunks_ =
      stream(unit_.direction).expect(layers_.layers[unit_.layer].block_begin + unit_.unit);
  return true;
}

bool RequestQueue::has_out(Direction direction, std::uint16_t shard) const noexcept {
  return !stream(direction).recovery().nothing_outstanding(shard);
}

bool RequestQueue::may_send(Direction direction, std::uint16_t shard, TimeNs now) const noexcept {
  Flow& flow = link_.flows[shard];
  const bool outstanding = has_out(Direction::kPush, shard) || has_out(Direction::kPull, shard);
  return (flow.may_send(outstanding) ||
          (direction == Direction::kPull && flow.window_open_for_urgent())) &&
         flow.on_pace(now);
}

bool RequestQueue::write_lost(Direction direction, std::uint16_t shard, Transmit& transmit,
                              std::span<std::uint8_t> out, TimeNs now) {
  std::vector<ChunkIndex>& lost = stream(direction).lost(shard);
  while (!lost.empty() && may_send(direction, shard, now)) {
    const ChunkIndex chunk = lost.back();
    lost.pop_back();
    if (stream(direction).write(chunk, transmit, out, now)) return true;
  }
  return false;
}

bool RequestQueue::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  if (!layers_.started) return false;
  for (std::uint16_t shard = 0; shard < link_.shard_count(); ++shard)
    for (const Direction direction : {Direction::kPull, Direction::kPush})
      if (write_lost(direction, shard, transmit, out, now)) return true;
  while (unit_chunks_ != 0 || next_unit()) {
    if (unit_chunks_ == 0) continue;  // all of it is counted already
    const std::uint32_t block = layers_.layers[unit_.layer].block_begin + unit_.unit;
    const ChunkIndex chunk = first_chunk(block, unit_chunks_);
    if (!may_send(unit_.direction, static_cast<std::uint16_t>(block % link_.shard_count()), now))
      return false;
    unit_chunks_ &= unit_chunks_ - 1;
    if (stream(unit_.direction).write(chunk, transmit, out, now)) return true;
  }
  return false;
}

void RequestQueue::note_sent(LayerIndex layer, Step iteration, bool again, TimeNs now) noexcept {
  if (!trace_.on()) return;
  const std::uint32_t tensor = layers_.layers[layer].tensor_begin;
  if (!trace_.has(tensor, iteration))
    trace_.queued(tensor, iteration, priority_of(layer), true, now, now);
  trace_.sent(tensor, iteration, again, now);
}

// ---- a stream of requests ----

void RequestStream::send_again(std::uint32_t block, std::uint64_t chunks) {
  for (; chunks != 0; chunks &= chunks - 1)
    lost(shard_of_block(block)).push_back(first_chunk(block, chunks));
}

RequestStream::RequestStream(StreamId id, Direction direction, const Layout& layout, Layers& layers,
                             RequestQueue& queue, Link& link)
    : Stream(id, Flows::kAll, link),
      layout_(layout),
      layers_(layers),
      queue_(queue),
      direction_(direction) {
  queue.attach(direction, *this);
}

Status RequestStream::join(const wire::Accept& accept) {
  make_flows(accept.shards);
  return {};
}

void RequestStream::make_flows(std::uint16_t shards) {
  CHECK(shards == link_.shard_count());
  recovery_.emplace(layout_.chunk_count(), shards);
  lost_.assign(shards, {});
  for (auto& chunks : lost_)
    chunks.reserve((layers_.blocks.size() / shards + 1) *
                   (direction_ == Direction::kPull ? 1 : kChunksPerBlock));
}

void RequestStream::start(TimeNs now) {
  CHECK(recovery_);
  layers_.started = true;
  layers_.last_progress_ns = now;
}

Step RequestStream::current_step() const noexcept {
  for (const Layer& layer : layers_.layers)
    if (under_way(layer)) return step_of(layer);
  return 0;
}

void RequestStream::renew(LayerIndex index) {
  const Layer& layer = layers_.layers[index];
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block)
    recovery_->renew(block, flow_of(block));
  for (auto& chunks : lost_)
    std::erase_if(chunks, [&](ChunkIndex chunk) {
      const std::uint32_t block = chunk / kChunksPerBlock;
      return layer.block_begin <= block && block < layer.block_end;
    });
  queue_.finish(direction_, index);
}

Verdict RequestStream::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  if (!layers_.started) return Verdict::kNotStarted;
  if (body.block >= layers_.blocks.size()) return Verdict::kBadChunk;
  const Layer& layer = layers_.of_block(body.block);
  // A late answer to an earlier question, or about a push or pull that is done.
  if (!under_way(layer) || body.step != step_of(layer)) return Verdict::kProbe;
  send_again(body.block, recovery_->answer(body, now, flow_of(body.block)));
  note_counted(body.block, body.counted, now);
  DCHECK(layers_.consistent(layer));
  return Verdict::kProbe;
}

std::string RequestStream::describe_wait(TimeNs now) const {
  return "no progress for " + seconds_text(now - layers_.last_progress_ns);
}

}  // namespace sluice::client
