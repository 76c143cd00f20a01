// A store's layers as its worker knows them: what of each is pushed and pulled, and how its clocks
// stand.
//
// The application's calls (store.h) begin requests here, the streams of pushes and pulls end them.
// At most one of each is under way a layer, and both use the caller's memory. A layer's clock is
// the least of its blocks', as the appliance's answers tell them. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/base/block.h"
#include "client/core/calls/layout.h"
#include "client/sched/requests.h"

namespace sluice::client {

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
  Step least = 0;      // clock of its chunks that are here
  Step held = 0;       // clock of the last whole copy
  Step read = 0;       // its own pushes up to it are in the last whole copy
  bool again = false;  // the push under way has been counted by an appliance that is lost

  // Pushes that no whole copy is known to have: at most one, where each is read before the next.
  Step unread() const noexcept { return pushed - read; }
  std::uint32_t block_count() const noexcept { return block_end - block_begin; }
};

struct LayerBlock {
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

struct Layers {
  // `layout` is one in blocks.
  explicit Layers(const Layout& layout);

  std::vector<Layer> layers;
  std::vector<LayerBlock> blocks;
  std::vector<const float*> inputs;  // by tensor
  std::vector<float*> outputs;       // likewise
  std::uint32_t pushing_count = 0;
  std::uint32_t pulling_count = 0;
  TimeNs last_progress_ns = 0;  // of pushes and pulls
  bool started = false;
  bool kept = false;  // the store has outlived all of its workers

  LayerIndex count() const noexcept { return static_cast<LayerIndex>(layers.size()); }
  Layer& of_block(std::uint32_t block) noexcept { return layers[blocks[block].layer]; }
  const Layer& of_block(std::uint32_t block) const noexcept { return layers[blocks[block].layer]; }
  LayerClocks clocks(LayerIndex layer) const noexcept;
  // What holds for a layer between any two events.
  bool consistent(const Layer& layer) const noexcept;
};

}  // namespace sluice::client
