// Decides which request to a parameter store is sent next: the push of a layer, or the pull of one.
//
// The pool has a queue of ready requests for each direction. A request is handed out in units (a
// block of chunks), and each unit is chosen anew, so that a more useful request can overtake
// between two units. The appliance's answers tell the clocks of a layer; they may be old, which
// affects the order of requests and never whether one is sent. Pure; the session's thread only; no
// allocation after construction, but for texts.
//
// The policies:
//  - fifo: in the order of readiness.
//  - filo: the newest first.
//  - stalest, pulls: 1. the stalest layer first, of equally stale layers the front of the model;
//    2. pulls that would only be parked; 3. pulls for which the local copy is new enough (their
//    answers should be the least urgent, or they delay answers that are waited for).
//  - stalest, pushes: 1. a push that has begun is finished, since only whole pushes move a clock;
//    2. layers whose clock this worker holds back: those that the fewest others hold back first,
//    then those with the most parked pulls, then the front of the model; 3. the oldest push.
//
// Under all policies but fifo, requests that are more than two iterations old go first. A layer's
// pushes leave in order under each policy, because the store counts them only in order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/types.h"

namespace sluice::client {

enum class RequestPolicy : std::uint8_t { kStalest, kFifo, kFilo };
enum class Direction : std::uint8_t { kPush, kPull };

using LayerIndex = std::uint32_t;

struct RequestSetup {
  RequestPolicy policy = RequestPolicy::kStalest;
  std::uint32_t layer_count = 0;
  // The number of pushes of one layer that may wait: the bound and one more, or as many as the
  // worker keeps.
  std::uint32_t pushes_per_layer = 2;
};

// The clocks of a layer as the appliance last told them, and those of this worker's copy and
// pushes.
struct LayerClocks {
  Step held = 0;               // of the local copy
  Step clock = 0;              // c, the least over all members
  Step pushed = 0;             // v, this worker's own
  std::uint16_t at_clock = 0;  // n, members that hold the clock back
  std::uint16_t parked = 0;    // pulls that wait for it
};

struct RequestUnit {
  Direction direction{};
  LayerIndex layer = 0;
  Step iteration = 0;  // of a push; the iteration for which a pull reads
  Step need = 0;       // of a pull
  std::uint32_t unit = 0;
  bool last = false;        // of its request
  bool would_park = false;  // of a pull: by the last known clock it would be parked
};

class RequestPool {
 public:
  // Requests of iterations so far behind the current one go first, the oldest first, so that none
  // starves. Not with fifo, which needs no such rule.
  static constexpr Step kOldIterations = 2;

  explicit RequestPool(const RequestSetup& setup);

  // The order in which the forward pass needs the layers, all of them; before the call it is that
  // of their indices.
  void arrange(std::span<const LayerIndex> forward_order) noexcept;
  std::uint32_t place(LayerIndex layer) const noexcept { return places_[layer]; }
  // The worker now computes this iteration.
  void begin_iteration(Step iteration) noexcept { iteration_ = iteration; }
  // The layer's push of `iteration` is ready, in `units` units. Precondition: `iteration` is one
  // more than that of its last push, and fewer than pushes_per_layer wait.
  void push(LayerIndex layer, Step iteration, std::uint32_t units) noexcept;
  // What waits of the layer's pushes need not leave.
  void withdraw_push(LayerIndex layer) noexcept;
  // `iteration` reads the layer and needs a copy with the clock `need`. If a pull of the layer
  // still waits, it becomes this one and keeps its age.
  void pull(LayerIndex layer, Step iteration, Step need, std::uint32_t units) noexcept;
  // Sets newer values of the clocks of a layer.
  void told(LayerIndex layer, const LayerClocks& clocks) noexcept { clocks_[layer] = clocks; }
  const LayerClocks& clocks(LayerIndex layer) const noexcept { return clocks_[layer]; }

  // The next unit in one direction. False: none waits.
  bool next(Direction direction, RequestUnit& out) noexcept;
  // The next unit of both directions, if they share a link: pulls first while the worker is
  // suspended, else the direction of the older request.
  bool next(bool suspended, RequestUnit& out) noexcept;

  bool empty(Direction direction) const noexcept { return queue(direction).empty(); }
  // How many iterations the oldest request is behind the current one; 0: none waits.
  Step oldest_age() const noexcept;
  void clear() noexcept;
  std::string describe_plan() const;

 private:
  struct Request {
    LayerIndex layer = 0;
    Step iteration = 0;
    Step need = 0;
    std::uint32_t units = 0;
    std::uint32_t taken = 0;
    std::uint64_t number = 0;  // by the order in which requests became ready
  };
  using Queue = std::vector<Request>;

  Queue& queue(Direction direction) noexcept { return queues_[static_cast<int>(direction)]; }
  const Queue& queue(Direction direction) const noexcept {
    return queues_[static_cast<int>(direction)];
  }
  bool may_go(Direction direction, const Request& request) const noexcept;
  bool is_old(const Request& request) const noexcept {
    return request.iteration + kOldIterations < iteration_;
  }
  bool needed(const Request& request) const noexcept {
    return clocks_[request.layer].held < request.need;
  }
  bool would_park(const Request& request) const noexcept {
    return clocks_[request.layer].clock < request.need;
  }
  bool before(Direction direction, const Request& left, const Request& right) const noexcept;
  bool pull_before(const Request& left, const Request& right) const noexcept;
  bool push_before(const Request& left, const Request& right) const noexcept;
  Queue::const_iterator choose(Direction direction) const noexcept;
  void take(Direction direction, Queue::const_iterator chosen, RequestUnit& out) noexcept;

  const RequestPolicy policy_;
  Queue queues_[2];
  std::vector<LayerClocks> clocks_;
  std::vector<Step> oldest_push_;      // of each layer with a waiting push; else 0
  std::vector<std::uint32_t> places_;  // of layers in forward order
  Step iteration_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace sluice::client
