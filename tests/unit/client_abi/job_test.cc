// Jobs over the in-process appliance, through the C++ layer: the promises to callers in any
// language.
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

TEST(Jobs, SumManyTensorsOverManyStepsInAnyOrder) {
  static constexpr std::uint32_t kWorld = 3;
  static constexpr std::uint32_t kTensors = 7;
  on_every_rank(kWorld, [](std::uint32_t rank) {
    Options options = options_for("many", rank, kWorld);
    options.averaging = SLUICE_AVERAGE_SUM;
    std::vector<Tensor> tensors;
    std::vector<std::vector<float>> values;
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      tensors.push_back({"t" + std::to_string(i), 1 + 777 * i});
      values.emplace_back(1 + 777 * i);
    }
    Job job(options, tensors);
    for (std::uint32_t step = 1; step <= 10; ++step) {
      for (std::uint32_t i = 0; i < kTensors; ++i) {
        const std::uint32_t tensor = (i * 3 + rank) % kTensors;  // another order on every rank
        std::iota(values[tensor].begin(), values[tensor].end(), static_cast<float>(step + rank));
        job.submit({tensor, values[tensor].data(), values[tensor].data(), 1,
                    static_cast<std::uint8_t>(tensor)});
      }
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        const sluice_result result = job.wait(tensor, kLong);
        EXPECT_EQ(result.step, step);
        EXPECT_EQ(result.weight, kWorld);
        for (std::size_t i = 0; i < values[tensor].size(); ++i) {
          ASSERT_EQ(values[tensor][i], static_cast<float>(3 * (i + step) + 3));
        }
      }
    }
    EXPECT_EQ(job.wait_step(kLong), 10u);
  });
}

// More tensors than the library submits under one lock.
TEST(Jobs, SubmitManyTensorsInOneCallAndTakeThoseThatHaveCome) {
  static constexpr std::uint32_t kTensors = 100;
  on_every_rank(2, [](std::uint32_t rank) {
    std::vector<Tensor> tensors;
    std::vector<std::vector<float>> values;
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      tensors.push_back({"t" + std::to_string(i), 1 + 13 * i});
      values.emplace_back(1 + 13 * i);
      all.push_back(i);
    }
    Job job(options_for("one-call", rank, 2), tensors);
    for (std::uint32_t step = 1; step <= 5; ++step) {
      std::vector<sluice_submission> submissions(kTensors);
      for (std::uint32_t i = 0; i < kTensors; ++i) {
        std::fill(values[i].begin(), values[i].end(), static_cast<float>(i + 2 * rank));
        submissions[i].tensor = i;
        submissions[i].weight = 1;
        submissions[i].priority = i;
        submissions[i].input = submissions[i].output = values[i].data();
      }
      job.submit(submissions);
      job.end_step();
      const std::size_t some = job.wait(all, step, kLong);
      EXPECT_GE(some, step);
      EXPECT_LE(some, kTensors);
      for (std::size_t i = 0; i < some; ++i) EXPECT_EQ(values[i].back(), static_cast<float>(i + 1));
      EXPECT_EQ(job.wait(all, kTensors, kLong), kTensors);
      EXPECT_EQ(values[kTensors - 1].front(), static_cast<float>(kTensors));
      EXPECT_EQ(job.wait_step(kLong), step);
    }
  });
}

TEST(Jobs, SubmitWhatComesBeforeATensorThatIsRefused) {
  Job job(options_for("one-call-refused", 0, 1), {{"a", 1}, {"b", 1}, {"c", 1}});
  float values[3] = {1, 2, 3};
  std::vector<sluice_submission> submissions(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    submissions[i].tensor = i;
    submissions[i].weight = 1;
    submissions[i].input = submissions[i].output = &values[i];
  }
  submissions[1].output = nullptr;
  const Error error = error_of([&] { job.submit(submissions); });
  EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(error.what(), HasSubstr("'b': output is NULL"));
  EXPECT_EQ(job.wait(0, kLong).step, 1u);
  EXPECT_EQ(job.wait({1, 2}, 2, milliseconds(0)), 2u) << "neither was submitted";
  submissions.erase(submissions.begin());
  submissions[0].output = &values[1];
  job.submit(submissions);
  EXPECT_EQ(job.wait_step(kLong), 1u);
}

TEST(Jobs, WaitForTheFirstTensorsAndTellHowManyHaveCome) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("leading", rank, 2), {{"a", 1}, {"b", 1}});
    float a = 1, b = 1;
    job.submit({0, &a, &a});
    if (rank == 0) {
      job.submit({1, &b, &b});
      EXPECT_EQ(job.wait({0, 1}, 1, kLong), 1u) << "nobody else has submitted b";
      EXPECT_EQ(job.wait({1, 0}, 0, milliseconds(0)), 0u) << "b comes first";
      const Error error = error_of([&] { job.wait({0, 1}, 2, milliseconds(30)); });
      EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
      EXPECT_THAT(error.what(), HasSubstr("wait_tensor 'b' of step 1"));
      EXPECT_EQ(error_of([&] {
                  job.wait({0, 1}, 3, milliseconds(0));
                }).status(),
                SLUICE_INVALID_ARGUMENT);
      EXPECT_EQ(error_of([&] { job.wait({2}, 1, milliseconds(0)); }).status(),
                SLUICE_INVALID_ARGUMENT);
    }
    job.barrier(kLong);
    if (rank == 1) job.submit({1, &b, &b});
    EXPECT_EQ(job.wait({1, 0}, 2, kLong), 2u);
    EXPECT_EQ(job.wait_step(kLong), 1u);
  });
}

TEST(Jobs, SendByTheScheduleAskedForAndTellItsPlan) {
  sluice::Options options = options_for("schedule", 0, 1);
  options.schedule.kind = SLUICE_SCHEDULE_CREDIT;
  options.chunk_bytes = 1024;
  options.schedule.unit_bytes = 3000;
  options.schedule.credit_bytes = 8192;
  sluice::Job job(options, {{"t", 5000}});
  std::vector<float> values(5000, 3);
  job.submit({0, values.data(), values.data()});
  job.wait(0, kLong);
  job.mark_applied(0);
  const std::string plan =
      "credit: units of at most 2 packets of one tensor, the next begins when less than 8 packets "
      "are in flight\n";
  EXPECT_EQ(job.schedule_plan(), plan);
  EXPECT_EQ(error_of([&] { job.mark_applied(1); }).status(), SLUICE_INVALID_ARGUMENT);
  job.leave();
  EXPECT_EQ(job.schedule_plan(), plan);  // still
}

TEST(Jobs, AverageByWeightOfSamples) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("weights", rank, 2), {{"t", 4}});
    // Rank 0 holds the sum over one sample of value 8, rank 1 over three samples of value 4.
    std::vector<float> values(4, rank == 0 ? 8.0f : 12.0f);
    job.submit({0, values.data(), values.data(), rank == 0 ? 1u : 3u});
    EXPECT_EQ(job.wait(0, kLong).weight, 4u);
    EXPECT_EQ(values[3], 5.0f);
  });
}

TEST(Jobs, CarryHalfPrecision) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("half", rank, 2),
            {{"f16", 3, SLUICE_FLOAT16}, {"bf16", 3, SLUICE_BFLOAT16}});
    std::vector<std::uint16_t> f16(3, rank == 0 ? 0x3c00 : 0x4200);   // 1 and 3
    std::vector<std::uint16_t> bf16(3, rank == 0 ? 0x3f80 : 0x4040);  // 1 and 3
    job.submit({0, f16.data(), f16.data()});
    job.submit({1, bf16.data(), bf16.data()});
    job.wait_step(kLong);
    EXPECT_EQ(f16[2], 0x4000);   // 2
    EXPECT_EQ(bf16[2], 0x4000);  // 2
  });
}

TEST(Jobs, LeaveOutputsAloneWhereNoRankHasData) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("absent", rank, 2), {{"used", 2}, {"unused", 2}, {"half", 2}});
    float used[2] = {1, 1};
    float unused[2] = {-7, -7};
    float half[2] = {4, 4};
    job.submit({0, used, used});
    job.submit({1, nullptr, unused});
    job.submit({2, rank == 0 ? half : nullptr, half});
    EXPECT_EQ(job.wait(0, kLong).absent, 0);
    EXPECT_NE(job.wait(1, kLong).absent, 0);
    EXPECT_EQ(unused[1], -7.0f);
    EXPECT_EQ(job.wait(2, kLong).absent, 0);
    EXPECT_EQ(half[0], 2.0f);  // the rank without data still counts with its weight
  });
}

TEST(Jobs, EndStepFillsInForTensorsLeftOut) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("nil", rank, 2);
    options.averaging = SLUICE_AVERAGE_SUM;
    Job job(options, {{"a", 100}, {"b", 100}});
    std::vector<float> a(100), b(100);
    for (std::uint32_t step = 1; step <= 4; ++step) {
      std::fill(a.begin(), a.end(), 1.0f);
      std::fill(b.begin(), b.end(), 2.0f);
      job.submit({0, a.data(), a.data()});
      const bool uses_b = rank == 0 || step % 2 == 0;
      if (uses_b) job.submit({1, b.data(), b.data()});
      job.end_step();
      EXPECT_EQ(job.wait_step(kLong), step);
      EXPECT_EQ(a[50], 2.0f);
      EXPECT_EQ(b[50], step % 2 == 0 ? 4.0f : 2.0f);
    }
  });
}

TEST(Jobs, MayRunStepsAheadWithOtherTensorsEachStep) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("ahead", rank, 2);
    options.averaging = SLUICE_AVERAGE_SUM;
    Job job(options, {{"a", 3000}, {"b", 3000}, {"c", 3000}});
    std::vector<std::vector<float>> values;
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      values.emplace_back(3000, static_cast<float>(tensor + 1));
      job.submit({tensor, values[tensor].data(), values[tensor].data()});
      job.end_step();  // without waiting: the other two have no data in this step
    }
    EXPECT_EQ(job.wait_step(kLong), 3u);
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      EXPECT_EQ(job.wait(tensor, kLong).step, tensor + 1);
      EXPECT_EQ(values[tensor][2999], static_cast<float>(2 * (tensor + 1)));
    }
  });
}

TEST(Jobs, MayHaveNoDataAtAllInAStep) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("empty", rank, 2);
    options.averaging = SLUICE_AVERAGE_SUM;
    Job job(options, {{"a", 8}, {"b", 8}});
    float a[8], b[8];
    for (std::uint32_t step = 1; step <= 6; ++step) {
      std::fill(a, a + 8, 1.0f);
      std::fill(b, b + 8, 1.0f);
      const bool has_data = rank == 0 || step % 2 != 0;
      if (has_data) job.submit({0, a, a});
      if (has_data) job.submit({1, b, b});
      job.end_step();  // after all tensors it does nothing, after none it is the step
      EXPECT_EQ(job.wait_step(kLong), step);
      EXPECT_EQ(a[7], step % 2 != 0 ? 2.0f : 1.0f);
    }
  });
}

TEST(Jobs, EndStepNamesTensorsLeftOutWhenThatIsNotAllowed) {
  Options options = options_for("strict", 0, 1);
  options.allow_nil = false;
  Job job(options, {{"conv.weight", 8}, {"conv.bias", 8}});
  float values[8] = {};
  job.submit({0, values, values});
  const Error error = error_of([&] { job.end_step(); });
  EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("step 1"), HasSubstr("not submitted: conv.bias;")));
  EXPECT_EQ(error_of([&] { job.submit({1, nullptr, values}); }).status(), SLUICE_INVALID_ARGUMENT);
  job.submit({1, values, values});
  EXPECT_EQ(job.wait_step(kLong), 1u);
}

TEST(Jobs, RefuseASecondSubmissionOfATensorInFlight) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("busy", rank, 2), {{"t", 8}});
    float values[8] = {};
    if (rank == 0) {
      job.submit({0, values, values});
      const Error error = error_of([&] { job.submit({0, values, values}); });
      EXPECT_EQ(error.status(), SLUICE_BUSY);
      EXPECT_THAT(error.what(), HasSubstr("'t' is still in flight for step 1"));
      EXPECT_EQ(error_of([&] { job.wait(0, milliseconds(30)); }).status(), SLUICE_TIMED_OUT);
    }
    job.barrier(kLong);
    if (rank == 1) job.submit({0, values, values});
    job.wait(0, kLong);
    job.barrier(kLong);
  });
}

TEST(Jobs, BroadcastAnySizeAndKeepTheBufferOnTimeout) {
  on_every_rank(3, [](std::uint32_t rank) {
    Job job(options_for("broadcast", rank, 3), {{"t", 8}});
    std::vector<std::uint8_t> small(5, static_cast<std::uint8_t>(rank));
    job.broadcast(1, small.data(), small.size(), kLong);
    EXPECT_EQ(small, std::vector<std::uint8_t>(5, 1));
    std::vector<std::uint32_t> large(200'000);
    if (rank == 2) std::iota(large.begin(), large.end(), 9u);
    job.broadcast(2, large.data(), large.size() * 4, kLong);
    EXPECT_EQ(large.front(), 9u);
    EXPECT_EQ(large.back(), 200'008u);
    if (rank == 0) {
      std::uint32_t word = 77;
      const Error error = error_of([&] { job.broadcast(1, &word, 4, milliseconds(20)); });
      EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
      EXPECT_THAT(error.what(), StartsWith("job 'broadcast' rank 0 at inproc://broadcast: "
                                           "broadcast: not done in time"));
      EXPECT_EQ(word, 77u);
    } else {
      std::this_thread::sleep_for(milliseconds(150));
      std::uint32_t word = rank;
      job.broadcast(1, &word, 4, kLong);
      EXPECT_EQ(word, 1u);
    }
    job.barrier(kLong);  // rank 0's waits for the broadcast that it has given up
  });
}

TEST(Jobs, CountOnTheRankThatSentItWhatIsNotFinite) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("nan", rank, 2), {{"t", 8}});
    std::vector<float> values(8, rank == 1 ? NAN : 1.0f);
    job.submit({0, values.data(), values.data()});
    EXPECT_TRUE(job.wait(0, kLong).non_finite);
    EXPECT_EQ(job.counters().non_finite_results, 1u);
    EXPECT_EQ(job.counters().non_finite_inputs, rank);
  });
}

TEST(Logs, ReachTheCallbackAndOtherwiseNobody) {
  std::vector<std::string> lines;
  ::testing::internal::CaptureStderr();
  {
    Options options = options_for("log", 0, 1);
    options.callbacks.log = [&lines](sluice_log_level, const char* text) { lines.push_back(text); };
    Job job(options, {{"t", 8}});
    EXPECT_THAT(lines,
                ::testing::ElementsAre(AllOf(HasSubstr("\"log\""), HasSubstr("rank 0 of 1"))));
    Job silent(options_for("silent", 0, 1), {{"t", 8}});
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  ::setenv("SLUICE_LOG", "info", 1);
  { Job job(options_for("stderr", 0, 1), {{"t", 8}}); }
  ::unsetenv("SLUICE_LOG");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("info: job \"stderr\""));
}

}  // namespace
