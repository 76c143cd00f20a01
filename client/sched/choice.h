// The inputs and the answer of a scheduler. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::client {

// The policies that choose which chunk leaves next; the folder's README describes each.
enum class Schedule : std::uint8_t { kStrict, kCredit, kProphet, kFifo };

struct ScheduleOptions {
  Schedule policy = Schedule::kStrict;
  // kCredit only: the size of a unit, which is sent as a whole, and the most that may be in flight
  // when the next unit begins. The paper searches for both. A credit below the bandwidth-delay
  // product leaves the link idle.
  std::uint64_t unit_bytes = std::uint64_t{1} << 20;
  std::uint64_t credit_bytes = std::uint64_t{4} << 20;
};

// Values that are fixed before the first step.
struct ScheduleSetup {
  std::uint16_t shard_count = 1;
  std::uint32_t chunk_count = 0;
  std::size_t chunk_bytes = 0;  // of a full chunk
  // The first chunk of each tensor, and chunk_count. Empty: all chunks are one tensor. Read by the
  // constructor only.
  std::span<const ChunkIndex> first_chunks{};
};

// The state of the network: what it takes now.
struct WindowState {
  std::uint64_t open_shards = 0;  // bit s: the window of shard s has room
  std::uint64_t urgent_shards =
      0;  // it has none, except for chunks more urgent than those that fill it
  std::uint32_t in_flight_packets = 0;  // of all shards: sent and not known to have arrived
  std::uint32_t arrived_packets = 0;    // of all shards, from the start; wraps
  TimeNs now = 0;
};

struct Choice {
  ChunkIndex chunk = 0;
  std::uint16_t shard = 0;
  // The shard gets no more chunks before feedback comes or a chunk is pushed: ask for feedback.
  bool last = false;
};

}  // namespace sluice::client
