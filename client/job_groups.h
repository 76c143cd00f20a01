// A job's calls on its groups and their operations; beside Job, whose lock and waits it uses.
//
// Made for a call, it has no state. Errors are returned; any thread may call, and only wait()
// blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/core/operations/group_stream.h"
#include "client/job.h"

namespace sluice::client {

class JobGroups {
 public:
  explicit JobGroups(Job& job) noexcept : job_(job) {}

  // As GroupStream's.
  Status make(const std::string& name, const std::vector<Rank>& ranks, std::uint32_t& index);
  Status leave(std::uint32_t index);
  Status abort(std::uint32_t index);
  Status call(std::uint32_t index, OperationCall call, std::uint64_t& number);
  // Its memory is the device's, and the device's once the work of `stream` so far is done.
  Status call_device(std::uint32_t index, OperationCall call, void* stream, std::uint64_t& number);
  Status cancel(std::uint32_t index, std::uint64_t number);
  // Not `over`: the status is that of the wait.
  Status wait(std::uint32_t index, std::uint64_t number, std::int32_t timeout_ms, bool& over);
  // Never blocks. Ok while it is not over.
  Status test(std::uint32_t index, std::uint64_t number, bool& over);

 private:
  // With the lock held, of a job of kind operations that works.
  template <class Body>
  Status with_groups(Body body);

  Status ask(const GroupStream& groups, std::uint32_t index, std::uint64_t number,
             bool& over) const;

  Job& job_;
};

}  // namespace sluice::client
