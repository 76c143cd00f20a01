#include "aggregator/appliance/intake.h"

#include <gtest/gtest.h>

namespace sluice::agg {
namespace {

constexpr std::uint64_t kSeed = 0x5EED;
constexpr TimeNs kStart = 1000 * kSecond;

// How many of `per_second` requests a second are admitted within `seconds`.
std::uint64_t admitted(Intake& intake, PuntReason reason, std::uint64_t senders,
                       std::uint64_t per_second, DurationNs duration) {
  std::uint64_t count = 0;
  std::uint64_t request = 0;
  const DurationNs gap_ns = kSecond / static_cast<DurationNs>(per_second);
  for (TimeNs now = kStart; now < kStart + duration; now += gap_ns)
    count += intake.admit(reason, 7 + request++ % senders, now);
  return count;
}

TEST(Budget, AllowsABurstAndThenTheRate) {
  const RateLimit limit{.interval_ns = kMillisecond, .burst = 10};
  Budget budget;
  EXPECT_EQ(budget.available(limit, kStart), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.take(limit, kStart)) << i;
  EXPECT_FALSE(budget.take(limit, kStart));
  EXPECT_EQ(budget.available(limit, kStart), 0u);
  EXPECT_FALSE(budget.take(limit, kStart + kMillisecond - 1));
  EXPECT_EQ(budget.available(limit, kStart + kMillisecond), 1u);
  EXPECT_TRUE(budget.take(limit, kStart + kMillisecond));
  EXPECT_FALSE(budget.take(limit, kStart + kMillisecond));
  EXPECT_EQ(budget.available(limit, kStart + kSecond), 10u) << "a rest earns no more than a burst";
}

TEST(Budget, SpendsManyAtOnceLikeOneByOne) {
  const RateLimit limit{.interval_ns = kMillisecond, .burst = 10};
  Budget at_once, one_by_one;
  at_once.spend(limit, 4, kStart);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(one_by_one.take(limit, kStart));
  for (DurationNs later = 0; later < 6 * kMillisecond; later += kMillisecond / 3)
    EXPECT_EQ(at_once.available(limit, kStart + later), one_by_one.available(limit, kStart + later))
        << later;
}

TEST(Intake, AFloodOfForgedSendersGetsThePortsRateForEachReason) {
  for (const PuntReason reason : {PuntReason::kJoin, PuntReason::kUnauthenticated,
                                  PuntReason::kNeighbour, PuntReason::kEcho}) {
    Intake intake(kSeed);
    const RateLimit& limit = Intake::port_limit(reason);
    const auto most = limit.burst + static_cast<std::uint64_t>(2 * kSecond / limit.interval_ns);
    const std::uint64_t count = admitted(intake, reason, 1'000'000, 1'000'000, 2 * kSecond);
    EXPECT_LE(count, most + 1) << static_cast<int>(reason);
    EXPECT_GE(count, most * 9 / 10) << static_cast<int>(reason);
  }
}

TEST(Intake, TheLanesOfAPortHaveItsRateTogether) {
  constexpr std::size_t kLanes = 4;
  for (const PuntReason reason : {PuntReason::kJoin, PuntReason::kUnauthenticated,
                                  PuntReason::kNeighbour, PuntReason::kEcho}) {
    const RateLimit& limit = Intake::port_limit(reason);
    const auto rate = static_cast<std::uint64_t>(2 * kSecond / limit.interval_ns);
    std::uint64_t count = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      Intake intake(kSeed, kLanes);
      count += admitted(intake, reason, 1'000'000, 250'000, 2 * kSecond);
    }
    EXPECT_LE(count, rate + kLanes * (limit.burst + 1)) << static_cast<int>(reason);
    EXPECT_GE(count, rate) << static_cast<int>(reason);
  }
}

TEST(Intake, OneFlooderLeavesRoomForOthersBehindItsPort) {
  for (const PuntReason reason : {PuntReason::kJoin, PuntReason::kUnauthenticated,
                                  PuntReason::kNeighbour, PuntReason::kMember}) {
    Intake intake(kSeed);
    std::uint64_t refused = 0;
    for (TimeNs now = kStart; now < kStart + kSecond; now += 2 * kMicrosecond) {
      (void)intake.admit(reason, 1, now);
      if (now % (10 * kMillisecond) == 0) refused += !intake.admit(reason, 2, now);
    }
    EXPECT_EQ(refused, 0u) << static_cast<int>(reason);
  }
}

TEST(Intake, AFloodOfOneKindKeepsNoOtherKindOut) {
  Intake intake(kSeed);
  (void)admitted(intake, PuntReason::kEcho, 100'000, 1'000'000, kSecond);
  (void)admitted(intake, PuntReason::kUnauthenticated, 100'000, 1'000'000, kSecond);
  (void)admitted(intake, PuntReason::kJoin, 100'000, 1'000'000, kSecond);
  EXPECT_TRUE(intake.admit(PuntReason::kMember, 9, kStart + kSecond));
  EXPECT_TRUE(intake.admit(PuntReason::kNeighbour, 9, kStart + kSecond));
}

TEST(Intake, AMemberThatObeysTheProtocolIsNeverRefused) {
  Intake intake(kSeed);
  for (TimeNs now = kStart; now < kStart + 2 * kSecond; now += kMillisecond)  // 1,024 of them
    for (std::uint64_t rank = now / kMillisecond % 50; rank < 1024; rank += 50)
      ASSERT_TRUE(intake.admit(PuntReason::kMember, rank * 0x1234567, now)) << rank;
}

}  // namespace
}  // namespace sluice::agg
