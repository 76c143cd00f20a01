// Jobs that do not wait for every rank, over the in-process appliance: the loop of sluice.h on real
// threads, with ranks that are slow, asleep, gone and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client_abi/job_support.h"

namespace {

using job_test::error_of;
using job_test::kLong;
using job_test::on_every_rank;
using job_test::options_for;
using sluice::Error;
using sluice::Job;
using sluice::Options;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kWorld = 4;
constexpr std::size_t kElems = 3000;

Options fixed(const std::string& name, std::uint32_t rank, std::uint32_t k, int late) {
  Options options = options_for(name, rank, kWorld);
  options.c.policy = SLUICE_POLICY_FIXED;
  options.c.k = k;
  options.c.late = late;
  return options;
}

// One rank: parameters that only the averages of the steps change.
class Trainee {
 public:
  explicit Trainee(const Options& options)
      : rank_(options.rank), job_(options, {{"a", kElems}, {"b", 5}}) {
    if (job_.must_resync()) resync();
  }
  Job& job() { return job_; }
  std::uint32_t step() const { return step_; }
  std::uint32_t resyncs() const { return resyncs_; }
  const std::vector<float>& parameters() const { return parameters_; }

  // Applies what it missed, or else computes one gradient, which takes `compute`.
  void turn(milliseconds compute) {
    try {
      if (job_.behind() == 0) {
        std::this_thread::sleep_for(compute);
        std::iota(a_.begin(), a_.end(), static_cast<float>(rank_ + step_));
        std::fill(b_.begin(), b_.end(), static_cast<float>(rank_));
        job_.submit(0, a_.data(), a_.data());
        job_.submit(1, b_.data(), b_.data());
      } else {
        job_.catch_up(0, a_.data());
        job_.catch_up(1, b_.data());
      }
      wait(0);
      step_ = wait(1);
      for (std::size_t i = 0; i < kElems; ++i) parameters_[i] += a_[i] / 4;
      for (std::size_t i = 0; i < 5; ++i) parameters_[kElems + i] += b_[i];
    } catch (const Error& error) {
      if (error.status() != SLUICE_BEHIND) throw;
      resync();
    }
    give_state();
  }

 private:
  std::uint32_t wait(std::uint32_t tensor) {
    while (true) {
      try {
        return job_.wait(tensor, milliseconds(20)).step;
      } catch (const Error& error) {
        if (error.status() != SLUICE_TIMED_OUT) throw;
        give_state();
      }
    }
  }
  void give_state() {
    if (job_.state_wanted() < 0) return;
    try {
      job_.send_state(parameters_.data(), 4 * parameters_.size(), step_);
    } catch (const Error& error) {  // the step has just ended: next time
      if (error.status() != SLUICE_INVALID_ARGUMENT) throw;
    }
  }
  void resync() {
    const sluice_state state = job_.resync(kLong);
    ASSERT_EQ(state.bytes, 4 * parameters_.size());
    std::memcpy(parameters_.data(), state.data, state.bytes);
    step_ = state.step;
    ++resyncs_;
  }

  const std::uint32_t rank_;
  std::vector<float> a_ = std::vector<float>(kElems), b_ = std::vector<float>(5);
  std::vector<float> parameters_ = std::vector<float>(kElems + 5);
  Job job_;
  std::uint32_t step_ = 0;
  std::uint32_t resyncs_ = 0;
};

// Ranks that are where the test wants them. All of them go on until all are there, because whoever
// is behind may need the state of another.
class Finish {
 public:
  bool everybody(bool& mine, bool there) {
    if (there && !mine) {
      mine = true;
      ++count_;
    }
    return count_ == kWorld;
  }
  // One turn. When the others have just ended, nobody may be left to give a state: that is the end.
  void turn(Trainee& trainee, milliseconds compute) {
    try {
      trainee.turn(compute);
    } catch (const Error& error) {
      if (error.status() != SLUICE_REFUSED || count_ != kWorld) throw;
    }
  }

 private:
  std::atomic<std::uint32_t> count_{0};
};

// What every rank had after each step.
class History {
 public:
  void note(const Trainee& trainee) {
    const std::lock_guard lock(mutex_);
    const auto [known, fresh] = steps_.try_emplace(trainee.step(), trainee.parameters());
    EXPECT_TRUE(fresh || known->second == trainee.parameters()) << "step " << trainee.step();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, std::vector<float>> steps_;
};

TEST(StragglerJobs, ReplicasStayIdenticalWithASlowRank) {
  for (const int late : {SLUICE_LATE_DROP, SLUICE_LATE_REQUEUE}) {
    History history;
    std::atomic<std::uint64_t> late_chunks{0}, requeued{0};
    Finish finish;
    on_every_rank(kWorld, [&](std::uint32_t rank) {
      Trainee trainee(fixed("slow" + std::to_string(late), rank, 3, late));
      bool there = false;
      while (!finish.everybody(there, trainee.step() >= 40)) {
        finish.turn(trainee, milliseconds(rank == 3 ? 10 : 2));
        history.note(trainee);
      }
      const sluice_stats stats = trainee.job().stats();
      if (rank == 3) {
        late_chunks = stats.late_chunks;
        requeued = stats.requeued_chunks;
      }
      if (trainee.resyncs() == 0) {
        EXPECT_EQ(stats.steps_done, trainee.step());
      }
    });
    EXPECT_GT(late_chunks, 0u);
    EXPECT_EQ(requeued != 0, late == SLUICE_LATE_REQUEUE);
  }
}

TEST(StragglerJobs, RankThatSleptBeyondTheWindowGetsTheStateOfAnother) {
  History history;
  std::atomic<std::uint32_t> resyncs{0}, front{0};
  Finish finish;
  on_every_rank(kWorld, [&](std::uint32_t rank) {
    Trainee trainee(fixed("asleep", rank, 3, SLUICE_LATE_REQUEUE));
    bool there = false, slept = false;
    while (!finish.everybody(there, trainee.step() >= 60)) {
      if (rank == 3 && trainee.step() >= 5 && !slept) {
        slept = true;
        while (front < 30) std::this_thread::sleep_for(milliseconds(5));
        EXPECT_GE(trainee.job().behind(), 4u);
      }
      finish.turn(trainee, milliseconds(1));
      history.note(trainee);
      if (rank == 0) front = trainee.step();
    }
    if (rank == 3) resyncs = trainee.resyncs();
  });
  EXPECT_GE(resyncs, 1u);
}

TEST(StragglerJobs, RankThatLeftInTheMiddleComesBackAndTheOthersGoOn) {
  History history;
  Finish finish;
  on_every_rank(kWorld, [&](std::uint32_t rank) {
    const Options options = fixed("back", rank, 2, SLUICE_LATE_DROP);
    auto trainee = std::make_unique<Trainee>(options);
    bool there = false, left = false;
    while (!finish.everybody(there, trainee->step() >= 20 && (rank != 2 || left))) {
      if (rank == 2 && trainee->step() >= 5 && !left) {
        sluice_abort(trainee->job().get());
        trainee.reset();
        std::this_thread::sleep_for(milliseconds(100));
        trainee = std::make_unique<Trainee>(options);
        EXPECT_EQ(trainee->resyncs(), 1u);
        EXPECT_EQ(trainee->job().stats().resyncs, 1u);
        left = true;
      }
      finish.turn(*trainee, milliseconds(1));
      history.note(*trainee);
    }
  });
}

TEST(StragglerJobs, EveryStepIsReported) {
  on_every_rank(kWorld, [](std::uint32_t rank) {
    Trainee trainee(fixed("report", rank, 4, SLUICE_LATE_DROP));
    EXPECT_EQ(error_of([&] { trainee.job().report(); }).status(), SLUICE_NOT_FOUND);
    for (int step = 0; step < 20; ++step) trainee.turn(milliseconds(0));
    trainee.job().wait_step(kLong);
    const sluice_report report = trainee.job().report();
    EXPECT_EQ(report.step, 20u);
    EXPECT_EQ(report.k, 4u);
    EXPECT_EQ(report.weight, 4u);
    EXPECT_NE(report.counted, 0);
    EXPECT_EQ(report.rank_words, 1u);
    EXPECT_EQ(report.in_every[0], 15u);
    EXPECT_EQ(trainee.job().report(5).step, 5u);
    EXPECT_THAT(error_of([&] { trainee.job().report(4); }).what(), HasSubstr("step 4"));
    const sluice_policy_info policy = trainee.job().policy();
    EXPECT_EQ(policy.policy, SLUICE_POLICY_FIXED);
    EXPECT_EQ(policy.k, 4u);
    EXPECT_EQ(policy.window_steps, 4u);
    EXPECT_EQ(policy.resync_hold_ms, 30'000u);
    EXPECT_NE(policy.tolerates_stragglers, 0);
    trainee.job().barrier(kLong);
  });
}

TEST(StragglerJobs, AResyncInTheMiddleOfAStepIsRefusedAndTheStepGoesOn) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("mid-step", rank, 2);
    options.c.policy = SLUICE_POLICY_FIXED;
    options.c.k = 1;
    Job job(options, {{"a", 4}, {"b", 4}});
    float value[4] = {1, 2, 3, 4};
    job.submit(0, value, value);
    job.wait(0, kLong);
    const Error error = error_of([&] { job.resync(kLong); });
    EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("wait for"));
    EXPECT_FALSE(job.must_resync());
    job.submit(1, value, value);
    EXPECT_EQ(job.wait(1, kLong).step, 1u);
    job.barrier(kLong);
  });
}

TEST(StragglerJobs, TheFirstStepsWaitForAGradientOfEveryRank) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("first-steps", rank, 2);
    options.c.policy = SLUICE_POLICY_FIXED;
    options.c.k = 1;
    Job job(options, {{"a", 4}});
    float value[4] = {1, 2, 3, 4};
    for (int step = 1; step <= 2; ++step) {
      job.barrier(kLong);  // nobody has contributed to it
      const Error error = error_of([&] { job.catch_up(0, value); });
      EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(),
                  HasSubstr("step " + std::to_string(step) + " waits for every rank"));
      job.barrier(kLong);
      job.submit(0, value, value);
      job.wait(0, kLong);
    }
    job.barrier(kLong);
  });
}

TEST(StragglerJobs, ASynchronousJobHasNothingToCatchUpWith) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("sync-only", rank, 2), {{"a", 4}});
    EXPECT_EQ(job.policy().policy, SLUICE_POLICY_SYNC);
    EXPECT_EQ(job.policy().tolerates_stragglers, 0);
    EXPECT_EQ(job.behind(), 0u);
    EXPECT_FALSE(job.must_resync());
    EXPECT_EQ(job.state_wanted(), -1);
    float value[4] = {};
    EXPECT_EQ(error_of([&] { job.catch_up(0, value); }).status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(error_of([&] { job.resync(kLong); }).status(), SLUICE_INVALID_ARGUMENT);
    job.send_state(value, sizeof value, 7);  // nobody wants it
    job.submit(0, value, value);
    job.wait(0, kLong);
    job.barrier(kLong);
  });
}

TEST(StragglerJobs, RanksThatAskForDifferentPoliciesAreToldBoth) {
  std::atomic<int> refused{0};
  on_every_rank(2, [&](std::uint32_t rank) {
    Options options = options_for("disagree", rank, 2);
    options.c.policy = rank == 0 ? SLUICE_POLICY_FIXED : SLUICE_POLICY_RAMP;
    options.c.planned_steps = 100;
    options.c.join_timeout_ms = 300;
    const Error error = error_of([&] { Job job(options, {{"a", 4}}); });
    if (error.status() != SLUICE_REFUSED) return;
    ++refused;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("fixed"), HasSubstr("ramp")));
  });
  EXPECT_EQ(refused, 1);
}

TEST(StragglerJobs, PolicyOptionsThatMakeNoSenseAreNamed) {
  struct Case {
    void (*set)(sluice_options&);
    const char* field;
  };
  const Case cases[] = {
      {[](sluice_options& c) { c.policy = 9; }, "policy is 9"},
      {[](sluice_options& c) { c.late = 2; }, "late is 2"},
      {[](sluice_options& c) { c.k = 0; }, "k is 0"},
      {[](sluice_options& c) { c.k = 5; }, "world_size, 4"},
      {[](sluice_options& c) {
         c.policy = SLUICE_POLICY_SAINA;
         c.sign_threshold_permille = 1001;
       },
       "1001"},
      {[](sluice_options& c) {
         c.policy = SLUICE_POLICY_SAINA;
         c.count_threshold = 65'536;
       },
       "65536"},
      {[](sluice_options& c) {
         c.policy = SLUICE_POLICY_SAINA;
         c.sign_stride = 2;
       },
       "sign_stride is 2"},
      {[](sluice_options& c) { c.policy = SLUICE_POLICY_RAMP; }, "planned_steps is 0"},
      {[](sluice_options& c) {
         c.policy = SLUICE_POLICY_SAINA;
         c.round_steps = 0;
       },
       "round_steps is 0"},
  };
  for (const Case& wrong : cases) {
    Options options = fixed("options", 0, 2, SLUICE_LATE_DROP);
    wrong.set(options.c);
    const Error error = error_of([&] { Job job(options, {{"a", 4}}); });
    EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr(wrong.field));
  }
}

}  // namespace
