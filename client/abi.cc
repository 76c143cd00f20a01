// The C interface (sluice.h): checks arguments, keeps exceptions in, remembers error texts.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <string>

#include "client/abi_options.h"
#include "client/include/sluice/sluice.h"
#include "client/job.h"

using sluice::client::check_struct;
using sluice::client::ClientJob;
using sluice::client::CollectiveCall;
using sluice::client::JoinRequest;
using sluice::client::Outcome;
using sluice::wire::LeaveReason;

struct sluice_job {
  std::unique_ptr<ClientJob> impl;
};

namespace {

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
  if (!job.board().on_own_thread()) return {};
  return {SLUICE_INVALID_ARGUMENT, std::string(call) + ": must not be called from a callback"};
}

Outcome copy_text(const char* call, char* text, std::size_t capacity,
                  const std::function<std::string()>& source) {
  if (text == nullptr || capacity == 0) {
    return {SLUICE_INVALID_ARGUMENT, std::string(call) + ": text is NULL or capacity is 0"};
  }
  const std::string full = source();
  const std::size_t bytes = std::min(full.size(), capacity - 1);
  std::memcpy(text, full.data(), bytes);
  text[bytes] = '\0';
  return {};
}

Outcome leave(ClientJob& job, LeaveReason reason, const char* call) {
  Outcome outcome = check_may_block(job, call);
  if (outcome.ok()) job.leave(reason);
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
    if (Outcome outcome = check_struct(options->struct_size, sluice::client::kFirstOptionsBytes,
                                       "sluice_options");
        !outcome.ok()) {
      return outcome;
    }
    copy_out(sluice::client::default_options(), options);
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
    JoinRequest request;
    Outcome outcome = sluice::client::read_options(*options, request);
    if (outcome.ok()) outcome = sluice::client::read_tensors(tensors, count, request);
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

// ---- stragglers ----

sluice_status sluice_policy(sluice_job* job, sluice_policy_info* info) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (info == nullptr) return {SLUICE_INVALID_ARGUMENT, "info is NULL"};
    Outcome outcome = check_struct(info->struct_size, sizeof *info, "sluice_policy_info");
    if (!outcome.ok()) return outcome;
    const sluice::client::JobFacts facts = impl.board().facts();
    const sluice::PolicyOptions& policy = facts.policy;
    const sluice_policy_info known{
        .struct_size = sizeof known,
        .policy = static_cast<std::int32_t>(policy.kind),
        .late = static_cast<std::int32_t>(policy.late),
        .k = policy.k,
        .sign_threshold_permille = policy.sign_threshold_permille,
        .count_threshold = policy.count_threshold,
        .sign_stride = policy.sign_stride,
        .round_steps = policy.round_steps,
        .planned_steps = policy.planned_steps,
        .max_staleness = policy.max_staleness,
        .window_steps = facts.window_steps,
        .resync_hold_ms = facts.resync_hold_ms,
        .tolerates_stragglers = policy.tolerates_stragglers(),
    };
    copy_out(known, info);
    return {};
  });
}

sluice_status sluice_behind(sluice_job* job, uint32_t* steps) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (steps == nullptr) return {SLUICE_INVALID_ARGUMENT, "steps is NULL"};
    Outcome outcome = check_working(impl);
    if (outcome.ok()) *steps = impl.board().behind();
    return outcome;
  });
}

sluice_status sluice_catch_up(sluice_job* job, uint32_t tensor, void* output) {
  return guarded(job, [&](ClientJob& impl) {
    return impl.board().submit(
        {.tensor = tensor, .output = output, .weight = 0, .contribute = false});
  });
}

sluice_status sluice_step_report(sluice_job* job, uint32_t step, sluice_report* report) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (report == nullptr) return {SLUICE_INVALID_ARGUMENT, "report is NULL"};
    Outcome outcome = check_struct(report->struct_size, sizeof *report, "sluice_report");
    sluice::client::StepReport found;
    if (outcome.ok()) outcome = impl.board().step_report(step, &found);
    if (!outcome.ok()) return outcome;
    sluice_report known{.struct_size = sizeof known,
                        .step = found.step,
                        .k = found.k,
                        .weight = found.weight,
                        .counted = static_cast<std::int32_t>(
                            found.in_every[impl.rank().value / 64] >> (impl.rank().value % 64) & 1),
                        .rank_words = found.mask_words,
                        .in_every = {},
                        .in_any = {}};
    static_assert(sizeof known.in_every == sizeof found.in_every);
    std::memcpy(known.in_every, found.in_every.data(), sizeof known.in_every);
    std::memcpy(known.in_any, found.in_any.data(), sizeof known.in_any);
    copy_out(known, report);
    return {};
  });
}

sluice_status sluice_must_resync(sluice_job* job, int* needed) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (needed == nullptr) return {SLUICE_INVALID_ARGUMENT, "needed is NULL"};
    Outcome outcome = check_working(impl);
    if (outcome.ok()) *needed = impl.board().must_resync();
    return outcome;
  });
}

sluice_status sluice_resync(sluice_job* job, int32_t timeout_ms, sluice_state* state) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (state == nullptr) return {SLUICE_INVALID_ARGUMENT, "state is NULL"};
    Outcome outcome = check_struct(state->struct_size, sizeof *state, "sluice_state");
    sluice_state known{};
    if (outcome.ok()) outcome = impl.board().resync(impl.wait_options(timeout_ms), &known);
    if (outcome.ok()) copy_out(known, state);
    return outcome;
  });
}

sluice_status sluice_state_wanted(sluice_job* job, int32_t* rank) {
  return guarded(job, [&](ClientJob& impl) -> Outcome {
    if (rank == nullptr) return {SLUICE_INVALID_ARGUMENT, "rank is NULL"};
    Outcome outcome = check_working(impl);
    if (outcome.ok()) *rank = impl.board().state_wanted();
    return outcome;
  });
}

sluice_status sluice_send_state(sluice_job* job, const void* data, uint64_t bytes, uint32_t step) {
  return guarded(job, [&](ClientJob& impl) { return impl.board().send_state(data, bytes, step); });
}

// ---- waiting ----

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

sluice_status sluice_mark_applied(sluice_job* job, uint32_t tensor) {
  return guarded(job, [&](ClientJob& impl) { return impl.board().mark_applied(tensor); });
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
  return guarded(job, [](ClientJob& impl) { return leave(impl, LeaveReason::kFinished, "leave"); });
}

sluice_status sluice_finish(sluice_job* job) {
  return guarded(job, [](ClientJob& impl) { return leave(impl, LeaveReason::kUneven, "finish"); });
}

sluice_status sluice_abort(sluice_job* job) {
  return guarded(job, [](ClientJob& impl) { return leave(impl, LeaveReason::kAbnormal, "abort"); });
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
                              .non_finite_inputs = counters.non_finite_inputs.read(),
                              .delivered_chunks = counters.delivered_chunks.read(),
                              .late_chunks = counters.late_chunks.read(),
                              .requeued_chunks = counters.requeued_chunks.read(),
                              .discarded_chunks = counters.discarded_chunks.read(),
                              .cancelled_bytes = counters.cancelled_bytes.read(),
                              .resyncs = counters.resyncs.read()};
    copy_out(values, stats);
    return {};
  });
}

sluice_status sluice_describe_stall(sluice_job* job, char* text, size_t capacity) {
  return guarded(job, [&](ClientJob& impl) {
    return copy_text("describe_stall", text, capacity,
                     [&] { return impl.board().describe_stall(); });
  });
}

sluice_status sluice_schedule_plan(sluice_job* job, char* text, size_t capacity) {
  return guarded(job, [&](ClientJob& impl) {
    return copy_text("schedule_plan", text, capacity, [&] { return impl.board().schedule_plan(); });
  });
}

}  // extern "C"
