// The C interface's groups and operations.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/abi_call.h"
#include "client/job_groups.h"

using sluice::Dtype;
using sluice::kMaxWorkers;
using sluice::kMillisecond;
using sluice::Priority;
using sluice::Rank;
using sluice::Status;
using sluice::StatusCode;
using sluice::client::check_struct;
using sluice::client::guarded;
using sluice::client::Job;
using sluice::client::JobGroups;
using sluice::client::JoinRequest;
using sluice::client::OperationCall;
using sluice::wire::OperationKind;

namespace {

Status bad(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

sluice_operation default_operation() {
  return {.struct_size = sizeof(sluice_operation),
          .dtype = SLUICE_FLOAT32,
          .wire = SLUICE_WIRE_FLOAT32,
          .reduction = SLUICE_SUM,
          .priority = sluice::client::kUsualPriority,
          .timeout_ms = SLUICE_FOREVER,
          .done = nullptr,
          .user = nullptr,
          .on_device = 0,
          .stream = nullptr};
}

// What only sums read.
Status read_reduction(const sluice_operation& given, OperationCall& call) {
  switch (given.dtype) {
    case SLUICE_FLOAT32: call.dtype = Dtype::kFloat32; break;
    case SLUICE_FLOAT16: call.dtype = Dtype::kFloat16; break;
    case SLUICE_BFLOAT16: call.dtype = Dtype::kBfloat16; break;
    default:
      return bad("operation.dtype is " + std::to_string(given.dtype) +
                 "; use SLUICE_FLOAT32, _FLOAT16 or _BFLOAT16");
  }
  switch (given.wire) {
    case SLUICE_WIRE_FLOAT32: call.wire = call.dtype; break;
    case SLUICE_WIRE_FLOAT16: call.wire = Dtype::kFloat16; break;
    case SLUICE_WIRE_BFLOAT16: call.wire = Dtype::kBfloat16; break;
    case SLUICE_WIRE_INT8:
      return bad(
          "operation.wire is SLUICE_WIRE_INT8: operations keep no residual, and int8 without one "
          "loses each element below 1/254 of its packet's largest; use SLUICE_WIRE_FLOAT16 or "
          "_BFLOAT16");
    default:
      return bad("operation.wire is " + std::to_string(given.wire) +
                 "; use SLUICE_WIRE_FLOAT32, _FLOAT16 or _BFLOAT16");
  }
  if (call.wire != call.dtype && call.dtype != Dtype::kFloat32)
    return bad("operation.wire is for float32 alone: 16-bit elements travel as they are");
  if (given.reduction != SLUICE_SUM && given.reduction != SLUICE_MEAN)
    return bad("operation.reduction is " + std::to_string(given.reduction) +
               "; use SLUICE_SUM or SLUICE_MEAN");
  call.reduction = given.reduction == SLUICE_MEAN ? sluice::wire::Reduction::kMean
                                                  : sluice::wire::Reduction::kSum;
  return {};
}

Status read_operation(const sluice_operation* operation, OperationCall& call) {
  sluice_operation given = default_operation();
  if (operation != nullptr) {
    if (Status status = check_struct(operation, "sluice_operation"); !status.ok()) return status;
    given = *operation;
  }
  if (given.priority > sluice::kLeastUrgent)
    return bad("operation.priority is " + std::to_string(given.priority) + "; at most 255");
  call.priority = static_cast<Priority>(given.priority);
  if (given.timeout_ms >= 0) call.patience_ns = given.timeout_ms * kMillisecond;
  if (given.done != nullptr)
    call.done = [done = given.done, user = given.user](std::uint64_t number, StatusCode code) {
      done(user, number, static_cast<sluice_status>(code));
    };
  return sluice::wire::is_reduction(call.kind) ? read_reduction(given, call) : Status();
}

template <class Body>
sluice_status with_group(sluice_group* group, Body body) {
  if (group == nullptr) return guarded([] { return bad("group is NULL"); });
  return guarded(group->job, [&](Job& impl) {
    JobGroups groups(impl);
    return body(groups);
  });
}

// `count`: elements of what is summed, else bytes.
sluice_status begin(sluice_group* group, OperationCall call, std::uint64_t count,
                    const sluice_operation* operation, std::uint64_t* ticket) {
  return with_group(group, [&](JobGroups& groups) -> Status {
    if (Status status = read_operation(operation, call); !status.ok()) return status;
    if (ticket == nullptr && !call.done)
      return bad("ticket is NULL and there is no callback: nothing could wait for the operation");
    if (count > sluice::wire::kMaxOperationBytes)
      return bad(std::to_string(count) + " elements or bytes: an operation has 2^40 bytes at most");
    call.bytes = count * dtype_bytes(call.dtype);
    std::uint64_t number = 0;
    Status status =
        operation != nullptr && operation->on_device != 0
            ? groups.call_device(group->index, std::move(call), operation->stream, number)
            : groups.call(group->index, std::move(call), number);
    if (status.ok() && ticket != nullptr) *ticket = number;
    return status;
  });
}

Status check_buffer(const void* buffer, std::uint64_t count, const char* name) {
  return buffer != nullptr || count == 0 ? Status() : bad(std::string(name) + " is NULL");
}

// Both have memory.
sluice_status begin_between(sluice_group* group, OperationCall call, std::uint64_t count,
                            const sluice_operation* operation, std::uint64_t* ticket) {
  Status status = check_buffer(call.input, count, "input");
  if (status.ok()) status = check_buffer(call.output, count, "output");
  if (!status.ok()) return guarded([&] { return status; });
  return begin(group, std::move(call), count, operation, ticket);
}

Status read_root(std::uint32_t root, OperationCall& call) {
  if (root >= kMaxWorkers) return bad("there is no root " + std::to_string(root));
  call.root = static_cast<std::uint16_t>(root);
  return {};
}

// The options that mean nothing to operations.
Status check_plain(const sluice_options& options, const JoinRequest& request) {
  const auto refuse = [](const char* field) {
    return bad(std::string("options.") + field +
               ": a job of operations has none; leave it at its default");
  };
  if (options.averaging != SLUICE_AVERAGE_DEFAULT) return refuse("averaging");
  if (options.wire != SLUICE_WIRE_FLOAT32) return refuse("wire");
  if (request.session.has_policy) return refuse("policy");
  if (options.schedule.kind != SLUICE_SCHEDULE_STRICT) return refuse("schedule");
  if (options.prune.rule != SLUICE_PRUNE_OFF) return refuse("prune");
  if (request.session.store) return refuse("store");
  return {};
}

}  // namespace

extern "C" {

sluice_status sluice_operation_init(sluice_operation* operation) {
  return guarded([&]() -> Status {
    Status status = check_struct(operation, "sluice_operation");
    if (status.ok()) *operation = default_operation();
    return status;
  });
}

sluice_status sluice_join_operations(const sluice_options* options, sluice_job** job) {
  return guarded([&]() -> Status {
    if (job == nullptr) return bad("job is NULL: nowhere to put the handle");
    *job = nullptr;
    JoinRequest request;
    Status status = sluice::client::read_options(options, request, true);
    if (status.ok()) status = check_plain(*options, request);
    if (!status.ok()) return status;
    request.session.operations = true;
    request.trace_dir.clear();
    auto handle = std::make_unique<sluice_job>();
    status = Job::join(std::move(request), handle->impl);
    if (status.ok()) *job = handle.release();
    return status;
  });
}

sluice_status sluice_make_group(sluice_job* job, const char* name, const uint32_t* ranks,
                                size_t count, sluice_group** group) {
  return guarded(job, [&](Job& impl) -> Status {
    if (group == nullptr) return bad("group is NULL: nowhere to put the handle");
    *group = nullptr;
    if (name == nullptr) return bad("name is NULL");
    if (ranks == nullptr || count == 0) return bad("ranks is NULL or count is 0");
    std::vector<Rank> members;
    for (std::size_t i = 0; i < count; ++i) {
      if (ranks[i] >= kMaxWorkers) return bad("there is no rank " + std::to_string(ranks[i]));
      members.push_back(Rank{static_cast<std::uint16_t>(ranks[i])});
    }
    std::uint32_t index = 0;
    Status status = JobGroups(impl).make(name, members, index);
    if (!status.ok()) return status;
    const std::lock_guard lock(job->groups_mutex);
    *group = &job->groups.try_emplace(index, sluice_group{job, index}).first->second;
    return status;
  });
}

sluice_status sluice_leave_group(sluice_group* group) {
  return with_group(group, [&](JobGroups& groups) { return groups.leave(group->index); });
}

sluice_status sluice_abort_group(sluice_group* group) {
  return with_group(group, [&](JobGroups& groups) { return groups.abort(group->index); });
}

sluice_status sluice_get_rank(sluice_job* job, uint32_t* rank) {
  return guarded(job, [&](Job& impl) -> Status {
    if (rank == nullptr) return bad("rank is NULL");
    *rank = impl.rank().value;
    return {};
  });
}

sluice_status sluice_all_reduce(sluice_group* group, const void* input, void* output,
                                uint64_t elem_count, const sluice_operation* operation,
                                uint64_t* ticket) {
  return begin_between(group, {.kind = OperationKind::kAllReduce, .input = input, .output = output},
                       elem_count, operation, ticket);
}

sluice_status sluice_reduce(sluice_group* group, uint32_t root, const void* input, void* output,
                            uint64_t elem_count, const sluice_operation* operation,
                            uint64_t* ticket) {
  OperationCall call{.kind = OperationKind::kReduce, .input = input, .output = output};
  Status status = read_root(root, call);
  if (status.ok()) status = check_buffer(input, elem_count, "input");
  if (status.ok() && group != nullptr && group->job->impl->rank().value == root)
    status = check_buffer(output, elem_count, "output");
  if (!status.ok()) return guarded([&] { return status; });
  return begin(group, std::move(call), elem_count, operation, ticket);
}

sluice_status sluice_reduce_scatter(sluice_group* group, const void* input, void* output,
                                    uint64_t elem_count, const sluice_operation* operation,
                                    uint64_t* ticket) {
  return begin_between(group,
                       {.kind = OperationKind::kReduceScatter, .input = input, .output = output},
                       elem_count, operation, ticket);
}

sluice_status sluice_all_gather(sluice_group* group, const void* input, void* output,
                                uint64_t bytes, const sluice_operation* operation,
                                uint64_t* ticket) {
  return begin_between(group, {.kind = OperationKind::kAllGather, .input = input, .output = output},
                       bytes, operation, ticket);
}

sluice_status sluice_group_broadcast(sluice_group* group, uint32_t root, void* buffer,
                                     uint64_t bytes, const sluice_operation* operation,
                                     uint64_t* ticket) {
  OperationCall call{.kind = OperationKind::kBroadcast, .input = buffer, .output = buffer};
  Status status = read_root(root, call);
  if (status.ok()) status = check_buffer(buffer, bytes, "buffer");
  if (!status.ok()) return guarded([&] { return status; });
  return begin(group, std::move(call), bytes, operation, ticket);
}

sluice_status sluice_group_barrier(sluice_group* group, const sluice_operation* operation,
                                   uint64_t* ticket) {
  return begin(group, {.kind = OperationKind::kBarrier}, 0, operation, ticket);
}

sluice_status sluice_wait(sluice_group* group, uint64_t ticket, int32_t timeout_ms, int32_t* done) {
  return with_group(group, [&](JobGroups& groups) {
    bool over = false;
    Status status = groups.wait(group->index, ticket, timeout_ms, over);
    if (done != nullptr) *done = over;
    return status;
  });
}

sluice_status sluice_test(sluice_group* group, uint64_t ticket, int32_t* done) {
  return with_group(group, [&](JobGroups& groups) -> Status {
    if (done == nullptr) return bad("done is NULL");
    bool over = false;
    Status status = groups.test(group->index, ticket, over);
    *done = over;
    return status;
  });
}

sluice_status sluice_cancel(sluice_group* group, uint64_t ticket) {
  return with_group(group, [&](JobGroups& groups) { return groups.cancel(group->index, ticket); });
}

}  // extern "C"
