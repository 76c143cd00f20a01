#include "dataplane/core/mac_table.h"

#include <gtest/gtest.h>

namespace sluice::dataplane {
namespace {

MacTable::Key key(std::uint32_t number, std::uint16_t vlan_id = 0) {
  return {wire::Mac{{2, 0, static_cast<std::uint8_t>(number >> 24),
                     static_cast<std::uint8_t>(number >> 16),
                     static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)}},
          vlan_id};
}

TEST(MacTable, FindsWhatItLearntAndNothingElse) {
  MacTable table(64);
  EXPECT_EQ(table.learn(key(1), 3, 0), MacTable::Learned::kNew);
  EXPECT_EQ(table.lookup(key(1), 0), PortIndex{3});
  EXPECT_EQ(table.lookup(key(2), 0), std::nullopt);
  EXPECT_EQ(table.lookup(key(1, 7), 0), std::nullopt) << "another VLAN is another network";
}

TEST(MacTable, FollowsAnAddressThatMoves) {
  MacTable table(64);
  table.learn(key(1), 3, 0);
  EXPECT_EQ(table.learn(key(1), 3, 1), MacTable::Learned::kKnown);
  EXPECT_EQ(table.learn(key(1), 4, 2), MacTable::Learned::kMoved);
  EXPECT_EQ(table.lookup(key(1), 2), PortIndex{4});
  EXPECT_EQ(table.size(), 1u);
}

// Seen on two ports with every frame: forged, or behind a loop.
TEST(MacTable, TellsTheMovesOfOneAddressAtMostEvery10Ms) {
  MacTable table(64);
  table.learn(key(1), 3, 0);
  int told = 0;
  for (TimeNs now = 1; now <= 100 * kMillisecond; now += 10 * kMicrosecond) {
    const PortIndex port = now % 20'000 < 10'000 ? 4 : 3;
    told += MacTable::worth_telling(table.learn(key(1), port, now));
    EXPECT_EQ(table.lookup(key(1), now), port) << "this lcore knows at once";
  }
  EXPECT_GE(told, 9);
  EXPECT_LE(told, 11);
}

TEST(MacTable, TellsAMoveThatWasHeldBackWithALaterFrame) {
  MacTable table(64);
  table.learn(key(1), 3, 0);
  EXPECT_EQ(table.learn(key(1), 4, 1), MacTable::Learned::kMoved);
  EXPECT_EQ(table.learn(key(1), 3, 2), MacTable::Learned::kMovedAgain);
  EXPECT_EQ(table.learn(key(1), 3, 3), MacTable::Learned::kMovedAgain);
  EXPECT_EQ(table.learn(key(1), 3, 1 + MacTable::kMoveInterval), MacTable::Learned::kMoved);
  EXPECT_EQ(table.learn(key(1), 3, 2 + MacTable::kMoveInterval), MacTable::Learned::kKnown);
}

TEST(MacTable, BelievesAnotherLcoreWithoutTellingItOn) {
  MacTable table(64);
  table.learn_from_other(key(1), 5, 0);
  EXPECT_EQ(table.lookup(key(1), 0), PortIndex{5});
  EXPECT_EQ(table.learn(key(1), 4, 1), MacTable::Learned::kMoved);
  EXPECT_EQ(table.learn(key(1), 3, 2), MacTable::Learned::kMovedAgain);
  table.learn_from_other(key(1), 5, 3);
  EXPECT_EQ(table.lookup(key(1), 3), PortIndex{5});
  EXPECT_EQ(table.learn(key(1), 5, 1 + MacTable::kMoveInterval), MacTable::Learned::kKnown);
}

TEST(MacTable, ForgetsAnAddressThatIsSilentForTheMaximumAge) {
  MacTable table(64, 8 * kSecond);
  table.learn(key(1), 3, 0);
  EXPECT_EQ(table.lookup(key(1), 8 * kSecond), PortIndex{3});
  EXPECT_EQ(table.lookup(key(1), 8 * kSecond + 1), std::nullopt);
}

TEST(MacTable, ARefreshKeepsAnAddress) {
  MacTable table(64, 8 * kSecond);
  table.learn(key(1), 3, 0);
  EXPECT_EQ(table.learn(key(1), 3, 2 * kSecond), MacTable::Learned::kRefreshed);
  EXPECT_EQ(table.lookup(key(1), 10 * kSecond), PortIndex{3});
}

TEST(MacTable, AFloodOfForgedAddressesNeverGrowsIt) {
  MacTable table(64);
  for (std::uint32_t number = 0; number < 10'000; ++number) table.learn(key(number), 1, number);
  EXPECT_EQ(table.size(), 64u);
  EXPECT_EQ(table.lookup(key(9'999), 10'000), PortIndex{1}) << "the newest address is kept";
}

TEST(MacTable, HoldsAsManyAsHalfItsCapacityWithoutLosingAny) {
  MacTable table(4096);
  for (std::uint32_t number = 0; number < 1024; ++number)
    table.learn(key(number), static_cast<PortIndex>(number % 8), 0);
  for (std::uint32_t number = 0; number < 1024; ++number)
    EXPECT_EQ(table.lookup(key(number), 0), static_cast<PortIndex>(number % 8)) << number;
}

TEST(MacTable, ForgetsAllAddressesOfAPort) {
  MacTable table(64);
  table.learn(key(1), 3, 0);
  table.learn(key(2), 4, 0);
  table.forget_port(3);
  EXPECT_EQ(table.lookup(key(1), 0), std::nullopt);
  EXPECT_EQ(table.lookup(key(2), 0), PortIndex{4});
  EXPECT_EQ(table.size(), 1u);
}

TEST(MacTable, ASweepFreesWhatHasAged) {
  MacTable table(64, kSecond);
  for (std::uint32_t number = 0; number < 20; ++number) table.learn(key(number), 1, 0);
  table.learn(key(99), 1, 3 * kSecond);
  table.sweep(3 * kSecond, 8);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.lookup(key(99), 3 * kSecond), PortIndex{1});
}

}  // namespace
}  // namespace sluice::dataplane
