#include "aggregator/base/divisor.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

TEST(Divisor, DividesLikeTheProcessor) {
  std::mt19937 random(3);
  for (std::uint32_t value : {1u, 2u, 3u, 4u, 7u, 8u, 12u, 16u, 641u, 65'537u, UINT32_MAX}) {
    const Divisor divisor(value);
    const auto check = [&](std::uint32_t dividend) {
      ASSERT_EQ(divisor.quotient(dividend), dividend / value) << dividend << " / " << value;
      ASSERT_EQ(divisor.remainder(dividend), dividend % value) << dividend << " / " << value;
    };
    for (std::uint32_t near = 0; near < 100; ++near) {
      check(near);
      check(UINT32_MAX - near);
      check(value * near - 1);
      check(value * near);
    }
    for (int round = 0; round < 10'000; ++round) check(random());
  }
}

}  // namespace
}  // namespace sluice
