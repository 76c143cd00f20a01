// The calls on a job that has joined: each locks the membership, calls it, and wakes the progress
// thread.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "client/clock.h"
#include "client/job.h"
#include "client/job_wait.h"

namespace sluice::client {

// The session ends a join that takes too long, and its error says more.
Status Job::wait_joined() {
  Lock lock = shared_.mutex.lock();
  Status status = wait(
      lock, kForeverMs, [this] { return shared_.calls.state() == SessionState::kRunning; },
      [] { return std::string("join"); });
  if (status.code() != StatusCode::kInterrupted) return status;
  lock.unlock();
  leave(wire::LeaveReason::kFinished);
  return status;
}

// ---- steps ----

Status Job::submit(std::span<const Submission> submissions) {
  const Lock lock = shared_.mutex.lock();
  const TimeNs now = monotonic_now();
  Status status;
  for (const Submission& submission : submissions) {
    status =
        shared_.stage == nullptr ? hand_over(submission, now) : accept(submission, nullptr, false);
    if (!status.ok()) break;
  }
  return status;
}

Status Job::hand_over(const Submission& submission, TimeNs now) {
  Status status = shared_.calls.submit(submission, now);
  if (!status.ok()) return status;
  if (trace_ != nullptr) trace_->next(submission.tensor);
  shared_.wake();
  return status;
}

// ---- device memory ----

Status Job::submit_device(const Submission& submission, void* stream) {
  if (device_ == nullptr)
    return {StatusCode::kInvalidArgument,
            place_ +
                "submit: the job was joined for host memory; set options.device.memory to "
                "SLUICE_MEMORY_DEVICE and options.device.index, or copy the gradient to the host"};
  sluice_device_mark* const fence = device_->mark(stream);
  if (fence == nullptr)
    return {
        StatusCode::kIoError,
        place_ + device_->title() + ": the stream's work cannot be waited for: " + device_->why()};
  const Lock lock = shared_.mutex.lock();
  Status status = accept(submission, fence, true);
  if (!status.ok()) device_->drop(fence);
  return status;
}

Status Job::accept(const Submission& submission, sluice_device_mark* fence, bool on_device) {
  Status status = shared_.calls.check_submission(submission);
  if (status.ok() && shared_.stage->holds(submission.tensor))
    status = {StatusCode::kBusy, place_ + "tensor '" +
                                     shared_.calls.layout().tensor(submission.tensor).name +
                                     "' is still in flight; wait for it before submitting again"};
  if (!status.ok()) return status;
  Submission ready = submission;
  if (ready.ready_ns == 0) ready.ready_ns = monotonic_now();
  shared_.stage->accept(ready, fence, on_device);
  shared_.copies.notify_one();
  return status;
}

// The progress thread holds the lock while it begins with the last submission. A caller that has
// submitted all tensors need not wait for that.
Status Job::end_step() {
  if (device_ == nullptr && shared_.calls.take_ended_step()) return {};
  const Lock lock = shared_.mutex.lock();
  if (shared_.stage != nullptr && shared_.stage->end_step()) return {};
  Status status = shared_.calls.end_step();
  if (shared_.driven.has_call()) shared_.wake();
  return status;
}

// The tensor exists and is not on its way between device and session, where the session does not
// know of it.
Status Job::check_not_staged(std::uint32_t tensor, const char* call) const {
  Status status = shared_.calls.tensors().check_exists(tensor, call);
  if (!status.ok() || shared_.stage == nullptr || !shared_.stage->holds(tensor)) return status;
  return {StatusCode::kBusy, place_ + call + ": tensor '" +
                                 shared_.calls.layout().tensor(tensor).name + "' is in flight"};
}

Status Job::wait_tensor(std::uint32_t tensor, std::int32_t timeout_ms, Tensors::Result& result) {
  Lock lock = shared_.mutex.lock();
  std::size_t done = 0;
  Status status = await(lock, {&tensor, 1}, 1, timeout_ms, done);
  if (status.ok()) result = shared_.calls.tensors().result(tensor);
  return status;
}

Status Job::wait_tensors(std::span<const std::uint32_t> tensors, std::size_t least,
                         std::int32_t timeout_ms, std::size_t& done) {
  Lock lock = shared_.mutex.lock();
  return await(lock, tensors, least, timeout_ms, done);
}

Status Job::await(Lock& lock, std::span<const std::uint32_t> tensors, std::size_t least,
                  std::int32_t timeout_ms, std::size_t& done) {
  const Tensors& table = shared_.calls.tensors();
  Status status;
  for (const std::uint32_t tensor : tensors) {
    status = table.check_exists(tensor, "wait_tensor");
    if (!status.ok()) return status;
  }
  std::size_t arrived = 0;
  status = wait(
      lock, timeout_ms,
      [&] {
        if (shared_.ended()) return false;
        while (arrived < tensors.size() && !shared_.in_flight(tensors[arrived])) ++arrived;
        return arrived >= least;
      },
      [&] {
        const std::uint32_t tensor = tensors[arrived];
        return "wait_tensor '" + shared_.calls.layout().tensor(tensor).name + "' of step " +
               std::to_string(table.last_asked(tensor));
      });
  if (!status.ok()) return status;
  for (std::size_t i = 0; i < arrived; ++i) {
    const bool given_up =
        shared_.stage != nullptr && shared_.stage->outcome(tensors[i]) != StatusCode::kOk;
    if (!given_up && !table.lost(tensors[i])) continue;
    if (i < least) return shared_.calls.behind_status();
    arrived = i;
  }
  if (trace_ != nullptr)
    for (const std::uint32_t tensor : tensors.first(arrived))
      trace_->returned(tensor, monotonic_now());
  done = arrived;
  return status;
}

Status Job::wait_step(std::int32_t timeout_ms, Step& step) {
  Lock lock = shared_.mutex.lock();
  const Calls& calls = shared_.calls;
  Status status = wait(
      lock, timeout_ms,
      [&] { return !shared_.ended() && (!calls.behind_status().ok() || shared_.at_rest()); },
      [] { return std::string("wait_step"); });
  if (status.ok()) status = calls.behind_status();
  if (!status.ok()) return status;
  step = calls.tensors().current() - 1;
  if (trace_ != nullptr) trace_->all_returned(monotonic_now());
  return status;
}

Status Job::set_averaging(std::uint32_t tensor, AveragingChoice choice) {
  const Lock lock = shared_.mutex.lock();
  Status status = check_not_staged(tensor, "set_averaging");
  return status.ok() ? shared_.calls.set_averaging(tensor, choice) : status;
}

Status Job::mark_applied(std::uint32_t tensor) {
  const Lock lock = shared_.mutex.lock();
  Status status = shared_.calls.tensors().check_exists(tensor, "mark_applied");
  if (status.ok() && trace_ != nullptr) trace_->applied(tensor, monotonic_now());
  return status;
}

// ---- collectives ----

// One collective at a time. The session works on a copy, so a caller that gives up leaves no
// pointer behind.
Status Job::run(const std::shared_ptr<CollectiveCall>& call, std::int32_t timeout_ms,
                const char* what, const std::function<Status(Calls&, TimeNs)>& begin) {
  if (elastic_)
    return {StatusCode::kInvalidArgument,
            place_ + what +
                ": an elastic job has no set of ranks; make a group of those that are " +
                "there, and call its " + what};
  const auto named = [what] { return std::string(what); };
  Lock lock = shared_.mutex.lock();
  const TimeNs start = monotonic_now();
  Status status = wait(
      lock, timeout_ms, [this] { return shared_.collective == nullptr; }, named);
  if (status.ok()) status = begin(shared_.calls, monotonic_now());
  if (!status.ok()) return status;
  shared_.collective = call;
  shared_.wake();
  if (timeout_ms > 0) {
    const DurationNs spent_ms = (monotonic_now() - start) / kMillisecond;
    timeout_ms -= static_cast<std::int32_t>(std::min<DurationNs>(timeout_ms - 1, spent_ms));
  }
  status = wait(
      lock, timeout_ms, [&] { return call->done; }, named);
  return status.ok() ? call->status : status;
}

Status Job::broadcast(Rank root, void* buffer, std::size_t bytes, std::int32_t timeout_ms) {
  const auto call = std::make_shared<CollectiveCall>();
  const auto* const start = static_cast<const std::uint8_t*>(buffer);
  const bool is_root = rank_ == root;
  is_root ? call->buffer.assign(start, start + bytes) : call->buffer.resize(bytes);
  Status status = run(call, timeout_ms, "broadcast", [&](Calls& calls, TimeNs now) {
    return calls.broadcast(root, call->buffer.data(), bytes, now);
  });
  if (status.ok() && !is_root) std::memcpy(buffer, call->buffer.data(), bytes);
  return status;
}

Status Job::barrier(std::int32_t timeout_ms) {
  return run(std::make_shared<CollectiveCall>(), timeout_ms, "barrier",
             [](Calls& calls, TimeNs now) { return calls.barrier(now); });
}

// ---- stragglers ----

Status Job::resync(std::int32_t timeout_ms, const ReceivedState*& state) {
  Lock lock = shared_.mutex.lock();
  if (resyncing_)
    return {StatusCode::kBusy, place_ + "resync: another thread waits for the state already"};
  Session& session = shared_.session;
  // A submission that was given up ends only with its copies.
  Status status = wait(
      lock, timeout_ms,
      [&] { return !shared_.ended() && (shared_.stage == nullptr || shared_.stage->idle()); },
      [] { return std::string("resync"); });
  if (status.ok()) status = session.resync(monotonic_now());
  if (!status.ok()) return status;
  shared_.wake();
  resyncing_ = true;
  {
    const Finally over{[this] { resyncing_ = false; }};
    status = wait(
        lock, timeout_ms,
        [&] { return !shared_.ended() && (session.has_state() || !session.resync_failure().ok()); },
        [] { return std::string("resync"); });
  }
  if (!status.ok()) return status;
  if (!session.has_state()) return session.resync_failure();
  state_ = session.take_state(monotonic_now());
  shared_.wake();
  state = &state_;
  return status;
}

Status Job::send_state(const void* data, std::uint64_t bytes, Step step) {
  if (data == nullptr || bytes == 0)
    return {StatusCode::kInvalidArgument, place_ + "send_state: data is NULL or bytes is 0"};
  const auto check = [&](bool& wanted) {
    Status status = shared_.calls.status();
    wanted = status.ok() && shared_.session.state_wanted_by().has_value();
    return wanted ? shared_.session.check_state_step(step) : status;
  };
  bool wanted = false;
  {
    const Lock lock = shared_.mutex.lock();
    if (Status status = check(wanted); !status.ok() || !wanted) return status;
  }
  const auto* const begin = static_cast<const std::uint8_t*>(data);
  std::vector<std::uint8_t> copy(begin, begin + bytes);  // without the lock: it may be long
  const Lock lock = shared_.mutex.lock();
  if (Status status = check(wanted); !status.ok() || !wanted) return status;
  if (!shared_.giving.empty()) return {};  // the session reads what another call has given
  shared_.giving = std::move(copy);
  if (!shared_.session.send_state(shared_.giving, step, monotonic_now())) shared_.giving = {};
  shared_.wake();
  return {};
}

// ---- questions ----

Status Job::status() const {
  const Lock lock = shared_.mutex.lock();
  return shared_.ended() ? shared_.status() : Status();
}

Status Job::explained(Status status) const {
  if (status.code() != StatusCode::kClosed) return status;
  const Lock lock = shared_.mutex.lock();
  return shared_.failure.ok() ? status : shared_.failure;
}

// The state that this rank gives already is not wanted any more.
std::int32_t Job::wanted_by() const {
  const std::optional<Rank> rank = shared_.session.state_wanted_by();
  return rank && shared_.giving.empty() ? rank->value : -1;
}

Position Job::position() const {
  const Lock lock = shared_.mutex.lock();
  return {.next_step = shared_.calls.tensors().filling(),
          .behind = shared_.session.behind(),
          .must_resync = !shared_.calls.behind_status().ok(),
          .state_wanted_by = wanted_by()};
}

Status Job::step_report(Step step, StepReport& report) const {
  const Lock lock = shared_.mutex.lock();
  const Calls& calls = shared_.calls;
  const StepReport* found = step == 0 ? calls.last_report() : calls.report(step);
  if (found != nullptr && found->step != 0) {
    report = *found;
    return {};
  }
  const std::string what = step == 0 ? "no step is" : "step " + std::to_string(step) + " is not";
  return {StatusCode::kNotFound, what + " among the last " + std::to_string(kReportedSteps) +
                                     " that this rank has applied itself (it is at step " +
                                     std::to_string(calls.tensors().current() - 1) +
                                     "; another rank's state has no reports)"};
}

JobFacts Job::facts() const {
  const Lock lock = shared_.mutex.lock();
  return shared_.calls.facts();
}

Counters Job::counters() const {
  const Lock lock = shared_.mutex.lock();
  Counters counters = shared_.calls.counters();
  counters.send_errors = shared_.transport.send_errors;
  counters.segmented_packets = shared_.transport.segmented;
  counters.coalesced_packets = shared_.transport.coalesced;
  counters.receive_drops = shared_.transport.receive_drops;
  return counters;
}

std::optional<PartCounters> Job::part_counters(std::uint32_t index) const {
  const Lock lock = shared_.mutex.lock();
  return shared_.calls.part_counters(index);
}

Stall Job::stall() const {
  const Lock lock = shared_.mutex.lock();
  return shared_.stall(monotonic_now());
}

std::string Job::describe_plan() const {
  const Lock lock = shared_.mutex.lock();
  return shared_.calls.describe_plan();
}

}  // namespace sluice::client
