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

Status JobGroups::cancel(std::uint32_t index, std::uint64_t number) {
  return with_groups([&](Job::Lock&, GroupStream& groups) {
    Status status = groups.cancel(index, number, monotonic_now());
    job_.shared_.wake();
    return status;
  });
}

Status JobGroups::wait(std::uint32_t index, std::uint64_t number, std::int32_t timeout_ms,
                       bool& over) {
  return with_groups([&](Job::Lock& lock, GroupStream& groups) {
    Status outcome;
    const auto ready = [&] {
      outcome = groups.outcome(index, number, over);
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
      [&](Job::Lock&, GroupStream& groups) { return groups.outcome(index, number, over); });
}

}  // namespace sluice::client
