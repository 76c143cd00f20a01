// Sluice for C++: a thin layer over sluice.h, where the contracts are. Header only; a call throws
// sluice::Error where the C function fails, and may be made from any thread. wait() is
// sluice_wait_tensor(), questions are without their `get_`; everything else has C's name. C++17.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <sluice/groups.hpp>
#include <sluice/member.hpp>
#include <sluice/options.hpp>
#include <string>
#include <vector>

namespace sluice {

// One tensor's gradient for its next step.
struct Submission {
  std::uint32_t tensor = 0;
  const void* input = nullptr;  // nullptr: no data from this rank
  void* output = nullptr;
  std::uint32_t weight = 1;
  std::uint8_t priority = 0;  // 0 is the most urgent
};

// A process's membership of a job of sums or of a store, which ends with the object. Movable.
class Job : public Member {
 public:
  // Joins and blocks until all ranks have joined.
  Job(const Options& options, const std::vector<Tensor>& tensors) : Member(options) {
    std::vector<sluice_tensor> list;
    list.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      list.push_back({sizeof(sluice_tensor), tensor.name.c_str(), tensor.elem_count, tensor.dtype,
                      (tensor.exact ? SLUICE_TENSOR_EXACT : 0u) |
                          (tensor.dense ? SLUICE_TENSOR_DENSE : 0u) |
                          (tensor.begins_layer ? SLUICE_TENSOR_LAYER : 0u)});
    }
    const sluice_options raw = options_->raw();
    detail::check(nullptr, sluice_join(&raw, list.data(), list.size(), &job_));
  }

  // Input and output stay untouched by the caller until wait() for the tensor has returned.
  void submit(const Submission& submission) {
    check(sluice_submit(job_, submission.tensor, submission.input, submission.output,
                        submission.weight, submission.priority));
  }
  // In the memory of options.device, once `stream` has done what it was given so far.
  void submit_device(const Submission& submission, void* stream, bool catch_up = false) {
    auto raw = detail::sized<sluice_submission>();
    raw.tensor = submission.tensor;
    raw.weight = submission.weight;
    raw.priority = submission.priority;
    raw.catch_up = catch_up;
    raw.input = submission.input;
    raw.output = submission.output;
    raw.stream = stream;
    check(sluice_submit_device(job_, &raw));
  }
  // Their struct_size is set here.
  void submit(std::vector<sluice_submission> submissions) {
    for (sluice_submission& one : submissions) one.struct_size = sizeof one;
    check(sluice_submit_many(job_, submissions.data(), submissions.size()));
  }
  void end_step() { check(sluice_end_step(job_)); }

  // ---- stragglers: see the loop in sluice.h ----
  sluice_turn next_turn(std::chrono::milliseconds timeout = kForever) {
    auto turn = detail::sized<sluice_turn>();
    check(sluice_next_turn(job_, detail::milliseconds(timeout), &turn));
    return turn;
  }
  sluice_policy_info policy() const { return get<sluice_policy_info>(sluice_get_policy); }
  sluice_position position() const { return get<sluice_position>(sluice_get_position); }
  void catch_up(std::uint32_t tensor, void* output) {
    check(sluice_catch_up(job_, tensor, output));
  }
  // Of the last finished step with 0.
  sluice_report report(std::uint32_t step = 0) const {
    auto report = detail::sized<sluice_report>();
    check(sluice_get_report(job_, step, &report));
    return report;
  }
  // Another rank's state; `data` is the job's until the next resync().
  sluice_state resync(std::chrono::milliseconds timeout = kForever) {
    auto state = detail::sized<sluice_state>();
    check(sluice_resync(job_, detail::milliseconds(timeout), &state));
    return state;
  }
  void send_state(const void* data, std::uint64_t bytes, std::uint32_t step) {
    check(sluice_send_state(job_, data, bytes, step));
  }

  sluice_result wait(std::uint32_t tensor, std::chrono::milliseconds timeout = kForever) {
    auto result = detail::sized<sluice_result>();
    check(sluice_wait_tensor(job_, tensor, detail::milliseconds(timeout), &result));
    return result;
  }
  // Returns how many leading tensors are done, `least` or more.
  std::size_t wait(const std::vector<std::uint32_t>& tensors, std::size_t least,
                   std::chrono::milliseconds timeout = kForever) {
    std::size_t done = 0;
    check(sluice_wait_tensors(job_, tensors.data(), tensors.size(), least,
                              detail::milliseconds(timeout), &done));
    return done;
  }
  // Returns the last complete step.
  std::uint32_t wait_step(std::chrono::milliseconds timeout = kForever) {
    std::uint32_t step = 0;
    check(sluice_wait_step(job_, detail::milliseconds(timeout), &step));
    return step;
  }
  // From the tensor's next submission on; every rank makes the same call.
  void set_averaging(std::uint32_t tensor, sluice_averaging averaging) {
    check(sluice_set_averaging(job_, tensor, averaging));
  }
  // With prune.momentum the velocity's elements come after those of the residual.
  std::vector<float> residual(std::uint32_t tensor, std::size_t elem_count) const {
    std::vector<float> values(options_->prune.momentum > 0 ? 2 * elem_count : elem_count);
    check(sluice_get_residual(job_, tensor, values.data()));
    return values;
  }
  void set_residual(std::uint32_t tensor, const std::vector<float>& values) {
    check(sluice_set_residual(job_, tensor, values.data()));
  }
  std::uint64_t pruning(std::uint32_t tensor) const {
    std::uint64_t position = 0;
    check(sluice_get_pruning(job_, tensor, &position));
    return position;
  }
  void set_pruning(std::uint32_t tensor, std::uint64_t position) {
    check(sluice_set_pruning(job_, tensor, position));
  }
  void scale_residuals(double factor) { check(sluice_scale_residuals(job_, factor)); }
  void flush_residuals() { check(sluice_flush_residuals(job_)); }
  sluice_left_behind left_behind() const { return get<sluice_left_behind>(sluice_get_left_behind); }
  void mark_applied(std::uint32_t tensor) { check(sluice_mark_applied(job_, tensor)); }

  // ---- a parameter store: one pointer for each tensor of the layer ----
  void initialise(std::uint32_t layer, const std::vector<const float*>& values) {
    check(sluice_initialise(job_, layer, values.data(), values.size()));
  }
  void push(std::uint32_t layer, const std::vector<const float*>& deltas, double rate = 0) {
    check(sluice_push(job_, layer, deltas.data(), deltas.size(), rate));
  }
  void pull(std::uint32_t layer, const std::vector<float*>& copies) {
    check(sluice_pull(job_, layer, copies.data(), copies.size()));
  }
  void wait_push(std::uint32_t layer, std::chrono::milliseconds timeout = kForever) {
    check(sluice_wait_push(job_, layer, detail::milliseconds(timeout)));
  }
  void wait_pull(std::uint32_t layer, std::chrono::milliseconds timeout = kForever) {
    check(sluice_wait_pull(job_, layer, detail::milliseconds(timeout)));
  }
  sluice_clocks clocks(std::uint32_t layer) const {
    auto clocks = detail::sized<sluice_clocks>();
    check(sluice_get_clocks(job_, layer, &clocks));
    return clocks;
  }

  std::string schedule_plan() const {
    std::string text(65536, '\0');
    check(sluice_get_schedule_plan(job_, text.data(), text.size()));
    text.resize(text.find('\0'));
    return text;
  }
};

}  // namespace sluice
