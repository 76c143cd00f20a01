// The choice of a scheduler, made once at set-up: which chunk of a flow leaves next.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "aggregator/base/types.h"
#include "client/sched/fifo.h"
#include "client/sched/strict.h"

namespace sluice::client {

enum class Schedule : std::uint8_t { kStrict, kFifo };

// One of the queues behind one interface; a branch a call, no virtual function.
class Scheduler {
 public:
  Scheduler(Schedule schedule, std::span<ChunkIndex> links) noexcept : queue_(StrictQueue(links)) {
    if (schedule == Schedule::kFifo) queue_ = FifoQueue(links);
  }
  void push(ChunkIndex chunk, Priority priority) noexcept {
    if (auto* strict = std::get_if<StrictQueue>(&queue_))
      strict->push(chunk, priority);
    else
      std::get_if<FifoQueue>(&queue_)->push(chunk, priority);
  }
  bool empty() const noexcept {
    const auto* strict = std::get_if<StrictQueue>(&queue_);
    return strict != nullptr ? strict->empty() : std::get_if<FifoQueue>(&queue_)->empty();
  }
  Priority top() const noexcept {
    const auto* strict = std::get_if<StrictQueue>(&queue_);
    return strict != nullptr ? strict->top() : std::get_if<FifoQueue>(&queue_)->top();
  }
  ChunkIndex pop() noexcept {
    auto* strict = std::get_if<StrictQueue>(&queue_);
    return strict != nullptr ? strict->pop() : std::get_if<FifoQueue>(&queue_)->pop();
  }
  void clear() noexcept {
    if (auto* strict = std::get_if<StrictQueue>(&queue_))
      strict->clear();
    else
      std::get_if<FifoQueue>(&queue_)->clear();
  }

 private:
  std::variant<StrictQueue, FifoQueue> queue_;
};

}  // namespace sluice::client
