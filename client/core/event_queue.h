// The events that wait for poll_event(): a ring that grows when its owner does not poll, and
// otherwise never allocates after set-up. The session's thread only.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "aggregator/base/check.h"
#include "client/core/types.h"

namespace sluice::client {

class EventQueue {
 public:
  explicit EventQueue(std::size_t capacity) : ring_(capacity < 4 ? 4 : capacity) {}

  void push(Event event) {
    if (count_ == ring_.size()) grow();
    DCHECK(count_ < ring_.size());
    ring_[(head_ + count_++) % ring_.size()] = std::move(event);
  }
  bool pop(Event& event) noexcept {
    if (count_ == 0) return false;
    DCHECK(head_ < ring_.size() && count_ <= ring_.size());
    event = std::move(ring_[head_]);
    head_ = (head_ + 1) % ring_.size();
    --count_;
    return true;
  }

 private:
  void grow() {
    DCHECK(count_ == ring_.size());
    std::vector<Event> bigger(2 * ring_.size());
    for (std::size_t i = 0; i < count_; ++i)
      bigger[i] = std::move(ring_[(head_ + i) % ring_.size()]);
    ring_ = std::move(bigger);
    head_ = 0;
  }

  std::vector<Event> ring_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

}  // namespace sluice::client
