#include "client/board.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "client/trace_file.h"

namespace sluice::client {
namespace {

constexpr DurationNs kWaitSlice = 100 * kMillisecond;
constexpr std::size_t kMaxNamesInText = 8;

std::uint64_t this_thread_id() noexcept { return static_cast<std::uint64_t>(::pthread_self()); }

}  // namespace

TimeNs monotonic_now() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

Board::Board(const std::vector<TensorSpec>& tensors, bool allow_nil, std::string place)
    : allow_nil_(allow_nil),
      place_(std::move(place)),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (const TensorSpec& tensor : tensors) tensors_.push_back({.name = tensor.name});
}

std::string Board::wait_text(const char* what, const TensorState* tensor) const {
  std::string text = place_ + what;
  if (tensor != nullptr) text += " '" + tensor->name + "' of step " + std::to_string(tensor->steps);
  return text;
}

// Waits with `lock` held until ready(), the job's end, the timeout or an interruption. `tensor`:
// that is waited for, if it is one.
Outcome Board::wait(Lock& lock, const WaitOptions& options, const char* what,
                    const std::function<bool()>& ready, const TensorState* tensor) {
  const TimeNs start = monotonic_now();
  const TimeNs deadline =
      options.timeout_ms < 0 ? kNever : start + options.timeout_ms * kMillisecond;
  while (!ready()) {
    if (ended_) return outcome_;
    const TimeNs now = monotonic_now();
    if (now >= deadline) {
      std::string text = wait_text(what, tensor) + ": not done after " +
                         std::to_string(options.timeout_ms) + " ms";
      if (options.timeout_ms == 0) return {SLUICE_TIMED_OUT, std::move(text)};
      std::string stall = ask(lock, stall_);
      if (ready()) return {};
      if (ended_) return outcome_;
      if (stall.starts_with(place_)) stall.erase(0, place_.size());
      if (!stall.empty()) text += ": " + stall;
      return {SLUICE_TIMED_OUT, std::move(text)};
    }
    if (on_own_thread()) {
      return {SLUICE_INVALID_ARGUMENT,
              wait_text(what, tensor) + ": a callback must not wait; use timeout 0"};
    }
    if (now - start >= kWaitSlice && options.interrupted) {
      lock.unlock();
      const bool interrupted = options.interrupted();
      lock.lock();
      if (interrupted) return {SLUICE_INTERRUPTED, wait_text(what, tensor) + ": interrupted"};
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(kWaitSlice, deadline - now)));
  }
  return {};
}

Outcome Board::wait_started(const WaitOptions& options) {
  Lock lock(mutex_);
  Outcome outcome;
  do {
    outcome = wait(lock, options, "join", [this] { return started_ && !ended_; });
  } while (outcome.code == SLUICE_TIMED_OUT && !ended_ &&
           prepared_.exchange(false, std::memory_order_relaxed));
  return outcome;
}

Outcome Board::submit(const Submission& submission) {
  const Lock lock(mutex_);
  if (ended_) return outcome_;
  if (stranded_) return why_stranded_;
  if (submission.tensor >= tensors_.size()) {
    return {SLUICE_INVALID_ARGUMENT, "tensor " + std::to_string(submission.tensor) +
                                         " does not exist; the job has " +
                                         std::to_string(tensors_.size()) + " tensors"};
  }
  TensorState& tensor = tensors_[submission.tensor];
  if (submission.output == nullptr) {
    return {SLUICE_INVALID_ARGUMENT, "tensor \"" + tensor.name + "\": output is NULL"};
  }
  if (!submission.contribute && !tolerant()) {
    return {SLUICE_INVALID_ARGUMENT, "tensor \"" + tensor.name +
                                         "\": a synchronous job waits for every rank, so there is "
                                         "nothing to catch up with; submit a gradient"};
  }
  const Step step = tensor.steps + 1;
  if (!submission.contribute && step <= kFullSteps && others_at_.load() <= step) {
    return {SLUICE_INVALID_ARGUMENT,
            "tensor \"" + tensor.name + "\": step " + std::to_string(step) +
                " waits for every rank, as the first " + std::to_string(kFullSteps) +
                " steps of a job do; submit a gradient"};
  }
  if (submission.contribute && submission.input == nullptr && !allow_nil_) {
    return {SLUICE_INVALID_ARGUMENT, "tensor \"" + tensor.name +
                                         "\": input is NULL; submit zeros, or join with allow_nil "
                                         "on every rank"};
  }
  if (tensor.in_flight) {
    return {SLUICE_BUSY, "tensor \"" + tensor.name + "\" is still in flight for step " +
                             std::to_string(tensor.steps) +
                             "; wait for it before submitting again"};
  }
  tensor.in_flight = true;
  tensor.abandoned = false;
  tensor.submitted_ns = monotonic_now();
  ++tensor.steps;
  ++in_flight_;
  if (trace_ != nullptr) trace_->next(submission.tensor);
  push({.kind = Command::Kind::kSubmit, .submission = submission, .step = tensor.steps});
  commands_.back().submission.ready_ns = tensor.submitted_ns;
  if (tensor.steps == open_step_) closed_full_ = close_step_if_full();
  return {};
}

bool Board::close_step_if_full() {
  const auto full = [this](const TensorState& tensor) { return tensor.steps >= open_step_; };
  if (!std::all_of(tensors_.begin(), tensors_.end(), full)) return false;
  ++open_step_;
  return true;
}

Outcome Board::end_step() {
  const Lock lock(mutex_);
  if (ended_) return outcome_;
  if (stranded_) return why_stranded_;
  if (closed_full_) {  // all tensors were submitted: the step has ended by itself
    closed_full_ = false;
    push({.kind = Command::Kind::kEndStep, .step = open_step_ - 1});
    return {};
  }
  if (!allow_nil_) return refuse_left_out();
  for (TensorState& tensor : tensors_) tensor.steps = std::max(tensor.steps, open_step_);
  push({.kind = Command::Kind::kEndStep, .step = open_step_});
  ++open_step_;
  return {};
}

Outcome Board::refuse_left_out() const {
  std::string names;
  std::size_t count = 0;
  for (const TensorState& tensor : tensors_) {
    if (tensor.steps >= open_step_) continue;
    if (++count <= kMaxNamesInText) names += (names.empty() ? "" : ", ") + tensor.name;
  }
  if (count > kMaxNamesInText) names += " and " + std::to_string(count - kMaxNamesInText) + " more";
  return {SLUICE_INVALID_ARGUMENT, "step " + std::to_string(open_step_) +
                                       " cannot end: not submitted: " + names +
                                       "; submit them, or join with allow_nil on every rank"};
}

Outcome Board::wait_tensor(std::uint32_t tensor, const WaitOptions& options,
                           sluice_result* result) {
  Lock lock(mutex_);
  if (tensor >= tensors_.size()) {
    return {SLUICE_INVALID_ARGUMENT, "tensor " + std::to_string(tensor) + " does not exist"};
  }
  const TensorState& state = tensors_[tensor];
  Outcome outcome = wait(
      lock, options, "wait_tensor", [&] { return !ended_ && !state.in_flight; }, &state);
  if (outcome.ok() && state.abandoned) return why_stranded_;
  if (outcome.ok() && result != nullptr) *result = state.result;
  if (outcome.ok() && trace_ != nullptr) trace_->returned(tensor, monotonic_now());
  return outcome;
}

Outcome Board::wait_step(const WaitOptions& options, std::uint32_t* step) {
  Lock lock(mutex_);
  Outcome outcome = wait(lock, options, "wait_step", [this] {
    return !ended_ && (stranded_ || (in_flight_ == 0 && done_step_ + 1 >= open_step_));
  });
  if (outcome.ok() && stranded_) return why_stranded_;
  if (outcome.ok() && step != nullptr) *step = done_step_;
  if (outcome.ok() && trace_ != nullptr) trace_->all_returned(monotonic_now());
  return outcome;
}

Outcome Board::mark_applied(std::uint32_t tensor) {
  if (tensor >= tensors_.size()) {
    return {SLUICE_INVALID_ARGUMENT, "mark_applied: tensor " + std::to_string(tensor) +
                                         " does not exist; the job has " +
                                         std::to_string(tensors_.size()) + " tensors"};
  }
  if (trace_ != nullptr) trace_->applied(tensor, monotonic_now());
  return {};
}

Outcome Board::collective(const std::shared_ptr<CollectiveCall>& call, const WaitOptions& options) {
  const TimeNs start = monotonic_now();
  const char* what = call->is_barrier ? "barrier" : "broadcast";
  Lock lock(mutex_);
  Outcome outcome = wait(lock, options, what, [this] { return !ended_ && collective_ == nullptr; });
  if (!outcome.ok()) return outcome;
  collective_ = call;
  push({.kind = Command::Kind::kCollective, .collective = call});
  WaitOptions rest = options;
  if (rest.timeout_ms > 0) {
    const DurationNs spent = monotonic_now() - start;
    rest.timeout_ms -=
        static_cast<std::int32_t>(std::min<DurationNs>(rest.timeout_ms, spent / kMillisecond));
  }
  outcome = wait(lock, rest, what, [&] { return call->done; });
  return outcome.ok() ? call->outcome : outcome;
}

void Board::request_leave(wire::LeaveReason reason) {
  const Lock lock(mutex_);
  if (!ended_) push({.kind = Command::Kind::kLeave, .reason = reason});
}

bool Board::wait_ended(DurationNs limit_ns) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return ended_; });
}

Outcome Board::outcome() const {
  const Lock lock(mutex_);
  return ended_ ? outcome_ : Outcome();
}

bool Board::idle() const {
  const Lock lock(mutex_);
  return in_flight_ == 0 && collective_ == nullptr;
}

std::string Board::describe_stall() {
  Lock lock(mutex_);
  return ask(lock, stall_);
}

std::string Board::schedule_plan() {
  Lock lock(mutex_);
  return ask(lock, plan_);
}

std::string Board::ask(Lock& lock, Description& description) {
  if (ended_ || on_own_thread()) return description.text;
  const std::uint64_t ticket = ++description.asked;
  push({.kind = description.what});
  changed_.wait_for(lock, std::chrono::nanoseconds(kWaitSlice),
                    [&] { return ended_ || description.answered >= ticket; });
  return description.text;
}

void Board::set_progress_thread() noexcept { progress_thread_.store(this_thread_id()); }
void Board::set_trace_thread() noexcept { trace_thread_.store(this_thread_id()); }
bool Board::on_own_thread() const noexcept {
  return progress_thread_.load() == this_thread_id() || trace_thread_.load() == this_thread_id();
}

void Board::push(Command command) {
  commands_.push_back(std::move(command));
  has_commands_.store(true);  // ordered before the exchange: see prepare_sleep()
  if (sleeping_.exchange(false)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
  }
}

bool Board::take_commands(std::vector<Command>& commands) {
  if (!has_commands_.load(std::memory_order_acquire)) return false;
  const Lock lock(mutex_);
  commands.swap(commands_);
  has_commands_.store(false, std::memory_order_relaxed);
  return !commands.empty();
}

bool Board::prepare_sleep() {
  sleeping_.store(true);
  if (!has_commands_.load()) return true;
  sleeping_.store(false);
  return false;
}

void Board::finish_sleep() noexcept {
  sleeping_.store(false);
  std::uint64_t drained = 0;
  [[maybe_unused]] const ssize_t read = ::read(wake_fd_.get(), &drained, sizeof drained);
}

void Board::started(const JobFacts& facts, bool must_resync) {
  const Lock lock(mutex_);
  started_ = true;
  facts_ = facts;
  stranded_ = must_resync;
  if (must_resync) {
    why_stranded_ = {SLUICE_BEHIND, place_ +
                                        "this rank has joined a job that runs and needs the state "
                                        "of another rank first (resync)"};
  }
  changed_.notify_all();
}

void Board::tensor_done(const Event& event, TimeNs now) {
  const Lock lock(mutex_);
  TensorState& tensor = tensors_[event.tensor];
  if (!tensor.in_flight) return;
  tensor.in_flight = false;
  --in_flight_;
  tensor.result = {.struct_size = sizeof(sluice_result),
                   .weight = event.weight,
                   .latency_ns = static_cast<std::uint64_t>(now - tensor.submitted_ns),
                   .step = event.step,
                   .absent = event.absent,
                   .non_finite = event.non_finite,
                   .reserved = 0};
  changed_.notify_all();
}

void Board::step_done(Step step, const StepReport* report) {
  const Lock lock(mutex_);
  done_step_ = step;
  if (report != nullptr) reports_[step % kReportedSteps] = *report;
  counters_.steps_done.set(step);
  changed_.notify_all();
}

void Board::collective_done(const Outcome& outcome) {
  const Lock lock(mutex_);
  if (collective_ == nullptr) return;
  collective_->done = true;
  collective_->outcome = outcome;
  collective_.reset();
  changed_.notify_all();
}

void Board::described(Command::Kind what, std::string text) {
  const Lock lock(mutex_);
  Description& description = what == stall_.what ? stall_ : plan_;
  description.text = std::move(text);
  description.answered = description.asked;
  changed_.notify_all();
}

std::vector<std::uint32_t> Board::end(const Outcome& outcome, std::string stall, std::string plan) {
  const Lock lock(mutex_);
  std::vector<std::uint32_t> abandoned;
  for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (tensors_[tensor].in_flight) abandoned.push_back(tensor);
  }
  outcome_ = outcome;
  stall_.text = std::move(stall);
  plan_.text = std::move(plan);
  ended_ = true;
  changed_.notify_all();
  return abandoned;
}

}  // namespace sluice::client
