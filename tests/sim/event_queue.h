// The queue of all future events, ordered by (time, sequence). Ties break by insertion, so a run is
// a function of its seed.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "aggregator/base/time.h"

namespace sluice::sim {

enum class EventKind : std::uint8_t {
  kLinkReady,   // target: link; the frame on the wire is out, the next may start
  kLinkArrive,  // target: link, argument: frame
  // Of the appliance, with its boot as the argument:
  kControlService,  // its control thread wakes
  kShardService,    // target: shard
  kShardCommand,    // target: shard; the next command reaches it
  kShardEvent,      // target: shard; its next event reaches the control thread
  kTick,            // housekeeping of the appliance that runs
  kWorkerService,   // target: worker; its progress thread wakes for datagrams
  kWorkerTimeout,   // target: worker; its session's timer
  kWorkerApp,       // target: worker; its application goes on
  kUnreachable,     // target: worker; the appliance learns that nothing listens there
  kAction,          // argument: index of a scripted action
};

struct SimEvent {
  TimeNs at = 0;
  std::uint64_t sequence = 0;
  EventKind kind{};
  std::uint32_t target = 0;
  std::uint32_t argument = 0;
};

class EventQueue {
 public:
  void push(TimeNs at, EventKind kind, std::uint32_t target, std::uint32_t argument = 0) {
    heap_.push({at, next_sequence_++, kind, target, argument});
  }
  bool empty() const { return heap_.empty(); }
  const SimEvent& top() const { return heap_.top(); }
  SimEvent pop() {
    SimEvent event = heap_.top();
    heap_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const SimEvent& a, const SimEvent& b) const {
      return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
    }
  };
  std::priority_queue<SimEvent, std::vector<SimEvent>, Later> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace sluice::sim
