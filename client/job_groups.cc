#include "client/job_groups.h"

#include <utility>

#include "client/clock.h"
#include "client/job_wait.h"

namespace sluice::client {

template <class Body>
Status JobGroups::with_groups(Body body) {
  Job::Lock lock = job_.shared_.mutex.lock();
  GroupStream* const groups = job_.shared_.session.groups();
  if (groups == nullptr)
    return {StatusCode::kInvalidArgument,
            job_.place_ + "this is no job of operations: join with sluice_join_operations()"};
  return body(lock, *groups);
}

Status JobGroups::make(const std::string& name, const std::vector<Rank>& ranks,
                       std::uint32_t& index) {
  return with_groups([&](Job::Lock&, GroupStream& groups) {
    Status status = job_.shared_.status();
    if (!status.ok()) return status;
    status = groups.make(name, ranks, monotonic_now(), index);
    job_.shared_.wake();
    return status;
  });
}

Status JobGroups::leave(std::uint32_t index) {
  return with_groups([&](Job::Lock&, GroupStream& groups) {
    Status status = job_.shared_.status();
    if (!status.ok()) return status;
    if (job_.shared_.operations != nullptr && job_.shared_.operations->holds_any(index))
      return Status(StatusCode::kBusy,
                    job_.place_ +
                        "leave_group: operations of the group are being copied to the "
                        "device; wait for them first");
    status = groups.leave(index, monotonic_now());
    job_.shared_.wake();
    return status;
  });
}

Status JobGroups::abort(std::uint32_t index) {
  return with_groups([&](Job::Lock&, GroupStream& groups) {
    Status status = job_.shared_.status();
    if (!status.ok()) return status;
    status = groups.abort(index, monotonic_now());
    job_.shared_.wake();
    return status;
  });
}

Status JobGroups::call(std::uint32_t index, OperationCall call, std::uint64_t& number) {
  return with_groups([&](Job::Lock&, GroupStream& groups) {
    Status status = job_.shared_.status();
    if (!status.ok()) return status;
    status = groups.call(index, std::move(call), monotonic_now(), number);
    job_.shared_.wake();
    return status;
  });
}

Status JobGroups::call_device(std::uint32_t index, OperationCall call, void* stream,
                              std::uint64_t& number) {
  Device* const device = job_.device_.get();
  if (device == nullptr)
    return {StatusCode::kInvalidArgument,
            job_.place_ +
                "the job was joined for host memory; set options.device.memory to "
                "SLUICE_MEMORY_DEVICE and options.device.index, or copy the data to the host"};
  sluice_device_mark* const fence = device->mark(stream);
  if (fence == nullptr)
    return {StatusCode::kIoError, job_.place_ + device->title() +
                                      ": the stream's work cannot be waited for: " + device->why()};
  Status status = with_groups([&](Job::Lock&, GroupStream& groups) {
    Status begun = job_.shared_.status();
    if (!begun.ok()) return begun;
    const OperationCall on_device = call;
    call.input = call.output = nullptr;
    call.held = true;
    begun = groups.call(index, std::move(call), monotonic_now(), number);
    if (!begun.ok()) return begun;
    const GroupFacts& facts = groups.group(index)->facts();
    job_.shared_.operations->begin(
        {index, number}, on_device,
        OperationCopies::place_of(on_device, facts.members.size(), facts.place,
                                  on_device.root == groups.own_rank().value),
        groups.place_of(index, number), fence);
    job_.shared_.copies.notify_one();
    job_.shared_.wake();
    return begun;
  });
  if (!status.ok()) device->drop(fence);
  return status;
}

Status JobGroups::cancel(std::uint32_t index, std::uint64_t number) {
  return with_groups([&](Job::Lock&, GroupStream& groups) {
    Status status = groups.cancel(index, number, monotonic_now());
    job_.shared_.wake();
    return status;
  });
}

// What its session has said counts once its copies have ended.
Status JobGroups::ask(const GroupStream& groups, std::uint32_t index, std::uint64_t number,
                      bool& over) const {
  const OperationCopies* const copies = job_.shared_.operations.get();
  if (copies != nullptr && copies->holds({index, number})) {
    over = false;
    return {};
  }
  Status status = groups.outcome(index, number, over);
  return copies != nullptr && over && status.ok() ? copies->failure({index, number}) : status;
}

Status JobGroups::wait(std::uint32_t index, std::uint64_t number, std::int32_t timeout_ms,
                       bool& over) {
  return with_groups([&](Job::Lock& lock, GroupStream& groups) {
    Status outcome;
    const auto ready = [&] {
      outcome = ask(groups, index, number, over);
      return over || !outcome.ok();
    };
    Status status =
        job_.wait(lock, timeout_ms, ready, [&] { return groups.place_of(index, number); });
    if (status.ok()) return outcome;
    return status;
  });
}

Status JobGroups::test(std::uint32_t index, std::uint64_t number, bool& over) {
  return with_groups(
      [&](Job::Lock&, GroupStream& groups) { return ask(groups, index, number, over); });
}

}  // namespace sluice::client
