// Sluice for C++: a thin layer over sluice.h, where the contracts are. Header only; a call throws
// sluice::Error where the C function fails, and may be made from any thread. wait() is
// sluice_wait_tensor(), questions are without their `get_`; everything else has C's name. C++17.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sluice/options.hpp>
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

// One tensor's gradient for its next step.
struct Submission {
  std::uint32_t tensor = 0;
  const void* input = nullptr;  // nullptr: no data from this rank
  void* output = nullptr;
  std::uint32_t weight = 1;
  std::uint8_t priority = 0;  // 0 is the most urgent
};

inline constexpr std::chrono::milliseconds kForever{-1};

class Job {
 public:
  // Joins and blocks until all ranks have joined.
  Job(const Options& options, const std::vector<Tensor>& tensors)
      : options_(std::make_unique<Options>(options)) {
    std::vector<sluice_tensor> list;
    list.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      list.push_back({sizeof(sluice_tensor), tensor.name.c_str(), tensor.elem_count, tensor.dtype,
                      (tensor.exact ? SLUICE_TENSOR_EXACT : 0u) |
                          (tensor.dense ? SLUICE_TENSOR_DENSE : 0u) |
                          (tensor.begins_layer ? SLUICE_TENSOR_LAYER : 0u)});
    }
    const sluice_options raw = options_->raw();
    check(nullptr, sluice_join(&raw, list.data(), list.size(), &job_));
  }
  ~Job() { sluice_close(job_); }
  Job(Job&& other) noexcept
      : options_(std::move(other.options_)), job_(std::exchange(other.job_, nullptr)) {}
  Job& operator=(Job&& other) noexcept {
    if (this != &other) {
      sluice_close(job_);
      job_ = std::exchange(other.job_, nullptr);
      options_ = std::move(other.options_);
    }
    return *this;
  }

  // Input and output stay untouched by the caller until wait() for the tensor has returned.
  void submit(const Submission& submission) {
    check(job_, sluice_submit(job_, submission.tensor, submission.input, submission.output,
                              submission.weight, submission.priority));
  }
  // In the memory of options.device, once `stream` has done what it was given so far.
  void submit_device(const Submission& submission, void* stream, bool catch_up = false) {
    auto raw = sized<sluice_submission>();
    raw.tensor = submission.tensor;
    raw.weight = submission.weight;
    raw.priority = submission.priority;
    raw.catch_up = catch_up;
    raw.input = submission.input;
    raw.output = submission.output;
    raw.stream = stream;
    check(job_, sluice_submit_device(job_, &raw));
  }
  // Their struct_size is set here.
  void submit(std::vector<sluice_submission> submissions) {
    for (sluice_submission& one : submissions) one.struct_size = sizeof one;
    check(job_, sluice_submit_many(job_, submissions.data(), submissions.size()));
  }
  void end_step() { check(job_, sluice_end_step(job_)); }

  // ---- stragglers: see the loop in sluice.h ----
  sluice_turn next_turn(std::chrono::milliseconds timeout = kForever) {
    auto turn = sized<sluice_turn>();
    check(job_, sluice_next_turn(job_, count(timeout), &turn));
    return turn;
  }
  sluice_policy_info policy() const { return get<sluice_policy_info>(sluice_get_policy); }
  sluice_position position() const { return get<sluice_position>(sluice_get_position); }
  void catch_up(std::uint32_t tensor, void* output) {
    check(job_, sluice_catch_up(job_, tensor, output));
  }
  // Of the last finished step with 0.
  sluice_report report(std::uint32_t step = 0) const {
    auto report = sized<sluice_report>();
    check(job_, sluice_get_report(job_, step, &report));
    return report;
  }
  // Another rank's state; `data` is the job's until the next resync().
  sluice_state resync(std::chrono::milliseconds timeout = kForever) {
    auto state = sized<sluice_state>();
    check(job_, sluice_resync(job_, count(timeout), &state));
    return state;
  }
  void send_state(const void* data, std::uint64_t bytes, std::uint32_t step) {
    check(job_, sluice_send_state(job_, data, bytes, step));
  }

  sluice_result wait(std::uint32_t tensor, std::chrono::milliseconds timeout = kForever) {
    auto result = sized<sluice_result>();
    check(job_, sluice_wait_tensor(job_, tensor, count(timeout), &result));
    return result;
  }
  // Returns how many leading tensors are done, `least` or more.
  std::size_t wait(const std::vector<std::uint32_t>& tensors, std::size_t least,
                   std::chrono::milliseconds timeout = kForever) {
    std::size_t done = 0;
    check(job_,
          sluice_wait_tensors(job_, tensors.data(), tensors.size(), least, count(timeout), &done));
    return done;
  }
  // Returns the last complete step.
  std::uint32_t wait_step(std::chrono::milliseconds timeout = kForever) {
    std::uint32_t step = 0;
    check(job_, sluice_wait_step(job_, count(timeout), &step));
    return step;
  }
  // From the tensor's next submission on; every rank makes the same call.
  void set_averaging(std::uint32_t tensor, sluice_averaging averaging) {
    check(job_, sluice_set_averaging(job_, tensor, averaging));
  }
  // With prune.momentum the velocity's elements come after those of the residual.
  std::vector<float> residual(std::uint32_t tensor, std::size_t elem_count) const {
    std::vector<float> values(options_->prune.momentum > 0 ? 2 * elem_count : elem_count);
    check(job_, sluice_get_residual(job_, tensor, values.data()));
    return values;
  }
  void set_residual(std::uint32_t tensor, const std::vector<float>& values) {
    check(job_, sluice_set_residual(job_, tensor, values.data()));
  }
  std::uint64_t pruning(std::uint32_t tensor) const {
    std::uint64_t position = 0;
    check(job_, sluice_get_pruning(job_, tensor, &position));
    return position;
  }
  void set_pruning(std::uint32_t tensor, std::uint64_t position) {
    check(job_, sluice_set_pruning(job_, tensor, position));
  }
  void scale_residuals(double factor) { check(job_, sluice_scale_residuals(job_, factor)); }
  void flush_residuals() { check(job_, sluice_flush_residuals(job_)); }
  sluice_left_behind left_behind() const { return get<sluice_left_behind>(sluice_get_left_behind); }
  void mark_applied(std::uint32_t tensor) { check(job_, sluice_mark_applied(job_, tensor)); }

  // ---- a parameter store: one pointer for each tensor of the layer ----
  void initialise(std::uint32_t layer, const std::vector<const float*>& values) {
    check(job_, sluice_initialise(job_, layer, values.data(), values.size()));
  }
  void push(std::uint32_t layer, const std::vector<const float*>& deltas, double rate = 0) {
    check(job_, sluice_push(job_, layer, deltas.data(), deltas.size(), rate));
  }
  void pull(std::uint32_t layer, const std::vector<float*>& copies) {
    check(job_, sluice_pull(job_, layer, copies.data(), copies.size()));
  }
  void wait_push(std::uint32_t layer, std::chrono::milliseconds timeout = kForever) {
    check(job_, sluice_wait_push(job_, layer, count(timeout)));
  }
  void wait_pull(std::uint32_t layer, std::chrono::milliseconds timeout = kForever) {
    check(job_, sluice_wait_pull(job_, layer, count(timeout)));
  }
  sluice_clocks clocks(std::uint32_t layer) const {
    auto clocks = sized<sluice_clocks>();
    check(job_, sluice_get_clocks(job_, layer, &clocks));
    return clocks;
  }

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

  sluice_counters counters() const { return get<sluice_counters>(sluice_get_counters); }
  // By thread and level, see sluice.h.
  std::vector<std::pair<sluice_part, sluice_counters>> part_counters() const {
    std::vector<std::pair<sluice_part, sluice_counters>> all;
    for (;;) {
      auto part = sized<sluice_part>();
      auto counters = sized<sluice_counters>();
      const sluice_status status =
          sluice_get_part_counters(job_, static_cast<std::uint32_t>(all.size()), &part, &counters);
      if (status == SLUICE_NOT_FOUND) return all;
      check(job_, status);
      all.emplace_back(part, counters);
    }
  }
  sluice_stall stall() const { return get<sluice_stall>(sluice_get_stall); }
  std::string schedule_plan() const {
    std::string text(65536, '\0');
    check(job_, sluice_get_schedule_plan(job_, text.data(), text.size()));
    text.resize(text.find('\0'));
    return text;
  }
  sluice_job* get() const noexcept { return job_; }

 private:
  static void check(const sluice_job* job, sluice_status status) {
    if (status != SLUICE_OK) throw Error(status, sluice_last_error(job));
  }
  template <class Struct>
  static Struct sized() {
    Struct value{};
    value.struct_size = sizeof value;
    return value;
  }
  template <class Info>
  Info get(sluice_status (*call)(sluice_job*, Info*)) const {
    auto info = sized<Info>();
    check(job_, call(job_, &info));
    return info;
  }
  static std::int32_t count(std::chrono::milliseconds timeout) noexcept {
    return timeout.count() < 0           ? SLUICE_FOREVER
           : timeout.count() > INT32_MAX ? INT32_MAX
                                         : static_cast<std::int32_t>(timeout.count());
  }

  std::unique_ptr<Options> options_;  // its callbacks are the job's; stays where it is
  sluice_job* job_ = nullptr;
};

}  // namespace sluice
