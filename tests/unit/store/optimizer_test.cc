// The updates alone: the same bytes on every instruction set, at any alignment and size.
// test_optimizers.py compares them with PyTorch.
#include "aggregator/store/optimizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "aggregator/core/fold.h"

namespace sluice::agg {
namespace {

struct Chunk {
  std::vector<float> parameters, first, second;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// Three updates of `count` elements, pushed from an odd address.
Chunk updated(const UpdateOptions& options, std::size_t count) {
  Chunk chunk{std::vector<float>(count), std::vector<float>(count, 77),
              std::vector<float>(count, 77)};
  std::vector<std::uint8_t> pushed(count * sizeof(float) + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = 0.37f * static_cast<float>(i % 13) - 1.9f;
    std::memcpy(pushed.data() + 1 + i * sizeof(float), &gradient, sizeof(float));
    chunk.parameters[i] = 0.11f * static_cast<float>(i % 29) - 1.3f;
  }
  std::vector<float*> states{chunk.first.data(), chunk.second.data()};
  states.resize(options.state_count());
  for (std::uint64_t ordinal = 1; ordinal <= 3; ++ordinal)
    apply_update(options, {.divisor = 3, .rate = 0.1, .ordinal = ordinal}, chunk.parameters.data(),
                 states, pushed.data() + 1, count);
  return chunk;
}

const std::vector<UpdateOptions>& all_rules() {
  static const std::vector<UpdateOptions> rules{
      {},
      {.rule = UpdateRule::kSgd},
      {.rule = UpdateRule::kSgd, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.1},
      {.rule = UpdateRule::kSgd, .momentum = 0.9, .nesterov = true},
      {.rule = UpdateRule::kAdam, .weight_decay = 0.01},
      {.rule = UpdateRule::kAdam, .interpolates = true}};
  return rules;
}

TEST(Optimizer, EveryInstructionSetGivesTheSameBytes) {
  ASSERT_FALSE(fold_targets().empty());
  for (const UpdateOptions& options : all_rules()) {
    for (const std::size_t count : {1u, 7u, 64u, 333u}) {
      ASSERT_TRUE(force_fold_target(""));
      const Chunk expected = updated(options, count);
      for (const auto target : fold_targets()) {
        ASSERT_TRUE(force_fold_target(target));
        EXPECT_TRUE(updated(options, count) == expected) << target << ", " << count;
      }
    }
  }
  force_fold_target("");
}

TEST(Optimizer, StatesBeginWithTheFirstUpdateWhateverTheMemoryHeld) {
  UpdateOptions options{.rule = UpdateRule::kSgd, .momentum = 0.5};
  float parameter = 1, momentum = 99;
  const float gradient = 2;
  const auto* pushed = reinterpret_cast<const std::uint8_t*>(&gradient);
  float* states[]{&momentum};
  apply_update(options, {.rate = 0.5, .ordinal = 1}, &parameter, states, pushed, 1);
  EXPECT_EQ(momentum, 2);
  EXPECT_EQ(parameter, 0);
  apply_update(options, {.rate = 0.5, .ordinal = 2}, &parameter, states, pushed, 1);
  EXPECT_EQ(momentum, 3);
  EXPECT_EQ(parameter, -1.5f);
}

TEST(Optimizer, OptionsThatPyTorchRefusesAreRefusedWithTheirValue) {
  EXPECT_NE(check_update({.momentum = -1}).message().find("momentum = -1"), std::string::npos);
  EXPECT_FALSE(check_update({.beta2 = 1}).ok());
  EXPECT_FALSE(check_update({.nesterov = true}).ok());
  EXPECT_FALSE(check_update({.momentum = 0.9, .dampening = 0.1, .nesterov = true}).ok());
  EXPECT_TRUE(check_update({}).ok());
}

}  // namespace
}  // namespace sluice::agg
