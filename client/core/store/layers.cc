#include "client/core/store/layers.h"

#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"

namespace sluice::client {

Layers::Layers(const Layout& layout)
    : blocks(layout.chunk_count() / kChunksPerBlock),
      inputs(layout.tensor_count()),
      outputs(layout.tensor_count()) {
  CHECK(layout.in_blocks());
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    if (layout.tensor(tensor).begins_block)
      layers.push_back(
          {.tensor_begin = tensor, .block_begin = layout.first_chunk(tensor) / kChunksPerBlock});
    Layer& layer = layers.back();
    layer.tensor_end = tensor + 1;
    layer.chunk_count = layout.end_chunk(tensor) - layer.block_begin * kChunksPerBlock;
    layer.block_end =
        layer.block_begin + (layer.chunk_count + kChunksPerBlock - 1) / kChunksPerBlock;
  }
  for (LayerIndex index = 0; index < count(); ++index) {
    const Layer& layer = layers[index];
    for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block) {
      const std::uint32_t left = layer.chunk_count - (block - layer.block_begin) * kChunksPerBlock;
      blocks[block].layer = index;
      blocks[block].chunk_count = static_cast<std::uint8_t>(std::min(left, kChunksPerBlock));
    }
  }
}

LayerClocks Layers::clocks(LayerIndex index) const noexcept {
  const Layer& layer = layers[index];
  LayerClocks clocks{.held = layer.held, .clock = kLastStep, .pushed = layer.pushed};
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block) {
    const LayerBlock& one = blocks[block];
    if (one.clock > clocks.clock) continue;
    if (one.clock < clocks.clock) clocks.at_clock = one.at_clock;
    clocks.clock = one.clock;
    clocks.at_clock = std::min(clocks.at_clock, one.at_clock);
    clocks.parked = std::max(clocks.parked, one.parked);
  }
  return clocks;
}

bool Layers::consistent(const Layer& layer) const noexcept {
  int uncounted = 0;
  for (std::uint32_t block = layer.block_begin; block < layer.block_end; ++block) {
    if ((blocks[block].counted & ~blocks[block].all()) != 0) return false;
    uncounted += std::popcount(blocks[block].all() & ~blocks[block].counted);
  }
  if (layer.pushing && (layer.push_left == 0 || layer.push_left != std::uint32_t(uncounted)))
    return false;
  if (layer.pulling) return 0 < layer.pull_left && layer.pull_left <= layer.chunk_count;
  return !layer.has_copy || layer.held >= layer.need;
}

}  // namespace sluice::client
