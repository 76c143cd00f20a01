// The C interface (sluice.h): checks arguments, keeps exceptions in, remembers error texts.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "client/include/sluice/sluice.h"
#include "client/job.h"

using sluice::client::Board;
using sluice::client::ClientJob;
using sluice::client::CollectiveCall;
using sluice::client::JoinRequest;
using sluice::client::Outcome;

struct sluice_job {
  std::unique_ptr<ClientJob> impl;
};

namespace {

constexpr std::uint32_t kMaxTimeoutMs = 24 * 3600 * 1000;
// The first version's sizes: the least that a caller can have been compiled with.
constexpr std::size_t kFirstOptionsBytes = offsetof(sluice_options, policy);
constexpr std::size_t kFirstTensorBytes = sizeof(sluice_tensor);

std::string& last_error() {
  thread_local std::string text;
  return text;
}

sluice_status fail(Outcome outcome) {
  last_error() = std::move(outcome.text);
  return outcome.code;
}

// Runs the body of a call: no exception leaves it.
template <class Body>
sluice_status guarded(Body body) noexcept {
  try {
    Outcome outcome = body();
    return outcome.ok() ? SLUICE_OK : fail(std::move(outcome));
  } catch (const std::bad_alloc&) {
    return fail({SLUICE_EXHAUSTED, "out of memory"});
  } catch (const std::exception& error) {
    return fail({SLUICE_INTERNAL, error.what()});
  } catch (...) {
    return fail({SLUICE_INTERNAL, "unknown exception"});
  }
}

// The same for a call on a job that must exist and belong to this process.
template <class Body>
sluice_status guarded(sluice_job* job, Body body) noexcept {
  return guarded([&]() -> Outcome {
    if (job == nullptr) return {SLUICE_INVALID_ARGUMENT, "job is NULL"};
    if (job->impl->is_forked()) {
      return {SLUICE_FORKED,
              "this job was joined by the parent process; join again in the child to take part"};
    }
    return body(*job->impl);
  });
}

// A job's own failure comes before what is wrong with a call.
Outcome check_working(const ClientJob& job) { return job.board().outcome(); }

std::string text_or(const char* text, std::string fallback) {
  return text != nullptr ? std::string(text) : std::move(fallback);
}

Outcome check_struct(std::size_t actual, std::size_t least, const char* what) {
  if (actual >= least) return {};
  return {SLUICE_INVALID_ARGUMENT, std::string(what) + ".struct_size is " + std::to_string(actual) +
                                       "; set it to sizeof(" + what + "), " +
                                       std::to_string(least) + " in this version"};
}

Outcome check_options(const sluice_options& options) {
  const auto bad = [](std::string text) {
    return Outcome(SLUICE_INVALID_ARGUMENT, std::move(text));
  };
  if (options.address == nullptr) return bad("options.address is NULL");
  const std::size_t name_bytes = options.job_name == nullptr ? 0 : std::strlen(options.job_name);
  if (name_bytes == 0 || name_bytes > sluice::kMaxJobNameBytes) {
    return bad("options.job_name must have 1 to " + std::to_string(sluice::kMaxJobNameBytes) +
               " bytes, not " + std::to_string(name_bytes));
  }
  if (options.world_size == 0 || options.world_size > sluice::kMaxWorkers) {
    return bad("options.world_size is " + std::to_string(options.world_size) + "; must be 1 to " +
               std::to_string(sluice::kMaxWorkers));
  }
  if (options.rank >= options.world_size) {
    return bad("options.rank is " + std::to_string(options.rank) + "; must be below world_size " +
               std::to_string(options.world_size));
  }
  if (options.ordinal > UINT16_MAX) {
    return bad("options.ordinal is " + std::to_string(options.ordinal) + "; must be below 65536");
  }
  if (options.averaging < SLUICE_AVERAGE_WEIGHT || options.averaging > SLUICE_SUM) {
    return bad("options.averaging is " + std::to_string(options.averaging) +
               "; use SLUICE_AVERAGE_WEIGHT, SLUICE_AVERAGE_WORLD or SLUICE_SUM");
  }
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

Outcome read_tensors(const sluice_tensor* tensors, std::size_t count, JoinRequest& request) {
  if (tensors == nullptr || count == 0) {
    return {SLUICE_INVALID_ARGUMENT, "tensors: a job needs at least one tensor"};
  }
  if (Outcome outcome = check_struct(tensors->struct_size, kFirstTensorBytes, "sluice_tensor");
      !outcome.ok()) {
    return outcome;
  }
  const std::size_t stride = tensors->struct_size;
  const auto* at = reinterpret_cast<const char*>(tensors);
  for (std::size_t i = 0; i < count; ++i, at += stride) {
    const auto& tensor = *reinterpret_cast<const sluice_tensor*>(at);
    const std::string name = text_or(tensor.name, std::string("#").append(std::to_string(i)));
    if (tensor.struct_size != stride) {
      return {SLUICE_INVALID_ARGUMENT,
              "tensor " + name + ": struct_size " + std::to_string(tensor.struct_size) +
                  " differs from the first one's " + std::to_string(stride)};
    }
    if (tensor.dtype < SLUICE_FLOAT32 || tensor.dtype > SLUICE_BFLOAT16) {
      return {SLUICE_INVALID_ARGUMENT, "tensor " + name + ": dtype " +
                                           std::to_string(tensor.dtype) +
                                           " does not exist; use float32, float16 or bfloat16"};
    }
    request.tensors.push_back({.name = name,
                               .elem_count = tensor.elem_count,
                               .dtype = static_cast<sluice::Dtype>(tensor.dtype)});
  }
  return {};
}

void read_callbacks(const sluice_options& options, JoinRequest& request) {
  void* const user = options.user;
  request.log =
      sluice::client::Log({options.log, user, static_cast<sluice_log_level>(options.log_level)});
  if (options.on_tensor_done != nullptr) {
    request.callbacks.tensor_done = [call = options.on_tensor_done, user](std::uint32_t tensor,
                                                                          sluice_status status) {
      call(user, tensor, status);
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

JoinRequest read_options(const sluice_options& options) {
  constexpr sluice::DurationNs kMs = sluice::kMillisecond;
  JoinRequest request;
  request.address = options.address;
  request.local_address = text_or(options.local_address, "");
  request.session.job_name = options.job_name;
  request.session.ordinal = static_cast<std::uint16_t>(options.ordinal);
  request.session.run_id = options.run_id;
  request.session.rank = sluice::Rank{static_cast<std::uint16_t>(options.rank)};
  request.session.world_size = static_cast<std::uint16_t>(options.world_size);
  request.session.secret = text_or(options.secret, "");
  request.session.allow_nil = options.allow_nil != 0;
  request.session.connect_timeout_ns = options.connect_timeout_ms * kMs;
  request.session.join_timeout_ns = options.join_timeout_ms * kMs;
  request.session.silence_timeout_ns = options.silence_timeout_ms * kMs;
  request.session.stall_report_ns = options.stall_report_ms * kMs;
  request.averaging = static_cast<sluice::client::Averaging>(options.averaging);
  request.mtu_bytes = options.mtu;
  request.chunk_bytes = options.chunk_bytes;
  read_callbacks(options, request);
  return request;
}

// Copies as much of `value` as the caller's struct has room for, leaving its struct_size alone.
template <class Struct>
void copy_out(const Struct& value, Struct* out) {
  const std::size_t bytes = std::min(out->struct_size, sizeof value);
  const std::size_t skip = sizeof out->struct_size;
  std::memcpy(reinterpret_cast<char*>(out) + skip, reinterpret_cast<const char*>(&value) + skip,
              bytes - skip);
}

Outcome check_collective(const ClientJob& job, std::uint32_t root, const void* buffer,
                         std::size_t bytes) {
  if (root >= job.world_size()) {
    return {SLUICE_INVALID_ARGUMENT, "broadcast: root " + std::to_string(root) +
                                         " must be below world_size " +
                                         std::to_string(job.world_size())};
  }
  if (buffer == nullptr || bytes == 0) {
    return {SLUICE_INVALID_ARGUMENT, "broadcast: buffer is NULL or bytes is 0"};
  }
  return {};
}

Outcome check_may_block(const ClientJob& job, const char* call) {
  if (!job.board().on_progress_thread()) return {};
  return {SLUICE_INVALID_ARGUMENT, std::string(call) + ": must not be called from a callback"};
}

Outcome leave(ClientJob& job, bool abnormal) {
  Outcome outcome = check_may_block(job, abnormal ? "abort" : "leave");
  if (outcome.ok()) job.leave(abnormal);
  return outcome;
}

}  // namespace

extern "C" {

const char* sluice_version(void) { return SLUICE_VERSION_TEXT; }

const char* sluice_status_name(sluice_status status) {
  switch (status) {
    case SLUICE_OK: return "ok";
    case SLUICE_INVALID_ARGUMENT: return "invalid argument";
    case SLUICE_NOT_FOUND: return "not found";
    case SLUICE_REFUSED: return "refused";
    case SLUICE_UNREACHABLE: return "unreachable";
    case SLUICE_TIMED_OUT: return "timed out";
    case SLUICE_PEER_LOST: return "peer lost";
    case SLUICE_EXHAUSTED: return "exhausted";
    case SLUICE_IO_ERROR: return "input/output error";
    case SLUICE_CLOSED: return "closed";
    case SLUICE_BUSY: return "busy";
    case SLUICE_INTERRUPTED: return "interrupted";
    case SLUICE_FORKED: return "forked";
    case SLUICE_INTERNAL: return "internal error";
    case SLUICE_BEHIND: return "behind";
  }
  return "unknown";
}

const char* sluice_last_error(const sluice_job* job) {
  guarded([&]() -> Outcome {
    if (job == nullptr || job->impl->is_forked()) return {};
    const Outcome outcome = job->impl->board().outcome();
    if (!outcome.ok()) last_error() = outcome.text;
    return {};
  });
  return last_error().c_str();
}

sluice_status sluice_options_init(sluice_options* options) {
  return guarded([&]() -> Outcome {
    if (options == nullptr) return {SLUICE_INVALID_ARGUMENT, "options is NULL"};
    if (Outcome outcome = check_struct(options->struct_size, kFirstOptionsBytes, "sluice_options");
        !outcome.ok()) {
      return outcome;
    }
    const sluice::client::SessionOptions session;
    sluice_options defaults{};
    const auto ms = [](sluice::DurationNs duration_ns) {
      return static_cast<std::uint32_t>(duration_ns / sluice::kMillisecond);
    };
    defaults.mtu = 1500;
    defaults.averaging = SLUICE_AVERAGE_WEIGHT;
    defaults.allow_nil = 1;
    defaults.connect_timeout_ms = ms(session.connect_timeout_ns);
    defaults.join_timeout_ms = ms(session.join_timeout_ns);
    defaults.silence_timeout_ms = ms(session.silence_timeout_ns);
    defaults.stall_report_ms = ms(session.stall_report_ns);
    defaults.log_level = SLUICE_LOG_INFO;
    copy_out(defaults, options);
    return {};
  });
}

sluice_status sluice_set_log(sluice_log_fn log, void* user, sluice_log_level level) {
  return guarded([&]() -> Outcome {
    sluice::client::set_process_log({log, user, level});
    return {};
  });
}

sluice_status sluice_join(const sluice_options* options, const sluice_tensor* tensors, size_t count,
                          sluice_job** job) {
  return guarded([&]() -> Outcome {
    if (job == nullptr) return {SLUICE_INVALID_ARGUMENT, "job is NULL: nowhere to put the handle"};
    *job = nullptr;
    if (options == nullptr) return {SLUICE_INVALID_ARGUMENT, "options is NULL"};
    Outcome outcome = check_struct(options->struct_size, kFirstOptionsBytes, "sluice_options");
    if (outcome.ok()) outcome = check_options(*options);
    if (!outcome.ok()) return outcome;
    JoinRequest request = read_options(*options);
    outcome = read_tensors(tensors, count, request);
    if (!outcome.ok()) return outcome;
    auto handle = std::make_unique<sluice_job>();
    outcome = ClientJob::join(std::move(request), handle->impl);
    if (outcome.ok()) *job = handle.release();
    return outcome;
  });
}

sluice_status sluice_submit(sluice_job* job, uint32_t tensor, const void* input, void* output,
                            uint32_t weight, uint32_t priority) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (priority > UINT8_MAX) {
      return {SLUICE_INVALID_ARGUMENT,
              "priority " + std::to_string(priority) + " must be 0 (most urgent) to 255"};
    }
    return impl.board().submit({.tensor = tensor,
                                .input = input,
                                .output = output,
                                .weight = weight,
                                .priority = static_cast<sluice::Priority>(priority)});
  });
}

sluice_status sluice_end_step(sluice_job* job) {
  return guarded(job, [&](ClientJob& impl) { return impl.board().end_step(); });
}

sluice_status sluice_wait_tensor(sluice_job* job, uint32_t tensor, int32_t timeout_ms,
                                 sluice_result* result) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (result != nullptr) {
      Outcome outcome = check_struct(result->struct_size, sizeof *result, "sluice_result");
      if (!outcome.ok()) return outcome;
    }
    sluice_result known{};
    Outcome outcome = impl.board().wait_tensor(tensor, impl.wait_options(timeout_ms), &known);
    if (outcome.ok() && result != nullptr) copy_out(known, result);
    return outcome;
  });
}

sluice_status sluice_wait_step(sluice_job* job, int32_t timeout_ms, uint32_t* step) {
  return guarded(job, [&](ClientJob& impl) {
    return impl.board().wait_step(impl.wait_options(timeout_ms), step);
  });
}

sluice_status sluice_broadcast(sluice_job* job, uint32_t root, void* buffer, size_t bytes,
                               int32_t timeout_ms) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    Outcome outcome = check_working(impl);
    if (outcome.ok()) outcome = check_collective(impl, root, buffer, bytes);
    if (!outcome.ok()) return outcome;
    auto call = std::make_shared<CollectiveCall>();
    call->root = sluice::Rank{static_cast<std::uint16_t>(root)};
    const auto* start = static_cast<const std::uint8_t*>(buffer);
    const bool is_root = impl.rank() == call->root;
    is_root ? call->buffer.assign(start, start + bytes) : call->buffer.resize(bytes);
    outcome = impl.board().collective(call, impl.wait_options(timeout_ms));
    if (outcome.ok() && !is_root) std::memcpy(buffer, call->buffer.data(), bytes);
    return outcome;
  });
}

sluice_status sluice_barrier(sluice_job* job, int32_t timeout_ms) {
  return guarded(job, [&](ClientJob& impl) {
    auto call = std::make_shared<CollectiveCall>();
    call->is_barrier = true;
    return impl.board().collective(call, impl.wait_options(timeout_ms));
  });
}

sluice_status sluice_job_status(sluice_job* job) {
  return guarded(job, [](ClientJob& impl) { return impl.board().outcome(); });
}

sluice_status sluice_leave(sluice_job* job) {
  return guarded(job, [](ClientJob& impl) { return leave(impl, false); });
}

sluice_status sluice_abort(sluice_job* job) {
  return guarded(job, [](ClientJob& impl) { return leave(impl, true); });
}

sluice_status sluice_close(sluice_job* job) {
  if (job == nullptr) return SLUICE_OK;
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (Outcome outcome = check_may_block(impl, "close"); !outcome.ok()) return outcome;
    delete job;
    return {};
  });
}

sluice_status sluice_stats_get(sluice_job* job, sluice_stats* stats) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (stats == nullptr) return {SLUICE_INVALID_ARGUMENT, "stats is NULL"};
    Outcome outcome = check_struct(stats->struct_size, sizeof stats->struct_size, "sluice_stats");
    if (!outcome.ok()) return outcome;
    const sluice::client::ClientCounters& counters = impl.board().counters();
    const sluice_stats values{.struct_size = sizeof values,
                              .packets_sent = counters.packets_sent.read(),
                              .packets_received = counters.packets_received.read(),
                              .bytes_sent = counters.bytes_sent.read(),
                              .bytes_received = counters.bytes_received.read(),
                              .retransmissions = counters.retransmissions.read(),
                              .probes = counters.probes.read(),
                              .results_pulled = counters.results_pulled.read(),
                              .duplicate_results = counters.duplicate_results.read(),
                              .non_finite_results = counters.non_finite_results.read(),
                              .nil_contributions = counters.nil_contributions.read(),
                              .invalid_packets = counters.invalid_packets.read(),
                              .send_errors = counters.send_errors.read(),
                              .steps_done = counters.steps_done.read(),
                              .receive_credit_packets = counters.receive_credit_packets.read(),
                              .chunk_bytes = impl.chunk_bytes(),
                              .shards = counters.shards.read(),
                              .non_finite_inputs = counters.non_finite_inputs.read()};
    copy_out(values, stats);
    return {};
  });
}

sluice_status sluice_describe_stall(sluice_job* job, char* text, size_t capacity) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (text == nullptr || capacity == 0) {
      return {SLUICE_INVALID_ARGUMENT, "describe_stall: text is NULL or capacity is 0"};
    }
    const std::string stall = impl.board().describe_stall();
    const std::size_t bytes = std::min(stall.size(), capacity - 1);
    std::memcpy(text, stall.data(), bytes);
    text[bytes] = '\0';
    return {};
  });
}

}  // extern "C"
