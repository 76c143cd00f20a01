// A parameter store and its workers' pools of requests as a shared library that Python loads: one
// production store, one production pool for each worker, real values, and no time. A push is in at
// once; a pull is back as soon as the store answers.
//
// As sluice.torch.StaleSynchronous does, a worker pushes all layers when its gradient is ready and
// pulls them for its next iteration, which begins when all have come. The C ABI at the end is
// private to this folder (store.py is its only caller). One thread.
#include "aggregator/store/store.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "client/sched/requests.h"

namespace sluice::bench {
namespace {

using client::Direction;
using client::LayerIndex;

constexpr std::uint32_t kChunkElems = kMaxChunkBytes / sizeof(float);

struct Layer {
  std::size_t begin = 0;  // of its elements among the model's
  std::uint32_t elem_count = 0;
  std::uint32_t chunk_count() const { return (elem_count + kChunkElems - 1) / kChunkElems; }
};

struct Worker {
  explicit Worker(const client::RequestSetup& setup) : pool(setup) {}

  client::RequestPool pool;
  Step pushed = 0;            // iterations
  std::uint32_t missing = 0;  // chunks of what is pulled
  std::vector<Step> held;     // clocks of the layers that were pulled last
  std::vector<float> parameters;
};

class Store {
 public:
  Store(std::uint16_t workers, Step bound, std::span<const std::uint32_t> layer_elems,
        const float* initial)
      : bound_(bound) {
    std::size_t begin = 0;
    for (const std::uint32_t elem_count : layer_elems) {
      layers_.push_back({.begin = begin, .elem_count = elem_count});
      CHECK(layers_.back().chunk_count() <= kChunksPerBlock);
      begin += elem_count;
    }
    const agg::StoreSpec spec{.world_size = workers,
                              .block_count = static_cast<std::uint32_t>(layers_.size()),
                              .max_elems = kChunkElems,
                              .bound = bound,
                              .update = {.rule = UpdateRule::kSgd},
                              .in_rank_order = bound == 0};
    CHECK(agg::check_store(spec).ok());
    store_ = std::make_unique<agg::StoreShard>(spec, ShardId{0}, std::uint16_t{1});
    for (LayerIndex layer = 0; layer < layers_.size(); ++layer)
      for (std::uint32_t chunk = 0; chunk < layers_[layer].chunk_count(); ++chunk)
        CHECK(push(0, layer, chunk, 0, 0, initial));
    const client::RequestSetup setup{.layer_count = static_cast<std::uint32_t>(layers_.size())};
    for (std::uint16_t rank = 0; rank < workers; ++rank) {
      Worker& worker = workers_.emplace_back(setup);
      worker.held.resize(layers_.size());
      worker.parameters.resize(begin);
      request(rank);
    }
    drain();
  }

  // The gradient of the worker's next iteration; and the pulls for the one after it.
  bool push(std::uint16_t rank, double rate, const float* gradient) {
    Worker& worker = workers_[rank];
    if (worker.missing != 0) return false;
    ++worker.pushed;
    for (auto layer = static_cast<LayerIndex>(layers_.size()); layer-- > 0;)
      worker.pool.push(layer, worker.pushed, layers_[layer].chunk_count());
    client::RequestUnit unit;
    while (worker.pool.next(Direction::kPush, unit))
      if (!push(rank, unit.layer, unit.unit, unit.iteration, rate, gradient)) return false;
    request(rank);
    drain();
    return true;
  }

  // A worker whose next iteration may begin; -1: no other one may.
  int next_ready() {
    if (ready_.empty()) return -1;
    const std::uint16_t rank = ready_.front();
    ready_.pop_front();
    return rank;
  }
  const float* read(std::uint16_t rank) const { return workers_[rank].parameters.data(); }
  // Iterations by which the oldest layer of the worker's copy is behind its own.
  Step staleness(std::uint16_t rank) const {
    const Worker& worker = workers_[rank];
    return worker.pushed - std::min(worker.pushed, std::ranges::min(worker.held));
  }
  void parameters(float* out) const {
    for (LayerIndex layer = 0; layer < layers_.size(); ++layer)
      for (std::uint32_t chunk = 0; chunk < layers_[layer].chunk_count(); ++chunk)
        std::ranges::copy(store_->parameters(layer * kChunksPerBlock + chunk),
                          out + layers_[layer].begin + std::size_t{chunk} * kChunkElems);
  }

 private:
  bool push(std::uint16_t rank, LayerIndex layer, std::uint32_t chunk, Step iteration, double rate,
            const float* model) {
    const std::uint32_t begin = chunk * kChunkElems;
    const std::uint32_t elem_count = std::min(kChunkElems, layers_[layer].elem_count - begin);
    const float* values = model + layers_[layer].begin + begin;
    const Verdict verdict = store_->push(
        {.rank = Rank{rank},
         .iteration = iteration,
         .chunk = layer * kChunksPerBlock + chunk,
         .rate = rate,
         .block_chunks = layers_[layer].chunk_count(),
         .values = {reinterpret_cast<const std::uint8_t*>(values), elem_count * sizeof(float)}});
    return verdict == Verdict::kFolded || verdict == Verdict::kCompleted;
  }

  void request(std::uint16_t rank) {
    Worker& worker = workers_[rank];
    const Step next = worker.pushed + 1;
    const Step need = bound_ == kNoBound || worker.pushed < bound_ ? 0 : worker.pushed - bound_;
    worker.pool.begin_iteration(next);
    for (auto layer = static_cast<LayerIndex>(layers_.size()); layer-- > 0;) {
      worker.pool.pull(layer, next, need, 1);
      worker.missing += layers_[layer].chunk_count();
    }
    client::RequestUnit unit;
    while (worker.pool.next(Direction::kPull, unit)) {
      const std::uint32_t chunk_count = layers_[unit.layer].chunk_count();
      CHECK(store_->pull({.rank = Rank{rank},
                          .block = unit.layer,
                          .chunks = ~std::uint64_t{0} >> (kChunksPerBlock - chunk_count),
                          .need = unit.need,
                          .own = worker.pushed}) == Verdict::kProbe);
    }
  }

  void drain() {
    for (agg::StoreAnswer answer; store_->poll_answer(answer);) {
      Worker& worker = workers_[answer.rank.value];
      const LayerIndex layer = answer.chunk / kChunksPerBlock;
      const std::size_t begin = answer.chunk % kChunksPerBlock * std::size_t{kChunkElems};
      std::ranges::copy(
          answer.values,
          worker.parameters.begin() + static_cast<std::ptrdiff_t>(layers_[layer].begin + begin));
      worker.held[layer] = answer.clock;
      worker.pool.told(layer, {.held = answer.clock,
                               .clock = answer.clock,
                               .pushed = answer.own,
                               .at_clock = answer.at_clock,
                               .parked = answer.waiting});
      CHECK(worker.missing > 0);
      if (--worker.missing == 0) ready_.push_back(answer.rank.value);
    }
  }

  const Step bound_;
  std::vector<Layer> layers_;
  std::unique_ptr<agg::StoreShard> store_;
  std::deque<Worker> workers_;
  std::deque<std::uint16_t> ready_;
};

Store& store_of(void* self) { return *static_cast<Store*>(self); }

}  // namespace

extern "C" {

void* training_store_new(std::uint16_t workers, std::uint32_t bound,
                         const std::uint32_t* layer_elems, std::uint32_t layer_count,
                         const float* initial) {
  return new Store(workers, bound, {layer_elems, layer_count}, initial);
}
void training_store_free(void* self) { delete static_cast<Store*>(self); }

// 0; -1: the store refused it, a bug of the trainer.
int training_store_push(void* self, std::uint16_t rank, double rate, const float* gradient) {
  return store_of(self).push(rank, rate, gradient) ? 0 : -1;
}
int training_store_next_ready(void* self) { return store_of(self).next_ready(); }
// What the worker computes with: valid until its next iteration.
const float* training_store_read(void* self, std::uint16_t rank) {
  return store_of(self).read(rank);
}
std::uint32_t training_store_staleness(void* self, std::uint16_t rank) {
  return store_of(self).staleness(rank);
}
// The store's own, whoever has read them.
void training_store_parameters(void* self, float* out) { store_of(self).parameters(out); }

}  // extern "C"
}  // namespace sluice::bench
