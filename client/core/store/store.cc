#include "client/core/store/store.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"

namespace sluice::client {

Store::Store(const SessionOptions& options, const Layout& layout, Link& link)
    : options_(options),
      layout_(layout),
      bound_(options.store->bound),
      layers_(layout),
      link_(link),
      kept_(options.restart_timeout_ns != 0
                ? std::make_unique<KeptLayers>(layout, options.world_size)
                : nullptr),
      queue_(options, layers_, link),
      pushes_(layout, layers_, queue_, kept_.get(), link),
      pulls_(layout, layers_, queue_, pushes_, kept_.get(), link) {
  forward_order_.reserve(layers_.count());
}

Status Store::check(LayerIndex layer, std::size_t pointers, const char* what) const {
  const auto refuse = [&](const std::string& why) -> Status {
    return {StatusCode::kInvalidArgument, error_prefix(options_) + what + ": " + why};
  };
  if (layer >= layer_count())
    return refuse("there is no layer " + std::to_string(layer) + " of " +
                  std::to_string(layer_count()));
  if (pointers != tensors_of(layer))
    return refuse("layer " + std::to_string(layer) + " has " + std::to_string(tensors_of(layer)) +
                  " tensors, not " + std::to_string(pointers));
  return {};
}

void Store::begin_push(LayerIndex index, std::span<const float* const> inputs, Step step) {
  Layer& layer = layers_.layers[index];
  CHECK(!layer.pushing);
  std::ranges::copy(inputs, layers_.inputs.begin() + layer.tensor_begin);
  layer.pushing = true;
  layer.push_step = step;
  layer.push_left = layer.chunk_count;
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block)
    layers_.blocks[block].counted = 0;
  ++layers_.pushing_count;
  // The pool counts from 1, initial values being its first.
  queue_.pool().push(index, step + 1, layer.block_count());
  DCHECK(layers_.consistent(layer));
  queue_.note_age();
}

Status Store::initialise(LayerIndex index, std::span<const float* const> inputs) {
  if (Status status = check(index, inputs.size(), "initial values"); !status.ok()) return status;
  const Layer& layer = layers_.layers[index];
  if (layer.pushing || layer.has_copy)
    return {StatusCode::kBusy, error_prefix(options_) + "initial values of layer " +
                                   std::to_string(index) + ": they come first, and once"};
  begin_push(index, inputs, 0);
  return {};
}

Status Store::push(LayerIndex index, std::span<const float* const> inputs, double rate) {
  if (Status status = check(index, inputs.size(), "push"); !status.ok()) return status;
  Layer& layer = layers_.layers[index];
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
  queue_.pool().told(index, clocks(index));
  queue_.pool().begin_iteration(iteration + 1);
  begin_push(index, inputs, iteration);
  return {};
}

Status Store::pull(LayerIndex index, std::span<float* const> outputs) {
  if (Status status = check(index, outputs.size(), "pull"); !status.ok()) return status;
  Layer& layer = layers_.layers[index];
  if (layer.pulling)
    return {StatusCode::kBusy, error_prefix(options_) + "pull of layer " + std::to_string(index) +
                                   ": its last pull is under way"};
  std::ranges::copy(outputs, layers_.outputs.begin() + layer.tensor_begin);
  layer.pulling = true;
  layer.pull_left = layer.chunk_count;
  layer.own = layer.pushed;
  layer.need = need_of(layer.pushed + 1);
  layer.least = kLastStep;
  ++layers_.pulling_count;
  queue_.pool().pull(index, layer.pushed + 2, layer.need, layer.block_count());
  DCHECK(layers_.consistent(layer));
  queue_.note_age();
  return {};
}

void Store::note_needed(LayerIndex layer) noexcept {
  if (forward_order_.size() == layers_.layers.size()) return;
  if (std::ranges::find(forward_order_, layer) != forward_order_.end()) return;
  forward_order_.push_back(layer);
  if (forward_order_.size() == layers_.layers.size()) queue_.pool().arrange(forward_order_);
}

}  // namespace sluice::client
