// The answers of a membership of any kind to an application's calls, and their words.
#include "client/core/calls/calls.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace sluice::client {
namespace {

// A membership that notes what it is told to do.
class Membered final : public Calls {
 public:
  explicit Membered(SessionOptions options)
      : Calls(std::move(options), Layout::create({{"narrow", 4},
                                                  {"whole", 4, Dtype::kFloat32, true},
                                                  {.name = "far", .elem_count = 4, .far = true}},
                                                 64, Dtype::kFloat16)
                                      .value()) {
    state_ = SessionState::kRunning;
    facts_.averaging = AveragingChoice::kWeight;
  }
  void tolerate_stragglers() { facts_.policy = {.kind = PolicyKind::kFixed, .k = 1}; }
  void end(Status why) {
    state_ = SessionState::kClosed;
    failure_ = std::move(why);
  }
  void fall_behind(Status why) { tensors_.fall_behind(std::move(why)); }

  void leave(wire::LeaveReason, TimeNs) override {}
  Counters counters() const override { return {}; }
  const StepReport* report(Step) const noexcept override { return nullptr; }
  const StepReport* last_report() const noexcept override { return nullptr; }
  Stall stall(TimeNs) const override { return {}; }
  std::string describe_plan() const override { return {}; }

  Step waits_for_all = 0;  // up to this step a gradient of every rank is required
  std::string collective;
  int submissions = 0;
  int collectives = 0;

 private:
  void submitted(const Submission&, TimeNs) noexcept override { ++submissions; }
  bool may_catch_up(Step step) const noexcept override { return step > waits_for_all; }
  std::string describe_collective() const override { return collective; }
  Status begin_collective(std::optional<Rank>, void*, std::size_t, TimeNs) override {
    ++collectives;
    return {};
  }
};

class CallsTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kNarrow = 0, kWhole = 1, kFar = 2;

  static SessionOptions options() {
    return {.job_name = "mnist",
            .rank = Rank{1},
            .world_size = 2,
            .appliance_address = "10.0.0.1:7700"};
  }
  Submission gradient(std::uint32_t tensor) {
    return {.tensor = tensor, .input = values.data(), .output = values.data()};
  }
  Submission catch_up(std::uint32_t tensor) {
    return {.tensor = tensor, .output = values.data(), .contribute = false};
  }
  static void expect(const Status& status, StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "job 'mnist' rank 1 at 10.0.0.1:7700: " + text);
  }

  std::array<float, 4> values{};
  Membered member{options()};
};

TEST_F(CallsTest, ATensorIsSubmittedOnceAStep) {
  ASSERT_TRUE(member.submit(gradient(kNarrow), 1).ok());
  EXPECT_EQ(member.submissions, 1);
  expect(member.submit(gradient(kNarrow), 1), StatusCode::kBusy,
         "tensor 'narrow' is still in flight for step 1; wait for it before submitting again");
  expect(member.submit(gradient(3), 1), StatusCode::kInvalidArgument,
         "submit: tensor 3 does not exist; the job has 3 tensors");
  EXPECT_EQ(member.submissions, 1);
}

TEST_F(CallsTest, ASynchronousJobHasNothingToCatchUpWith) {
  const std::string text =
      "tensor 'whole': a synchronous job waits for every rank, so there is nothing to catch up "
      "with; submit a gradient";
  expect(member.submit(catch_up(kWhole), 1), StatusCode::kInvalidArgument, text);
  expect(member.check_submission(catch_up(kWhole)), StatusCode::kInvalidArgument, text);
}

TEST_F(CallsTest, AStepThatWaitsForEveryRankIsNotCaughtUpWith) {
  member.tolerate_stragglers();
  member.waits_for_all = 1;
  expect(member.submit(catch_up(kWhole), 1), StatusCode::kInvalidArgument,
         "tensor 'whole': step 1 waits for every rank, as the first 2 steps of a job do; submit a "
         "gradient");
  member.waits_for_all = 0;
  EXPECT_TRUE(member.submit(catch_up(kWhole), 1).ok());
}

TEST_F(CallsTest, ARankThatIsBehindSubmitsNothing) {
  member.tolerate_stragglers();
  member.fall_behind({StatusCode::kBehind, "behind"});
  EXPECT_EQ(member.submit(gradient(kWhole), 1).code(), StatusCode::kBehind);
  EXPECT_EQ(member.end_step().code(), StatusCode::kBehind);
  EXPECT_EQ(member.behind_status().message(), "behind");
}

TEST_F(CallsTest, AStoreHasNoSteps) {
  SessionOptions with = options();
  with.store.emplace();
  Membered store(with);
  const char* const text = "a parameter store has no steps: push and pull its layers";
  expect(store.submit(gradient(kWhole), 1), StatusCode::kInvalidArgument, text);
  expect(store.end_step(), StatusCode::kInvalidArgument, text);
  EXPECT_TRUE(store.barrier(1).ok());
}

TEST_F(CallsTest, TheAverageOfATensorChangesBetweenItsSteps) {
  ASSERT_TRUE(member.set_averaging(kWhole, AveragingChoice::kSum).ok());
  EXPECT_EQ(member.tensors().averaging(kWhole), AveragingChoice::kSum);
  ASSERT_TRUE(member.set_averaging(kWhole, AveragingChoice::kDefault).ok());
  EXPECT_EQ(member.tensors().averaging(kWhole), AveragingChoice::kWeight);
  ASSERT_TRUE(member.submit(gradient(kWhole), 1).ok());
  expect(member.set_averaging(kWhole, AveragingChoice::kSum), StatusCode::kBusy,
         "set_averaging: tensor 'whole' is in flight");
}

TEST_F(CallsTest, AResidualIsReadWhereThereIsOneAndNothingIsInFlight) {
  Kept kept;
  ASSERT_TRUE(member.residual(kNarrow, kept).ok());
  EXPECT_EQ(kept.values.size(), 4u);
  expect(member.residual(kWhole, kept), StatusCode::kInvalidArgument,
         "residual: tensor 'whole' travels as it is and has none; only float32 that is pruned or "
         "has another wire format has");
  expect(member.residual(kFar, kept), StatusCode::kInvalidArgument,
         "residual: tensor 'far' is far: whoever submits it keeps it");
  ASSERT_TRUE(member.submit(gradient(kNarrow), 1).ok());
  expect(member.residual(kNarrow, kept), StatusCode::kBusy,
         "residual: tensor 'narrow' is in flight");
  expect(member.scale_residuals(2), StatusCode::kBusy, "scale_residuals: in the middle of a step");
}

TEST_F(CallsTest, CollectivesAreCalledOneAtATimeAndOfRanksThatThereAre) {
  EXPECT_TRUE(member.broadcast(Rank{1}, values.data(), sizeof values, 1).ok());
  expect(member.broadcast(Rank{2}, values.data(), sizeof values, 1), StatusCode::kInvalidArgument,
         "broadcast from rank 2: the world has ranks 0 to 1");
  expect(member.broadcast(Rank{0}, nullptr, 8, 1), StatusCode::kInvalidArgument,
         "broadcast of 8 bytes to a null buffer");
  member.collective = "a barrier";
  expect(member.barrier(1), StatusCode::kBusy,
         "a collective was called before the last one was done (a barrier): wait for it first");
  EXPECT_EQ(member.collectives, 1);
}

TEST_F(CallsTest, WhoHasLeftOrFailedIsToldSo) {
  member.end({});
  const char* const text = "this rank has left the job";
  expect(member.submit(gradient(kWhole), 1), StatusCode::kClosed, text);
  expect(member.end_step(), StatusCode::kClosed, text);
  expect(member.flush_residuals(), StatusCode::kClosed, text);
  expect(member.barrier(1), StatusCode::kClosed, text);
  member.end({StatusCode::kPeerLost, "rank 0 is lost"});
  EXPECT_EQ(member.broadcast(Rank{0}, values.data(), 4, 1).message(), "rank 0 is lost");
}

}  // namespace
}  // namespace sluice::client
