// A worker's side of a parameter store: its layers, and what the application may ask of them.
//
// A call notes what is wanted; the streams of pushes and pulls (push_stream.h, pull_stream.h) carry
// it, in the order of requests that both share (request_stream.h). Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/core/calls/layout.h"
#include "client/core/calls/types.h"
#include "client/core/link/link.h"
#include "client/core/store/kept.h"
#include "client/core/store/pull_stream.h"
#include "client/core/store/push_stream.h"

namespace sluice::client {

class Store {
 public:
  // `layout` is one in blocks.
  Store(const SessionOptions& options, const Layout& layout, Link& link);

  // ---- an appliance that is lost and comes back: store_resume.cc ----
  // It has a place for this worker, whose requests wait. Anew: as it had none before.
  void change_appliance(const wire::Accept& accept, bool anew);
  // What this worker has, on its way.
  std::unique_ptr<Stream> give(TimeNs now);
  // All have given theirs: requests that were under way begin again.
  void go_on(TimeNs now);
  // What of the store is lost, for its user; empty: nothing.
  std::string describe_loss() const;

  PushStream& pushes() noexcept { return pushes_; }
  PullStream& pulls() noexcept { return pulls_; }

  // A pointer for each tensor of the layer, in registration order.

  // The layer's initial values, by one rank. A store that has values ignores them.
  Status initialise(LayerIndex layer, std::span<const float* const> inputs);
  // The layer's part of the iteration after its last push: differences of parameters or gradients,
  // as the job's update rule says. kPushDone follows; until then the memory is read. kBusy: the
  // last one is not done; kInvalidArgument: the copy that was pulled is too old for the bound.
  Status push(LayerIndex layer, std::span<const float* const> inputs, double rate);
  // Whether all that is to be pushed is finite: else everybody's parameters would be so no more,
  // for good. Reads what never changes, so without the session's lock: `inputs` may be long.
  Status check_finite(LayerIndex layer, std::span<const float* const> inputs,
                      const char* what) const;
  // The layer as the iteration after the last push may read it, with that push in it. kPullDone
  // follows; until then the memory is written. kBusy as above.
  Status pull(LayerIndex layer, std::span<float* const> outputs);
  // The application waits for a pull from now on, or does not any more: pulls go first, and the
  // time counts.
  void suspend(bool suspended, TimeNs now) noexcept { queue_.suspend(suspended, now); }
  // Forward needs the layer now. The order in which it first needs each is taken for the model's,
  // once all are known; requests go by it.
  void note_needed(LayerIndex layer) noexcept;
  std::uint32_t layer_count() const noexcept { return layers_.count(); }
  std::uint32_t tensors_of(LayerIndex layer) const noexcept {
    return layers_.layers[layer].tensor_end - layers_.layers[layer].tensor_begin;
  }
  std::uint32_t first_tensor(LayerIndex layer) const noexcept {
    return layers_.layers[layer].tensor_begin;
  }
  LayerClocks clocks(LayerIndex layer) const noexcept { return layers_.clocks(layer); }
  // It has outlived all of its workers: its values are not the initial ones that were given.
  bool kept() const noexcept { return layers_.kept; }
  // Of a layer that exists: its last push, or pull, is under way.
  bool pushing(LayerIndex layer) const noexcept { return layers_.layers[layer].pushing; }
  bool pulling(LayerIndex layer) const noexcept { return layers_.layers[layer].pulling; }
  // Something is under way.
  bool busy() const noexcept { return layers_.pushing_count + layers_.pulling_count != 0; }

 private:
  Step need_of(Step iteration) const noexcept {
    return iteration - 1 > bound_ ? iteration - 1 - bound_ : 0;
  }
  Status check(LayerIndex layer, std::size_t pointers, const char* what) const;
  void begin_push(LayerIndex layer, std::span<const float* const> inputs, Step step);

  const SessionOptions& options_;
  const Layout& layout_;
  const Step bound_;
  Layers layers_;
  Link& link_;
  std::unique_ptr<KeptLayers> kept_;  // null: the session does not survive
  RequestQueue queue_;
  PushStream pushes_;
  PullStream pulls_;
  std::vector<LayerIndex> forward_order_;  // as far as it is known
};

}  // namespace sluice::client
