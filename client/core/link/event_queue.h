// The events that wait for poll_event(): a ring that grows when its owner does not poll, and
// otherwise never allocates after set-up. The session's thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/core/calls/ring.h"
#include "client/core/calls/types.h"

namespace sluice::client {

class EventQueue {
 public:
  explicit EventQueue(std::size_t capacity) : ring_(std::max<std::size_t>(capacity, 4)) {}

  void push(Event event) {
    if (ring_.full()) grow();
    ring_.push(std::move(event));
  }
  bool empty() const noexcept { return ring_.empty(); }
  bool pop(Event& event) noexcept {
    if (ring_.empty()) return false;
    event = ring_.pop();
    return true;
  }

 private:
  void grow() {
    Ring<Event> bigger(2 * ring_.capacity());
    while (!ring_.empty()) bigger.push(ring_.pop());
    ring_ = std::move(bigger);
  }

  Ring<Event> ring_;
};

}  // namespace sluice::client
