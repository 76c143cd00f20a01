// Training over a stale-synchronous parameter store in virtual time: the
// production store core (aggregator/store) and the production pool of requests
// (client/sched/requests.h), one of it a worker, joined by links of the bench's
// own.
//
// A worker computes layer by layer: the forward pass of iteration t waits at a
// layer until the copy that is here has a clock of t - 1 - bound; each layer's
// push and its pull for the next iteration become ready when the layer's
// backward pass ends, or all of them when the whole one does. Each worker has one link, full
// duplex; a unit of a layer takes unit_ns each way and arrives a latency later. What the store
// answers stands in a queue before the worker's link: by layer, as packets carry priorities, or in
// the order of the answers. Requests to pull take no time on the link. Nothing is lost.
//
// Values say what a copy holds: each worker has an element of its own in every unit and adds 1 to
// it with each push. So whether a read keeps the bound does not depend on the store's clocks.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregator/base/time.h"
#include "client/sched/requests.h"

namespace sluice::bench {

// In forward order.
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
  std::uint32_t slow_permille = 1000;  // of everybody else's compute times
  std::uint32_t jitter_permille = 0;   // a worker's compute in an iteration: 1 +- at most so much
  std::uint64_t seed = 1;
  DurationNs latency_ns = 0;
  bool answers_by_layer = false;  // else in their order
  bool push_at_step = false;      // layers become ready when the whole backward pass has ended
  // A mutant that must show violations: clocks do not wait for the first worker, whose pushes count
  // as soon as another one's of that iteration has come, with nothing in them.
  bool ignores_first = false;
};

struct ReplayResult {
  TimeNs end_ns = 0;            // everybody's last push is applied
  DurationNs suspended_ns = 0;  // of all workers
  std::uint64_t reads = 0;
  std::uint64_t staleness_sum = 0;  // of all reads: t - 1 less the copy's clock
  // Reads of copies that lack a push of anybody's iterations up to t - 1 - bound.
  std::uint64_t violations = 0;
};

ReplayResult replay(const std::vector<ReplayLayer>& layers, const ReplayOptions& options);
// No order of requests ends earlier: a layer's push and pull wait for no other layer's.
TimeNs critical_path_ns(const std::vector<ReplayLayer>& layers, const ReplayOptions& options);

}  // namespace sluice::bench
