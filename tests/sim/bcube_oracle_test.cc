// The oracle of a BCube finds the errors that it claims to find.
#include "tests/sim/bcube_oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Four servers, one tensor.
class BcubeOracleTest : public testing::Test {
 protected:
  std::vector<float> average(Step step) const {
    std::vector<float> values(64);
    for (std::uint64_t i = 0; i < values.size(); ++i)
      values[i] = plan_.sum(RankSet::below(4), step, 0, i) / static_cast<float>(weight(step));
    return values;
  }
  std::uint64_t weight(Step step) const {
    std::uint64_t total = 0;
    for (std::uint16_t rank = 0; rank < 4; ++rank) total += plan_.weight(Rank{rank}, step);
    return total;
  }
  client::Event done(Step step) const {
    return {.kind = client::Event::Kind::kTensorDone, .step = step, .weight = weight(step)};
  }
  void take_step(std::uint32_t server, Step step) {
    oracle_.tensor_done(server, step, done(step), average(step));
    oracle_.step_done(server, step, std::vector<std::vector<float>>{average(step)});
  }

  const JobPlan plan_ = make_plan(4, 3, {64});
  BcubeOracle oracle_{plan_};
};

TEST_F(BcubeOracleTest, ExactSumsAreNoViolation) {
  for (std::uint32_t server = 0; server < 4; ++server)
    for (const Step step : {1u, 2u}) take_step(server, step);
  EXPECT_THAT(oracle_.violations(), IsEmpty());
  EXPECT_EQ(oracle_.averages(), 8u);
}

TEST_F(BcubeOracleTest, AnElementThatIsWrong) {
  std::vector<float> values = average(1);
  values[7] += 1;
  oracle_.tensor_done(2, 1, done(1), values);
  EXPECT_THAT(oracle_.violations(), ElementsAre(HasSubstr("rank 2 step 1 tensor 0: element 7")));
}

TEST_F(BcubeOracleTest, TheAverageOfAnotherStep) {
  oracle_.tensor_done(0, 1, done(2), average(2));
  EXPECT_THAT(oracle_.violations(), testing::Contains(HasSubstr("is of step 2")));
}

TEST_F(BcubeOracleTest, AWeightThatAnotherServerWasNotTold) {
  take_step(0, 1);
  client::Event other = done(1);
  other.weight += 1;
  std::vector<float> values = average(1);
  for (float& value : values)
    value *= static_cast<float>(weight(1)) / static_cast<float>(other.weight);
  oracle_.tensor_done(1, 1, other, values);
  EXPECT_THAT(oracle_.violations(), testing::Contains(HasSubstr("another server was told")));
}

TEST_F(BcubeOracleTest, MemoryThatChangesAfterItWasHandedOut) {
  oracle_.tensor_done(0, 1, done(1), average(1));
  std::vector<float> values = average(1);
  values[0] += 1;
  oracle_.step_done(0, 1, std::vector<std::vector<float>>{values});
  EXPECT_THAT(oracle_.violations(), ElementsAre(HasSubstr("has changed after it was done")));
}

TEST_F(BcubeOracleTest, AStepWithoutATensor) {
  oracle_.step_done(3, 1, std::vector<std::vector<float>>{average(1)});
  EXPECT_THAT(oracle_.violations(), ElementsAre(HasSubstr("was not done when its step was")));
}

// Both are what a sum may be, but for the sign of a zero: only the bytes tell.
TEST_F(BcubeOracleTest, AReplicaThatDiffers) {
  std::vector<float> values = average(1);
  std::size_t zero = 0;
  while (zero < 64 && values[zero] != 0) ++zero;
  ASSERT_LT(zero, 64u);
  take_step(0, 1);
  values[zero] = -values[zero];
  oracle_.tensor_done(1, 1, done(1), values);
  oracle_.step_done(1, 1, std::vector<std::vector<float>>{values});
  EXPECT_THAT(oracle_.violations(), ElementsAre(HasSubstr("its replica differs")));
}

TEST_F(BcubeOracleTest, AByteOfABroadcastThatIsWrong) {
  oracle_.collective_done(
      1, 0, std::vector<std::uint8_t>{static_cast<std::uint8_t>(plan_.broadcast_byte(0, 0) ^ 1)});
  EXPECT_THAT(oracle_.violations(), ElementsAre(HasSubstr("byte 0 is wrong")));
}

}  // namespace
}  // namespace sluice::sim
