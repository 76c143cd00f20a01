// What every function of the C interface does: checks the handle, keeps exceptions in, remembers
// the error's text. Included by abi*.cc only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "client/abi_options.h"
#include "client/cancellation.h"
#include "client/include/sluice/sluice.h"
#include "client/job.h"

struct sluice_group {
  sluice_job* job = nullptr;
  std::uint32_t index = 0;
};

struct sluice_job {
  std::unique_ptr<sluice::client::Job> impl;
  std::mutex groups_mutex;
  std::map<std::uint32_t, sluice_group> groups;  // by index; a group keeps its address
};

namespace sluice::client {

// Of the calling thread.
std::string& last_error();
// Keeps the text for sluice_last_error().
sluice_status remember(const Status& status);

// What a body throws, but for a lack of memory and a cancelled thread's unwinding, as a Status.
// The unwinding is no C++ exception, so std::current_exception() is null for it.
template <class Body>
Status caught(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, error.what()};
  } catch (...) {
    if (!std::current_exception()) throw;
    return {StatusCode::kInternal, "unknown exception"};
  }
}

// Runs the body of a call: no exception leaves it. Not noexcept, for a cancelled thread does.
template <class Body>
sluice_status guarded(Body body) {
  const HeldCancellation held;
  try {
    Status status = caught(body);
    return status.ok() ? SLUICE_OK : remember(status);
  } catch (const std::bad_alloc&) {
    return remember({StatusCode::kExhausted, "out of memory"});  // short enough for none
  }
}

// The same for a call on a job that must exist and belong to this process.
template <class Body>
sluice_status guarded(sluice_job* job, Body body) {
  return guarded([&]() -> Status {
    if (job == nullptr) return {StatusCode::kInvalidArgument, "job is NULL"};
    if (job->impl->is_forked()) {
      return {StatusCode::kForked,
              "this job was joined by the parent process; join again in the child to take part"};
    }
    return job->impl->explained(body(*job->impl));
  });
}

// As much of `full` as fits, ended by a zero byte.
inline void copy_text(const std::string& full, char* text, std::size_t capacity) {
  const std::size_t bytes = std::min(full.size(), capacity - 1);
  std::memcpy(text, full.data(), bytes);
  text[bytes] = '\0';
}

// Fills a struct of the caller: `fill` gets one of this version, and returns a Status.
template <class Struct, class Fill>
Status answer(Struct* out, const char* name, Fill fill) {
  Status status = check_struct(out, name);
  Struct known{.struct_size = sizeof known};
  if (status.ok()) status = fill(known);
  if (status.ok()) *out = known;
  return status;
}

}  // namespace sluice::client
