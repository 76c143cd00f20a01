// When a polling thread rests, and until when.

#include "dataplane/core/idle.h"

#include <gtest/gtest.h>

namespace sluice::dataplane {
namespace {

using Action = IdlePolicy::Action;
using enum IdlePolicy::Woken;
constexpr TimeNs kNever = IdlePolicy::kNever;
constexpr TimeNs kStart = kSecond;

IdlePolicy adaptive(IdlePolicy::Woken woken, bool arms = false) {
  IdlePolicy idle(false);
  idle.wake_by(woken, arms);
  return idle;
}

// Loops that find nothing until the policy rests.
IdlePolicy::Decision rest_of(IdlePolicy& idle, TimeNs now, TimeNs due = kNever) {
  for (std::uint32_t loop = 0; loop < IdlePolicy::kSpinLoops; ++loop) {
    const auto decision = idle.after_loop(0, now, due);
    if (decision.action != Action::kGoOn) return decision;
  }
  return idle.after_loop(0, now, due);
}

TEST(IdlePolicy, SpinsForAMomentThenWaitsForAPacket) {
  IdlePolicy idle = adaptive(kYes);
  for (std::uint32_t loop = 0; loop < IdlePolicy::kSpinLoops; ++loop)
    ASSERT_EQ(idle.after_loop(0, kStart, kNever).action, Action::kGoOn);
  const auto decision = idle.after_loop(0, kStart, kNever);
  EXPECT_EQ(decision.action, Action::kWait);
  EXPECT_EQ(decision.until, kStart + IdlePolicy::kLongestWait);
  EXPECT_EQ(idle.after_loop(0, kStart, kNever).action, Action::kWait) << "no spinning in between";
  EXPECT_EQ(idle.after_loop(1, kStart, kNever).action, Action::kGoOn);
  EXPECT_EQ(idle.after_loop(0, kStart, kNever).action, Action::kGoOn) << "work starts it again";
}

TEST(IdlePolicy, RestsLongerAfterASecondWithoutWork) {
  IdlePolicy idle = adaptive(kYes);
  TimeNs now = kStart;
  while (now < kStart + kSecond - IdlePolicy::kLongestWait) {
    const auto decision = rest_of(idle, now);
    ASSERT_EQ(decision.until, now + IdlePolicy::kLongestWait) << now - kStart;
    now = decision.until;
  }
  now = rest_of(idle, now).until;
  EXPECT_EQ(rest_of(idle, now).until, now + IdlePolicy::kDeepWait);
  EXPECT_EQ(rest_of(idle, now, now + kMillisecond).until, now + kMillisecond)
      << "what waits inside comes first";
  idle.after_loop(1, now, kNever);
  EXPECT_EQ(rest_of(idle, now).until, now + IdlePolicy::kLongestWait) << "work starts it again";
}

TEST(IdlePolicy, RestsNoLongerThanWhatWaitsInside) {
  IdlePolicy idle = adaptive(kYes);
  EXPECT_EQ(rest_of(idle, kStart, kStart + 50'000).until, kStart + 50'000);
  EXPECT_EQ(rest_of(idle, kStart, kStart - 1).until, kStart + IdlePolicy::kFirstNap)
      << "what the device does not take yet must not make it spin";
}

TEST(IdlePolicy, InSteadyTrafficWakesOnceARoundByTheClock) {
  IdlePolicy idle = adaptive(kYes);
  TimeNs now = kStart;
  for (std::uint32_t wake = 0; wake <= IdlePolicy::kSteadyWakes; ++wake) {
    now += IdlePolicy::kRound;
    if (wake == IdlePolicy::kSteadyWakes) break;
    ASSERT_EQ(idle.after_loop(3, now, kNever).action, Action::kGoOn) << "wake " << wake;
    ASSERT_EQ(rest_of(idle, now + 1000, kNever).action, Action::kWait) << "wake " << wake;
  }
  auto decision = idle.after_loop(3, now, kNever);
  EXPECT_EQ(decision.action, Action::kNap) << "even what else comes can wait for the round's end";
  EXPECT_EQ(decision.until, now + IdlePolicy::kRound);
  now = decision.until;
  EXPECT_EQ(idle.after_loop(IdlePolicy::kWholeBurst, now, kNever).action, Action::kGoOn);
  decision = idle.after_loop(1, now + 30'000, now + 70'000);
  EXPECT_EQ(decision.action, Action::kNap);
  EXPECT_EQ(decision.until, now + 70'000) << "the shaper's time comes first";
  now += IdlePolicy::kRound;
  EXPECT_EQ(rest_of(idle, now, kNever).action, Action::kWait) << "a round without a packet";
  now += 3 * IdlePolicy::kRound;
  EXPECT_EQ(idle.after_loop(1, now, kNever).action, Action::kGoOn);
  EXPECT_EQ(rest_of(idle, now + 1000, kNever).action, Action::kWait)
      << "one packet alone is answered";
}

TEST(IdlePolicy, LooksOftenerAtPortsThatCannotWakeIt) {
  IdlePolicy idle = adaptive(kNo);
  EXPECT_EQ(rest_of(idle, kStart).until, kStart + IdlePolicy::kFirstNap);
  EXPECT_EQ(rest_of(idle, kStart).until, kStart + 2 * IdlePolicy::kFirstNap);
  for (int loop = 0; loop < 100; ++loop) rest_of(idle, kStart);
  EXPECT_EQ(rest_of(idle, kStart).until, kStart + IdlePolicy::kRound);
  for (std::uint32_t nap = 0; nap < IdlePolicy::kShallowRests; ++nap) rest_of(idle, kStart);
  EXPECT_EQ(rest_of(idle, kStart).until, kStart + IdlePolicy::kDeepNap) << "a machine at rest";
  idle.after_loop(1, kStart, kNever);
  EXPECT_EQ(rest_of(idle, kStart).until, kStart + IdlePolicy::kFirstNap);
}

TEST(IdlePolicy, ArmsPortsAndLooksOnceMoreBeforeEachWait) {
  IdlePolicy idle = adaptive(kYes, true);
  EXPECT_EQ(rest_of(idle, kStart).action, Action::kArm);
  EXPECT_EQ(idle.after_loop(0, kStart, kNever).action, Action::kWait);
  EXPECT_EQ(idle.after_loop(0, kStart, kNever).action, Action::kArm) << "a wait disarms";
  EXPECT_EQ(idle.after_loop(1, kStart, kNever).action, Action::kGoOn) << "it came before";
  EXPECT_EQ(rest_of(idle, kStart).action, Action::kArm) << "work disarms";
  const auto decision = idle.after_loop(0, kStart, kNever);
  EXPECT_EQ(decision.action, Action::kWait);
  EXPECT_EQ(decision.until, kStart + IdlePolicy::kLongestWait);
}

TEST(IdlePolicy, ByTheClockUntilAnInterruptCameAndByInterruptsThen) {
  IdlePolicy idle = adaptive(kPerhaps, true);
  EXPECT_EQ(rest_of(idle, kStart).action, Action::kArm) << "or none could come";
  const auto early = idle.after_loop(0, kStart, kNever);
  EXPECT_EQ(early.action, Action::kWait);
  EXPECT_EQ(early.until, kStart + IdlePolicy::kFirstNap);
  for (std::uint32_t nap = 0; nap < IdlePolicy::kShallowRests; ++nap) {
    rest_of(idle, kStart);
    idle.after_loop(0, kStart, kNever);
  }
  EXPECT_EQ(rest_of(idle, kStart).action, Action::kArm);
  EXPECT_EQ(idle.after_loop(0, kStart, kNever).until, kStart + IdlePolicy::kDeepWait)
      << "a box without traffic is not kept awake by the question";
  idle.after_loop(1, kStart, kNever);
  idle.wake_by(kYes, true);
  EXPECT_EQ(rest_of(idle, kStart).action, Action::kArm);
  EXPECT_EQ(idle.after_loop(0, kStart, kNever).until, kStart + IdlePolicy::kLongestWait);
  idle.wake_by(kNo, false);
  EXPECT_EQ(rest_of(idle, kStart).action, Action::kWait) << "nothing is armed any more";
}

TEST(InterruptTrial, EndsWithTheFirstInterruptOrAfterPacketsEnoughWithoutOne) {
  using State = InterruptTrial::State;
  InterruptTrial silent;
  for (std::uint32_t packet = 1; packet < InterruptTrial::kMostMissed; ++packet)
    silent.note_missed();
  InterruptTrial late = silent;
  EXPECT_EQ(silent.state(), State::kUnknown);
  silent.note_missed();
  EXPECT_EQ(silent.state(), State::kMissing);
  late.note_interrupt();
  for (std::uint32_t packet = 0; packet < 2 * InterruptTrial::kMostMissed; ++packet)
    late.note_missed();
  EXPECT_EQ(late.state(), State::kCome) << "a device that raises them may be late once";
}

TEST(IdlePolicy, BusyPollingNeverRests) {
  IdlePolicy idle(true);
  for (int loop = 0; loop < 10'000; ++loop)
    ASSERT_EQ(idle.after_loop(loop % 2, kStart + loop, kStart).action, Action::kGoOn);
}

}  // namespace
}  // namespace sluice::dataplane
