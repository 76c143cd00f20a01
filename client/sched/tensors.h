// Maps chunks to their tensors, for policies whose unit is not the packet. Pure; no allocation
// after construction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "client/sched/choice.h"

namespace sluice::client {

class TensorChunks {
 public:
  explicit TensorChunks(const ScheduleSetup& setup)
      : first_chunks_(setup.first_chunks.begin(), setup.first_chunks.end()) {
    if (first_chunks_.empty()) first_chunks_ = {0, setup.chunk_count};
  }

  std::uint32_t count() const noexcept {
    return static_cast<std::uint32_t>(first_chunks_.size() - 1);
  }
  ChunkIndex begin(std::uint32_t tensor) const noexcept { return first_chunks_[tensor]; }
  ChunkIndex end(std::uint32_t tensor) const noexcept { return first_chunks_[tensor + 1]; }
  std::uint32_t tensor_of(ChunkIndex chunk) const noexcept {
    const auto next = std::upper_bound(first_chunks_.begin(), first_chunks_.end(), chunk);
    return static_cast<std::uint32_t>(next - first_chunks_.begin()) - 1;
  }

 private:
  std::vector<ChunkIndex> first_chunks_;  // and the end of the last one
};

}  // namespace sluice::client
