// What a join asks for, in C++: the choices and defaults of sluice_options and sluice_tensor, whose
// contracts are in sluice.h. sluice.hpp includes it.
#pragma once

#include <sluice/sluice.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace sluice {

enum class DataType : std::int32_t {
  kFloat32 = SLUICE_FLOAT32,
  kFloat16 = SLUICE_FLOAT16,
  kBfloat16 = SLUICE_BFLOAT16,
};

struct Tensor {
  std::string name;
  std::uint64_t elem_count = 0;
  DataType dtype = DataType::kFloat32;
  bool exact = false;         // SLUICE_TENSOR_EXACT
  bool dense = false;         // SLUICE_TENSOR_DENSE
  bool begins_layer = false;  // SLUICE_TENSOR_LAYER
};

// Enumerations of the C interface under C++ names; the numbers are the same.
enum class Averaging : std::int32_t {
  kDefault = SLUICE_AVERAGE_DEFAULT,
  kWeight = SLUICE_AVERAGE_WEIGHT,
  kWorld = SLUICE_AVERAGE_WORLD,
  kSum = SLUICE_AVERAGE_SUM,
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
enum class Memory : std::int32_t {
  kHost = SLUICE_MEMORY_HOST,
  kDevice = SLUICE_MEMORY_DEVICE,
  kPinned = SLUICE_MEMORY_PINNED,
  kPinnedZeroCopy = SLUICE_MEMORY_PINNED_ZERO_COPY,
  kGpudirect = SLUICE_MEMORY_GPUDIRECT,
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

enum class Update : std::int32_t {
  kDelta = SLUICE_UPDATE_DELTA,
  kSgd = SLUICE_UPDATE_SGD,
  kAdam = SLUICE_UPDATE_ADAM,
};

enum class Keep : std::int32_t {
  kKeep = SLUICE_STORE_KEEP,
  kEnd = SLUICE_STORE_END,
  kAnew = SLUICE_STORE_ANEW,
  kTake = SLUICE_STORE_TAKE,
};

enum class Requests : std::int32_t {
  kStalest = SLUICE_REQUESTS_STALEST,
  kFifo = SLUICE_REQUESTS_FIFO,
  kFilo = SLUICE_REQUESTS_FILO,
};

// What a join asks for, with every default in place; sluice_options says what each field means.
struct Options {
  std::string address;
  std::string job_name;
  std::string secret;         // empty: none
  std::string local_address;  // empty: chosen
  std::uint64_t run_id = 0;
  std::uint32_t ordinal = 0;
  std::uint32_t rank = 0;        // or SLUICE_RANK_BY_DIGITS
  std::uint32_t world_size = 0;  // over bcube://n,k 0 says n^k
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
  double prune_momentum = 0;
  bool is_store = false;  // of kind SLUICE_JOB_STORE
  std::uint32_t staleness_bound = 0;
  Update update = Update::kDelta;
  bool nesterov = false;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool adam_lerp = false;
  Memory memory = Memory::kHost;
  std::int32_t device = 0;
  Keep keep = Keep::kKeep;
  Requests requests = Requests::kStalest;
  std::uint64_t unit_bytes = std::uint64_t{1} << 20;
  std::uint64_t credit_bytes = std::uint64_t{4} << 20;
  sluice_log_level log_level = SLUICE_LOG_INFO;
  // The callbacks of sluice_options; those on the progress thread must return soon and not wait.
  std::function<void(sluice_log_level level, const char* text)> log;
  std::function<void(std::uint32_t tensor, sluice_status status)> on_tensor_done;
  std::function<void(const char* text)> on_stall;
  std::function<bool()> interrupted;
};

}  // namespace sluice
