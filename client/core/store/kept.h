// What a store's worker keeps for the case that its appliance is lost: the newest values of each
// chunk that it has seen, and of each layer its last push. The caller's memory may be overwritten
// by then. Twice the bytes of the parameters; made with the session. Pure; the session's thread
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/store_options.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/layout.h"

namespace sluice::client {

class KeptLayers {
 public:
  KeptLayers(const Layout& layout, std::uint16_t world_size);

  // Values that have come; older ones than those that are kept change nothing.
  void keep(const wire::Packet& values) noexcept;
  // Initial values that leave. They are kept until the appliance has sent some.
  void keep_initial(ChunkIndex chunk, std::span<const std::uint8_t> values) noexcept;
  void keep_push(ChunkIndex chunk, std::span<const std::uint8_t> values) noexcept;

  struct Chunk {
    StoreVersion version = kNoVersion;
    Step clock = 0;
  };
  const Chunk& chunk(ChunkIndex index) const noexcept { return chunks_[index]; }
  std::span<const std::uint8_t> values(ChunkIndex chunk) const noexcept;
  // See wire::Values; without words if the appliance has sent none.
  std::span<const std::uint64_t> odd(ChunkIndex chunk) const noexcept;
  const float* push_of(std::uint32_t tensor) const noexcept { return pushes_[tensor].data(); }

 private:
  const Layout& layout_;
  const std::size_t words_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint64_t> odd_;
  std::vector<std::vector<float>> copies_, pushes_;  // by tensor
};

}  // namespace sluice::client
