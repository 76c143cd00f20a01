// What every function of the C interface does: checks the handle, keeps exceptions in, remembers
// the error's text. Included by abi*.cc only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "client/include/sluice/sluice.h"
#include "client/job.h"

struct sluice_job {
  std::unique_ptr<sluice::client::Job> impl;
};

namespace sluice::client {

// Of the calling thread.
std::string& last_error();
// Keeps the text for sluice_last_error().
sluice_status remember(const Status& status);

// Runs the body of a call: no exception leaves it.
template <class Body>
sluice_status guarded(Body body) noexcept {
  try {
    Status status = body();
    return status.ok() ? SLUICE_OK : remember(status);
  } catch (const std::bad_alloc&) {
    return remember({StatusCode::kExhausted, "out of memory"});
  } catch (const std::exception& error) {
    return remember({StatusCode::kInternal, error.what()});
  } catch (...) {
    return remember({StatusCode::kInternal, "unknown exception"});
  }
}

// The same for a call on a job that must exist and belong to this process.
template <class Body>
sluice_status guarded(sluice_job* job, Body body) noexcept {
  return guarded([&]() -> Status {
    if (job == nullptr) return {StatusCode::kInvalidArgument, "job is NULL"};
    if (job->impl->is_forked()) {
      return {StatusCode::kForked,
              "this job was joined by the parent process; join again in the child to take part"};
    }
    return body(*job->impl);
  });
}

// A job's own failure comes before what is wrong with a call.
inline Status check_working(const Job& job) { return job.status(); }

// Copies as much of `value` as the caller's struct has room for, leaving its struct_size alone.
template <class Struct>
void copy_out(const Struct& value, Struct* out) {
  const std::size_t bytes = std::min(out->struct_size, sizeof value);
  const std::size_t skip = sizeof out->struct_size;
  std::memcpy(reinterpret_cast<char*>(out) + skip, reinterpret_cast<const char*>(&value) + skip,
              bytes - skip);
}

}  // namespace sluice::client
