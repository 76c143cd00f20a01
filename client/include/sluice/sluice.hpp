// Sluice for C++: a thin layer over sluice.h. Header only; every call does what the C function of
// the same name does (contracts there), throws sluice::Error where that returns a failure, and may
// be made from any thread. C++17.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

// A call that failed: status() says how, what() has the cause and the remedy.
class Error : public std::runtime_error {
 public:
  Error(sluice_status status, const std::string& text)
      : std::runtime_error(text.empty() ? sluice_status_name(status) : text), status_(status) {}
  sluice_status status() const noexcept { return status_; }

 private:
  sluice_status status_;
};

enum class DataType : std::int32_t {
  kFloat32 = SLUICE_FLOAT32,
  kFloat16 = SLUICE_FLOAT16,
  kBfloat16 = SLUICE_BFLOAT16,
};

struct Tensor {
  std::string name;
  std::uint64_t elem_count = 0;
  DataType dtype = DataType::kFloat32;
};

// sluice_options with its defaults and strings that it owns. Fields without a member here
// (timeouts, callbacks, mtu, averaging, schedule, trace_dir ...) are set in `c`.
struct Options {
  Options() {
    c.struct_size = sizeof c;
    sluice_options_init(&c);
  }
  std::string address;
  std::string job_name;
  std::string secret;
  std::string local_address;  // empty: chosen
  std::uint64_t run_id = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  sluice_options c{};
};

inline constexpr std::chrono::milliseconds kForever{-1};

class Job {
 public:
  // Joins and blocks until all ranks have joined.
  Job(const Options& options, const std::vector<Tensor>& tensors) {
    sluice_options raw = options.c;
    raw.address = options.address.c_str();
    raw.job_name = options.job_name.c_str();
    raw.secret = options.secret.c_str();
    raw.local_address = options.local_address.c_str();
    raw.run_id = options.run_id;
    raw.rank = options.rank;
    raw.world_size = options.world_size;
    std::vector<sluice_tensor> list;
    list.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      list.push_back({sizeof(sluice_tensor), tensor.name.c_str(), tensor.elem_count,
                      static_cast<std::int32_t>(tensor.dtype), 0});
    }
    check(nullptr, sluice_join(&raw, list.data(), list.size(), &job_));
  }
  ~Job() { sluice_close(job_); }
  Job(Job&& other) noexcept : job_(std::exchange(other.job_, nullptr)) {}
  Job& operator=(Job&& other) noexcept {
    if (this != &other) {
      sluice_close(job_);
      job_ = std::exchange(other.job_, nullptr);
    }
    return *this;
  }

  // `input` and `output` stay untouched by the caller until wait() for the tensor has returned.
  void submit(std::uint32_t tensor, const void* input, void* output, std::uint32_t weight = 1,
              std::uint32_t priority = 0) {
    check(job_, sluice_submit(job_, tensor, input, output, weight, priority));
  }
  void end_step() { check(job_, sluice_end_step(job_)); }

  // ---- stragglers: see the loop in sluice.h ----
  sluice_policy_info policy() const {
    sluice_policy_info info{};
    info.struct_size = sizeof info;
    check(job_, sluice_policy(job_, &info));
    return info;
  }
  std::uint32_t behind() const {
    std::uint32_t steps = 0;
    check(job_, sluice_behind(job_, &steps));
    return steps;
  }
  void catch_up(std::uint32_t tensor, void* output) {
    check(job_, sluice_catch_up(job_, tensor, output));
  }
  // Of the last finished step with 0.
  sluice_report report(std::uint32_t step = 0) const {
    sluice_report report{};
    report.struct_size = sizeof report;
    check(job_, sluice_step_report(job_, step, &report));
    return report;
  }
  bool must_resync() const {
    int needed = 0;
    check(job_, sluice_must_resync(job_, &needed));
    return needed != 0;
  }
  // Another rank's state; `data` is the job's until the next resync().
  sluice_state resync(std::chrono::milliseconds timeout = kForever) {
    sluice_state state{};
    state.struct_size = sizeof state;
    check(job_, sluice_resync(job_, count(timeout), &state));
    return state;
  }
  // The rank that waits for this one's state, -1 when nobody does.
  std::int32_t state_wanted() const {
    std::int32_t rank = -1;
    check(job_, sluice_state_wanted(job_, &rank));
    return rank;
  }
  void send_state(const void* data, std::uint64_t bytes, std::uint32_t step) {
    check(job_, sluice_send_state(job_, data, bytes, step));
  }

  sluice_result wait(std::uint32_t tensor, std::chrono::milliseconds timeout = kForever) {
    sluice_result result{};
    result.struct_size = sizeof result;
    check(job_, sluice_wait_tensor(job_, tensor, count(timeout), &result));
    return result;
  }
  // Returns the last complete step.
  std::uint32_t wait_step(std::chrono::milliseconds timeout = kForever) {
    std::uint32_t step = 0;
    check(job_, sluice_wait_step(job_, count(timeout), &step));
    return step;
  }
  void mark_applied(std::uint32_t tensor) { check(job_, sluice_mark_applied(job_, tensor)); }

  void broadcast(std::uint32_t root, void* buffer, std::size_t bytes,
                 std::chrono::milliseconds timeout = kForever) {
    check(job_, sluice_broadcast(job_, root, buffer, bytes, count(timeout)));
  }
  void barrier(std::chrono::milliseconds timeout = kForever) {
    check(job_, sluice_barrier(job_, count(timeout)));
  }

  void leave() { check(job_, sluice_leave(job_)); }
  void finish() { check(job_, sluice_finish(job_)); }
  void abort() { check(job_, sluice_abort(job_)); }

  sluice_stats stats() const {
    sluice_stats stats{};
    stats.struct_size = sizeof stats;
    check(job_, sluice_stats_get(job_, &stats));
    return stats;
  }
  std::string describe_stall() const { return text_of(sluice_describe_stall, 4096); }
  std::string schedule_plan() const { return text_of(sluice_schedule_plan, 65536); }
  sluice_job* get() const noexcept { return job_; }

 private:
  static void check(const sluice_job* job, sluice_status status) {
    if (status != SLUICE_OK) throw Error(status, sluice_last_error(job));
  }
  std::string text_of(sluice_status (*call)(sluice_job*, char*, std::size_t),
                      std::size_t capacity) const {
    std::string text(capacity, '\0');
    check(job_, call(job_, text.data(), text.size()));
    text.resize(text.find('\0'));
    return text;
  }
  static std::int32_t count(std::chrono::milliseconds timeout) noexcept {
    return timeout.count() < 0           ? SLUICE_FOREVER
           : timeout.count() > INT32_MAX ? INT32_MAX
                                         : static_cast<std::int32_t>(timeout.count());
  }

  sluice_job* job_ = nullptr;
};

}  // namespace sluice
