// Frames in flight, by index. Buffers are reused, so a long run allocates little.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/base/types.h"

namespace sluice::sim {

using FrameIndex = std::uint32_t;

struct SimFrame {
  std::vector<std::uint8_t> bytes;
  Priority priority = 0;
};

class FramePool {
 public:
  FrameIndex take() {
    ++in_use_;
    if (free_.empty()) {
      frames_.emplace_back();
      return static_cast<FrameIndex>(frames_.size() - 1);
    }
    const FrameIndex index = free_.back();
    free_.pop_back();
    return index;
  }
  FrameIndex copy(FrameIndex from) {
    const FrameIndex index = take();
    frames_[index].bytes = frames_[from].bytes;
    frames_[index].priority = frames_[from].priority;
    return index;
  }
  void give_back(FrameIndex index) {
    --in_use_;
    free_.push_back(index);
  }
  SimFrame& operator[](FrameIndex index) { return frames_[index]; }
  // The frames that are held; 0 at rest.
  std::size_t in_use() const { return in_use_; }

 private:
  std::vector<SimFrame> frames_;
  std::vector<FrameIndex> free_;
  std::size_t in_use_ = 0;
};

}  // namespace sluice::sim
