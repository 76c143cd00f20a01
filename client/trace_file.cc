#include "client/trace_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "client/clock.h"

namespace sluice::client {
namespace {

constexpr std::size_t kLeastWaiting = 8192;  // records of 160 bytes that may wait for the writer
constexpr std::size_t kMostMarksWaiting = 256;
constexpr auto kWriteEvery = std::chrono::milliseconds(200);
constexpr std::size_t kRemarkBytes = 512;  // kept free for the last words

Status cannot(const std::string& folder, const std::string& what, const std::string& why) {
  return {StatusCode::kIoError, "trace folder '" + folder + "': cannot " + what + ": " + why +
                                    "; give a folder that this process may write to "
                                    "(options.trace_dir or SLUICE_TRACE)"};
}

}  // namespace

Result<std::unique_ptr<TraceFile>> TraceFile::open(TraceFileOptions options, Log log, TimeNs now) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return cannot(options.folder, "make it", error.message());
  const std::string path = options.folder + "/" + trace_file_name(options.identity);
  // Always a new file: an older process of this rank may still write to the old one.
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error)))
    ::unlink(path.c_str());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return cannot(options.folder, "open '" + path + "'", std::strerror(errno));
  TraceTracks& tracks = options.tracks;
  const bool too_many = tracks.tensors.size() + tracks.parts.size() > kMaxTracks;
  if (too_many) tracks.parts.clear();
  std::unique_ptr<TraceFile> file(new TraceFile(std::move(options), std::move(log), fd, path));
  append_trace_start(file->text_, file->options_.identity, file->options_.tracks, now);
  if (too_many)
    append_remark(file->text_, file->options_.identity,
                  "tensors are not shown lane by lane: that would be more than " +
                      std::to_string(kMaxTracks) + " tracks",
                  now);
  if (const int failed = file->write_text(); failed != 0)
    return cannot(file->options_.folder, "write '" + path + "'", std::strerror(failed));
  sigset_t all, before;  // the application's signal handlers stay on the application's threads
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    file->thread_ = std::thread([raw = file.get()] { raw->run(); });
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return file;
}

TraceFile::TraceFile(TraceFileOptions options, Log log, int fd, std::string path)
    : options_(std::move(options)),
      log_(std::move(log)),
      path_(std::move(path)),
      max_waiting_(std::max(kLeastWaiting,
                            2 * (options_.tracks.tensors.size() + options_.tracks.parts.size()))),
      open_(options_.tracks.tensors.size()),
      fd_(fd) {
  waiting_.reserve(max_waiting_);
  writing_.reserve(max_waiting_);
}

TraceFile::~TraceFile() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t tensor = 0; tensor < open_.size(); ++tensor) take(tensor);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

// ---- any thread ----

void TraceFile::done(const TensorTimes& times) {
  const std::lock_guard lock(mutex_);
  if (times.part != 0) {  // nobody applies a part
    if (!options_.tracks.parts.empty()) wait_for_writer(times);
    return;
  }
  take(times.tensor);
  open_[times.tensor] = times;
}

void TraceFile::mark(TraceMark mark) {
  const std::lock_guard lock(mutex_);
  if (marks_.size() < kMostMarksWaiting)
    marks_.push_back(std::move(mark));
  else
    ++lost_count_;
}

void TraceFile::applied(std::uint32_t tensor, TimeNs now) {
  const std::lock_guard lock(mutex_);
  if (open_[tensor].step != 0) open_[tensor].applied_ns = now;
}

void TraceFile::returned(std::uint32_t tensor, TimeNs now, DurationNs suspended_ns) {
  const std::lock_guard lock(mutex_);
  TensorTimes& times = open_[tensor];
  if (times.step == 0) return;
  times.read.suspended_ns += suspended_ns;
  if (times.applied_ns == 0) times.applied_ns = now;
}

void TraceFile::all_returned(TimeNs now) {
  const std::lock_guard lock(mutex_);
  for (TensorTimes& times : open_)
    if (times.step != 0 && times.applied_ns == 0) times.applied_ns = now;
}

void TraceFile::next(std::uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  take(tensor);
}

void TraceFile::take(std::uint32_t tensor) {
  const TensorTimes times = std::exchange(open_[tensor], {});
  if (times.step != 0) wait_for_writer(times);
}

void TraceFile::wait_for_writer(const TensorTimes& times) {
  if (waiting_.size() == max_waiting_) {
    ++lost_count_;
    return;
  }
  waiting_.push_back(times);
  if (waiting_.size() == max_waiting_ / 2) wake_.notify_one();
}

// ---- the writer ----

void TraceFile::run() {
  ::pthread_setname_np(::pthread_self(), "sluice-trace");
  if (options_.on_start) options_.on_start();
  try {
    while (write_round()) {
    }
  } catch (const std::exception& error) {  // no memory: the job goes on without a trace
    ended_ = true;
    log_.write(SLUICE_LOG_WARN, "trace " + path_ + ": " + error.what());
  }
}

bool TraceFile::write_round() {
  std::uint64_t lost_count = 0;
  bool stop = false;
  {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kWriteEvery,
                   [this] { return stop_ || waiting_.size() >= max_waiting_ / 2; });
    stop = stop_;
    writing_.swap(waiting_);
    writing_marks_.swap(marks_);
    lost_count = lost_count_;
  }
  write_records();
  if (lost_count != told_lost_count_ && !ended_) {
    const std::string remark = std::to_string(lost_count - told_lost_count_) +
                               " tensors' times were lost: writing is too slow";
    log_.write(SLUICE_LOG_WARN, "trace " + path_ + ": " + remark);
    append_remark(text_, options_.identity, remark, monotonic_now());
    told_lost_count_ = lost_count;
  }
  if (stop && !ended_) append_trace_end(text_);
  if (const int failed = write_text(); failed != 0)
    log_.write(SLUICE_LOG_WARN, "trace " + path_ + ": " + std::strerror(failed) +
                                    ": the rest of the run is not in it");
  return !stop;
}

void TraceFile::write_records() {
  for (const TensorTimes& times : writing_) {
    if (ended_) break;
    const std::size_t before = text_.size();
    append_tensor(text_, options_.identity, options_.tracks, times);
    keep_within_limit(before, times.step);
  }
  writing_.clear();
  for (const TraceMark& mark : writing_marks_) {
    if (ended_) break;
    const std::size_t before = text_.size();
    append_mark(text_, options_.identity, mark);
    keep_within_limit(before, mark.step);
  }
  writing_marks_.clear();
}

// Takes the last events back when there is no room for them.
void TraceFile::keep_within_limit(std::size_t before, Step step) {
  if (written_bytes_ + text_.size() + kRemarkBytes <= options_.limit_bytes) return;
  text_.resize(before);
  end("full after " + std::to_string(options_.limit_bytes >> 20) + " MiB, at step " +
      std::to_string(step) + ": the rest of the run is not in it");
}

// Returns 0 or an error number. Writes whole events only: an event that a full disk cut off is
// taken back.
int TraceFile::write_text() {
  int failed = 0;
  std::size_t done_bytes = 0;
  while (done_bytes < text_.size() && failed == 0) {
    const ssize_t wrote = ::write(fd_.get(), text_.data() + done_bytes, text_.size() - done_bytes);
    if (wrote >= 0)
      done_bytes += static_cast<std::size_t>(wrote);
    else if (errno != EINTR)
      failed = errno;
  }
  if (failed == 0) {
    written_bytes_ += text_.size();
  } else {
    [[maybe_unused]] const int result = ::ftruncate(fd_.get(), static_cast<off_t>(written_bytes_));
    ended_ = true;
  }
  text_.clear();
  return failed;
}

void TraceFile::end(const std::string& why) {
  ended_ = true;
  log_.write(SLUICE_LOG_WARN, "trace " + path_ + ": " + why);
  append_remark(text_, options_.identity, why, monotonic_now());
  append_trace_end(text_);
}

}  // namespace sluice::client
