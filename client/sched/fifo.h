// The scheduler `fifo`: chunks leave in the order in which they were pushed, whatever their
// priority. It is the baseline for `strict`; packets still carry their priority. Same interface,
// preconditions and thread as StrictQueue (strict.h).
#pragma once

#include <span>

#include "aggregator/base/types.h"

namespace sluice::client {

class FifoQueue {
 public:
  static constexpr const char* kPlan = "fifo: in the order of submission\n";
  static constexpr int kNothing = 256;

  explicit FifoQueue(std::span<ChunkIndex> links) noexcept : links_(links) {}

  void push(ChunkIndex chunk, Priority) noexcept {
    if (empty_)
      head_ = chunk;
    else
      links_[tail_] = chunk;
    tail_ = chunk;
    empty_ = false;
  }
  bool empty() const noexcept { return empty_; }
  // All waiting chunks count as equally urgent.
  int top(Priority) const noexcept { return empty_ ? kNothing : 0; }
  ChunkIndex head(Priority) const noexcept { return head_; }
  void pop(Priority) noexcept {
    if (head_ == tail_)
      empty_ = true;
    else
      head_ = links_[head_];
  }
  void clear() noexcept { empty_ = true; }

 private:
  std::span<ChunkIndex> links_;
  ChunkIndex head_ = 0;
  ChunkIndex tail_ = 0;
  bool empty_ = true;
};

}  // namespace sluice::client
