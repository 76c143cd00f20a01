// What the streams of a session share: who it is, its flows, its counters, its events, and the
// first failure that ends it. Owned by the session; passed to the streams by reference.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/counters.h"
#include "client/core/link/event_queue.h"
#include "client/core/link/flow.h"

namespace sluice::client {

struct Link {
  explicit Link(std::size_t event_capacity) : events(event_capacity) {}

  wire::Sender identity;
  std::vector<Flow> flows;  // one a shard; empty before the join
  EventQueue events;
  Counters counters;
  Status failure;  // why the job cannot go on, as the first stream that noticed has put it

  bool joined() const noexcept { return !flows.empty(); }
  std::uint16_t shard_count() const noexcept { return static_cast<std::uint16_t>(flows.size()); }
  // Of every packet, so one shard costs no division.
  std::uint16_t shard_of_chunk(ChunkIndex chunk) const noexcept {
    return flows.size() == 1 ? std::uint16_t{0} : shard_of(chunk, shard_count());
  }
  // The membership is over. Counters go on.
  void disconnect() noexcept {
    CHECK(events.empty());
    identity = {};
    flows.clear();
    counters.steps_done = 0;
    failure = {};
  }
  void fail(Status why) noexcept {
    CHECK(!why.ok());
    if (failure.ok()) failure = std::move(why);
  }
};

}  // namespace sluice::client
