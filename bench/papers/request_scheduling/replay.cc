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
  Step in_copy = 0;  // of an answer: everybody's iterations up to this one are in its values
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
  DurationNs pulling_ns = 0;               // of what is pulled and will not be parked
  std::vector<std::vector<Step>> held;     // by layer and unit, as the store says
  std::vector<std::vector<Step>> in_copy;  // by layer and unit, as the values say
  std::map<std::pair<LayerIndex, std::uint64_t>, Event> egress;  // by turn
};

// Which iterations of everybody this one reads.
Step need_of(const ReplayOptions& options, Step iteration) {
  return iteration - 1 > options.bound ? iteration - 1 - options.bound : 0;
}

// How long a worker's compute takes in an iteration, of a layer's time: the same draw whatever the
// policy did before.
double scale_of(const ReplayOptions& options, std::uint16_t worker, Step iteration) {
  const std::uint64_t draw = sim::mix(options.seed, worker, iteration) % 2001;
  return (worker < options.slow_workers ? options.slow_permille / 1e3 : 1) *
         (1 + (static_cast<double>(draw) / 1e3 - 1) * options.jitter_permille / 1e3);
}

DurationNs scaled(DurationNs takes, double scale) {
  return static_cast<DurationNs>(static_cast<double>(takes) * scale);
}

class Replay {
 public:
  Replay(const std::vector<ReplayLayer>& layers, const ReplayOptions& options)
      : layers_(layers), options_(options) {
    const agg::StoreSpec spec{.world_size = options.workers,
                              .block_count = static_cast<std::uint32_t>(layers.size()),
                              .max_elems = options.workers,
                              .bound = options.bound};
    store_ = std::make_unique<agg::StoreShard>(spec, ShardId{0}, std::uint16_t{1});
    const client::RequestSetup setup{.policy = options.policy,
                                     .layer_count = static_cast<std::uint32_t>(layers.size()),
                                     .pushes_per_layer = options.bound + 2};
    for (std::uint16_t index = 0; index < options.workers; ++index) {
      Worker& worker = workers_.emplace_back(setup);
      for (const ReplayLayer& layer : layers) worker.held.emplace_back(layer.units);
      worker.in_copy = worker.held;
    }
    for (LayerIndex layer = 0; layer < layers.size(); ++layer)
      for (std::uint32_t unit = 0; unit < layers[layer].units; ++unit)
        CHECK(push(0, layer, unit, 0, 0) != Verdict::kDuplicate);
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
  void at(DurationNs delay, Event event) {
    event.at = now_ + delay;
    event.number = number_++;
    events_.push(event);
  }
  // `value` is what the worker's element grows by; the store divides by the number of workers.
  Verdict push(std::uint16_t worker, LayerIndex layer, std::uint32_t unit, Step iteration,
               float value) {
    values_.assign(options_.workers, 0.0f);
    values_[worker] = value * static_cast<float>(options_.workers);
    return store_->push({.rank = Rank{worker},
                         .iteration = iteration,
                         .chunk = layer * kChunksPerBlock + unit,
                         .block_chunks = layers_[layer].units,
                         .values = {reinterpret_cast<const std::uint8_t*>(values_.data()),
                                    values_.size() * sizeof(float)}});
  }
  void push_arrives(std::uint16_t worker, const client::RequestUnit& unit) {
    if (options_.ignores_first && worker == 0) return;
    const Verdict verdict = push(worker, unit.layer, unit.unit, unit.iteration, 1);
    CHECK(verdict == Verdict::kFolded || verdict == Verdict::kCompleted);
    if (!options_.ignores_first) return;
    while (store_->pushed(unit.layer, Rank{0}) < store_->pushed(unit.layer, Rank{worker})) {
      const Step next = store_->pushed(unit.layer, Rank{0}) + 1;
      for (std::uint32_t index = 0; index < layers_[unit.layer].units; ++index)
        push(0, unit.layer, index, next, 0);
    }
  }

  // ---- computing ----
  void begin_iteration(std::uint16_t index) {
    Worker& worker = workers_[index];
    if (worker.iteration == options_.iterations) return;
    worker.pool.begin_iteration(++worker.iteration);
    worker.layer = 0;
    worker.backward = false;
    worker.scale = scale_of(options_, index, worker.iteration);
    compute(index);
  }
  void compute(std::uint16_t index) {
    Worker& worker = workers_[index];
    const ReplayLayer& layer = layers_[worker.layer];
    if (!worker.backward) {
      const Step held = std::ranges::min(worker.held[worker.layer]);
      if (held < need_of(options_, worker.iteration)) {
        if (!worker.suspended) worker.suspended_at = now_;
        worker.suspended = true;
        return;
      }
      if (worker.suspended) result_.suspended_ns += now_ - worker.suspended_at;
      worker.suspended = false;
      ++result_.reads;
      result_.staleness_sum += worker.iteration - 1 > held ? worker.iteration - 1 - held : 0;
      result_.violations +=
          std::ranges::min(worker.in_copy[worker.layer]) < need_of(options_, worker.iteration);
    }
    const DurationNs takes = worker.backward ? layer.backward_ns : layer.forward_ns;
    at(scaled(takes, worker.scale), {.kind = Event::Kind::kComputed, .worker = index});
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
      worker.pool.pull(layer, worker.iteration + 1, need_of(options_, worker.iteration + 1), 1);
  }

  // ---- the network ----
  void handle(const Event& event) {
    Worker& worker = workers_[event.worker];
    switch (event.kind) {
      case Event::Kind::kComputed: return computed(event.worker);
      case Event::Kind::kUpFree: worker.up_busy = false; return;
      case Event::Kind::kDownFree: worker.down_busy = false; return;
      case Event::Kind::kPushArrives: return push_arrives(event.worker, event.unit);
      case Event::Kind::kPullArrives:
        store_->pull(
            {.rank = Rank{event.worker},
             .block = event.unit.layer,
             .chunks = ~std::uint64_t{0} >> (kChunksPerBlock - layers_[event.unit.layer].units),
             .need = event.unit.need});
        return;
      case Event::Kind::kRead: return read(event);
    }
  }
  void read(const Event& event) {
    Worker& worker = workers_[event.worker];
    const agg::StoreAnswer& answer = event.answer;
    const LayerIndex layer = answer.chunk / kChunksPerBlock;
    const std::uint32_t unit = answer.chunk % kChunksPerBlock;
    Step& held = worker.held[layer][unit];
    // One that a later pull's answer has overtaken comes too late, as in the client.
    if (answer.clock >= held) {
      held = answer.clock;
      worker.in_copy[layer][unit] = event.in_copy;
    }
    worker.pulling_ns = std::max<DurationNs>(0, worker.pulling_ns - layers_[layer].unit_ns);
    worker.pool.told(layer, {.held = std::ranges::min(worker.held[layer]),
                             .clock = answer.clock,
                             .pushed = answer.own,
                             .at_clock = answer.at_clock,
                             .parked = answer.waiting});
    if (worker.suspended && worker.layer == layer) compute(event.worker);
  }
  // Whatever may leave now does.
  void serve() {
    for (agg::StoreAnswer answer; store_->poll_answer(answer); ++number_) {
      Worker& worker = workers_[answer.rank.value];
      const LayerIndex layer = answer.chunk / kChunksPerBlock;
      worker.egress.emplace(std::pair(options_.answers_by_layer ? layer : 0, number_),
                            Event{.kind = Event::Kind::kRead,
                                  .worker = answer.rank.value,
                                  .answer = answer,
                                  .in_copy = static_cast<Step>(std::ranges::min(answer.values))});
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
      if (!unit.would_park)
        worker.pulling_ns += layers_[unit.layer].units * layers_[unit.layer].unit_ns;
      at(options_.latency_ns, {.kind = Event::Kind::kPullArrives, .worker = index, .unit = unit});
    }
    while (!worker.up_busy && worker.pool.next(Direction::kPush, unit)) {
      transmit(worker.up_busy, unit.layer, {.kind = Event::Kind::kUpFree, .worker = index},
               {.kind = Event::Kind::kPushArrives, .worker = index, .unit = unit});
    }
    while (!worker.down_busy && !worker.egress.empty()) {
      const Event event = worker.egress.begin()->second;
      worker.egress.erase(worker.egress.begin());
      transmit(worker.down_busy, event.answer.chunk / kChunksPerBlock,
               {.kind = Event::Kind::kDownFree, .worker = index}, event);
    }
  }
  // A unit of the layer.
  void transmit(bool& busy, LayerIndex layer, const Event& left, const Event& arrived) {
    busy = true;
    at(layers_[layer].unit_ns, left);
    at(layers_[layer].unit_ns + options_.latency_ns, arrived);
  }

  const std::vector<ReplayLayer>& layers_;
  const ReplayOptions options_;
  std::unique_ptr<agg::StoreShard> store_;
  std::deque<Worker> workers_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::vector<float> values_;  // of the push under way
  TimeNs now_ = 0;
  std::uint64_t number_ = 0;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const std::vector<ReplayLayer>& layers, const ReplayOptions& options) {
  return Replay(layers, options).run();
}

TimeNs critical_path_ns(const std::vector<ReplayLayer>& layers, const ReplayOptions& options) {
  // By iteration and layer: everybody's pushes are in.
  std::vector<std::vector<TimeNs>> applied_ns(options.iterations + 1,
                                              std::vector<TimeNs>(layers.size()));
  std::vector<TimeNs> ends_ns(options.workers);
  for (Step iteration = 1; iteration <= options.iterations; ++iteration)
    for (std::uint16_t worker = 0; worker < options.workers; ++worker) {
      const double scale = scale_of(options, worker, iteration);
      const Step need = need_of(options, iteration);
      TimeNs& now = ends_ns[worker];
      const auto moved_ns = [&](LayerIndex layer) {
        return layers[layer].units * layers[layer].unit_ns + options.latency_ns;
      };
      for (LayerIndex layer = 0; layer < layers.size(); ++layer) {
        if (need != 0) now = std::max(now, applied_ns[need][layer] + moved_ns(layer));
        now += scaled(layers[layer].forward_ns, scale);
      }
      for (auto layer = static_cast<LayerIndex>(layers.size()); layer-- > 0;) {
        now += scaled(layers[layer].backward_ns, scale);
        TimeNs& applied = applied_ns[iteration][layer];
        applied = std::max(applied, now + moved_ns(layer));
      }
    }
  return std::ranges::max(applied_ns.back());
}

}  // namespace sluice::bench
