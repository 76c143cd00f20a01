// The next act of a rank in a job whose steps can be complete without it: the one order of calls
// that keeps all replicas equal.
#include "client/clock.h"
#include "client/job.h"
#include "client/job_wait.h"

namespace sluice::client {

// A step was given out, to be computed or caught up with: waits until it can be applied.
Status Job::await_turn(Lock& lock, std::int32_t timeout_ms, Turn& turn) {
  const Tensors& tensors = shared_.calls.tensors();
  const auto wanted = [&] { return !offered_ && wanted_by() >= 0; };
  const auto over = [&] { return !shared_.calls.behind_status().ok() || shared_.at_rest(); };
  Status status = wait(
      lock, timeout_ms, [&] { return !shared_.ended() && (over() || wanted()); },
      [&] { return "step " + std::to_string(due_step_); });
  if (!status.ok()) return status;
  if (!shared_.calls.behind_status().ok()) {  // its result is lost to this rank
    due_step_ = 0;
    return {};
  }
  const Step last = tensors.current() - 1;
  if (!over()) {
    turn = {.kind = Turn::Kind::kSave, .step = last};
    offered_ = true;
    return {};
  }
  if (last < due_step_)
    return {StatusCode::kInvalidArgument,
            place_ + "next_turn: step " + std::to_string(due_step_) +
                " was given out and is not submitted in full; submit the rest, or end the step"};
  turn = {.kind = Turn::Kind::kApply, .step = last};
  due_step_ = 0;
  offered_ = false;
  if (trace_ != nullptr) trace_->all_returned(monotonic_now());
  return {};
}

Status Job::next_turn(std::int32_t timeout_ms, Turn& turn) {
  turn = {};
  Lock lock = shared_.mutex.lock();
  Status status = shared_.ended() ? shared_.status() : Status();
  if (status.ok() && due_step_ != 0) status = await_turn(lock, timeout_ms, turn);
  if (!status.ok() || turn.kind != Turn::Kind::kNone) return status;
  if (!shared_.calls.behind_status().ok()) {
    lock.unlock();
    status = resync(timeout_ms, turn.state);
    if (!status.ok()) return status;
    turn.kind = Turn::Kind::kLoad;
    turn.step = turn.state->step;
    offered_ = false;
    return {};
  }
  if (!offered_ && wanted_by() >= 0) {
    turn = {.kind = Turn::Kind::kSave, .step = shared_.calls.tensors().current() - 1};
    offered_ = true;
    return {};
  }
  offered_ = false;
  due_step_ = shared_.calls.tensors().filling();
  turn = {.kind = shared_.session.behind() == 0 ? Turn::Kind::kCompute : Turn::Kind::kCatchUp,
          .step = due_step_};
  return {};
}

}  // namespace sluice::client
