// Training over a stale-synchronous parameter store in virtual time: the production store core
// (aggregator/store), and for each worker the production pool of requests
// (client/sched/requests.h), joined by links of the bench's own.
//
// A worker computes layer by layer. The forward pass of iteration t waits at a layer until the
// worker's copy has a clock of t - 1 - bound. Each layer's push, and its pull for the next
// iteration, become ready when the layer's backward pass ends, or all of them when the whole pass
// ends. Each worker has one link, full duplex; a unit of a layer takes unit_ns each way and arrives
// a latency later. The store's answers wait in a queue before the worker's link: by layer, as
// packets carry priorities, or in their order. Requests to pull take no time on the link. Nothing
// is lost.
//
// The values show what a copy holds: each worker has an element of its own in every unit and adds 1
// to it with each push. So a test of the bound does not depend on the store's clocks.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/base/time.h"
#include "client/sched/requests.h"

namespace sluice::bench {

// The layers, in forward order.
struct ReplayLayer {
  std::uint32_t units = 1;  // 1 .. 64
  DurationNs unit_ns = 0;   // of one on a link
  DurationNs forward_ns = 0;
  DurationNs backward_ns = 0;
};

struct ReplayOptions {
  client::RequestPolicy policy{};
  Step bound = 0;
  Step iterations = 0;
  std::uint16_t workers = 1;
  std::uint16_t slow_workers = 0;      // the first ones
  std::uint32_t slow_permille = 1000;  // of the other workers' compute times
  std::uint32_t jitter_permille = 0;   // a worker's compute in an iteration: 1 +- at most this
  std::uint64_t seed = 1;
  DurationNs latency_ns = 0;
  bool answers_by_layer = false;  // false: in the order of the answers
  bool push_at_step = false;      // layers become ready when the whole backward pass has ended
  // A mutant that must show violations. Clocks do not wait for worker 0: its push of an iteration
  // counts, with nothing in it, as soon as another worker's has come.
  bool ignores_first = false;
};

struct ReplayResult {
  TimeNs end_ns = 0;            // the last push of every worker is applied
  DurationNs suspended_ns = 0;  // of all workers
  std::uint64_t reads = 0;
  std::uint64_t staleness_sum = 0;  // of all reads: t - 1 less the copy's clock
  // Reads of copies that lack a worker's push of an iteration up to t - 1 - bound.
  std::uint64_t violations = 0;
};

ReplayResult replay(const std::vector<ReplayLayer>& layers, const ReplayOptions& options);
// The critical path: no order of requests ends earlier, since no layer's push and pull wait for
// another layer's.
TimeNs critical_path_ns(const std::vector<ReplayLayer>& layers, const ReplayOptions& options);

}  // namespace sluice::bench
