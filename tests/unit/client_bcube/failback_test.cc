#include "client/bcube/failback.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::client {
namespace {

using State = Failback::State;

constexpr DurationNs kFirstWait = kSecond;
constexpr DurationNs kLongestWait = 64 * kSecond;
constexpr DurationNs kSteady = 64 * kSecond;

// It is due after this wait, and not before.
void expect_due_in(const Failback& failback, DurationNs wait_ns, TimeNs now) {
  EXPECT_TRUE(failback.is_lost());
  EXPECT_FALSE(failback.is_due(now + static_cast<TimeNs>(wait_ns) - 1)) << wait_ns;
  EXPECT_TRUE(failback.is_due(now + static_cast<TimeNs>(wait_ns))) << wait_ns;
}

// An attempt that ends when the way is found and used.
void succeed(Failback& failback, TimeNs now) {
  failback.begin();
  failback.join_others();
  failback.begin_rendezvous();
  failback.end_rendezvous();
  EXPECT_EQ(failback.state(), State::kReady);
  failback.end(now);
}

TEST(Failback, IsNotDueWhileNothingIsLost) {
  const Failback failback;
  EXPECT_FALSE(failback.is_lost());
  EXPECT_FALSE(failback.is_due(1'000 * kSecond));
}

TEST(Failback, WaitsASecondAfterALossWhichCountsOnce) {
  Failback failback;
  const TimeNs now = 100 * kSecond;
  failback.lose(now);
  failback.lose(now + kFirstWait / 2);  // another lane sees it too
  expect_due_in(failback, kFirstWait, now);
}

// Nobody answers: the one lane that asks costs nothing, so the pause stays.
TEST(Failback, AsksAgainAfterTheSamePauseWhileNobodyAnswers) {
  Failback failback;
  TimeNs now = 100 * kSecond;
  failback.lose(now);
  for (int attempt = 0; attempt < 20; ++attempt) {
    now += kFirstWait;
    failback.begin();
    EXPECT_FALSE(failback.is_due(now + 1'000 * kSecond)) << "an attempt is under way";
    failback.fail(now);
    expect_due_in(failback, kFirstWait, now);
  }
}

TEST(Failback, PausesForLongerEachTimeItIsAnsweredAndGetsNoFurther) {
  for (const State until : {State::kJoining, State::kRendezvous, State::kReady}) {
    Failback failback;
    TimeNs now = 100 * kSecond;
    failback.lose(now);
    DurationNs wait_ns = kFirstWait;
    for (int attempt = 0; attempt < 10; ++attempt) {
      now += static_cast<TimeNs>(wait_ns);
      failback.begin();
      failback.join_others();
      if (until != State::kJoining) failback.begin_rendezvous();
      if (until == State::kReady) failback.end_rendezvous();
      ASSERT_EQ(failback.state(), until);
      failback.fail(now);
      wait_ns = std::min(2 * wait_ns, kLongestWait);
      expect_due_in(failback, wait_ns, now);
    }
    EXPECT_EQ(wait_ns, kLongestWait);
  }
}

TEST(Failback, FailsOnlyWhereAnAttemptIsUnderWay) {
  Failback failback;
  const TimeNs now = 100 * kSecond;
  failback.fail(now);
  EXPECT_FALSE(failback.is_lost());
  failback.lose(now);
  failback.fail(now + kFirstWait / 2);  // a lane of the attempt before
  expect_due_in(failback, kFirstWait, now);
}

TEST(Failback, PausesForLongerWhenWhatCameBackIsSoonLostAgain) {
  Failback failback;
  TimeNs now = 100 * kSecond;
  DurationNs wait_ns = kFirstWait;
  for (int loss = 0; loss < 10; ++loss) {
    failback.lose(now);
    expect_due_in(failback, wait_ns, now);
    now += static_cast<TimeNs>(wait_ns);
    succeed(failback, now);
    EXPECT_FALSE(failback.is_lost());
    now += static_cast<TimeNs>(kSteady) - 1;
    wait_ns = std::min(2 * wait_ns, kLongestWait);
  }
  EXPECT_EQ(wait_ns, kLongestWait);
}

TEST(Failback, BeginsWithTheFirstPauseAgainAfterASteadyWhile) {
  Failback failback;
  TimeNs now = 100 * kSecond;
  failback.lose(now);
  succeed(failback, now + kFirstWait);
  now += kFirstWait + 1;
  failback.lose(now);
  expect_due_in(failback, 2 * kFirstWait, now);
  now += 2 * kFirstWait;
  succeed(failback, now);
  now += static_cast<TimeNs>(kSteady);
  failback.lose(now);
  expect_due_in(failback, kFirstWait, now);
}

// The votes of all may bring it back when this one's own attempt has failed since.
TEST(Failback, EndsWhereverItsOwnAttemptIs) {
  Failback failback;
  failback.lose(100 * kSecond);
  failback.begin();
  failback.join_others();
  failback.fail(101 * kSecond);
  ASSERT_EQ(failback.state(), State::kWaiting);
  failback.end(102 * kSecond);
  EXPECT_EQ(failback.state(), State::kHere);
}

}  // namespace
}  // namespace sluice::client
