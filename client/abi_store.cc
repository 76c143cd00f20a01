// The C interface's parameter store.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "client/abi_call.h"

using sluice::Status;
using sluice::StatusCode;
using sluice::client::answer;
using sluice::client::guarded;
using sluice::client::Job;
using sluice::client::LayerClocks;

namespace {

Status bad(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

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
      known.laggards = found.at_clock;
      known.parked = found.parked;
      known.kept = kept;
      return status;
    });
  });
}

}  // extern "C"
