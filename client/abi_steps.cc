// The C interface's calls of a step: submitting tensors and waiting for their results.

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "client/abi_call.h"
#include "client/abi_options.h"
#include "client/include/sluice/sluice.h"
#include "client/job.h"

using sluice::Status;
using sluice::StatusCode;
using sluice::client::answer;
using sluice::client::check_struct;
using sluice::client::guarded;
using sluice::client::Job;
using sluice::client::Submission;

namespace {

Status check_priority(std::uint32_t priority) {
  if (priority <= UINT8_MAX) return {};
  return {StatusCode::kInvalidArgument,
          "priority " + std::to_string(priority) + " must be 0 (most urgent) to 255"};
}

Status read_submission(const sluice_submission* from, Submission& to) {
  Status status = check_struct(from, "sluice_submission");
  if (status.ok()) status = check_priority(from->priority);
  if (!status.ok()) return status;
  const bool catches_up = from->catch_up != 0;
  to = {.tensor = from->tensor,
        .input = catches_up ? nullptr : from->input,
        .output = from->output,
        .weight = catches_up ? 0 : from->weight,
        .priority = static_cast<sluice::Priority>(from->priority),
        .contribute = !catches_up};
  return status;
}

Status submit_to_device(Job& job, std::span<const Submission> ready,
                        const sluice_submission* given) {
  Status status;
  for (std::size_t i = 0; status.ok() && i < ready.size(); ++i)
    status = job.submit_device(ready[i], given[i].stream);
  return status;
}

}  // namespace

extern "C" {

sluice_status sluice_submit(sluice_job* job, uint32_t tensor, const void* input, void* output,
                            uint32_t weight, uint32_t priority) {
  return guarded(job, [&](Job& impl) -> Status {
    if (Status status = check_priority(priority); !status.ok()) return status;
    const Submission submission{.tensor = tensor,
                                .input = input,
                                .output = output,
                                .weight = weight,
                                .priority = static_cast<sluice::Priority>(priority)};
    return impl.submit({&submission, 1});
  });
}

sluice_status sluice_submit_device(sluice_job* job, const sluice_submission* submission) {
  return guarded(job, [&](Job& impl) -> Status {
    Submission ready;
    Status status = read_submission(submission, ready);
    return status.ok() ? impl.submit_device(ready, submission->stream) : status;
  });
}

sluice_status sluice_submit_many(sluice_job* job, const sluice_submission* submissions,
                                 size_t count) {
  return guarded(job, [&](Job& impl) -> Status {
    Status status;
    // The progress thread gets its turn between two batches.
    std::array<Submission, 32> batch;
    for (std::size_t first = 0; status.ok() && first < count; first += batch.size()) {
      const std::size_t most = std::min(batch.size(), count - first);
      std::size_t ready = 0;
      while (ready < most && status.ok()) {
        status = read_submission(submissions + first + ready, batch[ready]);
        ready += status.ok();
      }
      Status submitted = impl.has_device()
                             ? submit_to_device(impl, {batch.data(), ready}, submissions + first)
                             : impl.submit({batch.data(), ready});
      if (!submitted.ok()) return submitted;
    }
    return status;
  });
}

sluice_status sluice_end_step(sluice_job* job) {
  return guarded(job, [&](Job& impl) { return impl.end_step(); });
}

sluice_status sluice_catch_up(sluice_job* job, uint32_t tensor, void* output) {
  return guarded(job, [&](Job& impl) {
    const Submission submission{
        .tensor = tensor, .output = output, .weight = 0, .contribute = false};
    return impl.submit({&submission, 1});
  });
}

sluice_status sluice_wait_tensor(sluice_job* job, uint32_t tensor, int32_t timeout_ms,
                                 sluice_result* result) {
  return guarded(job, [&](Job& impl) {
    sluice::client::Tensors::Result found;
    const auto wait = [&] { return impl.wait_tensor(tensor, timeout_ms, found); };
    if (result == nullptr) return wait();
    return answer(result, "sluice_result", [&](sluice_result& known) {
      Status status = wait();
      known.weight = found.weight;
      known.latency_ns = static_cast<std::uint64_t>(found.latency_ns);
      known.step = found.step;
      known.absent = found.absent;
      known.non_finite = found.non_finite;
      return status;
    });
  });
}

sluice_status sluice_wait_tensors(sluice_job* job, const uint32_t* tensors, size_t count,
                                  size_t least, int32_t timeout_ms, size_t* done) {
  return guarded(job, [&](Job& impl) -> Status {
    if (done == nullptr || (tensors == nullptr && count != 0))
      return {StatusCode::kInvalidArgument, "wait_tensors: tensors or done is NULL"};
    if (least > count)
      return {StatusCode::kInvalidArgument, "wait_tensors: least is " + std::to_string(least) +
                                                ", but there are " + std::to_string(count) +
                                                " tensors"};
    return impl.wait_tensors({tensors, count}, least, timeout_ms, *done);
  });
}

sluice_status sluice_wait_step(sluice_job* job, int32_t timeout_ms, uint32_t* step) {
  return guarded(job, [&](Job& impl) {
    sluice::Step last = 0;
    Status status = impl.wait_step(timeout_ms, last);
    if (status.ok() && step != nullptr) *step = last;
    return status;
  });
}

sluice_status sluice_mark_applied(sluice_job* job, uint32_t tensor) {
  return guarded(job, [&](Job& impl) { return impl.mark_applied(tensor); });
}

}  // extern "C"
