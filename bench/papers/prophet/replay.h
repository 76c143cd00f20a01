// Iterations of synchronous training in virtual time, packet by packet, over the production
// scheduler: backward makes gradients ready, the link of each worker carries what the scheduler
// hands out, sums come back, and the next forward pass goes layer by layer as they land.
//
// Not here: the protocol. Nothing is lost, the aggregator takes no time, and a packet is handed out
// when the link is free, so a window never closes. replay_session.cc drives the whole production
// session and aggregator through the same iterations, as a check on this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "client/sched/scheduler.h"

namespace sluice::bench {

// In forward order.
struct ReplayTensor {
  std::uint64_t bytes = 0;
  DurationNs ready_ns = 0;    // after the start of the backward pass
  DurationNs forward_ns = 0;  // of its layer, begun when the tensor's average is here
};

struct ReplayOptions {
  client::ScheduleOptions schedule;
  std::uint64_t bits_per_second = 0;          // each worker's link, each way, of payload
  std::uint32_t change_after = 0;             // iterations of worker 0 at that rate
  std::uint64_t changed_bits_per_second = 0;  // and then at this one; 0: no change
  DurationNs latency_ns = 0;  // from a packet's last bit sent until its feedback is here
  std::size_t chunk_bytes = 0;
  std::uint16_t workers = 1;  // without jitter all do the same: one is enough
  std::uint32_t iterations = 0;
  std::uint32_t jitter_permille = 0;  // a worker's compute in an iteration: 1 +- at most so much
  std::uint64_t seed = 1;
  bool equal_priorities = false;  // all tensors have priority 0; else the index
  // Results leave the aggregator when a piece of a tensor of so many bytes has been summed, as a
  // server that stores and forwards has them; 0: packet by packet.
  std::uint64_t store_bytes = 0;
};

struct ReplayResult {
  // Of worker 0, an element an iteration.
  std::vector<DurationNs> iteration_ns;  // start of a backward pass to the next
  std::vector<DurationNs> link_busy_ns;  // its uplink sent; empty: not counted
  std::vector<DurationNs> compute_ns;    // it computed; empty: not counted
};

// Of the tensor with this index among `count`: its place, squeezed into 0 .. 255 as the PyTorch
// hook does it.
constexpr Priority priority_of(std::size_t tensor, std::size_t count) noexcept {
  return static_cast<Priority>(count <= 256 ? tensor : tensor * 256 / count);
}

ReplayResult replay(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options);

}  // namespace sluice::bench
