// What a scheduler is told and what it answers. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::client {

// What is fixed before the first step.
struct ScheduleSetup {
  std::uint16_t shard_count = 1;
  std::uint32_t chunk_count = 0;
  std::size_t chunk_bytes = 0;  // of a full chunk
};

// What the network takes now.
struct Opportunity {
  std::uint64_t open_shards = 0;        // bit s: the window of shard s has room
  std::uint32_t in_flight_packets = 0;  // of all shards: sent, and not known to have arrived
  TimeNs now = 0;

  bool is_open(std::uint16_t shard) const noexcept { return open_shards >> shard & 1; }
};

struct Choice {
  ChunkIndex chunk = 0;
  std::uint16_t shard = 0;
  // The shard gets nothing more before feedback comes or something is pushed: ask for feedback.
  bool last = false;
};

}  // namespace sluice::client
