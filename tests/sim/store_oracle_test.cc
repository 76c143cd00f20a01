// The oracle of parameter stores finds the errors that it claims to find.
#include "tests/sim/store_oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace sluice::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two ranks, one layer of one chunk of 8 elements, bound 1; each has pushed
// twice.
class StoreOracleTest : public testing::Test {
 protected:
  static constexpr float kHalf = StoreOracle::kUnit / 2;

  StoreOracleTest() {
    plan_.tensors = {{.name = "w", .elem_count = 8, .begins_block = true}};
    plan_.ranks.resize(2);
    plan_.session.store = StoreOptions{.bound = 1};
    layout_.emplace(client::Layout::create(plan_.tensors, 64).value());
    for (const Party& party : {mine_, other_}) {
      stores_.joined(party, plan_, 1);
      for (const Step iteration : {1u, 2u}) {
        stores_.pushed(party, 0, iteration);
        stores_.counted(party, 0, iteration);
      }
    }
  }
  // Rank 0 reads so many halves of a push's unit of each rank.
  const std::vector<std::string>& read(float own, float others, Step iteration = 3) {
    std::vector<float> values(8);
    for (std::size_t i = 0; i < 8; ++i) values[i] = kHalf * (i % 2 == 0 ? own : others);
    return read(values, iteration);
  }
  const std::vector<std::string>& read(const std::vector<float>& values, Step iteration = 3) {
    stores_.check({.party = mine_, .iteration = iteration, .values = values}, plan_, *layout_);
    return oracle_.violations();
  }

  const Party mine_{.rank = Rank{0}, .process = 10}, other_{.rank = Rank{1}, .process = 11};
  JobPlan plan_;
  std::optional<client::Layout> layout_;
  Oracle oracle_;
  StoreOracle stores_{oracle_};
};

TEST_F(StoreOracleTest, WhatTheBoundAllowsIsNoViolation) {
  EXPECT_THAT(read(2, 1), IsEmpty());
  EXPECT_THAT(read(2, 2), IsEmpty());
}

TEST_F(StoreOracleTest, APushOfItsOwnThatIsMissing) {
  EXPECT_THAT(read(1, 2), ElementsAre(HasSubstr("less than 2 pushes")));
}

TEST_F(StoreOracleTest, MoreThanTheBoundBehind) {
  EXPECT_THAT(read(2, 0), ElementsAre(HasSubstr("less than 1 pushes")));
}

TEST_F(StoreOracleTest, APushThatCountedTwice) {
  EXPECT_THAT(read(2, 3), ElementsAre(HasSubstr("more than 2 pushes")));
}

TEST_F(StoreOracleTest, ALaterReadThatHoldsLess) {
  EXPECT_THAT(read(2, 2), IsEmpty());
  EXPECT_THAT(read(2, 1), ElementsAre(HasSubstr("before it was 2520")));
}

TEST_F(StoreOracleTest, APartOfAPush) {
  EXPECT_THAT(read({2520, 1260, 2520, 2520, 2520, 1260, 2520, 1260}),
              ElementsAre(HasSubstr("parts of a push")));
}

TEST_F(StoreOracleTest, NoWholeShare) {
  EXPECT_THAT(read(2, 1.5), ElementsAre(HasSubstr("no number of pushes")));
}

TEST_F(StoreOracleTest, AtTheEndAllPushesAreInAndAllReadTheSame) {
  EXPECT_THAT(read(2, 2, kLastStep), IsEmpty());
  EXPECT_THAT(read(2, 1, kLastStep), testing::Not(IsEmpty()));
}

// Bound 0, SGD with momentum 0.5: after two iterations 1260 + (1260 + 630).
class StoreOracleMomentum : public StoreOracleTest {
 protected:
  StoreOracleMomentum() {
    plan_.session.store = StoreOptions{.update = {.rule = UpdateRule::kSgd, .momentum = 0.5}};
  }
};

TEST_F(StoreOracleMomentum, WhatTheOptimizerMakesOfAllIterationsIsNoViolation) {
  EXPECT_THAT(read(2.5, 2.5), IsEmpty());
}

TEST_F(StoreOracleMomentum, AnIterationThatTheOptimizerHasNotSeen) {
  EXPECT_THAT(read(2.5, 2), ElementsAre(HasSubstr("after 2 iterations it is 3150")));
}

TEST_F(StoreOracleMomentum, AnIterationThatItHasSeenTwice) {
  EXPECT_THAT(read(4.25, 2.5), ElementsAre(HasSubstr("after 2 iterations it is 3150")));
}

TEST_F(StoreOracleMomentum, WithABoundWhatMomentumCannotMakeOfThePushes) {
  plan_.session.store->bound = 1;
  EXPECT_THAT(read(2, 1), IsEmpty());
  EXPECT_THAT(read(2.5, 4.25), ElementsAre(HasSubstr("more than 2 pushes")));
}

}  // namespace
}  // namespace sluice::sim
