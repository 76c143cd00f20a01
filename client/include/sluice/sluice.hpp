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
      : callbacks_(std::make_unique<Options>(options)) {
    std::vector<sluice_tensor> list;
    list.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      list.push_back({sizeof(sluice_tensor), tensor.name.c_str(), tensor.elem_count,
                      static_cast<std::int32_t>(tensor.dtype),
                      (tensor.exact ? SLUICE_TENSOR_EXACT : 0u) |
                          (tensor.dense ? SLUICE_TENSOR_DENSE : 0u) |
                          (tensor.begins_layer ? SLUICE_TENSOR_LAYER : 0u)});
    }
    const sluice_options raw = raw_options(*callbacks_);
    check(nullptr, sluice_join(&raw, list.data(), list.size(), &job_));
  }
  ~Job() { sluice_close(job_); }
  Job(Job&& other) noexcept
      : callbacks_(std::move(other.callbacks_)), job_(std::exchange(other.job_, nullptr)) {}
  Job& operator=(Job&& other) noexcept {
    if (this != &other) {
      sluice_close(job_);
      job_ = std::exchange(other.job_, nullptr);
      callbacks_ = std::move(other.callbacks_);
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
    sluice_submission raw{};
    raw.struct_size = sizeof raw;
    raw.tensor = submission.tensor;
    raw.weight = submission.weight;
    raw.priority = submission.priority;
    raw.catch_up = catch_up;
    raw.input = submission.input;
    raw.output = submission.output;
    raw.stream = stream;
    check(job_, sluice_submit_device(job_, &raw));
  }
  void end_step() { check(job_, sluice_end_step(job_)); }

  // ---- stragglers: see the loop in sluice.h ----
  sluice_turn next_turn(std::chrono::milliseconds timeout = kForever) {
    sluice_turn turn{};
    turn.struct_size = sizeof turn;
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
    sluice_report report{};
    report.struct_size = sizeof report;
    check(job_, sluice_get_report(job_, step, &report));
    return report;
  }
  // Another rank's state; `data` is the job's until the next resync().
  sluice_state resync(std::chrono::milliseconds timeout = kForever) {
    sluice_state state{};
    state.struct_size = sizeof state;
    check(job_, sluice_resync(job_, count(timeout), &state));
    return state;
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
  // From the tensor's next submission on; alike on every rank.
  void set_averaging(std::uint32_t tensor, Averaging averaging) {
    check(job_, sluice_set_averaging(job_, tensor, static_cast<std::int32_t>(averaging)));
  }
  // With prune_momentum the velocity's elements come after those of the residual.
  std::vector<float> residual(std::uint32_t tensor, std::size_t elem_count) const {
    std::vector<float> values(callbacks_->prune_momentum > 0 ? 2 * elem_count : elem_count);
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
    sluice_clocks clocks{};
    clocks.struct_size = sizeof clocks;
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
      sluice_part part{};
      sluice_counters counters{};
      part.struct_size = sizeof part;
      counters.struct_size = sizeof counters;
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

  // What a join gets. Its texts and `user` are those of `options`, which must outlive it.
  static sluice_options raw_options(Options& options) {
    sluice_options raw{};
    raw.struct_size = sizeof raw;
    sluice_options_init(&raw);
    raw.address = options.address.c_str();
    raw.job_name = options.job_name.c_str();
    raw.secret = options.secret.c_str();
    raw.local_address = options.local_address.c_str();
    raw.run_id = options.run_id;
    raw.ordinal = options.ordinal;
    raw.rank = options.rank;
    raw.world_size = options.world_size;
    raw.mtu = options.mtu;
    raw.chunk_bytes = options.chunk_bytes;
    raw.averaging = static_cast<std::int32_t>(options.averaging);
    raw.allow_nil = options.allow_nil;
    raw.connect_timeout_ms = static_cast<std::uint32_t>(count(options.connect_timeout));
    raw.join_timeout_ms = static_cast<std::uint32_t>(count(options.join_timeout));
    raw.silence_timeout_ms = static_cast<std::uint32_t>(count(options.silence_timeout));
    raw.stall_report_ms = static_cast<std::uint32_t>(count(options.stall_report));
    raw.policy = static_cast<std::int32_t>(options.policy);
    raw.late = static_cast<std::int32_t>(options.late);
    raw.k = options.k;
    raw.sign_threshold_permille = options.sign_threshold_permille;
    raw.count_threshold = options.count_threshold;
    raw.sign_stride = options.sign_stride;
    raw.round_steps = options.round_steps;
    raw.planned_steps = options.planned_steps;
    raw.max_staleness = options.max_staleness;
    raw.trace_dir = options.trace_dir ? options.trace_dir->c_str() : nullptr;
    raw.schedule = static_cast<std::int32_t>(options.schedule);
    raw.reproducible = options.reproducible ? *options.reproducible : -1;
    raw.wire = static_cast<std::int32_t>(options.wire);
    raw.prune = static_cast<std::int32_t>(options.prune);
    raw.prune_fraction = options.prune_fraction;
    raw.prune_sigmas = options.prune_sigmas;
    raw.prune_min_elems = options.prune_min_elems;
    raw.prune_warmup = options.prune_warmup;
    raw.prune_momentum = options.prune_momentum;
    raw.kind = options.is_store ? SLUICE_JOB_STORE : SLUICE_JOB_SUMS;
    raw.staleness_bound = options.staleness_bound;
    raw.update = static_cast<std::int32_t>(options.update);
    raw.nesterov = options.nesterov;
    raw.momentum = options.momentum;
    raw.dampening = options.dampening;
    raw.weight_decay = options.weight_decay;
    raw.beta1 = options.beta1;
    raw.beta2 = options.beta2;
    raw.epsilon = options.epsilon;
    raw.adam_lerp = options.adam_lerp;
    raw.memory = static_cast<std::int32_t>(options.memory);
    raw.device = options.device;
    raw.keep = static_cast<std::int32_t>(options.keep);
    raw.requests = static_cast<std::int32_t>(options.requests);
    raw.unit_bytes = options.unit_bytes;
    raw.credit_bytes = options.credit_bytes;
    raw.log_level = options.log_level;
    raw.user = &options;
    if (options.log)
      raw.log = [](void* user, sluice_log_level level, const char* text) {
        static_cast<Options*>(user)->log(level, text);
      };
    if (options.on_tensor_done)
      raw.on_tensor_done = [](void* user, std::uint32_t tensor, sluice_status status) {
        static_cast<Options*>(user)->on_tensor_done(tensor, status);
      };
    if (options.on_stall)
      raw.on_stall = [](void* user, const char* text) {
        static_cast<Options*>(user)->on_stall(text);
      };
    if (options.interrupted)
      raw.interrupted = [](void* user) -> int {
        return static_cast<Options*>(user)->interrupted();
      };
    return raw;
  }

 private:
  static void check(const sluice_job* job, sluice_status status) {
    if (status != SLUICE_OK) throw Error(status, sluice_last_error(job));
  }
  template <class Info>
  Info get(sluice_status (*call)(sluice_job*, Info*)) const {
    Info info{};
    info.struct_size = sizeof info;
    check(job_, call(job_, &info));
    return info;
  }
  static std::int32_t count(std::chrono::milliseconds timeout) noexcept {
    return timeout.count() < 0           ? SLUICE_FOREVER
           : timeout.count() > INT32_MAX ? INT32_MAX
                                         : static_cast<std::int32_t>(timeout.count());
  }

  std::unique_ptr<Options> callbacks_;  // that the job calls; stays where it is
  sluice_job* job_ = nullptr;
};

}  // namespace sluice
