// Iterations of synchronous training in virtual time, packet by packet, over the production
// scheduler. Backward makes gradients ready, the link of each worker carries the scheduler's
// packets, sums come back, and the next forward pass goes layer by layer as they land.
//
// The protocol is left out. Nothing is lost, the aggregator takes no time, and a packet is handed
// out when the link is free, so a window never closes. replay_session.cc drives the whole
// production session and aggregator through the same iterations, as a check on this model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "client/sched/scheduler.h"

namespace sluice::bench {

// The tensors, in forward order.
struct ReplayTensor {
  std::uint64_t bytes = 0;
  DurationNs ready_ns = 0;    // after the start of the backward pass
  DurationNs forward_ns = 0;  // of its layer, which waits for the tensor's average
};

struct ReplayOptions {
  client::ScheduleOptions schedule;
  std::uint64_t bits_per_second = 0;          // each worker's link, each way, of payload
  std::uint32_t change_after = 0;             // iterations of worker 0 at that rate
  std::uint64_t changed_bits_per_second = 0;  // and then at this one; 0: no change
  DurationNs latency_ns = 0;  // from a packet's last bit sent until its feedback is here
  std::size_t chunk_bytes = 0;
  std::uint16_t workers = 1;  // without jitter all act alike: one is enough
  std::uint32_t iterations = 0;
  std::uint32_t jitter_permille = 0;  // a worker's compute in an iteration: 1 +- at most this
  std::uint64_t seed = 1;
  bool equal_priorities = false;  // all tensors have priority 0; else the index
  // The aggregator sends results when a piece of a tensor of this many bytes is summed, as a server
  // that stores and forwards does; 0: packet by packet.
  std::uint64_t store_bytes = 0;
};

struct ReplayResult {
  // Of worker 0, one element for each iteration.
  std::vector<DurationNs> iteration_ns;  // start of a backward pass to the next
  std::vector<DurationNs> link_busy_ns;  // its uplink sent; empty: not counted
  std::vector<DurationNs> compute_ns;    // it computed; empty: not counted
};

// The priority of tensor `index` of `count`: its place, squeezed into 0 .. 255 as the PyTorch hook
// does it.
constexpr Priority priority_of(std::size_t tensor, std::size_t count) noexcept {
  return static_cast<Priority>(count <= 256 ? tensor : tensor * 256 / count);
}

ReplayResult replay(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options);

}  // namespace sluice::bench
