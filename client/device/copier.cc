#include "client/device/copier.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "aggregator/base/check.h"
#include "client/clock.h"

namespace sluice::client {
namespace {

// The time between two questions to the device while copies, kernels or fences are under way.
constexpr std::chrono::microseconds kLook{20};
constexpr DurationNs kStopLimit = kSecond;

std::string what_failed(const CopyStage::Copy& copy) {
  switch (copy.direction) {
    case CopyStage::Direction::kIn:
      return "copying " + std::to_string(copy.bytes) + " bytes from the device failed: ";
    case CopyStage::Direction::kOut:
      return "copying " + std::to_string(copy.bytes) + " bytes to the device failed: ";
    case CopyStage::Direction::kPack: return "packing it on the device failed: ";
    case CopyStage::Direction::kFinish: return "unpacking it on the device failed: ";
    case CopyStage::Direction::kScale: return "scaling residuals on the device failed: ";
    case CopyStage::Direction::kLock:
      return std::to_string(copy.bytes) + " bytes of page-locked host memory cannot be had: ";
  }
  return {};
}

}  // namespace

Copier::Copier(SharedSession& shared, Device& device, FarWork* far,
               std::function<Status(const Submission&)> submit, std::string who)
    : shared_(shared),
      stage_(*shared.stage),
      device_(device),
      far_(far),
      submit_(std::move(submit)),
      who_(std::move(who)) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);  // the application's handlers stay on its threads
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Copier::~Copier() {
  {
    const auto lock = shared_.mutex.lock();
    stop_ = true;
    stop_by_ns_ = monotonic_now() + kStopLimit;
    shared_.copies.notify_one();
  }
  thread_.join();
}

void Copier::run() {
  ::pthread_setname_np(::pthread_self(), "sluice-copy");
  ::prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
  auto lock = shared_.mutex.lock_for_progress();
  for (;;) {
    give_up_where_ended();
    const bool served = serve();
    look_for_work();
    const bool waits = !fences_.empty() || !starting_.empty() || !running_.empty();
    if (stop_ && (!waits || monotonic_now() >= stop_by_ns_)) break;
    if (!waits) {
      if (!served) shared_.copies.wait(lock);
      continue;
    }
    lock.unlock();
    if (!work()) std::this_thread::sleep_for(kLook);
    lock.lock();
    report();
  }
  for (const Running& copy : running_) device_.drop(copy.mark);
}

// Submits the tensors that are ready, and ends steps. True: something has changed.
bool Copier::serve() {
  bool changed = false;
  Submission submission;
  do {
    while (stage_.poll_ready(submission)) {
      changed = true;
      const Status status = submit_(submission);
      if (status.ok()) continue;
      stage_.summed(submission.tensor, status.code(), false);
      // After the job's end, and while the rank is behind, every submission ends in an error.
      if (shared_.calls.status().ok() && shared_.calls.behind_status().ok()) fail(status.message());
    }
    if (!stage_.poll_end()) break;
    changed = true;
    const Status status = shared_.calls.end_step();
    if (!status.ok() && status.code() == StatusCode::kInvalidArgument) fail(status.message());
    if (shared_.driven.has_call()) shared_.wake();
  } while (true);
  if (changed) {
    shared_.changed.notify_all();
    shared_.wake();
  }
  return changed;
}

// Ends the job; the other ranks hear of it at once. With the lock held.
void Copier::fail(const std::string& why) {
  if (!shared_.calls.status().ok()) return;  // the first failure counts
  shared_.failure = {StatusCode::kIoError, why};
  shared_.calls.leave(wire::LeaveReason::kAbnormal, monotonic_now());
  shared_.wake();
}

void Copier::give_up_where_ended() {
  const bool closed = shared_.calls.state() == SessionState::kClosed;
  if (stage_.idle() || (!stop_ && !closed)) return;
  fences_.clear();
  stage_.fences(fences_);
  for (const CopyStage::Fence& fence : fences_) {
    device_.drop(fence.mark);
    stage_.passed(fence.tensor);
  }
  const StatusCode code = shared_.status().code();
  stage_.give_up(code == StatusCode::kOk ? StatusCode::kClosed : code, stop_);
  shared_.changed.notify_all();
  shared_.wake();
}

void Copier::look_for_work() {
  fences_.clear();
  stage_.fences(fences_);
  starting_.clear();
  for (CopyStage::Copy copy; stage_.poll_copy(copy);) starting_.push_back(copy);
}

// Without the lock. True: something has happened.
bool Copier::work() {
  passed_.clear();
  copied_.clear();
  failure_.reset();
  for (const CopyStage::Copy& copy : starting_) start(copy);
  std::erase_if(running_, [&](const Running& running) {
    const std::int32_t passed = device_.passed(running.mark);
    if (passed == 0) return false;
    ended(running.copy, passed < 0);
    device_.drop(running.mark);
    return true;
  });
  for (const CopyStage::Fence& fence : fences_) {
    const std::int32_t passed = device_.passed(fence.mark);
    if (passed == 0) continue;
    if (passed < 0 && !failure_)
      failure_ = {fence.tensor, "the device's work before its copy failed: " + device_.why()};
    device_.drop(fence.mark);
    passed_.push_back(fence.tensor);
  }
  return !starting_.empty() || !passed_.empty() || !copied_.empty();
}

void Copier::start(CopyStage::Copy copy) {
  sluice_device_mark* mark = nullptr;
  if (copy.direction == CopyStage::Direction::kLock) {
    copy.host = static_cast<std::uint8_t*>(device_.lock_pages(copy.bytes));
    return ended(copy, copy.host == nullptr);
  }
  const bool copies = CopyStage::is_copy(copy.direction);
  if (copies) mark = device_.copy(copy);
  const bool started = copies ? mark != nullptr : far_->start(copy, mark);
  if (mark != nullptr && started)
    running_.push_back({copy, mark});
  else
    ended(copy, !started);
}

void Copier::ended(const CopyStage::Copy& copy, bool failed) {
  copied_.push_back(copy);
  if (!failed && far_ != nullptr && !CopyStage::is_copy(copy.direction)) far_->passed(copy);
  if (failed && !failure_)
    failure_ = {copy.direction == CopyStage::Direction::kScale ? kAllTensors : copy.tensor,
                what_failed(copy) + device_.why()};
}

void Copier::report() {
  // Before the rows move on: the bytes of a failed copy must not be summed or used.
  if (failure_) {
    std::string what;
    if (failure_->tensor != kAllTensors)
      what = stage_.title_of(failure_->tensor, shared_.calls.layout()) + ": ";
    fail(who_ + device_.title() + ": " + what + failure_->why);
    stage_.device_failed();
    stage_.give_up(StatusCode::kIoError, false);
  }
  for (const std::uint32_t tensor : passed_) stage_.passed(tensor);
  bool over = false;
  for (const CopyStage::Copy& copy : copied_) {
    stage_.copied(copy);
    over |= copy.direction == CopyStage::Direction::kScale || !stage_.holds(copy.tensor);
  }
  if (over || stage_.has_done()) {
    shared_.changed.notify_all();
    shared_.wake();
  }
}

}  // namespace sluice::client
