#include "bench/papers/request_scheduling/replay.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <queue>

#include "aggregator/base/check.h"
#include "aggregator/store/store.h"
#include "tests/sim/random.h"

namespace sluice::bench {
namespace {

using client::Direction;
using client::LayerIndex;

struct Event {
  enum class Kind : std::uint8_t {
    kComputed,
    kUpFree,
    kPushArrives,
    kPullArrives,
    kDownFree,
    kRead
  };
  TimeNs at = 0;
  std::uint64_t number = 0;
  Kind kind{};
  std::uint16_t worker = 0;
  client::RequestUnit unit;
  agg::StoreAnswer answer;
};

struct Later {
  bool operator()(const Event& left, const Event& right) const noexcept {
    return left.at != right.at ? left.at > right.at : left.number > right.number;
  }
};

struct Worker {
  explicit Worker(const client::RequestSetup& setup) : pool(setup) {}

  client::RequestPool pool;
  Step iteration = 0;
  LayerIndex layer = 0;
  bool backward = false;
  bool suspended = false;
  TimeNs suspended_at = 0;
  double scale = 1;
  bool up_busy = false;
  bool down_busy = false;
  DurationNs pulling_ns = 0;            // of what is pulled and will not be parked
  std::vector<std::vector<Step>> held;  // by layer and unit
  std::map<std::pair<LayerIndex, std::uint64_t>, agg::StoreAnswer> egress;  // by turn
  std::vector<TimeNs> pushed_at;  // by layer: the last unit has left
  std::vector<bool> needs;        // by layer: the last pull was needed
};

class Replay {
 public:
  Replay(const std::vector<ReplayLayer>& layers, const ReplayOptions& options)
      : layers_(layers), options_(options) {
    const agg::StoreSpec spec{.world_size = options.workers,
                              .block_count = static_cast<std::uint32_t>(layers.size()),
                              .max_elems = 1,
                              .bound = options.bound};
    store_ = std::make_unique<agg::StoreShard>(spec, ShardId{0}, std::uint16_t{1});
    const client::RequestSetup setup{.policy = options.policy,
                                     .layer_count = static_cast<std::uint32_t>(layers.size()),
                                     .pushes_per_layer = options.bound + 2};
    for (std::uint16_t index = 0; index < options.workers; ++index) {
      Worker& worker = workers_.emplace_back(setup);
      for (const ReplayLayer& layer : layers) worker.held.emplace_back(layer.units);
      worker.needs.resize(layers.size());
      worker.pushed_at.resize(layers.size());
    }
    for (LayerIndex layer = 0; layer < layers.size(); ++layer)
      for (std::uint32_t unit = 0; unit < layers[layer].units; ++unit)
        CHECK(push(0, layer, unit, 0) != Verdict::kDuplicate);
  }

  ReplayResult run() {
    for (std::uint16_t index = 0; index < options_.workers; ++index) begin_iteration(index);
    for (; !events_.empty(); serve()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      handle(event);
    }
    for (LayerIndex layer = 0; layer < layers_.size(); ++layer)
      CHECK(store_->clock(layer) == options_.iterations);
    result_.end_ns = now_;
    return result_;
  }

 private:
  Step need(Step iteration) const {
    return iteration - 1 > options_.bound ? iteration - 1 - options_.bound : 0;
  }
  void at(DurationNs delay, Event event) {
    event.at = now_ + delay;
    event.number = number_++;
    events_.push(event);
  }
  Verdict push(std::uint16_t worker, LayerIndex layer, std::uint32_t unit, Step iteration) {
    const std::uint8_t zeros[sizeof(float)]{};
    return store_->push({.rank = Rank{worker},
                         .iteration = iteration,
                         .chunk = layer * kChunksPerBlock + unit,
                         .block_chunks = layers_[layer].units,
                         .values = zeros});
  }

  // ---- computing ----
  void begin_iteration(std::uint16_t index) {
    Worker& worker = workers_[index];
    if (worker.iteration == options_.iterations) return;
    worker.pool.begin_iteration(++worker.iteration);
    worker.layer = 0;
    worker.backward = false;
    worker.scale = index < options_.slow_workers ? options_.slow_permille / 1e3 : 1;
    // The same draw whatever the policy did before.
    const std::uint64_t draw = sim::mix(options_.seed, index, worker.iteration) % 2001;
    worker.scale *= 1 + (static_cast<double>(draw) / 1e3 - 1) * options_.jitter_permille / 1e3;
    compute(index);
  }
  void compute(std::uint16_t index) {
    Worker& worker = workers_[index];
    const ReplayLayer& layer = layers_[worker.layer];
    if (!worker.backward) {
      const Step held = std::ranges::min(worker.held[worker.layer]);
      if (held < need(worker.iteration)) {
        if (!worker.suspended) worker.suspended_at = now_;
        worker.suspended = true;
        return;
      }
      if (worker.suspended) result_.suspended_ns += now_ - worker.suspended_at;
      worker.suspended = false;
      ++result_.reads;
      result_.staleness_sum += worker.iteration - 1 > held ? worker.iteration - 1 - held : 0;
      result_.violations += store_->clock(worker.layer) < need(worker.iteration);
    }
    const DurationNs takes = worker.backward ? layer.backward_ns : layer.forward_ns;
    at(static_cast<DurationNs>(static_cast<double>(takes) * worker.scale),
       {.kind = Event::Kind::kComputed, .worker = index});
  }
  void computed(std::uint16_t index) {
    Worker& worker = workers_[index];
    if (!worker.backward) {
      if (worker.layer + 1 < layers_.size())
        ++worker.layer;
      else
        worker.backward = true;
      return compute(index);
    }
    if (!options_.push_at_step) request(worker, worker.layer);
    if (worker.layer != 0) {
      --worker.layer;
      return compute(index);
    }
    if (options_.push_at_step)
      for (auto layer = static_cast<LayerIndex>(layers_.size()); layer-- > 0;)
        request(worker, layer);
    begin_iteration(index);
  }
  void request(Worker& worker, LayerIndex layer) {
    worker.pool.push(layer, worker.iteration, layers_[layer].units);
    if (worker.iteration < options_.iterations)
      worker.pool.pull(layer, worker.iteration + 1, need(worker.iteration + 1), 1);
  }

  // ---- the network ----
  void handle(const Event& event) {
    Worker& worker = workers_[event.worker];
    switch (event.kind) {
      case Event::Kind::kComputed: return computed(event.worker);
      case Event::Kind::kUpFree: worker.up_busy = false; return;
      case Event::Kind::kDownFree: worker.down_busy = false; return;
      case Event::Kind::kPushArrives: {
        const Verdict verdict =
            push(event.worker, event.unit.layer, event.unit.unit, event.unit.iteration);
        CHECK(verdict == Verdict::kFolded || verdict == Verdict::kCompleted);
        return;
      }
      case Event::Kind::kPullArrives:
        store_->pull(
            {.rank = Rank{event.worker},
             .block = event.unit.layer,
             .chunks = ~std::uint64_t{0} >> (kChunksPerBlock - layers_[event.unit.layer].units),
             .need = event.unit.need});
        return;
      case Event::Kind::kRead: return read(event.worker, event.answer);
    }
  }
  void read(std::uint16_t index, const agg::StoreAnswer& answer) {
    Worker& worker = workers_[index];
    const LayerIndex layer = answer.chunk / kChunksPerBlock;
    Step& held = worker.held[layer][answer.chunk % kChunksPerBlock];
    held = std::max(held, answer.clock);
    worker.pulling_ns = std::max<DurationNs>(0, worker.pulling_ns - layers_[layer].unit_ns);
    worker.pool.told(layer, {.held = std::ranges::min(worker.held[layer]),
                             .clock = answer.clock,
                             .pushed = answer.own,
                             .at_clock = answer.at_clock,
                             .parked = answer.waiting});
    if (worker.suspended && worker.layer == layer) compute(index);
  }
  // Whatever may leave now does.
  void serve() {
    for (agg::StoreAnswer answer; store_->poll_answer(answer); ++number_) {
      Worker& worker = workers_[answer.rank.value];
      const LayerIndex layer = answer.chunk / kChunksPerBlock;
      const auto last = static_cast<LayerIndex>(layers_.size());
      const LayerIndex turn = options_.policy != client::RequestPolicy::kStalest ? 0
                              : worker.needs[layer]                              ? layer
                                                                                 : layer + last;
      worker.egress.emplace(std::pair(turn, number_), answer);
    }
    for (std::uint16_t index = 0; index < options_.workers; ++index) serve(index);
  }
  void serve(std::uint16_t index) {
    Worker& worker = workers_[index];
    client::RequestUnit unit;
    // About what is under way anyhow: more would only take the order out of the
    // pool's hands.
    while (worker.pulling_ns <= 2 * options_.latency_ns &&
           worker.pool.next(Direction::kPull, unit)) {
      worker.needs[unit.layer] = unit.needed;
      if (!unit.would_park)
        worker.pulling_ns += layers_[unit.layer].units * layers_[unit.layer].unit_ns;
      at(options_.latency_ns, {.kind = Event::Kind::kPullArrives, .worker = index, .unit = unit});
    }
    while (!worker.up_busy && worker.pool.next(Direction::kPush, unit)) {
      DurationNs sent = transmit(worker.up_busy, unit.layer, unit.unit,
                                 {.kind = Event::Kind::kUpFree, .worker = index});
      // Without limit too the store counts a layer's pushes in order.
      TimeNs& pushed_at = worker.pushed_at[unit.layer];
      pushed_at = std::max(pushed_at, now_ + sent);
      sent = pushed_at - now_;
      at(sent + options_.latency_ns,
         {.kind = Event::Kind::kPushArrives, .worker = index, .unit = unit});
    }
    while (!worker.down_busy && !worker.egress.empty()) {
      const agg::StoreAnswer answer = worker.egress.begin()->second;
      worker.egress.erase(worker.egress.begin());
      const LayerIndex layer = answer.chunk / kChunksPerBlock;
      const DurationNs sent = transmit(worker.down_busy, layer, answer.chunk % kChunksPerBlock,
                                       {.kind = Event::Kind::kDownFree, .worker = index});
      at(sent + options_.latency_ns,
         {.kind = Event::Kind::kRead, .worker = index, .answer = answer});
    }
  }
  // Until the unit has left. Without limit it waits for nothing but the layer's
  // units before it.
  DurationNs transmit(bool& busy, LayerIndex layer, std::uint32_t unit, const Event& when_free) {
    if (options_.unlimited_links) return (unit + 1) * layers_[layer].unit_ns;
    busy = true;
    at(layers_[layer].unit_ns, when_free);
    return layers_[layer].unit_ns;
  }

  const std::vector<ReplayLayer>& layers_;
  const ReplayOptions options_;
  std::unique_ptr<agg::StoreShard> store_;
  std::deque<Worker> workers_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  TimeNs now_ = 0;
  std::uint64_t number_ = 0;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const std::vector<ReplayLayer>& layers, const ReplayOptions& options) {
  return Replay(layers, options).run();
}

}  // namespace sluice::bench
