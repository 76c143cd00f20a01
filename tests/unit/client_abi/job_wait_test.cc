// Waiting for a job over the in-process appliance: timeouts, callbacks, interruptions, ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client_abi/job_support.h"

namespace {

using job_test::Clock;
using job_test::error_of;
using job_test::kLong;
using job_test::on_every_rank;
using job_test::one_of_three;
using job_test::options_for;
using job_test::seconds_since;
using sluice::Error;
using sluice::Job;
using sluice::Options;
using sluice::Tensor;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Jobs, SayWhoIsMissingWhenAStepTimesOut) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("stall", rank, 2), {{"fc.weight", 8}});
    float values[8] = {};
    if (rank == 0) {
      job.submit({0, values, values});
      const Error error = error_of([&] { job.wait_step(milliseconds(500)); });
      EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("fc.weight"), HasSubstr("1")));
      EXPECT_THAT(error_of([&] { job.wait(0, milliseconds(300)); }).what(),
                  AllOf(StartsWith("job 'stall' rank 0 at inproc://stall: wait_tensor 'fc.weight' "
                                   "of step 1: not done in time: step 1"),
                        HasSubstr("missing: rank 1")));
      EXPECT_STREQ(error_of([&] { job.wait(0, milliseconds(0)); }).what(), "not done yet");
      EXPECT_THAT(job.stall().text, HasSubstr("fc.weight"));
    }
    job.barrier(kLong);
    if (rank == 1) job.submit({0, values, values});
    job.wait_step(kLong);
    EXPECT_STREQ(job.stall().text, "");
    job.barrier(kLong);
  });
}

TEST(Jobs, CallBackOnceForEverySubmission) {
  struct Calls {
    std::atomic<int> done{0};
    std::atomic<int> wrong{0};
  };
  on_every_rank(2, [](std::uint32_t rank) {
    Calls calls;
    Options options = options_for("callback", rank, 2);
    options.callbacks.on_tensor_done = [&calls](std::uint32_t tensor, sluice_status status) {
      if (tensor > 1 || status != SLUICE_OK) ++calls.wrong;
      ++calls.done;
    };
    Job job(options, {{"a", 500}, {"b", 500}});
    std::vector<float> a(500), b(500);
    for (int step = 0; step < 5; ++step) {
      job.submit({0, a.data(), a.data()});
      job.submit({1, b.data(), b.data()});
      job.wait_step(kLong);
    }
    job.barrier(kLong);
    EXPECT_EQ(calls.done, 10);
    EXPECT_EQ(calls.wrong, 0);
  });
}

TEST(Jobs, RefuseToWaitInACallback) {
  struct Seen {
    std::atomic<sluice_job*> job{nullptr};
    std::atomic<int> wait{-1};
    std::atomic<int> close{-1};
  } seen;
  Options options = options_for("reentrant", 0, 1);
  options.callbacks.on_tensor_done = [&seen](std::uint32_t, sluice_status) {
    seen.wait = sluice_barrier(seen.job, 1000);
    seen.close = sluice_close(seen.job);
  };
  Job job(options, {{"t", 8}});
  seen.job = job.get();
  float values[8] = {};
  job.submit({0, values, values});
  job.wait(0, kLong);
  job.barrier(kLong);  // after the callback has returned
  EXPECT_EQ(seen.wait, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(seen.close, SLUICE_INVALID_ARGUMENT);
}

TEST(Jobs, SayWhoIsMissingWhenABarrierTimesOut) {
  std::atomic<bool> given_up{false};
  on_every_rank(2, [&](std::uint32_t rank) {
    Job job(options_for("barrier", rank, 2), {{"t", 8}});
    if (rank == 0) {
      const Error error = error_of([&] { job.barrier(milliseconds(300)); });
      EXPECT_THAT(error.what(),
                  AllOf(StartsWith("job 'barrier' rank 0 at inproc://barrier: barrier: not done "
                                   "in time: "),
                        HasSubstr("missing: rank 1")));
      given_up = true;
    } else {
      while (!given_up) std::this_thread::sleep_for(milliseconds(5));
      job.barrier(kLong);  // the one that rank 0 has given up
    }
    job.barrier(kLong);
  });
}

TEST(Jobs, WakeWithinAFractionOfASecondWhenInterrupted) {
  std::atomic<bool> interrupted{false};
  Options options = options_for("interrupt", 0, 2);
  options.callbacks.interrupted = [&interrupted] { return interrupted.load(); };
  std::thread other([] {
    Job job(options_for("interrupt", 1, 2), {{"t", 8}});
    job.barrier(kLong);
  });
  {
    Job job(options, {{"t", 8}});
    float values[8] = {};
    job.submit({0, values, values});
    EXPECT_TRUE(one_of_three([&] {
      std::thread signal([&] {
        std::this_thread::sleep_for(milliseconds(250));
        interrupted = true;
      });
      const auto start = Clock::now();
      EXPECT_EQ(error_of([&] { job.wait(0); }).status(), SLUICE_INTERRUPTED);
      const double took_s = seconds_since(start);
      signal.join();
      interrupted = false;
      return took_s < 0.25 + 0.3;
    }));
    job.barrier(kLong);  // the job still works
  }
  other.join();
}

TEST(Jobs, FailWithTheNameOfARankThatAborts) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("abort", rank, 2), {{"t", 8}});
    float values[8] = {};
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      job.abort();
      EXPECT_EQ(error_of([&] { job.barrier(kLong); }).status(), SLUICE_CLOSED);
      return;
    }
    job.submit({0, values, values});
    const auto start = Clock::now();
    const Error error = error_of([&] { job.wait(0, kLong); });
    EXPECT_LT(seconds_since(start), 8.0);  // by silence it would take 30
    EXPECT_EQ(error.status(), SLUICE_PEER_LOST);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    // The failure stays.
    EXPECT_EQ(sluice_get_status(job.get()), SLUICE_PEER_LOST);
    EXPECT_EQ(error_of([&] { job.submit({0, values, values}); }).status(), SLUICE_PEER_LOST);
    EXPECT_STREQ(sluice_last_error(job.get()), error.what());
    EXPECT_GT(job.counters().packets_sent, 0u);
  });
}

TEST(Jobs, AreInertInTheChildOfAFork) {
  Job job(options_for("fork", 0, 1), {{"t", 8}});
  float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool inert = sluice_submit(job.get(), 0, values, values, 1, 0) == SLUICE_FORKED &&
                       sluice_wait_tensor(job.get(), 0, SLUICE_FOREVER, nullptr) == SLUICE_FORKED &&
                       sluice_barrier(job.get(), SLUICE_FOREVER) == SLUICE_FORKED &&
                       sluice_leave(job.get()) == SLUICE_FORKED &&
                       sluice_close(job.get()) == SLUICE_FORKED;
    ::_exit(inert ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  job.submit({0, values, values});
  job.wait(0, kLong);
  EXPECT_EQ(values[7], 8.0f);
}

}  // namespace
