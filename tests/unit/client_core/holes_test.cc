// Which numbers are lost, and how long a hole may wait for what was only overtaken.
#include "client/core/link/holes.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::client {
namespace {

constexpr DurationNs kRoundTrip = 8 * kMillisecond;
constexpr TimeNs kNow = kSecond;

std::vector<std::uint32_t> lost(Holes& holes, TimeNs now) {
  std::vector<std::uint32_t> numbers;
  while (const auto number = holes.take_lost(now)) numbers.push_back(*number);
  return numbers;
}

TEST(Holes, TakesNumbersForLostInTheOrderInWhichTheyWereMissed) {
  Holes holes;
  holes.on_feedback({.highest = 10, .fresh = 9, .arrived_before = 0b1'1111'0101}, kRoundTrip, kNow);
  EXPECT_EQ(holes.count(), 2u);
  EXPECT_TRUE(lost(holes, kNow + kRoundTrip / 4 - 1).empty());
  EXPECT_EQ(lost(holes, kNow + kRoundTrip / 4), (std::vector<std::uint32_t>{6, 8}));
  EXPECT_EQ(holes.due_ns(), kNever);
}

TEST(Holes, SpeaksOnlyOfNumbersThatAreNew) {
  Holes holes;
  holes.on_feedback({.highest = 10, .fresh = 2, .arrived_before = 0}, kRoundTrip, kNow);
  EXPECT_EQ(lost(holes, kNow + kSecond), (std::vector<std::uint32_t>{8, 9}));
  holes.on_feedback({.highest = 10, .fresh = 0, .arrived_before = 0}, kRoundTrip, kNow);
  EXPECT_EQ(holes.count(), 0u);
  holes.on_feedback({.highest = 100, .fresh = 89, .arrived_before = 0}, kRoundTrip, kNow);
  EXPECT_EQ(holes.count(), Holes::kReported);
}

TEST(Holes, WaitsLongerWhereHolesFillLateAndUnlearnsIt) {
  Holes holes;
  const auto miss_one = [&](std::uint32_t highest) {
    holes.on_feedback({.highest = highest, .fresh = 1, .arrived_before = UINT32_MAX - 1},
                      kRoundTrip, kNow);
  };
  miss_one(10);
  holes.on_feedback({.highest = 11, .fresh = 0, .arrived_before = UINT32_MAX}, kRoundTrip,
                    kNow + kRoundTrip / 5);
  miss_one(20);
  EXPECT_EQ(holes.due_ns(), kNow + kRoundTrip / 4);
  holes.on_feedback({.highest = 21, .fresh = 0, .arrived_before = UINT32_MAX}, kRoundTrip,
                    kNow + kRoundTrip / 2);
  miss_one(30);
  EXPECT_EQ(holes.due_ns(), kNow + kRoundTrip * 5 / 8);
  holes.on_feedback({.highest = 31, .fresh = 0, .arrived_before = UINT32_MAX}, kRoundTrip,
                    kNow + 100 * kRoundTrip);
  miss_one(40);
  EXPECT_EQ(holes.due_ns(), kNow + 500 * kMillisecond);  // never longer
  for (std::uint32_t i = 0; i < 500; ++i) {
    EXPECT_EQ(lost(holes, kNow + kSecond).size(), 1u);
    miss_one(50 + 10 * i);
  }
  EXPECT_EQ(holes.due_ns(), kNow + kRoundTrip / 4);
}

TEST(Holes, FillsTheOldestWhenItOnlyLearnsHowManyCame) {
  Holes holes;
  holes.on_feedback({.highest = 10, .fresh = 4, .arrived_before = 0}, kRoundTrip, kNow);
  holes.fill_oldest(3);
  EXPECT_EQ(lost(holes, kNow + kSecond), (std::vector<std::uint32_t>{9}));
  holes.fill_oldest(1);  // none is left
}

TEST(Holes, KnowsNoMoreThanItHasPlaceFor) {
  Holes holes;
  for (std::uint32_t i = 1; i <= 20; ++i)
    holes.on_feedback({.highest = 100 * i, .fresh = 32, .arrived_before = 0}, kRoundTrip, kNow);
  EXPECT_EQ(holes.count(), Holes::kCapacity);
  EXPECT_EQ(lost(holes, kNow + kSecond).size(), Holes::kCapacity);
}

TEST(Holes, WaitsForWhatOnlyMoreUrgentPacketsHavePassed) {
  Holes holes;
  const std::vector<Priority> priorities{0, 5, 5, 1, 1, 5};  // 0 is no packet
  for (std::uint32_t number = 1; number < 6; ++number) holes.sent(number, priorities[number]);
  holes.on_feedback({.highest = 4, .fresh = 3, .arrived_before = 0b001}, kRoundTrip, kNow);
  EXPECT_EQ(holes.count(), 2u);  // 1 and 2, which 3 and 4 have passed
  EXPECT_EQ(holes.due_ns(), kNever);
  EXPECT_EQ(holes.least_urgent(1, 4), 5);
  EXPECT_EQ(holes.least_urgent(3, 4), 1);
  holes.on_feedback({.highest = 5, .fresh = 0, .arrived_before = 0b0111}, kRoundTrip, kNow);
  EXPECT_EQ(lost(holes, kNow + kSecond), (std::vector<std::uint32_t>{1}));
}

TEST(Holes, HasNumbersThatWrap) {
  Holes holes;
  holes.on_feedback({.highest = 1, .fresh = 3, .arrived_before = 0b001}, kRoundTrip, kNow);
  EXPECT_EQ(lost(holes, kNow + kSecond), (std::vector<std::uint32_t>{UINT32_MAX - 1, UINT32_MAX}));
}

}  // namespace
}  // namespace sluice::client
