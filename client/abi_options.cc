#include "client/abi_options.h"

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "aggregator/base/text.h"
#include "client/abi_enumerations.h"
#include "client/abi_policy.h"
#include "client/cube_address.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kMostTimeoutMs = 24 * 3600 * 1000;

static_assert(SLUICE_NO_BOUND == kNoBound);
static_assert(static_cast<std::uint16_t>(SLUICE_RANK_BY_DIGITS) == kRankByDigits);
static_assert(static_cast<std::uint16_t>(SLUICE_RANK_ANY) == kAnyRank.value);

// The caller's options in the client's types.
struct Asked {
  JoinRequest& request;
  StoreOptions store{};
};

// The options, a row each: X(option, member of Asked). From a row come the option's default, which
// is the member's, and the member's value; numbers have their limits in check_numbers().
#define SLUICE_NUMBERS(X)                                         \
  X(run_id, request.session.run_id)                               \
  X(ordinal, request.session.ordinal)                             \
  X(world_size, request.session.world_size)                       \
  X(mtu, request.mtu_bytes)                                       \
  X(chunk_bytes, request.chunk_bytes)                             \
  X(schedule.unit_bytes, request.session.schedule.unit_bytes)     \
  X(schedule.credit_bytes, request.session.schedule.credit_bytes) \
  X(prune.fraction, request.session.prune.fraction)               \
  X(prune.sigmas, request.session.prune.sigmas)                   \
  X(prune.min_elems, request.session.prune.min_elems)             \
  X(prune.warmup, request.session.prune.warmup_steps)             \
  X(prune.momentum, request.session.prune.momentum)               \
  X(store.staleness_bound, store.bound)                           \
  X(store.momentum, store.update.momentum)                        \
  X(store.dampening, store.update.dampening)                      \
  X(store.weight_decay, store.update.weight_decay)                \
  X(store.beta1, store.update.beta1)                              \
  X(store.beta2, store.update.beta2)                              \
  X(store.epsilon, store.update.epsilon)                          \
  X(device.index, request.device)
#define SLUICE_FLAGS(X)                    \
  X(allow_nil, request.session.allow_nil)  \
  X(store.nesterov, store.update.nesterov) \
  X(store.adam_lerp, store.update.interpolates)
#define SLUICE_TIMEOUTS(X)                                     \
  X(timeouts.connect_ms, request.session.connect_timeout_ns)   \
  X(timeouts.join_ms, request.session.join_timeout_ns)         \
  X(timeouts.silence_ms, request.session.silence_timeout_ns)   \
  X(timeouts.stall_report_ms, request.session.stall_report_ns) \
  X(timeouts.restart_ms, request.session.restart_timeout_ns)
// X(option, member of Asked, enumeration, default).
#define SLUICE_CHOICES(X)                                                                         \
  X(averaging, request.session.averaging, sluice_averaging, SLUICE_AVERAGE_DEFAULT)               \
  X(wire, request.wire, sluice_wire, SLUICE_WIRE_FLOAT32)                                         \
  X(schedule.kind, request.session.schedule.policy, sluice_schedule_kind, SLUICE_SCHEDULE_STRICT) \
  X(prune.rule, request.session.prune.rule, sluice_prune_rule, SLUICE_PRUNE_OFF)                  \
  X(store.update, store.update.rule, sluice_update, SLUICE_UPDATE_DELTA)                          \
  X(store.keep, request.session.keep, sluice_keep, SLUICE_STORE_KEEP)                             \
  X(store.requests, request.session.requests, sluice_requests, SLUICE_REQUESTS_STALEST)           \
  X(device.memory, request.memory, sluice_memory, SLUICE_MEMORY_HOST)

std::string text_or(const char* text, std::string fallback) {
  return text != nullptr ? std::string(text) : std::move(fallback);
}

Status bad(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

std::string text_of(double value) { return text("%g", value); }
template <std::integral Number>
std::string text_of(Number value) {
  return std::to_string(value);
}

Status bad_enumerator(const char* what, std::int32_t number, const char* enumeration,
                      const char* fallback) {
  return bad(std::string(what) + " is " + std::to_string(number) + "; use one of " + enumeration +
             ", " + fallback + " for the default");
}

// Remembers the first number that is wrong.
class NumberCheck {
 public:
  template <class Number>
  void must(const char* option, Number value, bool is_right, const std::string& rule) {
    if (status_.ok() && !is_right)
      status_ = bad(std::string(option) + " is " + text_of(value) + "; must be " + rule);
  }
  // A number that has no effect must be the default: another value means that the caller expects
  // one.
  template <class Number>
  void only(const char* option, Number value, Number fallback, bool is_read,
            const std::string& readers) {
    if (status_.ok() && !is_read && value != fallback)
      status_ = bad(std::string(option) + " is " + text_of(value) + ", which " + readers);
  }
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

Status check_numbers(const sluice_options& options) {
  const sluice_options defaults = default_options();
  const bool share =
      options.prune.rule == SLUICE_PRUNE_STATIC || options.prune.rule == SLUICE_PRUNE_SAMPLED;
  const bool sigma = options.prune.rule == SLUICE_PRUNE_SIGMA;
  const bool prunes = options.prune.rule != SLUICE_PRUNE_OFF;
  const bool credit = options.schedule.kind == SLUICE_SCHEDULE_CREDIT;
  const std::string of_share =
      "only the rules 'static' and 'sampled' use; leave it out, or set options.prune.rule to one "
      "of them";
  const std::string of_credit =
      "only the schedule 'credit' uses; leave it out, or set options.schedule.kind to it";
  const std::string most_ms = std::to_string(kMostTimeoutMs);
  NumberCheck check;
#define MUST(option, is_right, rule) check.must("options." #option, options.option, is_right, rule)
#define ONLY(option, is_read, readers) \
  check.only("options." #option, options.option, defaults.option, is_read, readers)
  MUST(world_size, options.world_size > 0 && options.world_size <= kMaxWorkers,
       "1 to " + std::to_string(kMaxWorkers));
  MUST(ordinal, options.ordinal <= UINT16_MAX, "below 65536");
  ONLY(schedule.unit_bytes, credit, of_credit);
  ONLY(schedule.credit_bytes, credit, of_credit);
  MUST(schedule.unit_bytes, options.schedule.unit_bytes > 0,
       "above 0, such as 1048576, the default");
  MUST(schedule.credit_bytes, options.schedule.credit_bytes >= options.schedule.unit_bytes,
       "at least options.schedule.unit_bytes, which is " +
           std::to_string(options.schedule.unit_bytes));
  ONLY(prune.fraction, share, of_share);
  ONLY(prune.warmup, share, of_share);
  ONLY(prune.sigmas, sigma,
       "only the rule 'sigma' uses; leave it out, or set options.prune.rule to it");
  ONLY(prune.momentum, prunes,
       "corrects what pruning does; leave the momentum to the optimizer, or set "
       "options.prune.rule to a rule");
  MUST(prune.fraction, options.prune.fraction > 0 && options.prune.fraction <= 1,
       "above 0 and at most 1, 0.01 for one in a hundred elements");
  MUST(prune.sigmas, options.prune.sigmas > 0 && options.prune.sigmas < HUGE_VAL,
       "a number above 0, such as 3");
  MUST(prune.momentum, options.prune.momentum >= 0 && options.prune.momentum < 1,
       "at least 0, for none, and below 1, such as 0.9");
#define X(option, member)                                                         \
  MUST(option,                                                                    \
       (options.option > 0 || &options.option == &options.timeouts.restart_ms) && \
           options.option <= kMostTimeoutMs,                                      \
       "1 to " + most_ms + " milliseconds");
  SLUICE_TIMEOUTS(X)
#undef X
#undef MUST
#undef ONLY
  return check.status();
}

Status check_names(const sluice_options& options) {
  if (options.address == nullptr) return bad("options.address is NULL");
  const std::size_t name_bytes = options.job_name == nullptr ? 0 : std::strlen(options.job_name);
  if (name_bytes == 0 || name_bytes > kMaxJobNameBytes) {
    return bad("options.job_name must have 1 to " + std::to_string(kMaxJobNameBytes) +
               " bytes, not " + std::to_string(name_bytes));
  }
  return {};
}

Status check_rank(const sluice_options& options, bool any_rank) {
  if (any_rank && options.rank == SLUICE_RANK_ANY) return {};
  const bool cube = std::string_view(options.address).starts_with(kCubeScheme);
  if (options.rank < options.world_size || (cube && options.rank == SLUICE_RANK_BY_DIGITS))
    return {};
  return bad("options.rank is " + std::to_string(options.rank) + "; must be below world_size " +
             std::to_string(options.world_size) +
             (cube ? ", or SLUICE_RANK_BY_DIGITS where digits=... say it" : ""));
}

// Over a BCube n and k give the number of workers.
Status complete_world_size(sluice_options& options) {
  if (options.world_size != 0 || !std::string_view(options.address).starts_with(kCubeScheme))
    return {};
  const Result<Bcube> bcube = parse_cube_shape(options.address);
  if (bcube.ok()) options.world_size = bcube.value().servers();
  return bcube.status();
}

// Reads the options of the table.
Status read_rows(const sluice_options& options, Asked& asked) {
  Status status;
#define X(option, member, enumeration, fallback)                                      \
  if (const auto* found = find_enumerator(kEnumerators<enumeration>, options.option)) \
    asked.member = found->meaning;                                                    \
  else if (status.ok())                                                               \
    status = bad_enumerator("options." #option, options.option, #enumeration, #fallback);
  SLUICE_CHOICES(X)
#undef X
  if (status.ok()) status = check_numbers(options);
  if (!status.ok()) return status;
#define X(option, member) asked.member = static_cast<decltype(asked.member)>(options.option);
  SLUICE_NUMBERS(X)
#undef X
#define X(option, member) asked.member = options.option != 0;
  SLUICE_FLAGS(X)
#undef X
#define X(option, member) asked.member = options.option * kMillisecond;
  SLUICE_TIMEOUTS(X)
#undef X
  return status;
}

Status read_store(const sluice_options& options, const StoreOptions& store,
                  SessionOptions& session) {
  if (options.store.enabled == 0) {
    if (store == StoreOptions{} && session.keep == StoreKeep::kKeep &&
        session.requests == RequestPolicy::kStalest)
      return {};
    return bad(
        "options.store: its fields are of a parameter store; leave them out, or set "
        "options.store.enabled");
  }
  if (options.wire != SLUICE_WIRE_FLOAT32)
    return bad("options.wire: a parameter store's values travel as float32; leave it out");
  if (options.prune.rule != SLUICE_PRUNE_OFF)
    return bad("options.prune: pushes to a parameter store are sent whole; leave it out");
  if (options.device.memory != SLUICE_MEMORY_HOST)
    return bad("options.device.memory: layers of a store are in the host's memory; leave it out");
  session.store = store;
  return {};
}

Status read_environment(const sluice_options& options, JoinRequest& request) {
  const std::string reproducible = text_or(std::getenv("SLUICE_REPRODUCIBLE"), "0");
  if (!reproducible.empty() && reproducible != "0" && reproducible != "1") {
    return bad("SLUICE_REPRODUCIBLE is \"" + reproducible +
               "\" in the environment; must be 1, for sums in the order of ranks, or 0");
  }
  request.session.reproducible =
      options.reproducible < 0 ? reproducible == "1" : options.reproducible != 0;
  const char* const trace = std::getenv("SLUICE_TRACE");
  request.trace_dir = text_or(options.trace_dir, text_or(trace, ""));
  return {};
}

void read_callbacks(const sluice_callback_options& options, JoinRequest& request) {
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

}  // namespace

Status check_size(std::size_t actual, std::size_t known, const char* name) {
  if (actual == known) return {};
  return bad(std::string(name) + ".struct_size is " + std::to_string(actual) + " and not " +
             std::to_string(known) +
             ": the program was compiled with another version's sluice.h, or has not set it; "
             "recompile it with that of " SLUICE_VERSION_TEXT " and set it to sizeof(" +
             name + ")");
}

Status read_averaging(std::int32_t number, AveragingChoice& averaging) {
  const auto* const choice = find_enumerator(kEnumerators<sluice_averaging>, number);
  if (choice == nullptr)
    return bad_enumerator("averaging", number, "sluice_averaging", "SLUICE_AVERAGE_DEFAULT");
  averaging = choice->meaning;
  return {};
}

sluice_options default_options() {
  JoinRequest request;
  const Asked asked{request};
  sluice_options defaults{};
  defaults.struct_size = sizeof defaults;
#define X(option, member) defaults.option = static_cast<decltype(defaults.option)>(asked.member);
  SLUICE_NUMBERS(X)
  SLUICE_FLAGS(X)
#undef X
#define X(option, member) \
  defaults.option = static_cast<decltype(defaults.option)>(asked.member / kMillisecond);
  SLUICE_TIMEOUTS(X)
#undef X
#define X(option, member, enumeration, fallback) defaults.option = fallback;
  SLUICE_CHOICES(X)
#undef X
  defaults.reproducible = -1;
  defaults.callbacks.log_level = SLUICE_LOG_INFO;
  defaults.policy = default_policy();
  return defaults;
}

Status read_options(const sluice_options* options, JoinRequest& request, bool any_rank) {
  Status status = check_struct(options, "sluice_options");
  if (!status.ok()) return status;
  sluice_options given = *options;
  Asked asked{request};
  status = check_names(given);
  if (status.ok()) status = complete_world_size(given);
  if (status.ok()) status = read_rows(given, asked);
  if (status.ok()) status = check_rank(given, any_rank);
  if (status.ok()) status = read_environment(given, request);
  if (status.ok()) status = read_policy(given.policy, given.world_size, request.session);
  if (status.ok()) status = read_store(given, asked.store, request.session);
  if (!status.ok()) return status;
  request.address = given.address;
  request.local_address = text_or(given.local_address, "");
  request.session.job_name = given.job_name;
  request.session.secret = text_or(given.secret, "");
  request.session.rank = Rank{static_cast<std::uint16_t>(given.rank)};
  read_callbacks(given.callbacks, request);
  return {};
}

Status read_tensors(const sluice_tensor* tensors, std::size_t count, JoinRequest& request) {
  if (tensors == nullptr || count == 0) return bad("tensors: a job needs at least one tensor");
  const bool of_store = request.session.store.has_value();
  for (std::size_t i = 0; i < count; ++i) {
    const sluice_tensor& tensor = tensors[i];
    if (Status status = check_struct(&tensor, "sluice_tensor"); !status.ok()) return status;
    const std::string name = text_or(tensor.name, std::string("#").append(std::to_string(i)));
    const auto refuse = [&](const std::string& text) {
      return bad(std::string("tensor ").append(name).append(": ") + text);
    };
    if (tensor.dtype < SLUICE_FLOAT32 || tensor.dtype > SLUICE_BFLOAT16)
      return refuse("dtype " + std::to_string(tensor.dtype) +
                    " does not exist; use float32, float16 or bfloat16");
    constexpr std::uint64_t kKnown =
        SLUICE_TENSOR_EXACT | SLUICE_TENSOR_DENSE | SLUICE_TENSOR_LAYER;
    if ((tensor.flags & ~kKnown) != 0)
      return refuse("flags " + std::to_string(tensor.flags) +
                    " has bits that this version does not know");
    const bool begins_layer = (tensor.flags & SLUICE_TENSOR_LAYER) != 0;
    if (begins_layer && !of_store)
      return refuse("SLUICE_TENSOR_LAYER, but the job is no store; set options.store.enabled");
    request.tensors.push_back({.name = name,
                               .elem_count = tensor.elem_count,
                               .dtype = static_cast<Dtype>(tensor.dtype),
                               .exact = (tensor.flags & SLUICE_TENSOR_EXACT) != 0,
                               .dense = (tensor.flags & SLUICE_TENSOR_DENSE) != 0,
                               .begins_block = of_store && (begins_layer || i == 0)});
  }
  return {};
}

}  // namespace sluice::client
