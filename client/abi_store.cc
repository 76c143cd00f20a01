// The C interface's parameter store.
#include "client/abi_store.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "client/abi_call.h"

using sluice::Status;
using sluice::StatusCode;
using sluice::UpdateRule;
using sluice::client::answer;
using sluice::client::guarded;
using sluice::client::Job;
using sluice::client::LayerClocks;

namespace sluice::client {
namespace {

static_assert(static_cast<int>(UpdateRule::kDelta) == SLUICE_UPDATE_DELTA &&
              static_cast<int>(UpdateRule::kSgd) == SLUICE_UPDATE_SGD &&
              static_cast<int>(UpdateRule::kAdam) == SLUICE_UPDATE_ADAM &&
              kNoBound == SLUICE_NO_BOUND);
static_assert(static_cast<int>(StoreKeep::kKeep) == SLUICE_STORE_KEEP &&
              static_cast<int>(StoreKeep::kEnd) == SLUICE_STORE_END &&
              static_cast<int>(StoreKeep::kAnew) == SLUICE_STORE_ANEW &&
              static_cast<int>(StoreKeep::kTake) == SLUICE_STORE_TAKE);
static_assert(static_cast<int>(RequestPolicy::kStalest) == SLUICE_REQUESTS_STALEST &&
              static_cast<int>(RequestPolicy::kFifo) == SLUICE_REQUESTS_FIFO &&
              static_cast<int>(RequestPolicy::kFilo) == SLUICE_REQUESTS_FILO);

Status bad(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

StoreOptions store_of(const sluice_options& options) {
  return {.bound = options.staleness_bound,
          .update = {.rule = static_cast<UpdateRule>(options.update),
                     .weight_decay = options.weight_decay,
                     .momentum = options.momentum,
                     .dampening = options.dampening,
                     .nesterov = static_cast<std::uint8_t>(options.nesterov != 0),
                     .beta1 = options.beta1,
                     .beta2 = options.beta2,
                     .epsilon = options.epsilon,
                     .interpolates = static_cast<std::uint8_t>(options.adam_lerp != 0)}};
}

}  // namespace

void set_default_store(sluice_options& options) {
  const StoreOptions defaults;
  options.beta1 = defaults.update.beta1;
  options.beta2 = defaults.update.beta2;
  options.epsilon = defaults.update.epsilon;
}

Status read_store(const sluice_options& options, SessionOptions& session) {
  if (options.kind != SLUICE_JOB_SUMS && options.kind != SLUICE_JOB_STORE)
    return bad("options.kind is " + std::to_string(options.kind) +
               "; use one of sluice_job_kind, SLUICE_JOB_SUMS for the default");
  if (options.update < SLUICE_UPDATE_DELTA || options.update > SLUICE_UPDATE_ADAM)
    return bad("options.update is " + std::to_string(options.update) +
               "; use one of sluice_update, SLUICE_UPDATE_DELTA for the default");
  if (options.keep < SLUICE_STORE_KEEP || options.keep > SLUICE_STORE_TAKE)
    return bad("options.keep is " + std::to_string(options.keep) +
               "; use one of sluice_keep, SLUICE_STORE_KEEP for the default");
  if (options.requests < SLUICE_REQUESTS_STALEST || options.requests > SLUICE_REQUESTS_FILO)
    return bad("options.requests is " + std::to_string(options.requests) +
               "; use one of sluice_requests, SLUICE_REQUESTS_STALEST for the default");
  const StoreOptions store = store_of(options);
  if (options.kind == SLUICE_JOB_SUMS) {
    if (store == StoreOptions{} && options.keep == SLUICE_STORE_KEEP &&
        options.requests == SLUICE_REQUESTS_STALEST)
      return {};
    return bad(
        "options.staleness_bound and what follows it are of a parameter store; leave them out, or "
        "set options.kind to SLUICE_JOB_STORE");
  }
  if (options.wire != SLUICE_WIRE_FLOAT32)
    return bad("options.wire: a parameter store's values travel as float32; leave it out");
  if (options.prune != SLUICE_PRUNE_OFF)
    return bad("options.prune: what is pushed to a parameter store leaves whole; leave it out");
  session.store = store;
  session.keep = static_cast<StoreKeep>(options.keep);
  session.requests = static_cast<RequestPolicy>(options.requests);
  return {};
}

namespace {

// Every tensor of the layer has memory.
template <class Pointer>
Status check_pointers(const char* call, const Pointer* pointers, std::size_t count) {
  if (pointers == nullptr || count == 0)
    return bad(std::string(call) + ": the pointers are NULL or count is 0");
  const auto* const missing = std::find(pointers, pointers + count, nullptr);
  if (missing == pointers + count) return {};
  return bad(std::string(call) + ": pointer " + std::to_string(missing - pointers) + " is NULL");
}

}  // namespace
}  // namespace sluice::client

using sluice::client::check_pointers;

extern "C" {

sluice_status sluice_initialise(sluice_job* job, uint32_t layer, const float* const* values,
                                size_t count) {
  return guarded(job, [&](Job& impl) {
    Status status = check_pointers("initialise", values, count);
    return status.ok() ? impl.initialise(layer, {values, count}) : status;
  });
}

sluice_status sluice_push(sluice_job* job, uint32_t layer, const float* const* deltas, size_t count,
                          double rate) {
  return guarded(job, [&](Job& impl) -> Status {
    Status status = check_pointers("push", deltas, count);
    if (!status.ok()) return status;
    if (!std::isfinite(rate))
      return {StatusCode::kInvalidArgument,
              "push: rate is " + std::to_string(rate) + "; it must be finite"};
    return impl.push(layer, {deltas, count}, rate);
  });
}

sluice_status sluice_pull(sluice_job* job, uint32_t layer, float* const* copies, size_t count) {
  return guarded(job, [&](Job& impl) {
    Status status = check_pointers("pull", copies, count);
    return status.ok() ? impl.pull(layer, {copies, count}) : status;
  });
}

sluice_status sluice_wait_push(sluice_job* job, uint32_t layer, int32_t timeout_ms) {
  return guarded(job, [&](Job& impl) { return impl.wait_push(layer, timeout_ms); });
}

sluice_status sluice_wait_pull(sluice_job* job, uint32_t layer, int32_t timeout_ms) {
  return guarded(job, [&](Job& impl) { return impl.wait_pull(layer, timeout_ms); });
}

sluice_status sluice_get_clocks(sluice_job* job, uint32_t layer, sluice_clocks* clocks) {
  return guarded(job, [&](Job& impl) {
    return answer(clocks, "sluice_clocks", [&](sluice_clocks& known) {
      LayerClocks found;
      bool kept = false;
      Status status = impl.clocks(layer, found, kept);
      known.pushed = found.pushed;
      known.held = found.held;
      known.clock = found.clock;
      known.at_clock = found.at_clock;
      known.parked = found.parked;
      known.kept = kept;
      return status;
    });
  });
}

}  // extern "C"
