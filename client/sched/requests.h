// Which request to a parameter store goes next: a layer's push, or a layer's pull.
//
// The pool of what is ready, one queue a direction; a request is handed out in units (a block of
// chunks), and which one is decided anew for each, so that what is more useful overtakes between
// two units. What is known of a layer's clocks comes from the appliance's answers and may be old:
// it changes the order of requests and never whether one is sent. Pure; the session's thread only;
// no allocation after construction, but for texts.
//
// fifo: by readiness. filo: the newest. stalest: pull the stalest layer, of equally stale ones the
// front of the model, then what would only be parked, last what the copy that is here would do for
// (its answer should be the least urgent, or it delays one that is waited for); push the layer
// whose clock this worker holds back, the fewest others first, then most parked pulls, then the
// front; else the oldest; but finish a push that has begun, since only whole ones move a clock. All
// but fifo let what is older than two iterations go first. A layer's pushes leave in order under
// each policy: the store counts no others.
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
  // How many pushes of one layer may wait: the bound and one more, or what the worker keeps.
  std::uint32_t pushes_per_layer = 2;
};

// What the appliance last said of a layer, and what this worker has of it.
struct LayerClocks {
  Step held = 0;               // of the copy that is here
  Step clock = 0;              // c, the least over all members
  Step pushed = 0;             // v, this worker's own
  std::uint16_t at_clock = 0;  // n, members that hold the clock back
  std::uint16_t parked = 0;    // pulls that wait for it
};

struct RequestUnit {
  Direction direction{};
  LayerIndex layer = 0;
  Step iteration = 0;  // of a push; of a pull: for which it reads
  Step need = 0;       // of a pull
  std::uint32_t unit = 0;
  bool last = false;        // of its request
  bool would_park = false;  // of a pull: the clock was behind when last heard of
};

class RequestPool {
 public:
  // Requests of iterations so far behind the one under way go first, oldest first, so that none
  // starves; not with fifo, which needs no such rule.
  static constexpr Step kOldIterations = 2;

  explicit RequestPool(const RequestSetup& setup);

  // Forward needs the layers in this order, all of them; until it is known, that of their indices.
  void arrange(std::span<const LayerIndex> forward_order) noexcept;
  std::uint32_t place(LayerIndex layer) const noexcept { return places_[layer]; }
  // The worker computes this iteration now.
  void begin_iteration(Step iteration) noexcept { iteration_ = iteration; }
  // The layer's change in `iteration` is ready, in `units` units. Precondition: one more than its
  // last, and fewer than pushes_per_layer wait.
  void push(LayerIndex layer, Step iteration, std::uint32_t units) noexcept;
  // `iteration` reads the layer and needs a copy of this clock. A pull that still waits becomes
  // this one and keeps its age.
  void pull(LayerIndex layer, Step iteration, Step need, std::uint32_t units) noexcept;
  // Of the clocks of a layer, newer values.
  void told(LayerIndex layer, const LayerClocks& clocks) noexcept { clocks_[layer] = clocks; }
  const LayerClocks& clocks(LayerIndex layer) const noexcept { return clocks_[layer]; }

  // The next unit in one direction. False: none waits.
  bool next(Direction direction, RequestUnit& out) noexcept;
  // The next unit of both where they share a way: pulls first while the worker is suspended, else
  // the older request's direction.
  bool next(bool suspended, RequestUnit& out) noexcept;

  bool empty(Direction direction) const noexcept { return queue(direction).empty(); }
  // Iterations behind the one under way, of the oldest request; 0: none waits.
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
    std::uint64_t number = 0;  // in the order in which they became ready
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
  std::vector<Step> oldest_push_;      // of each layer that has one waiting; else 0
  std::vector<std::uint32_t> places_;  // of layers in forward order
  Step iteration_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace sluice::client
