#include "dataplane/core/fault.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace sluice::dataplane {
namespace {

void* frame(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

TEST(FaultLine, TheSameSeedMakesTheSameDecisions) {
  const FaultRates rates{.drop = 0.2, .duplicate = 0.2, .reorder = 0.2};
  FaultLine first(rates, 7);
  FaultLine second(rates, 7);
  FaultLine other(rates, 8);
  int differences = 0;
  for (int count = 0; count < 1000; ++count) {
    const Fate fate = first.decide();
    EXPECT_EQ(fate, second.decide());
    differences += fate != other.decide();
  }
  EXPECT_GT(differences, 100);
}

TEST(FaultLine, KeepsToItsRates) {
  FaultLine line({.drop = 0.05, .duplicate = 0.1, .reorder = 0}, 1);
  int drops = 0;
  int duplicates = 0;
  constexpr int kFrames = 100'000;
  for (int count = 0; count < kFrames; ++count) {
    const Fate fate = line.decide();
    drops += fate == Fate::kDrop;
    duplicates += fate == Fate::kDuplicate;
    EXPECT_NE(fate, Fate::kHold);
  }
  EXPECT_NEAR(drops, 0.05 * kFrames, 400);
  EXPECT_NEAR(duplicates, 0.95 * 0.1 * kFrames, 500);
}

TEST(FaultLine, CertainLossLosesEverythingAndNoFaultNothing) {
  FaultLine all({.drop = 1}, 1);
  FaultLine none({}, 1);
  EXPECT_FALSE(none.active());
  for (int count = 0; count < 1000; ++count) {
    EXPECT_EQ(all.decide(), Fate::kDrop);
    EXPECT_EQ(none.decide(), Fate::kDeliver);
  }
}

TEST(FaultLine, HeldFramesComeBackLaterButAllOfThem) {
  FaultLine line({.reorder = 0.3}, 3);
  std::vector<std::uintptr_t> order;
  std::set<std::uintptr_t> seen;
  for (std::uintptr_t number = 1; number <= 5000; ++number) {
    if (line.decide() == Fate::kHold)
      line.hold(frame(number), 0);
    else
      order.push_back(number);
    while (void* held = line.release(0)) order.push_back(reinterpret_cast<std::uintptr_t>(held));
  }
  while (void* held = line.release_any()) order.push_back(reinterpret_cast<std::uintptr_t>(held));
  seen.insert(order.begin(), order.end());
  EXPECT_EQ(order.size(), 5000u);
  EXPECT_EQ(seen.size(), 5000u);
  int overtaken = 0;
  for (std::size_t at = 1; at < order.size(); ++at) overtaken += order[at] < order[at - 1];
  EXPECT_GT(overtaken, 500);
}

TEST(FaultLine, AHeldFrameOfASilentLinkIsReleasedByTime) {
  FaultLine line({.reorder = 1}, 3);
  ASSERT_EQ(line.decide(), Fate::kHold);
  line.hold(frame(1), 1000);
  EXPECT_EQ(line.release(1000 + FaultLine::kMaxHold - 1), nullptr);
  EXPECT_EQ(line.release(1000 + FaultLine::kMaxHold), frame(1));
}

TEST(FaultLine, NeverHoldsMoreThanItsBound) {
  FaultLine line({.reorder = 1}, 3);
  for (std::uintptr_t number = 1; number < 1000; ++number)
    if (line.decide() == Fate::kHold) line.hold(frame(number), 0);
  EXPECT_EQ(line.held(), FaultLine::kMaxHeld);
}

}  // namespace
}  // namespace sluice::dataplane
