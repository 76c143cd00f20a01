// A store whose appliance is lost and comes back without its memory.
#include "aggregator/base/check.h"
#include "client/core/store/given.h"
#include "client/core/store/store.h"

namespace sluice::client {

void Store::change_appliance(const wire::Accept& accept, bool anew) {
  layers_.started = false;
  if (anew) {
    static_cast<void>(pushes_.join(accept));
    static_cast<void>(pulls_.join(accept));
    return;
  }
  pushes_.make_flows(accept.shards);
  pulls_.make_flows(accept.shards);
}

std::unique_ptr<Stream> Store::give(TimeNs now) {
  CHECK(kept_ != nullptr && !layers_.started);
  return std::make_unique<GivenLayers>(*kept_, layers_, layout_, bound_ == 0, link_, now);
}

void Store::go_on(TimeNs now) {
  pushes_.start(now);
  pulls_.start(now);
  queue_.begin_anew();  // what was called meanwhile stands in the layers too
  for (LayerIndex index = 0; index < layers_.count(); ++index) {
    Layer& layer = layers_.layers[index];
    // The push that was done may be lost with the appliance; the next one counts what is left.
    if (!layer.pushing && layer.unread() == 1) {
      layer.pushing = layer.again = true;
      layer.push_step = layer.pushed;
      ++layers_.pushing_count;
      for (std::uint32_t tensor = layer.tensor_begin; tensor < layer.tensor_end; ++tensor)
        layers_.inputs[tensor] = kept_->push_of(tensor);
    }
    if (layer.pushing) {
      layer.push_left = layer.chunk_count;
      for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block)
        layers_.blocks[block].counted = 0;
      queue_.pool().push(index, layer.push_step + 1, layer.block_count());
    }
    if (layer.pulling) {
      layer.pull_left = layer.chunk_count;
      layer.least = kLastStep;
      queue_.pool().pull(index, layer.pushed + 2, layer.need, layer.block_count());
    }
    DCHECK(layers_.consistent(layer));
  }
  queue_.note_age();
}

std::string Store::describe_loss() const {
  std::uint64_t unread = 0;
  for (const Layer& layer : layers_.layers) unread += layer.unread() > 1 ? layer.unread() : 0;
  std::string text;
  if (options_.store->update.state_count() != 0)
    text += "; the optimizer's state is lost and begins anew";
  if (unread != 0)
    text += "; up to " + std::to_string(unread) +
            " pushes of this rank are lost, which it has not pulled before it pushed again";
  return text;
}

}  // namespace sluice::client
