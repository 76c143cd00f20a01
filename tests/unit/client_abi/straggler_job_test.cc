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
using job_test::fixed;
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

// One rank: parameters that only the averages of the steps change. Even ranks run the library's
// loop, odd ones make the calls by hand.
class Trainee {
 public:
  explicit Trainee(const Options& options)
      : rank_(options.rank), job_(options, {{"a", kElems}, {"b", 5}}) {
    if (by_hand() && job_.position().must_resync) resync();
  }
  Job& job() { return job_; }
  std::uint32_t step() const { return step_; }
  std::uint32_t resyncs() const { return resyncs_; }
  const std::vector<float>& parameters() const { return parameters_; }

  // Computes one gradient, which takes `compute`, and applies it; by hand, or else applies a step
  // that it missed.
  void turn(milliseconds compute) {
    if (by_hand()) return turn_by_hand(compute);
    for (std::uint32_t done = step_; step_ == done;) {
      const sluice_turn turn = job_.next_turn();
      switch (turn.kind) {
        case SLUICE_TURN_COMPUTE: submit(compute); break;
        case SLUICE_TURN_CATCH_UP: catch_up(); break;
        case SLUICE_TURN_APPLY: apply(turn.step); break;
        case SLUICE_TURN_SAVE: give_state(); break;
        case SLUICE_TURN_LOAD: load(turn.data, turn.bytes, turn.step); break;
      }
    }
  }

 private:
  bool by_hand() const { return rank_ % 2 != 0; }
  void turn_by_hand(milliseconds compute) {
    try {
      job_.position().behind == 0 ? submit(compute) : catch_up();
      wait(0);
      apply(wait(1));
    } catch (const Error& error) {
      if (error.status() != SLUICE_BEHIND) throw;
      resync();
    }
    if (job_.position().state_wanted_by >= 0) give_state();
  }
  void submit(milliseconds compute) {
    std::this_thread::sleep_for(compute);
    std::iota(a_.begin(), a_.end(), static_cast<float>(rank_ + step_));
    std::fill(b_.begin(), b_.end(), static_cast<float>(rank_));
    try {
      job_.submit({0, a_.data(), a_.data()});
      job_.submit({1, b_.data(), b_.data()});
    } catch (const Error& error) {  // the loop finds it out when it completes the step
      if (by_hand() || error.status() != SLUICE_BEHIND) throw;
    }
  }
  void catch_up() {
    job_.catch_up(0, a_.data());
    job_.catch_up(1, b_.data());
  }
  void apply(std::uint32_t step) {
    step_ = step;
    for (std::size_t i = 0; i < kElems; ++i) parameters_[i] += a_[i] / 4;
    for (std::size_t i = 0; i < 5; ++i) parameters_[kElems + i] += b_[i];
  }
  void load(const void* data, std::uint64_t bytes, std::uint32_t step) {
    ASSERT_EQ(bytes, 4 * parameters_.size());
    std::memcpy(parameters_.data(), data, bytes);
    step_ = step;
    ++resyncs_;
  }
  std::uint32_t wait(std::uint32_t tensor) {
    while (true) {
      try {
        return job_.wait(tensor, milliseconds(20)).step;
      } catch (const Error& error) {
        if (error.status() != SLUICE_TIMED_OUT) throw;
        if (job_.position().state_wanted_by >= 0) give_state();
      }
    }
  }
  void give_state() {
    try {
      job_.send_state(parameters_.data(), 4 * parameters_.size(), step_);
    } catch (const Error& error) {  // the step has just ended: next time
      if (error.status() != SLUICE_INVALID_ARGUMENT) throw;
    }
  }
  void resync() {
    const sluice_state state = job_.resync(kLong);
    load(state.data, state.bytes, state.step);
  }

  const std::uint32_t rank_;
  std::vector<float> a_ = std::vector<float>(kElems), b_ = std::vector<float>(5);
  std::vector<float> parameters_ = std::vector<float>(kElems + 5);
  Job job_;
  std::uint32_t step_ = 0;
  std::uint32_t resyncs_ = 0;
};

// Ranks that are where the test wants them. All of them go on until all are there, because a rank
// that is behind may need another's state.
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
  for (const sluice_late_mode late : {SLUICE_LATE_DROP, SLUICE_LATE_REQUEUE}) {
    History history;
    std::atomic<std::uint64_t> late_chunks{0}, requeued{0};
    Finish finish;
    on_every_rank(kWorld, [&](std::uint32_t rank) {
      Trainee trainee(
          fixed("slow" + std::to_string(static_cast<int>(late)), rank, kWorld, 3, late));
      bool there = false;
      while (!finish.everybody(there, trainee.step() >= 40)) {
        finish.turn(trainee, milliseconds(rank == 3 ? 10 : 2));
        history.note(trainee);
      }
      const sluice_counters counters = trainee.job().counters();
      if (rank == 3) {
        late_chunks = counters.late_chunks;
        requeued = counters.requeued_chunks;
      }
      if (trainee.resyncs() == 0) {
        EXPECT_EQ(counters.steps_done, trainee.step());
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
    Trainee trainee(fixed("asleep", rank, kWorld, 3, SLUICE_LATE_REQUEUE));
    bool there = false, slept = false;
    while (!finish.everybody(there, trainee.step() >= 60)) {
      if (rank == 3 && trainee.step() >= 5 && !slept) {
        slept = true;
        while (front < 30) std::this_thread::sleep_for(milliseconds(5));
        EXPECT_GE(trainee.job().position().behind, 4u);
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
    const Options options = fixed("back", rank, kWorld, 2, SLUICE_LATE_DROP);
    auto trainee = std::make_unique<Trainee>(options);
    bool there = false, left = false;
    while (!finish.everybody(there, trainee->step() >= 20 && (rank != 2 || left))) {
      if (rank == 2 && trainee->step() >= 5 && !left) {
        sluice_abort(trainee->job().get());
        trainee.reset();
        std::this_thread::sleep_for(milliseconds(100));
        trainee = std::make_unique<Trainee>(options);
        EXPECT_TRUE(trainee->job().position().must_resync);
        left = true;
      }
      finish.turn(*trainee, milliseconds(1));
      if (rank == 2 && left) {
        EXPECT_GE(trainee->resyncs(), 1u);
        EXPECT_EQ(trainee->job().counters().resyncs, trainee->resyncs());
      }
      history.note(*trainee);
    }
  });
}

TEST(StragglerJobs, EveryStepIsReported) {
  on_every_rank(kWorld, [](std::uint32_t rank) {
    Trainee trainee(fixed("report", rank, kWorld, 4, SLUICE_LATE_DROP));
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
    EXPECT_EQ(policy.policy.kind, SLUICE_POLICY_FIXED);
    EXPECT_EQ(policy.policy.k, 4u);
    EXPECT_EQ(policy.window_steps, 4u);
    EXPECT_EQ(policy.resync_hold_ms, 30'000u);
    EXPECT_NE(policy.tolerates_stragglers, 0);
    EXPECT_EQ(policy.averaging, SLUICE_AVERAGE_WEIGHT);
    trainee.job().barrier(kLong);
  });
}

TEST(StragglerJobs, AResyncInTheMiddleOfAStepIsRefusedAndTheStepGoesOn) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("mid-step", rank, 2);
    options.policy.kind = SLUICE_POLICY_FIXED;
    options.policy.k = 1;
    Job job(options, {{"a", 4}, {"b", 4}});
    float value[4] = {1, 2, 3, 4};
    job.submit({0, value, value});
    job.wait(0, kLong);
    const Error error = error_of([&] { job.resync(kLong); });
    EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("wait for"));
    EXPECT_FALSE(job.position().must_resync);
    job.submit({1, value, value});
    EXPECT_EQ(job.wait(1, kLong).step, 1u);
    job.barrier(kLong);
  });
}

TEST(StragglerJobs, TheFirstStepsWaitForAGradientOfEveryRank) {
  on_every_rank(2, [](std::uint32_t rank) {
    Options options = options_for("first-steps", rank, 2);
    options.policy.kind = SLUICE_POLICY_FIXED;
    options.policy.k = 1;
    Job job(options, {{"a", 4}});
    float value[4] = {1, 2, 3, 4};
    for (int step = 1; step <= 2; ++step) {
      job.barrier(kLong);  // nobody has contributed to it
      const Error error = error_of([&] { job.catch_up(0, value); });
      EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(),
                  HasSubstr("step " + std::to_string(step) + " waits for every rank"));
      job.barrier(kLong);
      job.submit({0, value, value});
      job.wait(0, kLong);
    }
    job.barrier(kLong);
  });
}

TEST(StragglerJobs, ASynchronousJobHasNothingToCatchUpWith) {
  on_every_rank(2, [](std::uint32_t rank) {
    Job job(options_for("sync-only", rank, 2), {{"a", 4}});
    EXPECT_EQ(job.policy().policy.kind, SLUICE_POLICY_SYNC);
    EXPECT_EQ(job.policy().tolerates_stragglers, 0);
    EXPECT_EQ(job.position().behind, 0u);
    EXPECT_FALSE(job.position().must_resync);
    EXPECT_EQ(job.position().state_wanted_by, -1);
    float value[4] = {};
    EXPECT_EQ(error_of([&] { job.catch_up(0, value); }).status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(error_of([&] { job.resync(kLong); }).status(), SLUICE_INVALID_ARGUMENT);
    job.send_state(value, sizeof value, 7);  // nobody wants it
    job.submit({0, value, value});
    job.wait(0, kLong);
    job.barrier(kLong);
  });
}

TEST(Turns, AStepThatWasGivenOutIsSubmittedInFull) {
  Options options = options_for("turns", 0, 1);
  options.policy.kind = SLUICE_POLICY_FIXED;
  Job job(options, {{"a", 8}, {"b", 8}});
  EXPECT_EQ(job.next_turn().kind, SLUICE_TURN_COMPUTE);
  const Error error = error_of([&] { job.next_turn(kLong); });
  EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(error.what(), HasSubstr("step 1 was given out and is not submitted in full"));
  job.end_step();
  EXPECT_EQ(job.next_turn(kLong).kind, SLUICE_TURN_APPLY);
  EXPECT_EQ(job.next_turn().kind, SLUICE_TURN_COMPUTE);
}

}  // namespace
