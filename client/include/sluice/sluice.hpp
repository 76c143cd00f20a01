// Sluice for C++: a thin layer over sluice.h, where the contracts are. Header only; a call throws
// sluice::Error where the C function fails, and may be made from any thread. wait() is
// sluice_wait_tensor(), questions are without their `get_`; everything else has C's name. C++17.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  bool exact = false;  // SLUICE_TENSOR_EXACT
  bool dense = false;  // SLUICE_TENSOR_DENSE
};

// Enumerations of the C interface under C++ names; the numbers are the same.
enum class Averaging : std::int32_t {
  kDefault = SLUICE_AVERAGE_DEFAULT,
  kWeight = SLUICE_AVERAGE_WEIGHT,
  kWorld = SLUICE_AVERAGE_WORLD,
  kSum = SLUICE_SUM,
};
enum class Wire : std::int32_t {
  kFloat32 = SLUICE_WIRE_FLOAT32,
  kFloat16 = SLUICE_WIRE_FLOAT16,
  kBfloat16 = SLUICE_WIRE_BFLOAT16,
  kInt8 = SLUICE_WIRE_INT8,
};
enum class Prune : std::int32_t {
  kOff = SLUICE_PRUNE_OFF,
  kStatic = SLUICE_PRUNE_STATIC,
  kSampled = SLUICE_PRUNE_SAMPLED,
  kSigma = SLUICE_PRUNE_SIGMA,
  kDynamic = SLUICE_PRUNE_DYNAMIC,
  kDynamicRaw = SLUICE_PRUNE_DYNAMIC_RAW,
};
enum class Policy : std::int32_t {
  kDefault = SLUICE_POLICY_DEFAULT,
  kSync = SLUICE_POLICY_SYNC,
  kFixed = SLUICE_POLICY_FIXED,
  kSaina = SLUICE_POLICY_SAINA,
  kRamp = SLUICE_POLICY_RAMP,
  kGoodput = SLUICE_POLICY_GOODPUT,
};
enum class Late : std::int32_t { kDrop = SLUICE_LATE_DROP, kRequeue = SLUICE_LATE_REQUEUE };
enum class Schedule : std::int32_t {
  kStrict = SLUICE_SCHEDULE_STRICT,
  kCredit = SLUICE_SCHEDULE_CREDIT,
  kProphet = SLUICE_SCHEDULE_PROPHET,
  kFifo = SLUICE_SCHEDULE_FIFO,
};

// What a join asks for, with every default in place; sluice_options says what each field means.
struct Options {
  std::string address;
  std::string job_name;
  std::string secret;         // empty: none
  std::string local_address;  // empty: chosen
  std::uint64_t run_id = 0;
  std::uint32_t ordinal = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;  // required
  std::uint32_t mtu = 1500;
  std::uint32_t chunk_bytes = 0;
  Averaging averaging = Averaging::kDefault;
  bool allow_nil = true;
  std::chrono::milliseconds connect_timeout{4000};
  std::chrono::milliseconds join_timeout{60000};
  std::chrono::milliseconds silence_timeout{4000};
  std::chrono::milliseconds stall_report{5000};
  Policy policy = Policy::kDefault;
  Late late = Late::kDrop;
  std::uint32_t k = 1;
  std::uint32_t sign_threshold_permille = 500;
  std::uint32_t count_threshold = 5;
  std::uint32_t sign_stride = 1;
  std::uint32_t round_steps = 5;
  std::uint32_t planned_steps = 0;
  std::uint32_t max_staleness = 0;
  std::optional<std::string> trace_dir;  // absent: what SLUICE_TRACE says; empty: no trace
  Schedule schedule = Schedule::kStrict;
  std::optional<bool> reproducible;  // absent: what SLUICE_REPRODUCIBLE says
  Wire wire = Wire::kFloat32;
  Prune prune = Prune::kOff;
  double prune_fraction = 0.01;
  double prune_sigmas = 3;
  std::uint64_t prune_min_elems = 1024;
  std::uint32_t prune_warmup = 0;  // steps
  sluice_log_level log_level = SLUICE_LOG_INFO;
  // The callbacks of sluice_options; those on the progress thread must return soon and not wait.
  std::function<void(sluice_log_level level, const char* text)> log;
  std::function<void(std::uint32_t tensor, sluice_status status)> on_tensor_done;
  std::function<void(const char* text)> on_stall;
  std::function<bool()> interrupted;
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
      list.push_back(
          {sizeof(sluice_tensor), tensor.name.c_str(), tensor.elem_count,
           static_cast<std::int32_t>(tensor.dtype),
           (tensor.exact ? SLUICE_TENSOR_EXACT : 0u) | (tensor.dense ? SLUICE_TENSOR_DENSE : 0u)});
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
  std::vector<float> residual(std::uint32_t tensor, std::size_t elem_count) const {
    std::vector<float> values(elem_count);
    check(job_, sluice_get_residual(job_, tensor, values.data()));
    return values;
  }
  void set_residual(std::uint32_t tensor, const std::vector<float>& values) {
    check(job_, sluice_set_residual(job_, tensor, values.data()));
  }
  void scale_residuals(double factor) { check(job_, sluice_scale_residuals(job_, factor)); }
  void flush_residuals() { check(job_, sluice_flush_residuals(job_)); }
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

  sluice_counters counters() const { return get<sluice_counters>(sluice_get_counters); }
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
