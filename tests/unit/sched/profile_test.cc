// Prophet's profile of the times at which tensors become ready.
#include "client/sched/profile.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::client {
namespace {

constexpr DurationNs ms(double count) { return static_cast<DurationNs>(count * kMillisecond); }

// Four tensors in two bursts; the priority is the tensor's number, and the last is ready first.
const std::vector<DurationNs> kOffsets{ms(20.1), ms(20), ms(0.1), 0};

class Steps {
 public:
  explicit Steps(ReadinessProfile& profile) : profile_(profile) {}

  void run(const std::vector<DurationNs>& offsets, Priority shift = 0) {
    begin();
    for (std::uint32_t tensor = static_cast<std::uint32_t>(offsets.size()); tensor-- > 0;)
      profile_.ready(tensor, static_cast<Priority>(tensor + shift), now_ + offsets[tensor]);
  }
  void run(int count, const std::vector<DurationNs>& offsets) {
    for (int i = 0; i < count; ++i) run(offsets);
  }
  TimeNs begin() {
    now_ += 100 * kMillisecond;
    profile_.begin_step(now_);
    return now_;
  }

 private:
  ReadinessProfile& profile_;
  TimeNs now_ = kSecond;
};

constexpr int kStepsToLearn = ReadinessProfile::kWarmUpSteps + ReadinessProfile::kLearntSteps;

TEST(ReadinessProfile, KnowsNothingBeforeAWarmUpAndFiveCompleteSteps) {
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run({ms(900), ms(900), 0, 0});  // the warm-up, which is never like the others
  steps.run(4, kOffsets);
  steps.begin();  // a step without tensors says nothing
  steps.run(kOffsets);
  EXPECT_FALSE(profile.known());
  steps.begin();  // only now the fifth is over
  ASSERT_TRUE(profile.known());
  EXPECT_EQ(profile.prediction(0).tensor, 3u);
  EXPECT_EQ(profile.prediction(3).tensor, 0u);
  EXPECT_EQ(profile.prediction(3).offset_ns, ms(20.1));
  EXPECT_EQ(profile.prediction(3).priority, 0);
}

TEST(ReadinessProfile, IsNotMovedByOneHiccup) {
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run(3, kOffsets);
  steps.run({ms(500), ms(480), ms(450), 0});
  steps.run(2, kOffsets);
  steps.begin();
  ASSERT_TRUE(profile.known());
  EXPECT_EQ(profile.prediction(3).offset_ns, ms(20.1));
}

TEST(ReadinessProfile, FindsBurstsAtGapsThatTheNetworkCouldUse) {
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run(kStepsToLearn, kOffsets);
  steps.begin();
  profile.find_bursts(ms(1));
  EXPECT_EQ(profile.prediction(1).burst_start_ns, 0);
  EXPECT_EQ(profile.prediction(2).burst_start_ns, ms(20));
  EXPECT_EQ(profile.prediction(3).burst_start_ns, ms(20));
  profile.find_bursts(ms(30));  // a network so slow that all is one burst
  EXPECT_EQ(profile.prediction(3).burst_start_ns, 0);
  profile.find_bursts(0);
  EXPECT_EQ(profile.prediction(3).burst_start_ns, ms(20.1));
}

TEST(ReadinessProfile, PredictsWhenSomethingMoreUrgentWillBeReady) {
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run(kStepsToLearn, kOffsets);
  const TimeNs began = steps.begin();
  profile.find_bursts(ms(1));
  profile.ready(3, 3, began);
  EXPECT_EQ(profile.until_more_urgent(3, began), ms(0.1));
  profile.ready(2, 2, began + ms(0.1));
  EXPECT_EQ(profile.until_more_urgent(2, began + ms(1)), ms(19));  // the burst's first tensor
  EXPECT_EQ(profile.until_more_urgent(1, began + ms(1)), ms(19));  // the burst counts as one
  EXPECT_EQ(profile.until_more_urgent(1, began + ms(20)), ms(0.1));
  EXPECT_EQ(profile.until_more_urgent(0, began), kNever);
  EXPECT_FALSE(profile.most_urgent_came());
  profile.ready(0, 0, began + ms(19));
  EXPECT_TRUE(profile.most_urgent_came());
}

TEST(ReadinessProfile, DoesNotWaitForTensorsThatAreLongOverdue) {
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run(kStepsToLearn, kOffsets);
  const TimeNs began = steps.begin();
  profile.ready(3, 3, began);
  EXPECT_EQ(profile.until_more_urgent(3, began + ms(20.5)), 0);  // tensors 0 and 1 may come yet
  EXPECT_EQ(profile.until_more_urgent(3, began + ms(20.2) + profile.tolerance_ns()), kNever);
}

TEST(ReadinessProfile, IsLearntAnewAfterThreeStepsInARowThatContradictIt) {
  const std::vector<DurationNs> slower{ms(40), ms(38), ms(0.1), 0};
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run(kStepsToLearn, kOffsets);
  steps.run(2, slower);
  steps.run(kOffsets);
  steps.run(2, slower);
  steps.run(kOffsets);
  steps.begin();
  EXPECT_TRUE(profile.known());  // never three in a row
  steps.run(3, slower);
  steps.begin();
  EXPECT_FALSE(profile.known());
  EXPECT_EQ(profile.restarts(), 1u);
  EXPECT_EQ(profile.learnt_steps(), 1u);  // the one that showed it
  steps.run(4, slower);
  steps.begin();
  ASSERT_TRUE(profile.known());
  EXPECT_EQ(profile.prediction(3).offset_ns, ms(40));
}

TEST(ReadinessProfile, IsLearntAnewWhenPrioritiesChange) {
  ReadinessProfile profile(4);
  Steps steps(profile);
  steps.run(kStepsToLearn, kOffsets);
  steps.begin();
  ASSERT_TRUE(profile.known());
  steps.run(kOffsets, 7);
  EXPECT_FALSE(profile.known());
  for (int i = 0; i < 4; ++i) steps.run(kOffsets, 7);
  steps.begin();
  ASSERT_TRUE(profile.known());
  EXPECT_EQ(profile.prediction(3).priority, 7);
}

}  // namespace
}  // namespace sluice::client
