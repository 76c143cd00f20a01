#include "client/abi_options.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "aggregator/base/text.h"
#include "client/abi_policy.h"
#include "client/abi_store.h"
#include "client/cube_address.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kMaxTimeoutMs = 24 * 3600 * 1000;
constexpr std::size_t kFirstTensorBytes = offsetof(sluice_tensor, flags);

static_assert(static_cast<int>(AveragingChoice::kDefault) == SLUICE_AVERAGE_DEFAULT &&
              static_cast<int>(AveragingChoice::kWeight) == SLUICE_AVERAGE_WEIGHT &&
              static_cast<int>(AveragingChoice::kWorld) == SLUICE_AVERAGE_WORLD &&
              static_cast<int>(AveragingChoice::kSum) == SLUICE_AVERAGE_SUM);
static_assert(static_cast<int>(Dtype::kFloat32) == SLUICE_WIRE_FLOAT32 &&
              static_cast<int>(Dtype::kFloat16) == SLUICE_WIRE_FLOAT16 &&
              static_cast<int>(Dtype::kBfloat16) == SLUICE_WIRE_BFLOAT16 &&
              static_cast<int>(Dtype::kInt8) == SLUICE_WIRE_INT8);
static_assert(static_cast<int>(PruneRule::kOff) == SLUICE_PRUNE_OFF &&
              static_cast<int>(PruneRule::kStatic) == SLUICE_PRUNE_STATIC &&
              static_cast<int>(PruneRule::kSampled) == SLUICE_PRUNE_SAMPLED &&
              static_cast<int>(PruneRule::kSigma) == SLUICE_PRUNE_SIGMA &&
              static_cast<int>(PruneRule::kDynamic) == SLUICE_PRUNE_DYNAMIC &&
              static_cast<int>(PruneRule::kDynamicRaw) == SLUICE_PRUNE_DYNAMIC_RAW);
static_assert(static_cast<int>(Memory::kHost) == SLUICE_MEMORY_HOST &&
              static_cast<int>(Memory::kDevice) == SLUICE_MEMORY_DEVICE &&
              static_cast<int>(Memory::kPinned) == SLUICE_MEMORY_PINNED &&
              static_cast<int>(Memory::kZeroCopy) == SLUICE_MEMORY_PINNED_ZERO_COPY &&
              static_cast<int>(Memory::kDirect) == SLUICE_MEMORY_GPUDIRECT);
static_assert(static_cast<int>(Schedule::kStrict) == SLUICE_SCHEDULE_STRICT &&
              static_cast<int>(Schedule::kCredit) == SLUICE_SCHEDULE_CREDIT &&
              static_cast<int>(Schedule::kProphet) == SLUICE_SCHEDULE_PROPHET &&
              static_cast<int>(Schedule::kFifo) == SLUICE_SCHEDULE_FIFO);

std::string text_or(const char* text, std::string fallback) {
  return text != nullptr ? std::string(text) : std::move(fallback);
}

Status bad(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

std::string text_of(double value) { return text("%g", value); }

// A field that the rule does not read must have its default, or the caller expects what won't be.
Status check_pruning(const sluice_options& options) {
  const PruneOptions defaults;
  const bool share = options.prune == SLUICE_PRUNE_STATIC || options.prune == SLUICE_PRUNE_SAMPLED;
  if (options.prune < SLUICE_PRUNE_OFF || options.prune > SLUICE_PRUNE_DYNAMIC_RAW) {
    return bad("options.prune is " + std::to_string(options.prune) +
               "; use one of sluice_prune_rule, SLUICE_PRUNE_OFF for the default");
  }
  const bool fraction = options.prune_fraction != defaults.fraction;
  if (!share && (fraction || options.prune_warmup != defaults.warmup_steps)) {
    return bad((fraction ? "options.prune_fraction is " + text_of(options.prune_fraction)
                         : "options.prune_warmup is " + std::to_string(options.prune_warmup)) +
               ", which only the rules 'static' and 'sampled' use; leave it out, or set "
               "options.prune to one of them");
  }
  if (options.prune != SLUICE_PRUNE_SIGMA && options.prune_sigmas != defaults.sigmas) {
    return bad("options.prune_sigmas is " + text_of(options.prune_sigmas) +
               ", which only the rule 'sigma' uses; leave it out, or set options.prune to it");
  }
  if (!(options.prune_fraction > 0 && options.prune_fraction <= 1)) {
    return bad("options.prune_fraction is " + text_of(options.prune_fraction) +
               "; must be above 0 and at most 1, 0.01 for one in a hundred elements");
  }
  if (!(options.prune_sigmas > 0 && options.prune_sigmas < HUGE_VAL)) {
    return bad("options.prune_sigmas is " + text_of(options.prune_sigmas) +
               "; must be a number above 0, such as 3");
  }
  if (options.prune == SLUICE_PRUNE_OFF && options.prune_momentum != 0) {
    return bad("options.prune_momentum is " + text_of(options.prune_momentum) +
               ", which corrects what pruning does; leave the momentum to the optimizer, or set "
               "options.prune to a rule");
  }
  if (!(options.prune_momentum >= 0 && options.prune_momentum < 1)) {
    return bad("options.prune_momentum is " + text_of(options.prune_momentum) +
               "; must be at least 0, for none, and below 1, such as 0.9");
  }
  return {};
}

Status check_schedule(const sluice_options& options) {
  if (options.schedule < SLUICE_SCHEDULE_STRICT || options.schedule > SLUICE_SCHEDULE_FIFO) {
    return bad("options.schedule is " + std::to_string(options.schedule) +
               "; use one of sluice_schedule_kind, SLUICE_SCHEDULE_STRICT for the default");
  }
  const ScheduleOptions defaults;
  const bool unit = options.unit_bytes != defaults.unit_bytes;
  const std::string text = unit ? "options.unit_bytes is " + std::to_string(options.unit_bytes)
                                : "options.credit_bytes is " + std::to_string(options.credit_bytes);
  if (options.schedule != SLUICE_SCHEDULE_CREDIT &&
      (unit || options.credit_bytes != defaults.credit_bytes)) {
    return bad(text +
               ", which only the schedule 'credit' uses; leave it out, or set "
               "options.schedule to it");
  }
  if (options.unit_bytes == 0)
    return bad("options.unit_bytes is 0; must be above 0, such as 1048576, the default");
  if (options.credit_bytes < options.unit_bytes) {
    return bad("options.credit_bytes is " + std::to_string(options.credit_bytes) +
               "; must be at least options.unit_bytes, which is " +
               std::to_string(options.unit_bytes));
  }
  return {};
}

Status check_options(const sluice_options& options) {
  if (options.address == nullptr) return bad("options.address is NULL");
  const std::size_t name_bytes = options.job_name == nullptr ? 0 : std::strlen(options.job_name);
  if (name_bytes == 0 || name_bytes > kMaxJobNameBytes) {
    return bad("options.job_name must have 1 to " + std::to_string(kMaxJobNameBytes) +
               " bytes, not " + std::to_string(name_bytes));
  }
  if (options.world_size == 0 || options.world_size > kMaxWorkers) {
    return bad("options.world_size is " + std::to_string(options.world_size) + "; must be 1 to " +
               std::to_string(kMaxWorkers));
  }
  const bool cube = std::string_view(options.address).starts_with(kCubeScheme);
  if (options.rank >= options.world_size && !(cube && options.rank == SLUICE_RANK_BY_DIGITS)) {
    return bad("options.rank is " + std::to_string(options.rank) + "; must be below world_size " +
               std::to_string(options.world_size) +
               (cube ? ", or SLUICE_RANK_BY_DIGITS where digits=... say it" : ""));
  }
  const std::string reproducible = text_or(std::getenv("SLUICE_REPRODUCIBLE"), "0");
  if (!reproducible.empty() && reproducible != "0" && reproducible != "1") {
    return bad("SLUICE_REPRODUCIBLE is \"" + reproducible +
               "\" in the environment; must be 1, for sums in the order of ranks, or 0");
  }
  if (options.ordinal > UINT16_MAX) {
    return bad("options.ordinal is " + std::to_string(options.ordinal) + "; must be below 65536");
  }
  if (Status status = check_averaging("options.averaging", options.averaging); !status.ok())
    return status;
  if (Status status = check_schedule(options); !status.ok()) return status;
  if (options.wire < 0 || options.wire > SLUICE_WIRE_INT8 ||
      !is_summed(static_cast<Dtype>(options.wire))) {
    return bad("options.wire is " + std::to_string(options.wire) +
               "; use one of sluice_wire, SLUICE_WIRE_FLOAT32 for the default");
  }
  if (Status status = check_pruning(options); !status.ok()) return status;
  if (options.memory < SLUICE_MEMORY_HOST || options.memory > SLUICE_MEMORY_GPUDIRECT) {
    return bad("options.memory is " + std::to_string(options.memory) +
               "; use one of sluice_memory, SLUICE_MEMORY_HOST for the default");
  }
  if (options.memory != SLUICE_MEMORY_HOST && options.kind == SLUICE_JOB_STORE)
    return bad(
        "options.memory: layers of a store are pushed from the host's memory and pulled there");
  const std::uint32_t longest = std::max({options.connect_timeout_ms, options.join_timeout_ms,
                                          options.silence_timeout_ms, options.stall_report_ms});
  const std::uint32_t shortest = std::min({options.connect_timeout_ms, options.join_timeout_ms,
                                           options.silence_timeout_ms, options.stall_report_ms});
  if (shortest == 0 || longest > kMaxTimeoutMs) {
    return bad("options: timeouts must be 1 to " + std::to_string(kMaxTimeoutMs) +
               " ms; call sluice_options_init() for the defaults");
  }
  return {};
}

// Over a BCube n and k say how many workers there are.
Status complete_world_size(sluice_options& options) {
  if (options.world_size != 0 || options.address == nullptr ||
      !std::string_view(options.address).starts_with(kCubeScheme))
    return {};
  const Result<Bcube> bcube = parse_cube_shape(options.address);
  if (bcube.ok()) options.world_size = bcube.value().servers();
  return bcube.status();
}

// The options of a caller that was compiled with fewer fields, the others at their defaults.
sluice_options complete(const sluice_options& options) {
  sluice_options known = default_options();
  std::memcpy(&known, &options, std::min(options.struct_size, sizeof known));
  known.struct_size = sizeof known;
  return known;
}

void read_callbacks(const sluice_options& options, JoinRequest& request) {
  void* const user = options.user;
  request.log = Log({options.log, user, static_cast<sluice_log_level>(options.log_level)});
  if (options.on_tensor_done != nullptr) {
    request.callbacks.tensor_done = [call = options.on_tensor_done, user](std::uint32_t tensor,
                                                                          StatusCode code) {
      call(user, tensor, static_cast<sluice_status>(code));
    };
  }
  if (options.on_stall != nullptr) {
    request.callbacks.stalled = [call = options.on_stall, user](const std::string& text) {
      call(user, text.c_str());
    };
  }
  if (options.interrupted != nullptr) {
    request.interrupted = [call = options.interrupted, user] { return call(user) != 0; };
  }
}

void fill(const sluice_options& options, JoinRequest& request) {
  constexpr DurationNs kMs = kMillisecond;
  request.address = options.address;
  request.local_address = text_or(options.local_address, "");
  request.session.job_name = options.job_name;
  request.session.ordinal = static_cast<std::uint16_t>(options.ordinal);
  request.session.run_id = options.run_id;
  static_assert(static_cast<std::uint16_t>(SLUICE_RANK_BY_DIGITS) == kRankByDigits);
  request.session.rank = Rank{static_cast<std::uint16_t>(options.rank)};
  request.session.world_size = static_cast<std::uint16_t>(options.world_size);
  request.session.secret = text_or(options.secret, "");
  request.session.allow_nil = options.allow_nil != 0;
  request.session.connect_timeout_ns = options.connect_timeout_ms * kMs;
  request.session.join_timeout_ns = options.join_timeout_ms * kMs;
  request.session.silence_timeout_ns = options.silence_timeout_ms * kMs;
  request.session.stall_report_ns = options.stall_report_ms * kMs;
  const bool by_environment = text_or(std::getenv("SLUICE_REPRODUCIBLE"), "0") == "1";
  request.session.reproducible =
      options.reproducible < 0 ? by_environment : options.reproducible != 0;
  request.session.schedule = {.policy = static_cast<Schedule>(options.schedule),
                              .unit_bytes = options.unit_bytes,
                              .credit_bytes = options.credit_bytes};
  const char* const trace = std::getenv("SLUICE_TRACE");
  request.trace_dir = text_or(options.trace_dir, text_or(trace, ""));
  request.session.averaging = static_cast<AveragingChoice>(options.averaging);
  request.wire = static_cast<Dtype>(options.wire);
  request.session.prune = {.rule = static_cast<PruneRule>(options.prune),
                           .fraction = options.prune_fraction,
                           .sigmas = options.prune_sigmas,
                           .warmup_steps = options.prune_warmup,
                           .min_elems = options.prune_min_elems,
                           .momentum = static_cast<float>(options.prune_momentum)};
  request.memory = static_cast<Memory>(options.memory);
  request.device = options.device;
  request.mtu_bytes = options.mtu;
  request.chunk_bytes = options.chunk_bytes;
  read_callbacks(options, request);
}

}  // namespace

Status check_struct(std::size_t actual, std::size_t least, const char* what) {
  if (actual >= least) return {};
  return {StatusCode::kInvalidArgument, std::string(what) + ".struct_size is " +
                                            std::to_string(actual) + "; set it to sizeof(" + what +
                                            "), " + std::to_string(least) + " in this version"};
}

Status check_averaging(const char* what, std::int32_t averaging) {
  if (averaging >= SLUICE_AVERAGE_DEFAULT && averaging <= SLUICE_AVERAGE_SUM) return {};
  return {StatusCode::kInvalidArgument,
          std::string(what) + " is " + std::to_string(averaging) +
              "; use one of sluice_averaging, SLUICE_AVERAGE_DEFAULT for the default"};
}

sluice_options default_options() {
  const SessionOptions session;
  sluice_options defaults{};
  defaults.struct_size = sizeof defaults;
  const auto ms = [](DurationNs duration_ns) {
    return static_cast<std::uint32_t>(duration_ns / kMillisecond);
  };
  defaults.mtu = 1500;
  defaults.averaging = SLUICE_AVERAGE_DEFAULT;
  defaults.allow_nil = 1;
  defaults.reproducible = -1;
  defaults.connect_timeout_ms = ms(session.connect_timeout_ns);
  defaults.join_timeout_ms = ms(session.join_timeout_ns);
  defaults.silence_timeout_ms = ms(session.silence_timeout_ns);
  defaults.stall_report_ms = ms(session.stall_report_ns);
  defaults.unit_bytes = session.schedule.unit_bytes;
  defaults.credit_bytes = session.schedule.credit_bytes;
  defaults.prune_fraction = session.prune.fraction;
  defaults.prune_sigmas = session.prune.sigmas;
  defaults.prune_min_elems = session.prune.min_elems;
  defaults.prune_warmup = session.prune.warmup_steps;
  defaults.prune_momentum = session.prune.momentum;
  defaults.log_level = SLUICE_LOG_INFO;
  set_default_policy(defaults);
  set_default_store(defaults);
  return defaults;
}

Status read_options(const sluice_options& options, JoinRequest& request) {
  Status status = check_struct(options.struct_size, kFirstOptionsBytes, "sluice_options");
  if (!status.ok()) return status;
  sluice_options known = complete(options);
  status = complete_world_size(known);
  if (status.ok()) status = check_options(known);
  if (status.ok()) status = read_policy(known, request.session);
  if (status.ok()) status = read_store(known, request.session);
  if (status.ok()) fill(known, request);
  return status;
}

Status read_tensors(const sluice_tensor* tensors, std::size_t count, JoinRequest& request) {
  if (tensors == nullptr || count == 0) {
    return {StatusCode::kInvalidArgument, "tensors: a job needs at least one tensor"};
  }
  if (Status status = check_struct(tensors->struct_size, kFirstTensorBytes, "sluice_tensor");
      !status.ok()) {
    return status;
  }
  const std::size_t stride = tensors->struct_size;
  const auto* at = reinterpret_cast<const char*>(tensors);
  for (std::size_t i = 0; i < count; ++i, at += stride) {
    const auto& tensor = *reinterpret_cast<const sluice_tensor*>(at);
    const std::string name = text_or(tensor.name, std::string("#").append(std::to_string(i)));
    if (tensor.struct_size != stride) {
      return {StatusCode::kInvalidArgument,
              "tensor " + name + ": struct_size " + std::to_string(tensor.struct_size) +
                  " differs from the first one's " + std::to_string(stride)};
    }
    if (tensor.dtype < SLUICE_FLOAT32 || tensor.dtype > SLUICE_BFLOAT16) {
      return {StatusCode::kInvalidArgument,
              "tensor " + name + ": dtype " + std::to_string(tensor.dtype) +
                  " does not exist; use float32, float16 or bfloat16"};
    }
    const std::uint64_t flags = stride < sizeof tensor ? 0 : tensor.flags;
    constexpr std::uint64_t kKnown =
        SLUICE_TENSOR_EXACT | SLUICE_TENSOR_DENSE | SLUICE_TENSOR_LAYER;
    if ((flags & ~kKnown) != 0) {
      return {StatusCode::kInvalidArgument, "tensor " + name + ": flags " + std::to_string(flags) +
                                                " has bits that this version does not know"};
    }
    const bool of_store = request.session.store.has_value();
    const bool begins_layer = (flags & SLUICE_TENSOR_LAYER) != 0;
    if (begins_layer && !of_store) {
      return {StatusCode::kInvalidArgument,
              "tensor " + name +
                  ": SLUICE_TENSOR_LAYER, but the job is no store; set "
                  "options.kind to SLUICE_JOB_STORE"};
    }
    request.tensors.push_back({.name = name,
                               .elem_count = tensor.elem_count,
                               .dtype = static_cast<Dtype>(tensor.dtype),
                               .exact = (flags & SLUICE_TENSOR_EXACT) != 0,
                               .dense = (flags & SLUICE_TENSOR_DENSE) != 0,
                               .begins_block = of_store && (begins_layer || i == 0)});
  }
  return {};
}

}  // namespace sluice::client
