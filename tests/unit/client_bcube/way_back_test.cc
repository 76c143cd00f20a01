#include "client/bcube/way_back.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::client {
namespace {

using State = WayBack::State;

constexpr DurationNs kFirstWait = kSecond;
constexpr DurationNs kLongestWait = 64 * kSecond;
constexpr DurationNs kSteady = 64 * kSecond;

// It is due after this wait, and not before.
void expect_due_in(const WayBack& way, DurationNs wait_ns, TimeNs now) {
  EXPECT_TRUE(way.is_lost());
  EXPECT_FALSE(way.is_due(now + static_cast<TimeNs>(wait_ns) - 1)) << wait_ns;
  EXPECT_TRUE(way.is_due(now + static_cast<TimeNs>(wait_ns))) << wait_ns;
}

// An attempt that ends when the way is found and used.
void succeed(WayBack& way, TimeNs now) {
  way.begin();
  way.join_others();
  way.meet();
  way.met();
  EXPECT_EQ(way.state(), State::kReady);
  way.end(now);
}

TEST(WayBack, IsNotDueWhileNothingIsLost) {
  const WayBack way;
  EXPECT_FALSE(way.is_lost());
  EXPECT_FALSE(way.is_due(1'000 * kSecond));
}

TEST(WayBack, WaitsASecondAfterALossWhichCountsOnce) {
  WayBack way;
  const TimeNs now = 100 * kSecond;
  way.lose(now);
  way.lose(now + kFirstWait / 2);  // another lane sees it too
  expect_due_in(way, kFirstWait, now);
}

// Nobody answers: the one lane that asks costs nothing, so the pause stays.
TEST(WayBack, AsksAgainAfterTheSamePauseWhileNobodyAnswers) {
  WayBack way;
  TimeNs now = 100 * kSecond;
  way.lose(now);
  for (int attempt = 0; attempt < 20; ++attempt) {
    now += kFirstWait;
    way.begin();
    EXPECT_FALSE(way.is_due(now + 1'000 * kSecond)) << "an attempt is under way";
    way.fail(now);
    expect_due_in(way, kFirstWait, now);
  }
}

TEST(WayBack, PausesForLongerEachTimeItIsAnsweredAndGetsNoFurther) {
  for (const State until : {State::kJoining, State::kMeeting, State::kReady}) {
    WayBack way;
    TimeNs now = 100 * kSecond;
    way.lose(now);
    DurationNs wait_ns = kFirstWait;
    for (int attempt = 0; attempt < 10; ++attempt) {
      now += static_cast<TimeNs>(wait_ns);
      way.begin();
      way.join_others();
      if (until != State::kJoining) way.meet();
      if (until == State::kReady) way.met();
      ASSERT_EQ(way.state(), until);
      way.fail(now);
      wait_ns = std::min(2 * wait_ns, kLongestWait);
      expect_due_in(way, wait_ns, now);
    }
    EXPECT_EQ(wait_ns, kLongestWait);
  }
}

TEST(WayBack, FailsOnlyWhereAnAttemptIsUnderWay) {
  WayBack way;
  const TimeNs now = 100 * kSecond;
  way.fail(now);
  EXPECT_FALSE(way.is_lost());
  way.lose(now);
  way.fail(now + kFirstWait / 2);  // a lane of the attempt before
  expect_due_in(way, kFirstWait, now);
}

TEST(WayBack, PausesForLongerWhenWhatCameBackIsSoonLostAgain) {
  WayBack way;
  TimeNs now = 100 * kSecond;
  DurationNs wait_ns = kFirstWait;
  for (int loss = 0; loss < 10; ++loss) {
    way.lose(now);
    expect_due_in(way, wait_ns, now);
    now += static_cast<TimeNs>(wait_ns);
    succeed(way, now);
    EXPECT_FALSE(way.is_lost());
    now += static_cast<TimeNs>(kSteady) - 1;
    wait_ns = std::min(2 * wait_ns, kLongestWait);
  }
  EXPECT_EQ(wait_ns, kLongestWait);
}

TEST(WayBack, BeginsWithTheFirstPauseAgainAfterASteadyWhile) {
  WayBack way;
  TimeNs now = 100 * kSecond;
  way.lose(now);
  succeed(way, now + kFirstWait);
  now += kFirstWait + 1;
  way.lose(now);
  expect_due_in(way, 2 * kFirstWait, now);
  now += 2 * kFirstWait;
  succeed(way, now);
  now += static_cast<TimeNs>(kSteady);
  way.lose(now);
  expect_due_in(way, kFirstWait, now);
}

// The votes of all may bring it back when this one's own attempt has failed since.
TEST(WayBack, EndsWhereverItsOwnAttemptIs) {
  WayBack way;
  way.lose(100 * kSecond);
  way.begin();
  way.join_others();
  way.fail(101 * kSecond);
  ASSERT_EQ(way.state(), State::kWaiting);
  way.end(102 * kSecond);
  EXPECT_EQ(way.state(), State::kHere);
}

}  // namespace
}  // namespace sluice::client
