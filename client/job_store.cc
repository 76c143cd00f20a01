// The calls on a job of kind store.
#include "client/job.h"
#include "client/job_wait.h"

namespace sluice::client {

// With the lock held, while the job works.
Status Job::find_store(LayerIndex layer, const char* call, Store*& store) const {
  if (Status status = shared_.session.status(); !status.ok()) return status;
  store = shared_.session.store();
  const auto refuse = [&](const std::string& why) -> Status {
    return {StatusCode::kInvalidArgument, place_ + call + ": " + why};
  };
  if (store == nullptr) return refuse("the job is no parameter store");
  if (layer >= store->layer_count())
    return refuse("there is no layer " + std::to_string(layer) + " of " +
                  std::to_string(store->layer_count()));
  return {};
}

// A warning about a store that is older than the worker may think; empty: none.
std::string Job::kept_note() const {
  const Lock lock = shared_.mutex.lock();
  const Store* store = shared_.session.store();
  if (store == nullptr || !store->kept()) return {};
  return place_ +
         "the appliance has kept the store's parameters since its last workers went, up "
         "to iteration " +
         std::to_string(store->clocks(0).pushed) +
         ": initial values are ignored. For a fresh start take SLUICE_STORE_ANEW or another "
         "job name";
}

Status Job::check_finite(LayerIndex layer, std::span<const float* const> values,
                         const char* call) const {
  Store* store = nullptr;
  {
    const Lock lock = shared_.mutex.lock();
    if (Status status = find_store(layer, call, store); !status.ok()) return status;
  }
  return store->check_finite(layer, values, call);
}

Status Job::initialise(LayerIndex layer, std::span<const float* const> values) {
  if (Status status = check_finite(layer, values, "initialise"); !status.ok()) return status;
  const Lock lock = shared_.mutex.lock();
  Store* store = nullptr;
  Status status = find_store(layer, "initialise", store);
  if (status.ok()) status = store->initialise(layer, values);
  if (status.ok()) shared_.wake();
  return status;
}

Status Job::push(LayerIndex layer, std::span<const float* const> deltas, double rate) {
  if (Status status = check_finite(layer, deltas, "push"); !status.ok()) return status;
  const Lock lock = shared_.mutex.lock();
  Store* store = nullptr;
  Status status = find_store(layer, "push", store);
  if (status.ok()) status = store->push(layer, deltas, rate);
  if (status.ok()) shared_.wake();
  return status;
}

Status Job::pull(LayerIndex layer, std::span<float* const> copies) {
  const Lock lock = shared_.mutex.lock();
  Store* store = nullptr;
  Status status = find_store(layer, "pull", store);
  if (status.ok()) status = store->pull(layer, copies);
  if (status.ok()) shared_.wake();
  return status;
}

// `kept`: see Store::kept().
Status Job::clocks(LayerIndex layer, LayerClocks& clocks, bool& kept) const {
  const Lock lock = shared_.mutex.lock();
  Store* store = nullptr;
  Status status = find_store(layer, "get_clocks", store);
  if (!status.ok()) return status;
  clocks = store->clocks(layer);
  kept = store->kept();
  return {};
}

Status Job::wait_push(LayerIndex layer, std::int32_t timeout_ms) {
  Lock lock = shared_.mutex.lock();
  Store* store = nullptr;
  Status status = find_store(layer, "wait_push", store);
  if (!status.ok()) return status;
  return wait(
      lock, timeout_ms, [&] { return !shared_.ended() && !store->pushing(layer); },
      [&] { return "push of layer " + std::to_string(layer); });
}

// This worker computes nothing meanwhile, so its pulls leave before its pushes.
Status Job::wait_pull(LayerIndex layer, std::int32_t timeout_ms) {
  Lock lock = shared_.mutex.lock();
  Store* store = nullptr;
  Status status = find_store(layer, "wait_pull", store);
  if (!status.ok()) return status;
  store->note_needed(layer);
  const auto ready = [&] { return !shared_.ended() && !store->pulling(layer); };
  const auto what = [&] { return "pull of layer " + std::to_string(layer); };
  const TimeNs begun_ns = monotonic_now();
  TimeNs now = begun_ns;
  if (ready() || timeout_ms == 0) {
    status = wait(lock, timeout_ms, ready, what);
  } else {
    ++pulls_awaited_;
    store->suspend(true, begun_ns);
    const Finally over{[&] {
      now = monotonic_now();
      store->suspend(--pulls_awaited_ != 0, now);
    }};
    status = wait(lock, timeout_ms, ready, what);
  }
  if (status.ok() && trace_ != nullptr)
    trace_->returned(store->first_tensor(layer), now, now - begun_ns);
  return status;
}

}  // namespace sluice::client
