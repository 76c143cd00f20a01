// Helpers of the tests of whole jobs: ranks as threads, options, and the error of a call.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

namespace job_test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline constexpr milliseconds kLong{20'000};  // only a failing test waits this long

// The approximate factor by which a sanitizer slows a program, for tests with a time limit.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 5;
#else
inline constexpr int kSlowdown = 1;
#endif

inline sluice::Options options_for(const std::string& name, std::uint32_t rank,
                                   std::uint32_t world_size) {
  sluice::Options options;
  options.address = "inproc://" + name;
  options.job_name = name;
  options.rank = rank;
  options.world_size = world_size;
  options.run_id = 1;
  return options;
}

// Options of a job that sums the k fastest ranks.
inline sluice::Options fixed(const std::string& name, std::uint32_t rank, std::uint32_t world_size,
                             std::uint32_t k, sluice_late_mode late) {
  sluice::Options options = options_for(name, rank, world_size);
  options.policy.kind = SLUICE_POLICY_FIXED;
  options.policy.k = k;
  options.policy.late = late;
  return options;
}

// Runs `body` for every rank on a thread of its own and rethrows the first exception's text.
inline void on_every_rank(std::uint32_t world_size,
                          const std::function<void(std::uint32_t)>& body) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The error that ends the call. A call without an error is a failure.
inline sluice::Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const sluice::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return sluice::Error(SLUICE_OK, "none");
}

// Whether one of up to three attempts succeeds. For limits of time, since the machine may stall.
inline bool one_of_three(const std::function<bool()>& attempt) {
  return attempt() || attempt() || attempt();
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace job_test
