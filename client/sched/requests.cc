#include "client/sched/requests.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "aggregator/base/check.h"

namespace sluice::client {

RequestPool::RequestPool(const RequestSetup& setup)
    : policy_(setup.policy),
      clocks_(setup.layer_count),
      oldest_push_(setup.layer_count),
      places_(setup.layer_count) {
  CHECK(setup.layer_count != 0 && setup.pushes_per_layer != 0);
  queue(Direction::kPush).reserve(std::size_t{setup.layer_count} * setup.pushes_per_layer);
  queue(Direction::kPull).reserve(setup.layer_count);
  std::iota(places_.begin(), places_.end(), 0u);
}

void RequestPool::arrange(std::span<const LayerIndex> forward_order) noexcept {
  CHECK(forward_order.size() == places_.size());
  for (std::uint32_t place = 0; place < places_.size(); ++place)
    places_[forward_order[place]] = place;
}

void RequestPool::push(LayerIndex layer, Step iteration, std::uint32_t units) noexcept {
  Queue& pushes = queue(Direction::kPush);
  CHECK(layer < clocks_.size() && units != 0 && pushes.size() < pushes.capacity());
  pushes.push_back({.layer = layer, .iteration = iteration, .units = units, .number = number_++});
  if (oldest_push_[layer] == 0) oldest_push_[layer] = iteration;
}

void RequestPool::withdraw_push(LayerIndex layer) noexcept {
  if (oldest_push_[layer] == 0) return;
  std::erase_if(queue(Direction::kPush),
                [layer](const Request& each) { return each.layer == layer; });
  oldest_push_[layer] = 0;
}

void RequestPool::pull(LayerIndex layer, Step iteration, Step need, std::uint32_t units) noexcept {
  Queue& pulls = queue(Direction::kPull);
  CHECK(layer < clocks_.size() && units != 0);
  const auto waiting = std::ranges::find(pulls, layer, &Request::layer);
  if (waiting != pulls.end()) {
    waiting->need = std::max(waiting->need, need);
    waiting->units = units;
    waiting->taken = 0;  // what was asked for with the older need is asked for again
    return;
  }
  CHECK(pulls.size() < pulls.capacity());
  pulls.push_back(
      {.layer = layer, .iteration = iteration, .need = need, .units = units, .number = number_++});
}

// The store counts a layer's pushes in order, so only the oldest of each takes part.
bool RequestPool::may_go(Direction direction, const Request& request) const noexcept {
  return direction == Direction::kPull || oldest_push_[request.layer] == request.iteration;
}

// Stalest first, then the front of the model. Behind them come pulls that would only be parked, and
// last pulls that no rank needs yet.
bool RequestPool::pull_before(const Request& left, const Request& right) const noexcept {
  const auto rank = [this](const Request& request) {
    const auto staleness = static_cast<std::int64_t>(request.need) - clocks_[request.layer].held;
    return std::tuple(!needed(request), would_park(request), -staleness, place(request.layer));
  };
  return rank(left) < rank(right);
}

// First the push that can move a clock. The fewer ranks hold that clock back the better, then the
// more wait for it, then the front of the model, then the oldest.
bool RequestPool::push_before(const Request& left, const Request& right) const noexcept {
  const auto rank = [this](const Request& request) {
    const LayerClocks& clocks = clocks_[request.layer];
    const bool moves = clocks.pushed == clocks.clock;
    return std::tuple(request.taken == 0, !moves, moves ? clocks.at_clock : 0,
                      moves ? -int{clocks.parked} : 0, moves ? 0 : request.iteration,
                      place(request.layer));
  };
  return rank(left) < rank(right);
}

bool RequestPool::before(Direction direction, const Request& left,
                         const Request& right) const noexcept {
  if (policy_ == RequestPolicy::kFifo) return left.number < right.number;
  const bool is_left_old = is_old(left), is_right_old = is_old(right);
  if (is_left_old != is_right_old) return is_left_old;
  if (is_left_old) return left.number < right.number;
  if (policy_ == RequestPolicy::kFilo) return left.number > right.number;
  return direction == Direction::kPull ? pull_before(left, right) : push_before(left, right);
}

RequestPool::Queue::const_iterator RequestPool::choose(Direction direction) const noexcept {
  const Queue& requests = queue(direction);
  auto best = requests.end();
  for (auto it = requests.begin(); it != requests.end(); ++it)
    if (may_go(direction, *it) && (best == requests.end() || before(direction, *it, *best)))
      best = it;
  return best;
}

void RequestPool::take(Direction direction, Queue::const_iterator chosen,
                       RequestUnit& out) noexcept {
  Queue& requests = queue(direction);
  Request& request = requests[static_cast<std::size_t>(chosen - requests.cbegin())];
  out = {.direction = direction,
         .layer = request.layer,
         .iteration = request.iteration,
         .need = request.need,
         .unit = request.taken++,
         .last = request.taken == request.units,
         .would_park = direction == Direction::kPull && would_park(request)};
  if (!out.last) return;
  requests.erase(chosen);
  if (direction == Direction::kPull) return;
  Step& oldest = oldest_push_[out.layer];
  oldest = 0;
  for (const Request& other : requests)
    if (other.layer == out.layer && (oldest == 0 || other.iteration < oldest))
      oldest = other.iteration;
}

bool RequestPool::next(Direction direction, RequestUnit& out) noexcept {
  const auto chosen = choose(direction);
  if (chosen == queue(direction).cend()) return false;
  take(direction, chosen, out);
  return true;
}

bool RequestPool::next(bool suspended, RequestUnit& out) noexcept {
  const auto push = choose(Direction::kPush);
  const auto pull = choose(Direction::kPull);
  const bool has_push = push != queue(Direction::kPush).cend();
  const bool has_pull = pull != queue(Direction::kPull).cend();
  if (!has_push && !has_pull) return false;
  const bool pull_first = has_pull && (!has_push || suspended || pull->number < push->number);
  if (pull_first)
    take(Direction::kPull, pull, out);
  else
    take(Direction::kPush, push, out);
  return true;
}

Step RequestPool::oldest_age() const noexcept {
  Step oldest = iteration_;
  for (const Queue& requests : queues_)
    for (const Request& request : requests) oldest = std::min(oldest, request.iteration);
  return iteration_ - oldest;
}

void RequestPool::clear() noexcept {
  for (Queue& requests : queues_) requests.clear();
  std::ranges::fill(oldest_push_, 0);
}

std::string RequestPool::describe_plan() const {
  if (policy_ == RequestPolicy::kFifo) return "fifo: requests in the order of readiness\n";
  if (policy_ == RequestPolicy::kFilo)
    return "filo: the newest request first, but none older than two "
           "iterations\n";
  return "stalest: pulls of the stalest layer first, pushes that move a layer's "
         "clock first\n";
}

}  // namespace sluice::client
