// The residual that a rank of a pruned job is told before it ends, and what its log says then.
//
// One rank submits 1 .. kElems. The bigger half leaves: 1 .. kElems / 2 stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <numeric>

#include "tests/unit/client_abi/job_support.h"

namespace job_test {
namespace {

using sluice::Job;
using sluice::Options;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kElems = 2000;
constexpr std::size_t kLeft = kElems / 2;

double norm_up_to(double last) { return std::sqrt(last * (last + 1) * (2 * last + 1) / 6); }

class LeavingBehind : public testing::Test {
 protected:
  Options options(std::uint32_t world_size = 1) {
    const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
    Options options = options_for(std::string("left-") + info.name(), 0, world_size);
    options.prune.rule = SLUICE_PRUNE_STATIC;
    options.prune.fraction = 0.5;
    options.callbacks.log_level = SLUICE_LOG_WARN;
    options.callbacks.log = [this](sluice_log_level, const char* text) {
      said_.emplace_back(text);
    };
    return options;
  }
  // A pruned tensor, and what is never pruned.
  static std::vector<sluice::Tensor> tensors() {
    return {{"g", kElems}, {"bias", kElems, SLUICE_FLOAT32, false, true}};
  }
  static void step(Job& job) {
    std::vector<float> values(kElems), bias(kElems, 1.0f);
    std::iota(values.begin(), values.end(), 1.0f);
    job.submit({0, values.data(), values.data()});
    job.submit({1, bias.data(), bias.data()});
    job.wait_step(kLong);
  }
  static void expect_left(const Job& job, std::size_t count) {
    const sluice_left_behind left = job.left_behind();
    EXPECT_EQ(left.elem_count, count);
    EXPECT_EQ(left.norm, norm_up_to(static_cast<double>(count)));
  }

  std::vector<std::string> said_;
};

TEST_F(LeavingBehind, IsToldInNumbersAndOnceInTheLogHoweverTheRankLeaves) {
  enum class End { kLeave, kFinish, kClose };
  for (const End end : {End::kLeave, End::kFinish, End::kClose}) {
    said_.clear();
    {
      Job job(options(), tensors());
      expect_left(job, 0);
      step(job);
      expect_left(job, kLeft);
      if (end == End::kLeave) job.leave();
      if (end == End::kFinish) job.finish();
      if (end == End::kClose) continue;
      EXPECT_EQ(said_.size(), 1u) << "told before the call returns";
      job.leave();
      EXPECT_EQ(error_of([&] { (void)job.left_behind(); }).status(), SLUICE_CLOSED);
    }
    ASSERT_EQ(said_.size(), 1u);
    EXPECT_THAT(said_[0], AllOf(HasSubstr("rank 0 at inproc://left-"),
                                HasSubstr("ends, and 1000 elements of its gradients (norm 1.827e+04"
                                          ", 4000 bytes) were never delivered")));
  }
}

TEST_F(LeavingBehind, IsNotToldOfARankThatGivesUp) {
  {
    Job job(options(), tensors());
    step(job);
    job.abort();
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(LeavingBehind, IsNothingAfterAFlushWithAStepAndAllBefore) {
  {
    Job job(options(), tensors());
    step(job);
    job.flush_residuals();
    expect_left(job, kLeft);
    step(job);
    expect_left(job, 0);
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(LeavingBehind, IsNotWhatRoundingKeepsAfterAFlush) {
  Options wanted = options();
  wanted.wire = SLUICE_WIRE_BFLOAT16;
  {
    Job job(wanted, tensors());
    step(job);
    EXPECT_GT(job.left_behind().elem_count, kLeft) << "with what was rounded of the others";
    job.flush_residuals();
    step(job);
    const std::vector<float> kept = job.residual(0, kElems);
    EXPECT_NE(kept, std::vector<float>(kElems)) << "nothing was rounded";
    expect_left(job, 0);
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(LeavingBehind, IsNothingWhereNothingIsPruned) {
  Options wanted = options();
  wanted.prune.rule = SLUICE_PRUNE_OFF;
  wanted.prune.fraction = Options().prune.fraction;
  wanted.wire = SLUICE_WIRE_BFLOAT16;
  {
    Job job(wanted, tensors());
    step(job);
    EXPECT_NE(job.residual(0, kElems), std::vector<float>(kElems)) << "nothing was rounded";
    expect_left(job, 0);
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(LeavingBehind, IsAResidualWithoutItsVelocity) {
  Options wanted = options();
  wanted.prune.momentum = 0.5;
  Job job(wanted, tensors());
  step(job);
  const std::vector<float> kept = job.residual(0, kElems);
  EXPECT_EQ(kept[kElems], 1.0f) << "no velocity is kept";
  expect_left(job, kLeft);
}

// The pruned tensor is in flight, or the other one alone.
TEST_F(LeavingBehind, IsNotToldByARankThatLeavesInTheMiddleOfAStep) {
  for (const std::uint32_t tensor : {0u, 1u}) {
    std::promise<void> stepped, left;
    on_every_rank(2, [&](std::uint32_t rank) {
      Options wanted = options(2);
      wanted.rank = rank;
      if (rank == 1) wanted.callbacks.log = nullptr;
      Job job(wanted, tensors());
      step(job);
      if (rank == 1) {
        stepped.set_value();
        left.get_future().wait_for(kLong);
        return;
      }
      stepped.get_future().wait_for(kLong);
      std::vector<float> values(kElems, 1.0f);
      job.submit({tensor, values.data(), values.data()});
      if (tensor == 0) {
        const sluice::Error error = error_of([&] { (void)job.left_behind(); });
        EXPECT_EQ(error.status(), SLUICE_BUSY);
        EXPECT_THAT(error.what(), HasSubstr("'g' is in flight"));
      } else {
        expect_left(job, kLeft);
      }
      job.leave();
      left.set_value();
    });
    EXPECT_TRUE(said_.empty());
  }
}

}  // namespace
}  // namespace job_test
