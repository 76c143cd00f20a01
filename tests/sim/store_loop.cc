#include "tests/sim/store_loop.h"

#include <algorithm>

#include "tests/sim/random.h"
#include "tests/sim/worker.h"
#include "tests/sim/world.h"

namespace sluice::sim {

StoreLoop::StoreLoop(World& world, Worker& worker) : world_(world), worker_(worker) {
  const std::vector<client::TensorSpec>& tensors = worker.plan.tensors;
  for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (tensors[tensor].begins_block) first_tensors_.push_back(tensor);
    copies_.emplace_back(tensors[tensor].elem_count, -1.0f);
    deltas_.emplace_back(tensors[tensor].elem_count);
  }
  first_tensors_.push_back(static_cast<std::uint32_t>(tensors.size()));
}

template <class Pointer>
std::vector<Pointer> StoreLoop::pointers(std::vector<std::vector<float>>& memory,
                                         std::uint32_t layer) {
  std::vector<Pointer> all;
  for (std::uint32_t t = first_tensors_[layer]; t < first_tensors_[layer + 1]; ++t)
    all.push_back(memory[t].data());
  return all;
}

bool StoreLoop::expect_ok(const Status& status, const char* what) {
  if (!status.ok())
    world_.oracle().violation("store: job " + worker_.plan.name + " rank " +
                              std::to_string(worker_.identity.rank.value) + ": " + what +
                              " was refused: " + status.message());
  return status.ok();
}

// A worker that might be lost must not be the only one with the initial values.
void StoreLoop::start() {
  client::Store& store = *worker_.session().store();
  iteration_ = store.clocks(0).pushed + 1;
  world_.stores().joined(worker_.party(), worker_.plan, iteration_);
  if (worker_.plan.loses_ranks || worker_.identity.rank.value == 0)
    for (std::uint32_t layer = 0; layer < layer_count(); ++layer) {
      counting_ +=
          expect_ok(store.initialise(layer, pointers<const float*>(deltas_, layer)), "initialise");
    }
}

void StoreLoop::on_event(const client::Event& event) {
  if (!event.status.ok()) return;  // what follows says why
  if (event.kind == client::Event::Kind::kPullDone) --pulling_;
  if (event.kind != client::Event::Kind::kPushDone) return;
  --counting_;
  if (event.step != 0) world_.stores().counted(worker_.party(), event.tensor, event.step);
}

bool StoreLoop::pull(std::uint32_t layer) {
  client::Store& store = *worker_.session().store();
  for (std::uint32_t t = first_tensors_[layer]; t < first_tensors_[layer + 1]; ++t)
    std::ranges::fill(copies_[t], -1.0f);
  pulling_ += expect_ok(store.pull(layer, pointers<float*>(copies_, layer)), "pull");
  return true;
}

void StoreLoop::push(std::uint32_t layer) {
  client::Store& store = *worker_.session().store();
  const std::size_t world = worker_.plan.world_size();
  for (std::uint32_t t = first_tensors_[layer]; t < first_tensors_[layer + 1]; ++t)
    for (std::size_t i = 0; i < deltas_[t].size(); ++i)
      deltas_[t][i] = i % world == worker_.identity.rank.value ? StoreOracle::kUnit : 0;
  // A rate of -1 makes SGD add what is pushed.
  if (!expect_ok(store.push(layer, pointers<const float*>(deltas_, layer), -1), "push")) return;
  ++counting_;
  world_.stores().pushed(worker_.party(), layer, iteration_);
}

void StoreLoop::check(std::uint32_t layer, Step iteration) {
  const Step own = iteration_ - 1;
  const Step bound = worker_.plan.session.store->bound;
  const client::Layout& layout = worker_.layout;
  for (std::uint32_t tensor = first_tensors_[layer]; tensor < first_tensors_[layer + 1]; ++tensor) {
    for (ChunkIndex chunk = layout.first_chunk(tensor); chunk < layout.end_chunk(tensor); ++chunk) {
      const client::ChunkSpan span = layout.chunk(chunk);
      world_.books().read(
          {.party = worker_.party(),
           .chunk = chunk,
           .need = own > bound ? own - bound : 0,
           .own = own,
           .values =
               std::span<const float>(copies_[tensor]).subspan(span.first_elem, span.elem_count)});
    }
    world_.stores().check({.party = worker_.party(),
                           .layer = layer,
                           .iteration = iteration,
                           .tensor = tensor,
                           .values = copies_[tensor]},
                          worker_.plan, layout);
  }
}

bool StoreLoop::begin_iteration(TimeNs now) {
  if (iteration_ > worker_.plan.ranks[worker_.identity.rank.value].last_step) {
    over_ = true;
    return false;
  }
  if (!asked_) {
    asked_ = true;
    for (std::uint32_t layer = 0; layer < layer_count(); ++layer) pull(layer);
  }
  worker_.session().store()->suspend(true, now);
  if (pulling_ != 0) return false;
  worker_.session().store()->suspend(false, now);
  // Half of them go through their layers from the last to the first.
  const bool backwards = mix(worker_.plan.seed, worker_.identity.index, 0xF0) % 2 == 0;
  for (std::uint32_t layer = 0; layer < layer_count(); ++layer) {
    worker_.session().store()->note_needed(backwards ? layer_count() - 1 - layer : layer);
    check(layer, iteration_);
  }
  due_ns_ = now + worker_.plan.compute_ns(worker_.identity.rank, iteration_);
  if (due_ns_ > now) world_.events().push(due_ns_, EventKind::kWorkerApp, worker_.identity.index);
  return true;
}

bool StoreLoop::advance(TimeNs now) {
  if (!worker_.session().status().ok()) return false;
  if (reading_last_) {
    if (pulling_ != 0 || !asked_) return false;
    for (std::uint32_t layer = 0; layer < layer_count(); ++layer) check(layer, kLastStep);
    asked_ = false;
    return true;
  }
  if (over_ || iteration_ == 0) return false;
  if (due_ns_ == kNever) return begin_iteration(now);
  // Initial values may still be on their way when another rank's have been read.
  if (now < due_ns_ || counting_ != 0) return false;
  due_ns_ = kNever;
  for (std::uint32_t layer = layer_count(); layer-- > 0;) push(layer);
  ++iteration_;
  // Half of them ask for the next iteration's layers at once, while their pushes are on their way.
  const bool ahead = mix(worker_.plan.seed, worker_.identity.index, 0xA5) % 2 == 0;
  const bool more = iteration_ <= worker_.plan.ranks[worker_.identity.rank.value].last_step;
  asked_ = ahead && more;
  for (std::uint32_t layer = 0; asked_ && layer < layer_count(); ++layer) pull(layer);
  return true;
}

void StoreLoop::read_last() {
  if (reading_last_ || !worker_.session().status().ok()) return;
  reading_last_ = asked_ = true;
  for (std::uint32_t layer = 0; layer < layer_count(); ++layer) pull(layer);
}

}  // namespace sluice::sim
