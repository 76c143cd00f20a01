// The C interface (sluice.h): checks arguments, keeps exceptions in, remembers error texts.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "client/abi_call.h"
#include "client/abi_options.h"
#include "client/include/sluice/sluice.h"
#include "client/job.h"

using sluice::Status;
using sluice::StatusCode;
using sluice::client::answer;
using sluice::client::check_struct;
using sluice::client::guarded;
using sluice::client::Job;
using sluice::client::JoinRequest;
using sluice::client::last_error;
using sluice::client::Turn;
using sluice::wire::LeaveReason;

// Both enumerations have the same numbers.
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == SLUICE_INVALID_ARGUMENT &&
              static_cast<int>(StatusCode::kNotFound) == SLUICE_NOT_FOUND &&
              static_cast<int>(StatusCode::kRefused) == SLUICE_REFUSED &&
              static_cast<int>(StatusCode::kUnreachable) == SLUICE_UNREACHABLE &&
              static_cast<int>(StatusCode::kTimedOut) == SLUICE_TIMED_OUT &&
              static_cast<int>(StatusCode::kPeerLost) == SLUICE_PEER_LOST &&
              static_cast<int>(StatusCode::kExhausted) == SLUICE_EXHAUSTED &&
              static_cast<int>(StatusCode::kIoError) == SLUICE_IO_ERROR &&
              static_cast<int>(StatusCode::kClosed) == SLUICE_CLOSED &&
              static_cast<int>(StatusCode::kBusy) == SLUICE_BUSY &&
              static_cast<int>(StatusCode::kInterrupted) == SLUICE_INTERRUPTED &&
              static_cast<int>(StatusCode::kForked) == SLUICE_FORKED &&
              static_cast<int>(StatusCode::kInternal) == SLUICE_INTERNAL &&
              static_cast<int>(StatusCode::kBehind) == SLUICE_BEHIND);

namespace sluice::client {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

sluice_status remember(const Status& status) {
  last_error() = status.message();
  return static_cast<sluice_status>(status.code());
}

}  // namespace sluice::client

namespace {

Status check_collective(std::uint32_t root, const void* buffer, std::size_t bytes) {
  if (root > UINT16_MAX) {
    return {StatusCode::kInvalidArgument, "broadcast: there is no root " + std::to_string(root)};
  }
  if (buffer == nullptr || bytes == 0) {
    return {StatusCode::kInvalidArgument, "broadcast: buffer is NULL or bytes is 0"};
  }
  return {};
}

Status check_may_block(const Job& job, const char* call) {
  if (!job.on_own_thread()) return {};
  return {StatusCode::kInvalidArgument, std::string(call) + ": must not be called from a callback"};
}

Status leave(Job& job, LeaveReason reason, const char* call) {
  Status status = check_may_block(job, call);
  if (status.ok()) job.leave(reason);
  return status;
}

}  // namespace

extern "C" {

const char* sluice_version(void) { return SLUICE_VERSION_TEXT; }

const char* sluice_status_name(sluice_status status) {
  switch (status) {
    case SLUICE_OK: return "ok";
    case SLUICE_INVALID_ARGUMENT: return "invalid argument";
    case SLUICE_NOT_FOUND: return "not found";
    case SLUICE_REFUSED: return "refused";
    case SLUICE_UNREACHABLE: return "unreachable";
    case SLUICE_TIMED_OUT: return "timed out";
    case SLUICE_PEER_LOST: return "peer lost";
    case SLUICE_EXHAUSTED: return "exhausted";
    case SLUICE_IO_ERROR: return "input/output error";
    case SLUICE_CLOSED: return "closed";
    case SLUICE_BUSY: return "busy";
    case SLUICE_INTERRUPTED: return "interrupted";
    case SLUICE_FORKED: return "forked";
    case SLUICE_INTERNAL: return "internal error";
    case SLUICE_BEHIND: return "behind";
  }
  return "unknown";
}

const char* sluice_last_error(const sluice_job* job) {
  guarded([&]() -> Status {
    if (job == nullptr || job->impl->is_forked()) return {};
    const Status status = job->impl->status();
    if (!status.ok()) last_error() = status.message();
    return {};
  });
  return last_error().c_str();
}

sluice_status sluice_options_init(sluice_options* options) {
  return guarded([&]() -> Status {
    Status status = check_struct(options, "sluice_options");
    if (status.ok()) *options = sluice::client::default_options();
    return status;
  });
}

sluice_status sluice_set_log(sluice_log_fn log, void* user, sluice_log_level level) {
  return guarded([&]() -> Status {
    sluice::client::set_process_log({log, user, level});
    return {};
  });
}

sluice_status sluice_join(const sluice_options* options, const sluice_tensor* tensors, size_t count,
                          sluice_job** job) {
  return guarded([&]() -> Status {
    if (job == nullptr)
      return {StatusCode::kInvalidArgument, "job is NULL: nowhere to put the handle"};
    *job = nullptr;
    JoinRequest request;
    Status status = sluice::client::read_options(options, request);
    if (status.ok()) status = sluice::client::read_tensors(tensors, count, request);
    if (!status.ok()) return status;
    auto handle = std::make_unique<sluice_job>();
    status = Job::join(std::move(request), handle->impl);
    if (status.ok()) *job = handle.release();
    return status;
  });
}

sluice_status sluice_set_averaging(sluice_job* job, uint32_t tensor, int32_t averaging) {
  return guarded(job, [&](Job& impl) {
    sluice::AveragingChoice choice{};
    Status status = sluice::client::read_averaging(averaging, choice);
    return status.ok() ? impl.set_averaging(tensor, choice) : status;
  });
}

sluice_status sluice_get_residual(sluice_job* job, uint32_t tensor, float* values) {
  return guarded(job, [&](Job& impl) -> Status {
    if (values == nullptr) return {StatusCode::kInvalidArgument, "values is NULL"};
    return impl.get_residual(tensor, values);
  });
}

sluice_status sluice_set_residual(sluice_job* job, uint32_t tensor, const float* values) {
  return guarded(job, [&](Job& impl) -> Status {
    if (values == nullptr) return {StatusCode::kInvalidArgument, "values is NULL"};
    return impl.set_residual(tensor, values);
  });
}

sluice_status sluice_get_pruning(sluice_job* job, uint32_t tensor, uint64_t* position) {
  return guarded(job, [&](Job& impl) -> Status {
    if (position == nullptr) return {StatusCode::kInvalidArgument, "position is NULL"};
    return impl.get_pruning(tensor, *position);
  });
}

sluice_status sluice_set_pruning(sluice_job* job, uint32_t tensor, uint64_t position) {
  return guarded(job, [&](Job& impl) { return impl.set_pruning(tensor, position); });
}

sluice_status sluice_scale_residuals(sluice_job* job, double factor) {
  return guarded(job, [&](Job& impl) -> Status {
    if (!std::isfinite(factor))
      return {StatusCode::kInvalidArgument,
              "factor is " + std::to_string(factor) + "; it must be finite"};
    return impl.scale_residuals(factor);
  });
}

sluice_status sluice_flush_residuals(sluice_job* job) {
  return guarded(job, [&](Job& impl) { return impl.flush_residuals(); });
}

// ---- stragglers ----

static_assert(static_cast<int>(Turn::Kind::kCompute) == SLUICE_TURN_COMPUTE &&
              static_cast<int>(Turn::Kind::kCatchUp) == SLUICE_TURN_CATCH_UP &&
              static_cast<int>(Turn::Kind::kApply) == SLUICE_TURN_APPLY &&
              static_cast<int>(Turn::Kind::kSave) == SLUICE_TURN_SAVE &&
              static_cast<int>(Turn::Kind::kLoad) == SLUICE_TURN_LOAD);

sluice_status sluice_next_turn(sluice_job* job, int32_t timeout_ms, sluice_turn* turn) {
  return guarded(job, [&](Job& impl) {
    return answer(turn, "sluice_turn", [&](sluice_turn& known) {
      Turn found;
      Status status = impl.next_turn(timeout_ms, found);
      known.kind = static_cast<std::int32_t>(found.kind);
      known.step = found.step;
      if (found.state == nullptr) return status;
      known.data = found.state->data.get();
      known.bytes = found.state->bytes;
      return status;
    });
  });
}

sluice_status sluice_resync(sluice_job* job, int32_t timeout_ms, sluice_state* state) {
  return guarded(job, [&](Job& impl) {
    return answer(state, "sluice_state", [&](sluice_state& known) {
      const sluice::client::ReceivedState* received = nullptr;
      Status status = impl.resync(timeout_ms, received);
      if (!status.ok()) return status;
      known.data = received->data.get();
      known.bytes = received->bytes;
      known.step = received->step;
      return status;
    });
  });
}

sluice_status sluice_send_state(sluice_job* job, const void* data, uint64_t bytes, uint32_t step) {
  return guarded(job, [&](Job& impl) { return impl.send_state(data, bytes, step); });
}

// ---- collectives and the end ----

sluice_status sluice_broadcast(sluice_job* job, uint32_t root, void* buffer, size_t bytes,
                               int32_t timeout_ms) {
  return guarded(job, [&](Job& impl) -> Status {
    Status status = impl.status();
    if (status.ok()) status = check_collective(root, buffer, bytes);
    if (!status.ok()) return status;
    return impl.broadcast(sluice::Rank{static_cast<std::uint16_t>(root)}, buffer, bytes,
                          timeout_ms);
  });
}

sluice_status sluice_barrier(sluice_job* job, int32_t timeout_ms) {
  return guarded(job, [&](Job& impl) { return impl.barrier(timeout_ms); });
}

sluice_status sluice_leave(sluice_job* job) {
  return guarded(job, [](Job& impl) { return leave(impl, LeaveReason::kFinished, "leave"); });
}

sluice_status sluice_finish(sluice_job* job) {
  return guarded(job, [](Job& impl) { return leave(impl, LeaveReason::kUneven, "finish"); });
}

sluice_status sluice_abort(sluice_job* job) {
  return guarded(job, [](Job& impl) { return leave(impl, LeaveReason::kAbnormal, "abort"); });
}

sluice_status sluice_abort_with(sluice_job* job, const char* reason) {
  return guarded(job, [&](Job& impl) -> Status {
    if (reason == nullptr) return {StatusCode::kInvalidArgument, "reason is NULL"};
    Status status = check_may_block(impl, "abort_with");
    if (status.ok()) impl.leave(LeaveReason::kAborted, reason);
    return status;
  });
}

sluice_status sluice_close(sluice_job* job) {
  if (job == nullptr) return SLUICE_OK;
  return guarded(job, [&](Job& impl) -> Status {
    if (Status status = check_may_block(impl, "close"); !status.ok()) return status;
    delete job;
    return {};
  });
}

}  // extern "C"
