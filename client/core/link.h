// What the streams of a session share once it has joined: who it is, its flows, its counters and
// its events. Owned by the session; passed to the streams by reference.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/wire/packet.h"
#include "client/core/event_queue.h"
#include "client/core/flow.h"
#include "client/core/session.h"

namespace sluice::client {

struct Link {
  explicit Link(std::size_t event_capacity) : events(event_capacity) {}

  wire::Sender identity;
  std::vector<Flow> flows;  // one a shard; empty before the join
  EventQueue events;
  SessionStats stats;

  bool joined() const noexcept { return !flows.empty(); }
  std::uint16_t shard_count() const noexcept { return static_cast<std::uint16_t>(flows.size()); }
};

// What a stream did with a packet: a verdict, and a failure when the job cannot go on.
struct Outcome {
  Verdict verdict{};
  Status failure;
};

}  // namespace sluice::client
