// What a flow knows of the worker's numbers that have arrived.
#include <gtest/gtest.h>

#include "aggregator/core/flow.h"

namespace sluice::agg {
namespace {

TEST(Arrivals, CountsEachNumberOnce) {
  Flow flow;
  for (const std::uint32_t number : {1u, 2u, 2u, 5u, 4u, 4u, 5u, 1u}) flow.note_arrival(number);
  EXPECT_EQ(flow.received_count, 4u);
  EXPECT_EQ(flow.highest_number, 5u);
}

TEST(Arrivals, SaysWhichOfTheLastNumbersCame) {
  Flow flow;
  EXPECT_TRUE(flow.note_arrival(1));
  EXPECT_TRUE(flow.note_arrival(4));
  EXPECT_EQ(flow.arrived_before & 0b111, 0b100u);  // 1, and neither 2 nor 3
  EXPECT_FALSE(flow.note_arrival(3));
  EXPECT_EQ(flow.arrived_before & 0b111, 0b101u);
  flow.note_arrival(36);
  EXPECT_EQ(flow.arrived_before, std::uint32_t{1} << 31);  // 4
  flow.note_arrival(68);
  EXPECT_EQ(flow.arrived_before, std::uint32_t{1} << 31);  // 36
  flow.note_arrival(101);
  EXPECT_EQ(flow.arrived_before, 0u);
  flow.note_arrival(69);
  EXPECT_EQ(flow.arrived_before, std::uint32_t{1} << 31);
  flow.note_arrival(68);
  EXPECT_EQ(flow.received_count, 7u);
}

TEST(Arrivals, TakesWhatIsTooFarBackForADuplicate) {
  Flow flow;
  flow.note_arrival(1);
  flow.note_arrival(2 + RecentNumbers::kRemembered);
  flow.note_arrival(2);
  EXPECT_EQ(flow.received_count, 2u);
  flow.note_arrival(3);
  EXPECT_EQ(flow.received_count, 3u);
}

TEST(Arrivals, HasNumbersThatWrap) {
  Flow flow;
  flow.highest_number = UINT32_MAX - 1;
  flow.note_arrival(1);
  EXPECT_EQ(flow.arrived_before & 0b11, 0u);
  flow.note_arrival(UINT32_MAX);
  EXPECT_EQ(flow.arrived_before & 0b11, 0b10u);
  EXPECT_EQ(flow.received_count, 2u);
}

}  // namespace
}  // namespace sluice::agg
