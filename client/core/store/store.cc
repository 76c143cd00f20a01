#include "client/core/store/store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

RequestSetup setup_of(const SessionOptions& options, const Layout& layout) {
  std::uint32_t layers = 0;
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor)
    layers += layout.tensor(tensor).begins_block;
  return {.policy = options.requests, .layer_count = layers, .pushes_per_layer = 1};
}

}  // namespace

Store::Store(const SessionOptions& options, const Layout& layout, Link& link)
    : options_(options),
      layout_(layout),
      link_(link),
      bound_(options.store->bound),
      blocks_(layout.chunk_count() / kChunksPerBlock),
      inputs_(layout.tensor_count()),
      outputs_(layout.tensor_count()),
      pool_(setup_of(options, layout)) {
  CHECK(layout.in_blocks());
  if (options.trace) trace_.enable(layout.tensor_count());
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    if (layout.tensor(tensor).begins_block)
      layers_.push_back(
          {.tensor_begin = tensor, .block_begin = layout.first_chunk(tensor) / kChunksPerBlock});
    Layer& layer = layers_.back();
    layer.tensor_end = tensor + 1;
    layer.chunk_count = layout.end_chunk(tensor) - layer.block_begin * kChunksPerBlock;
    layer.block_end =
        layer.block_begin + (layer.chunk_count + kChunksPerBlock - 1) / kChunksPerBlock;
  }
  forward_order_.reserve(layers_.size());
  for (LayerIndex index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block) {
      const std::uint32_t left = layer.chunk_count - (block - layer.block_begin) * kChunksPerBlock;
      blocks_[block].layer = index;
      blocks_[block].chunk_count = static_cast<std::uint8_t>(std::min(left, kChunksPerBlock));
    }
  }
}

void Store::join(const wire::Accept& accept) {
  CHECK(!pushes_ && accept.shards == link_.shard_count());
  pushes_.emplace(layout_.chunk_count(), accept.shards);
  pulls_.emplace(layout_.chunk_count(), accept.shards);
  pushes_->close_step(kNever);  // what is counted is done: each block's fate is asked about
  for (auto* lost : {&lost_pushes_, &lost_pulls_}) {
    lost->resize(accept.shards);
    for (auto& chunks : *lost)
      chunks.reserve((blocks_.size() / accept.shards + 1) *
                     (lost == &lost_pulls_ ? 1 : kChunksPerBlock));
  }
  const Step first = std::max<Step>(1, accept.first_steps[index_of(StreamId::kPushes)]);
  for (Layer& layer : layers_) layer.pushed = first - 1;
  kept_ = accept.kept != 0;
}

void Store::start(TimeNs now) noexcept {
  CHECK(!started_ && pushes_);
  started_ = true;
  last_progress_ns_ = now;
}

// ---- the application's side ----

Status Store::check(LayerIndex layer, std::size_t pointers, const char* what) const {
  const auto refuse = [&](const std::string& why) -> Status {
    return {StatusCode::kInvalidArgument, error_prefix(options_) + what + ": " + why};
  };
  if (layer >= layers_.size())
    return refuse("there is no layer " + std::to_string(layer) + " of " +
                  std::to_string(layers_.size()));
  if (pointers != tensors_of(layer))
    return refuse("layer " + std::to_string(layer) + " has " + std::to_string(tensors_of(layer)) +
                  " tensors, not " + std::to_string(pointers));
  return {};
}

void Store::begin_push(LayerIndex index, std::span<const float* const> inputs, Step step) {
  Layer& layer = layers_[index];
  CHECK(!layer.pushing);
  std::ranges::copy(inputs, inputs_.begin() + layer.tensor_begin);
  layer.pushing = true;
  layer.push_step = step;
  layer.push_left = layer.chunk_count;
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block)
    blocks_[block].counted = 0;
  ++pushing_count_;
  // The pool counts from 1, initial values being its first.
  pool_.push(index, step + 1, layer.block_end - layer.block_begin);
  DCHECK(consistent(layer));
  note_age();
}

Status Store::initialise(LayerIndex index, std::span<const float* const> inputs) {
  if (Status status = check(index, inputs.size(), "initial values"); !status.ok()) return status;
  const Layer& layer = layers_[index];
  if (layer.pushing || layer.has_copy)
    return {StatusCode::kBusy, error_prefix(options_) + "initial values of layer " +
                                   std::to_string(index) + ": they come first, and once"};
  begin_push(index, inputs, 0);
  return {};
}

Status Store::push(LayerIndex index, std::span<const float* const> inputs, double rate) {
  if (Status status = check(index, inputs.size(), "push"); !status.ok()) return status;
  Layer& layer = layers_[index];
  const std::string place = "push of layer " + std::to_string(index);
  if (layer.pushing || layer.pulling)
    return {StatusCode::kBusy, error_prefix(options_) + place + ": its last " +
                                   (layer.pushing ? "push" : "pull") + " is under way"};
  const Step iteration = layer.pushed + 1;
  if (!layer.has_copy || layer.held < need_of(iteration))
    return {StatusCode::kInvalidArgument,
            error_prefix(options_) + place + " in iteration " + std::to_string(iteration) +
                ": pull it first; a copy with clock " + std::to_string(need_of(iteration)) +
                " is needed, this one has " +
                (layer.has_copy ? std::to_string(layer.held) : std::string("none"))};
  if (iteration >= kLastStep)
    return {StatusCode::kExhausted, error_prefix(options_) + place + ": iterations are used up"};
  layer.rate = rate;
  layer.pushed = iteration;
  tell_pool(index);
  pool_.begin_iteration(iteration + 1);
  begin_push(index, inputs, iteration);
  return {};
}

Status Store::pull(LayerIndex index, std::span<float* const> outputs) {
  if (Status status = check(index, outputs.size(), "pull"); !status.ok()) return status;
  Layer& layer = layers_[index];
  if (layer.pulling)
    return {StatusCode::kBusy, error_prefix(options_) + "pull of layer " + std::to_string(index) +
                                   ": its last pull is under way"};
  std::ranges::copy(outputs, outputs_.begin() + layer.tensor_begin);
  layer.pulling = true;
  layer.pull_left = layer.chunk_count;
  layer.own = layer.pushed;
  layer.need = need_of(layer.pushed + 1);
  layer.least = kLastStep;
  ++pulling_count_;
  pool_.pull(index, layer.pushed + 2, layer.need, layer.block_end - layer.block_begin);
  DCHECK(consistent(layer));
  note_age();
  return {};
}

void Store::note_needed(LayerIndex layer) noexcept {
  if (forward_order_.size() == layers_.size()) return;
  if (std::ranges::find(forward_order_, layer) != forward_order_.end()) return;
  forward_order_.push_back(layer);
  if (forward_order_.size() == layers_.size()) pool_.arrange(forward_order_);
}

void Store::suspend(bool suspended, TimeNs now) noexcept {
  count_suspension(now);
  suspended_ = suspended;
  suspended_since_ns_ = now;
}

void Store::count_suspension(TimeNs now) noexcept {
  if (!suspended_ || now <= suspended_since_ns_) return;  // two threads read the clock
  link_.counters.suspended_ns += static_cast<std::uint64_t>(now - suspended_since_ns_);
  suspended_since_ns_ = now;
}

LayerClocks Store::clocks(LayerIndex index) const noexcept {
  const Layer& layer = layers_[index];
  LayerClocks clocks{.held = layer.held, .clock = kLastStep, .pushed = layer.pushed};
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block) {
    const Block& one = blocks_[block];
    if (one.clock > clocks.clock) continue;
    if (one.clock < clocks.clock) clocks.at_clock = one.at_clock;
    clocks.clock = one.clock;
    clocks.at_clock = std::min(clocks.at_clock, one.at_clock);
    clocks.parked = std::max(clocks.parked, one.parked);
  }
  return clocks;
}

bool Store::consistent(const Layer& layer) const noexcept {
  int uncounted = 0;
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block) {
    if ((blocks_[block].counted & ~blocks_[block].all()) != 0) return false;
    uncounted += std::popcount(blocks_[block].all() & ~blocks_[block].counted);
  }
  if (layer.pushing && (layer.push_left == 0 || layer.push_left != std::uint32_t(uncounted)))
    return false;
  if (layer.pulling) return 0 < layer.pull_left && layer.pull_left <= layer.chunk_count;
  return !layer.has_copy || layer.held >= layer.need;
}

void Store::tell_pool(LayerIndex layer) noexcept { pool_.told(layer, clocks(layer)); }

// ---- what arrives ----

// All of the layer that one Recovery has looked after is done: its chunks may be asked for anew.
void Store::renew(Recovery& recovery, std::vector<std::vector<ChunkIndex>>& lost,
                  const Layer& layer) {
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block)
    recovery.renew(block, link_.flows[shard_of_block(block)]);
  for (auto& chunks : lost)
    std::erase_if(chunks, [&](ChunkIndex chunk) {
      const std::uint32_t block = chunk / kChunksPerBlock;
      return layer.block_begin <= block && block < layer.block_end;
    });
}

// The store has counted these of the push under way: every answer of the block says so again.
void Store::note_counted(std::uint32_t block, std::uint64_t counted, TimeNs now) {
  Layer& layer = layers_[blocks_[block].layer];
  CHECK(layer.pushing);
  Flow& flow = link_.flows[shard_of_block(block)];
  std::uint64_t& known = blocks_[block].counted;
  for (std::uint64_t rest = counted & blocks_[block].all() & ~known; rest != 0; rest &= rest - 1) {
    const ChunkIndex chunk = first_chunk(block, rest);
    if (!pushes_->result(chunk, now, flow)) continue;
    known |= rest & -rest;
    CHECK(layer.push_left != 0);
    --layer.push_left;
    last_progress_ns_ = now;
  }
  if (layer.push_left != 0) return;
  if (unit_.direction == Direction::kPush && unit_.layer == blocks_[block].layer) unit_chunks_ = 0;
  renew(*pushes_, lost_pushes_, layer);
  layer.pushing = false;
  --pushing_count_;
  link_.events.push(
      {.kind = Event::Kind::kPushDone, .tensor = blocks_[block].layer, .step = layer.push_step});
}

Verdict Store::handle_values(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Values>();
  const std::uint32_t index = body.chunk / kChunksPerBlock;
  if (!started_) return Verdict::kNotStarted;
  if (index >= blocks_.size() || body.chunk % kChunksPerBlock >= blocks_[index].chunk_count)
    return Verdict::kBadChunk;
  const ChunkSpan span = layout_.chunk(body.chunk);
  if (body.elem_count != span.elem_count) return Verdict::kShapeMismatch;
  Block& block = blocks_[index];
  Layer& layer = layers_[block.layer];
  const bool changed = body.clock > block.clock ||
                       (body.clock == block.clock &&
                        (body.at_clock != block.at_clock || body.waiting != block.parked));
  if (changed) {
    block.clock = body.clock;
    block.at_clock = body.at_clock;
    block.parked = body.waiting;
  }
  // Whoever is answered has initial values and its own pushes in.
  const bool counted = layer.pushing && (layer.push_step == 0 || body.own >= layer.push_step);
  Verdict verdict = Verdict::kDuplicate;
  if (layer.pulling && body.clock >= layer.need && body.own >= layer.own &&
      pulls_->lacks(body.chunk)) {
    verdict = Verdict::kFolded;
    float* const output = outputs_[span.tensor] + span.first_elem;
    std::memcpy(output, packet.payload().data(), packet.payload().size());
    // Values come mostly in order.
    if (body.chunk + 1 != layout_.end_chunk(span.tensor))
      prefetch<Use::kWrite>(output + span.elem_count, packet.payload().size());
    pulls_->result(body.chunk, now, link_.flows[shard_of_block(index)]);
    layer.least = std::min<Step>(layer.least, body.clock);
    last_progress_ns_ = now;
    CHECK(layer.pull_left != 0);
    if (--layer.pull_left == 0) {
      if (unit_.direction == Direction::kPull && unit_.layer == block.layer) unit_chunks_ = 0;
      renew(*pulls_, lost_pulls_, layer);
      layer.pulling = false;
      layer.has_copy = true;
      layer.held = layer.least;
      CHECK(layer.held >= layer.need);
      const LayerClocks known = clocks(block.layer);
      trace_.read(layer.tensor_begin, layer.own + 1,
                  {.staleness = layer.own - std::min(layer.own, layer.held),
                   .clock = known.clock,
                   .parked = known.parked,
                   .oldest_request_iterations = pool_.oldest_age()});
      trace_.done(layer.tensor_begin, layer.own + 1, now);
      --pulling_count_;
      link_.events.push(
          {.kind = Event::Kind::kPullDone, .tensor = block.layer, .step = layer.held});
      verdict = Verdict::kCompleted;
    }
  } else {
    ++link_.counters.duplicate_results;
  }
  if (counted) note_counted(index, block.all(), now);
  // A layer's clock is that of all its blocks: too much for every packet.
  if (changed || verdict == Verdict::kCompleted) tell_pool(block.layer);
  DCHECK(consistent(layer));
  return verdict;
}

Verdict Store::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  if (!started_) return Verdict::kNotStarted;
  if (body.block >= blocks_.size()) return Verdict::kBadChunk;
  const Layer& layer = layers_[blocks_[body.block].layer];
  const std::uint16_t shard = shard_of_block(body.block);
  const bool of_push = body.stream == StreamId::kPushes;
  // A late answer, about what is done or was asked before.
  if (of_push ? !layer.pushing || body.step != layer.push_step
              : !layer.pulling || body.step != layer.own + 1)
    return Verdict::kProbe;
  Recovery& recovery = of_push ? *pushes_ : *pulls_;
  auto& lost = of_push ? lost_pushes_[shard] : lost_pulls_[shard];
  for (std::uint64_t again = recovery.answer(body, now, link_.flows[shard]); again != 0;
       again &= again - 1)
    lost.push_back(first_chunk(body.block, again));
  if (of_push) note_counted(body.block, body.counted, now);
  DCHECK(consistent(layer));
  return Verdict::kProbe;
}

// Only pulls have results that can be missing. A gap is for those who have something out: who has
// nothing would say that nothing was lost.
void Store::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
  const bool pulls_out = !pulls_->nothing_outstanding(shard);
  const bool pushes_out = !pushes_->nothing_outstanding(shard);
  Flow::LossSignals of_pulls = signals;
  of_pulls.gap &= pulls_out || !pushes_out;
  pulls_->hint(shard, of_pulls, now, link_.flows[shard]);
  pushes_->hint(shard, {.gap = signals.gap && pushes_out}, now, link_.flows[shard]);
}

void Store::work(std::uint16_t shard, TimeNs now) noexcept {
  pushes_->work(shard, now, link_.flows[shard]);
  pulls_->work(shard, now, link_.flows[shard]);
}

TimeNs Store::next_timeout() const noexcept {
  return std::min(pushes_->next_timeout(), pulls_->next_timeout());
}

void Store::give_up(const Status& why) {
  for (LayerIndex index = 0; index < layers_.size(); ++index) {
    Layer& layer = layers_[index];
    if (std::exchange(layer.pushing, false))
      link_.events.push({.kind = Event::Kind::kPushDone, .tensor = index, .status = why});
    if (std::exchange(layer.pulling, false))
      link_.events.push({.kind = Event::Kind::kPullDone, .tensor = index, .status = why});
  }
  pushing_count_ = pulling_count_ = 0;
}

Step Store::waiting_step() const noexcept {
  for (const Layer& layer : layers_)
    if (layer.pulling) return layer.own + 1;
  return 0;
}

std::string Store::describe(TimeNs now) const {
  if (!started_ || !busy()) return {};
  std::string text = "no progress for " + seconds_text(now - last_progress_ns_);
  for (LayerIndex index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    if (!layer.pulling) continue;
    return text + ": layer " + std::to_string(index) + " is needed with clock " +
           std::to_string(layer.need) + " and stands at " + std::to_string(clocks(index).clock) +
           " (" + std::to_string(pulling_count_) + " pulls wait)";
  }
  return text + ": " + std::to_string(pushing_count_) + " pushes are not counted";
}

}  // namespace sluice::client
