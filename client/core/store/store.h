// A worker's side of a parameter store: layers pushed and pulled, and what is known of their
// clocks.
//
// Which request leaves next is the pool's choice (sched/requests.h), a block of chunks at a time.
// Pushes and pulls have a Recovery each: a push is done when the store has counted it, which its
// probes say, and every answer to a pull; a pull when the values are here. At most one of each is
// under way a layer, and both use the caller's memory. A layer's clock is the least of its blocks',
// as the answers tell them. Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/calls/layout.h"
#include "client/core/calls/trace.h"
#include "client/core/calls/types.h"
#include "client/core/link/link.h"
#include "client/core/link/recovery.h"
#include "client/sched/requests.h"

namespace sluice::client {

class Store {
 public:
  // `layout` is one in blocks.
  Store(const SessionOptions& options, const Layout& layout, Link& link);

  // The shards are known, and the first iteration that this worker may push.
  void join(const wire::Accept& accept);
  void start(TimeNs now) noexcept;  // all ranks have joined

  // ---- the application's side: a pointer for each tensor of the layer, in registration order ----

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
  void suspend(bool suspended, TimeNs now) noexcept;
  // Forward needs the layer now. The order in which it first needs each is taken for the model's,
  // once all are known; requests go by it.
  void note_needed(LayerIndex layer) noexcept;
  // Of a wait that goes on, what is over.
  void count_suspension(TimeNs now) noexcept;
  std::uint32_t layer_count() const noexcept { return static_cast<std::uint32_t>(layers_.size()); }
  std::uint32_t tensors_of(LayerIndex layer) const noexcept {
    return layers_[layer].tensor_end - layers_[layer].tensor_begin;
  }
  std::uint32_t first_tensor(LayerIndex layer) const noexcept {
    return layers_[layer].tensor_begin;
  }
  LayerClocks clocks(LayerIndex layer) const noexcept;
  // It has outlived all of its workers: its values are not the initial ones that were given.
  bool kept() const noexcept { return kept_; }
  // Of a layer that exists: its last push, or pull, is under way.
  bool pushing(LayerIndex layer) const noexcept { return layers_[layer].pushing; }
  bool pulling(LayerIndex layer) const noexcept { return layers_[layer].pulling; }
  // Something is under way, in one direction or any.
  bool pushing() const noexcept { return pushing_count_ != 0; }
  bool busy() const noexcept { return pushing_count_ + pulling_count_ != 0; }

  // ---- the session's side ----
  Verdict handle_values(const wire::Packet& packet, TimeNs now);
  Verdict handle_answer(const wire::Packet& packet, TimeNs now);
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  bool write_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                   TimeNs now);
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept;
  void work(std::uint16_t shard, TimeNs now) noexcept;
  TimeNs next_timeout() const noexcept;
  // With options.trace: a record a layer and iteration, under the layer's first tensor, when the
  // iteration's pull is done.
  bool poll_trace(TensorTimes& times) noexcept { return trace_.poll(times); }
  // It is over: kPushDone and kPullDone with `why` for all that is under way.
  void give_up(const Status& why);
  TimeNs last_progress_ns() const noexcept { return last_progress_ns_; }
  // The first pull that waits, as its probes name it; 0: none does.
  Step waiting_step() const noexcept;
  // What waits, in words; empty when nothing does.
  std::string describe(TimeNs now) const;
  std::string describe_plan() const { return pool_.describe_plan(); }

 private:
  struct Layer {
    std::uint32_t tensor_begin = 0, tensor_end = 0;
    std::uint32_t block_begin = 0, block_end = 0;
    std::uint32_t chunk_count = 0;
    Step pushed = 0;  // its last push, done or under way
    double rate = 0;
    Step push_step = 0;  // of the push under way: 0 are initial values
    bool pushing = false;
    bool pulling = false;
    bool has_copy = false;
    std::uint32_t push_left = 0;  // chunks that are not counted
    std::uint32_t pull_left = 0;  // chunks that are not here
    Step need = 0;                // of the pull under way, or the last one
    Step own = 0;
    Step least = 0;  // clock of its chunks that are here
    Step held = 0;   // clock of the last whole copy
  };
  struct Block {
    LayerIndex layer = 0;
    Step clock = 0;
    std::uint16_t at_clock = 0;
    std::uint16_t parked = 0;
    std::uint8_t chunk_count = 0;
    std::uint64_t counted = 0;  // of the push under way: chunks that are known to be counted
    std::uint64_t all() const noexcept {
      return ~std::uint64_t{0} >> (kChunksPerBlock - chunk_count);
    }
  };

  Step need_of(Step iteration) const noexcept {
    return iteration - 1 > bound_ ? iteration - 1 - bound_ : 0;
  }
  Status check(LayerIndex layer, std::size_t pointers, const char* what) const;
  // What holds for a layer between any two events.
  bool consistent(const Layer& layer) const noexcept;
  void begin_push(LayerIndex layer, std::span<const float* const> inputs, Step step);
  std::uint16_t shard_of_block(std::uint32_t block) const noexcept {
    return static_cast<std::uint16_t>(block % link_.shard_count());
  }
  Priority priority_of(LayerIndex layer) const noexcept {
    return static_cast<Priority>(std::min(pool_.place(layer), 255u));
  }
  bool next_unit();
  bool may_send(bool of_push, std::uint16_t shard) const noexcept;
  void note_age() noexcept { link_.counters.oldest_request_iterations = pool_.oldest_age(); }
  bool write_push(ChunkIndex chunk, Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  bool write_pull(ChunkIndex first, Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  void note_counted(std::uint32_t block, std::uint64_t counted, TimeNs now);
  void tell_pool(LayerIndex layer) noexcept;
  void note_sent(LayerIndex layer, Step iteration, bool again, TimeNs now) noexcept;
  void renew(Recovery& recovery, std::vector<std::vector<ChunkIndex>>& lost, const Layer& layer);

  const SessionOptions& options_;
  const Layout& layout_;
  Link& link_;
  const Step bound_;
  std::vector<Layer> layers_;
  std::vector<Block> blocks_;
  std::vector<const float*> inputs_;  // by tensor
  std::vector<float*> outputs_;       // likewise
  RequestPool pool_;
  std::vector<LayerIndex> forward_order_;  // as far as it is known
  std::optional<Recovery> pushes_, pulls_;
  // By shard: what is lost and leaves again. Of a pull one chunk stands for its block.
  std::vector<std::vector<ChunkIndex>> lost_pushes_, lost_pulls_;
  // What the pool has handed out and has not left: a block, and of a push the chunks.
  RequestUnit unit_;
  std::uint64_t unit_chunks_ = 0;
  bool started_ = false;
  bool kept_ = false;
  bool suspended_ = false;
  TimeNs suspended_since_ns_ = 0;  // counted up to here
  std::uint32_t pushing_count_ = 0;
  std::uint32_t pulling_count_ = 0;
  TimeNs last_progress_ns_ = 0;
  TensorTrace trace_;
};

}  // namespace sluice::client
