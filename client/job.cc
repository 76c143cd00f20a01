#include "client/job.h"

#include <unistd.h>

#include <fstream>
#include <utility>

#include "client/clock.h"
#include "client/core/calls/error_prefix.h"
#include "client/cube_address.h"
#include "client/opened.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLeaveLimit = 950 * kMillisecond;

// Names the machine's clock: CLOCK_MONOTONIC counts from its start.
std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// Adds the place to an error, in the form of the session's texts.
Status at_place(const JoinRequest& request, const Status& status) {
  return {status.code(), error_prefix(request.session) + status.message()};
}

}  // namespace

// ---- joining ----

namespace {

// Null for gradients in host memory. Decides which tensors are far.
Result<std::unique_ptr<Device>> open_device(JoinRequest& request) {
  if (request.memory == Memory::kHost) return std::unique_ptr<Device>();
  Result<std::unique_ptr<Device>> device =
      Device::open(request.memory, request.device, request.log);
  if (!device.ok()) return device;
  const bool cube = request.address.starts_with(kCubeScheme);
  const FarChoice choice = choose_far(
      request.tensors, request.wire, request.session.prune,
      cube ? "over a BCube residuals are the relay's" : device.value()->why_no_kernels());
  if (const std::string text = choice.describe(); !text.empty())
    request.log.write(SLUICE_LOG_INFO, device.value()->title() + ": " + text);
  return device;
}

}  // namespace

Status Job::join(JoinRequest request, std::unique_ptr<Job>& job) {
  if (Status status = resolve(request); !status.ok()) return status;
  Result<std::unique_ptr<Device>> device = open_device(request);
  if (!device.ok()) return at_place(request, device.status());
  Result<Opened> opened = open(request);
  if (!opened.ok()) return opened.status();
  Opened& parts = opened.value();
  std::unique_ptr<Job> made(new Job(request, parts));
  if (Status status = made->open_trace(request, made->shared_.driven); !status.ok())
    return at_place(request, status);
  const std::string who = "job '" + request.session.job_name + "' " + rank_words(made->rank_);
  if (Status status = made->attach_device(std::move(device).value(), request.session.prune, who);
      !status.ok())
    return at_place(request, status);
  made->progress_ = std::make_unique<Progress>(made->shared_, std::move(parts.lines),
                                               std::move(request.callbacks), request.log, who,
                                               made->trace_.get());
  made->progress_->start();
  if (Status status = made->wait_joined(); !status.ok()) return status;
  if (asks_any_rank(request.session)) {
    const Lock lock = made->shared_.mutex.lock();
    made->elastic_ = true;
    made->rank_ = made->shared_.session.groups()->own_rank();
    made->place_ = made->shared_.session.place();
  }
  request.log.write(SLUICE_LOG_INFO,
                    "job \"" + request.session.job_name + "\" at " + request.address + ": rank " +
                        std::to_string(made->rank_.value) + " of " +
                        std::to_string(request.session.world_size) + " has joined");
  if (const std::string note = made->kept_note(); !note.empty())
    request.log.write(SLUICE_LOG_WARN, note);
  job = std::move(made);
  return {};
}

Job::Job(const JoinRequest& request, Opened& parts)
    : pid_(::getpid()),
      rank_(parts.options.rank),
      place_(error_prefix(parts.options)),
      log_(request.log),
      interrupted_(request.interrupted),
      uneven_limit_ns_(parts.options.silence_timeout_ns + kLeaveLimit),
      pool_(std::move(parts.pool)),
      shared_(std::move(parts.calls), *parts.driven, *parts.session),
      served_(std::move(parts.served)) {
  if (pool_ == nullptr) return;
  pool_->tell([this] {
    const Lock lock = shared_.mutex.lock();
    shared_.wake();
  });
}

Status Job::attach_device(std::unique_ptr<Device> device, const PruneOptions& pruning,
                          const std::string& who) {
  if (device == nullptr) return {};
  device_ = std::move(device);
  const CopyStage::Limits limits = CopyStage::limits_for(device_->facts().bytes_per_s);
  if (shared_.session.groups() != nullptr) {
    shared_.stage = std::make_unique<CopyStage>(limits);
    shared_.operations = std::make_unique<OperationCopies>(*shared_.stage);
    copier_ = std::make_unique<Copier>(
        shared_, *device_, nullptr,
        [this](const Submission& row) {
          const auto [group, number] = shared_.operations->key_of(row.tensor);
          if (Group* const one = shared_.session.groups()->group(group); one != nullptr)
            one->release(number, row.input, row.output, monotonic_now());
          shared_.wake();
          return Status();
        },
        who + ": ");
    return {};
  }
  const Layout& layout = shared_.calls.layout();
  buffers_ = std::make_unique<DeviceBuffers>(layout, pruning);
  Status status = device_->allocate(CopyStage::staging_bytes(layout, buffers_.get()));
  if (!status.ok()) return status;
  if (!buffers_->empty()) {
    Result<std::unique_ptr<FarWork>> far = FarWork::create(*device_, *buffers_, pruning);
    if (!far.ok()) return far.status();
    far_ = std::move(far).value();
  }
  shared_.stage = std::make_unique<CopyStage>(layout, device_->staging(), limits, buffers_.get());
  copier_ = std::make_unique<Copier>(
      shared_, *device_, far_.get(),
      [this](const Submission& submission) { return hand_over(submission, monotonic_now()); },
      who + ": ");
  return {};
}

Status Job::open_trace(const JoinRequest& request, const Driven& driven) {
  if (request.trace_dir.empty()) return {};
  const std::span<const TracePart> parts = driven.trace_parts();
  Result<std::unique_ptr<TraceFile>> file = TraceFile::open(
      {.folder = request.trace_dir,
       .identity = {.job_name = request.session.job_name,
                    .ordinal = request.session.ordinal,
                    .run_id = request.session.run_id,
                    .rank = rank_,
                    .world_size = request.session.world_size,
                    .machine = boot_id()},
       .tracks = {.tensors = request.tensors, .parts = {parts.begin(), parts.end()}},
       .on_start = [this] { trace_thread_.store(std::this_thread::get_id()); }},
      request.log, monotonic_now());
  if (!file.ok()) return file.status();
  trace_ = std::move(file).value();
  return {};
}

// ---- leaving ----

Job::~Job() {
  if (progress_ == nullptr) return;
  bool idle = false;
  {
    const Lock lock = shared_.mutex.lock();
    idle = shared_.calls.tensors().in_flight_count() == 0 && shared_.collective == nullptr &&
           (shared_.stage == nullptr || shared_.stage->idle());
  }
  leave(idle ? wire::LeaveReason::kFinished : wire::LeaveReason::kAbnormal);
  progress_.reset();
  pool_.reset();  // it wakes what is behind the lock
  copier_.reset();
  if (shared_.operations != nullptr)
    for (const Event& event : shared_.operations->take_rest())
      if (event.done) event.done(event.operation, event.status.code());
  for (const auto& served : served_)  // all at once, before the first is waited for
    if (served.use_count() == 1) served->end();
}

void Job::leave(wire::LeaveReason reason, std::string why) {
  const bool uneven = reason == wire::LeaveReason::kUneven;
  std::string note;
  const bool aborted = reason == wire::LeaveReason::kAborted;
  if (reason != wire::LeaveReason::kAbnormal && !aborted) note = left_behind_note();
  Lock lock = shared_.mutex.lock();
  // A rank that leaves before its gradients are copied leaves in the middle of a step.
  if (!aborted && shared_.stage != nullptr && !shared_.stage->idle())
    reason = wire::LeaveReason::kAbnormal;
  shared_.await_burst(lock);  // a caller that hears of the end has its memory back
  const bool tells = !note.empty() && shared_.at_rest();  // else a step is cut off
  if (aborted)
    shared_.calls.abort(std::move(why), monotonic_now());
  else
    shared_.calls.leave(reason, monotonic_now());
  shared_.wake();
  shared_.changed.wait_for(lock, std::chrono::nanoseconds(uneven ? uneven_limit_ns_ : kLeaveLimit),
                           [this] { return shared_.ended(); });
  lock.unlock();
  if (tells) log_.write(SLUICE_LOG_WARN, note);
}

bool Job::is_forked() const noexcept { return ::getpid() != pid_; }

bool Job::on_own_thread() const noexcept {
  return progress_->is_this_thread() || trace_thread_.load() == std::this_thread::get_id();
}

}  // namespace sluice::client
