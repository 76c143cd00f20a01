#include "client/core/calls/calls.h"

#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"

namespace sluice::client {

Calls::Calls(SessionOptions options, Layout layout)
    : options_(std::move(options)),
      layout_(std::move(layout)),
      tensors_(options_, layout_),
      residuals_(layout_, options_.prune, options_.executor) {}

Status Calls::refuse(StatusCode code, const std::string& why) const {
  return {code, error_prefix(options_) + why};
}

// `call`: its name and ": ", or nothing.
Status Calls::refuse(StatusCode code, const char* call, std::uint32_t tensor,
                     const char* why) const {
  return refuse(code, std::string(call) + "tensor '" + layout_.tensor(tensor).name + "'" + why);
}

Status Calls::status() const {
  if (!failure_.ok()) return failure_;
  if (state_ != SessionState::kClosed && state_ != SessionState::kLeaving) return {};
  return refuse(StatusCode::kClosed, "this rank has left the job");
}

// ---- steps ----

// A store has layers, which are pushed and pulled, and has no steps.
Status Calls::check_steps() const {
  if (options_.operations)
    return refuse(StatusCode::kInvalidArgument,
                  "a job of operations has no tensors: make groups, and call operations in them");
  if (!options_.store) return status();
  return refuse(StatusCode::kInvalidArgument,
                "a parameter store has no steps: push and pull its layers");
}

Status Calls::check_submission(const Submission& submission) const {
  Status status = check_steps();
  if (status.ok()) status = tensors_.check(submission);
  if (!status.ok() || submission.contribute || tolerant()) return status;
  return refuse(StatusCode::kInvalidArgument, "", submission.tensor,
                ": a synchronous job waits for every rank, so there is nothing to catch up with; "
                "submit a gradient");
}

Status Calls::submit(const Submission& submission, TimeNs now) {
  Status status = check_submission(submission);
  CHECK(submission.wanted || !tolerant());
  if (!status.ok()) return status;
  CHECK(residuals_.is_far(submission.tensor) == (submission.far != nullptr));
  const Step step = tensors_.next_step(submission.tensor);
  if (!submission.contribute && !may_catch_up(step))
    return refuse(StatusCode::kInvalidArgument,
                  "tensor '" + layout_.tensor(submission.tensor).name + "': step " +
                      std::to_string(step) + " waits for every rank, as the first " +
                      std::to_string(kFullSteps) + " steps of a job do; submit a gradient");
  tensors_.accept(submission, now);
  submitted(submission, now);
  return status;
}

Status Calls::end_step() {
  Status status = check_steps();
  return status.ok() ? tensors_.end_step() : status;
}

Status Calls::set_averaging(std::uint32_t tensor, AveragingChoice choice) {
  CHECK(tensor < tensors_.count() && facts_.averaging != AveragingChoice::kDefault);
  if (tensors_.in_flight(tensor))
    return refuse(StatusCode::kBusy, "set_averaging: ", tensor, " is in flight");
  tensors_.set_averaging(tensor, choice == AveragingChoice::kDefault ? facts_.averaging : choice);
  return {};
}

void Calls::abort(std::string why, TimeNs now) {
  why.resize(std::min(why.size(), kMaxReasonBytes));
  abort_reason_ = std::move(why);
  leave(wire::LeaveReason::kAborted, now);
}

// ---- lossy tensors ----

Status Calls::residual(std::uint32_t tensor, Kept& kept) {
  CHECK(tensor < tensors_.count());
  const auto refuse_it = [&](StatusCode code, const char* why) {
    return refuse(code, "residual: ", tensor, why);
  };
  if (!residuals_.covers(tensor))
    return refuse_it(StatusCode::kInvalidArgument,
                     " travels as it is and has none; only float32 that is pruned or has another "
                     "wire format has");
  if (residuals_.is_far(tensor))
    return refuse_it(StatusCode::kInvalidArgument, " is far: whoever submits it keeps it");
  if (tensors_.in_flight(tensor)) return refuse_it(StatusCode::kBusy, " is in flight");
  kept = residuals_.of(tensor);
  return {};
}

Status Calls::flush_residuals() {
  Status status = this->status();
  if (status.ok()) residuals_.flush();
  return status;
}

Status Calls::scale_residuals(float factor) {
  if (!tensors_.at_rest())
    return refuse(StatusCode::kBusy, "scale_residuals: in the middle of a step");
  residuals_.scale(factor);
  return {};
}

// ---- collectives ----

Status Calls::start_collective(std::optional<Rank> root, void* buffer, std::size_t bytes,
                               TimeNs now) {
  const std::string last = describe_collective();
  if (last.empty()) return begin_collective(root, buffer, bytes, now);
  return refuse(StatusCode::kBusy, "a collective was called before the last one was done (" + last +
                                       "): wait for it first");
}

Status Calls::broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) {
  Status status = this->status();
  if (!status.ok()) return status;
  if (root.value >= options_.world_size)
    return refuse(StatusCode::kInvalidArgument,
                  "broadcast from rank " + std::to_string(root.value) +
                      ": the world has ranks 0 to " + std::to_string(options_.world_size - 1));
  if (buffer == nullptr && bytes != 0)
    return refuse(StatusCode::kInvalidArgument,
                  "broadcast of " + std::to_string(bytes) + " bytes to a null buffer");
  return start_collective(root, buffer, bytes, now);
}

Status Calls::barrier(TimeNs now) {
  Status status = this->status();
  return status.ok() ? start_collective({}, nullptr, 0, now) : status;
}

}  // namespace sluice::client
