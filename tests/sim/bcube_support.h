// What tests of a BCube in virtual time share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/bcube_world.h"

namespace sluice::sim {

// `./run test full` sets this: every shape and every seed.
inline bool is_full_tier() { return std::getenv("SLUICE_FULL_TIER") != nullptr; }

// From one seed of a long series to the next. Seven shares no divisor with what the tests derive
// from a seed (modulo 2, 3, 4, 5), so a part of the series has every kind.
inline std::uint64_t seed_stride() { return is_full_tier() ? 1 : 7; }

struct BcubeShape {
  std::uint32_t switch_ports, levels;
  client::BcubeMode mode;
};

inline constexpr BcubeShape kBcubeShapes[] = {
    {2, 2, client::BcubeMode::kAggregated}, {3, 2, client::BcubeMode::kAggregated},
    {4, 2, client::BcubeMode::kAggregated}, {2, 3, client::BcubeMode::kAggregated},
    {3, 3, client::BcubeMode::kAggregated}, {2, 4, client::BcubeMode::kAggregated},
    {4, 1, client::BcubeMode::kAggregated}, {2, 2, client::BcubeMode::kPlain},
    {3, 2, client::BcubeMode::kPlain},      {4, 2, client::BcubeMode::kPlain},
    {2, 3, client::BcubeMode::kPlain},      {3, 3, client::BcubeMode::kPlain},
    {2, 4, client::BcubeMode::kPlain},
};

// All; but the largest, of 81 and 64 ports, which take most of the time, in the full tier alone.
inline std::vector<BcubeShape> bcube_shapes() {
  std::vector<BcubeShape> shapes;
  for (const BcubeShape& shape : kBcubeShapes) {
    const auto bcube = client::Bcube::create(shape.switch_ports, shape.levels).value();
    if (is_full_tier() || bcube.servers() * shape.levels < 64) shapes.push_back(shape);
  }
  return shapes;
}

// Those where something can stand in for what dies.
inline std::vector<BcubeShape> shapes_with_detours(std::optional<client::BcubeMode> mode = {}) {
  std::vector<BcubeShape> shapes;
  for (const BcubeShape& shape : bcube_shapes())
    if (shape.levels > 1 && shape.mode == mode.value_or(shape.mode)) shapes.push_back(shape);
  return shapes;
}

// Where a test takes all of them too long.
inline constexpr BcubeShape kFewBcubeShapes[] = {
    {2, 2, client::BcubeMode::kAggregated}, {3, 2, client::BcubeMode::kAggregated},
    {2, 3, client::BcubeMode::kAggregated}, {2, 2, client::BcubeMode::kPlain},
    {3, 2, client::BcubeMode::kPlain},
};

inline constexpr Dtype kNarrow[] = {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8};

inline std::string name_of(const testing::TestParamInfo<BcubeShape>& info) {
  return "n" + std::to_string(info.param.switch_ports) + "k" + std::to_string(info.param.levels) +
         (info.param.mode == client::BcubeMode::kPlain ? "plain" : "aggregated");
}

inline BcubeOptions options_of(const BcubeShape& shape) {
  return {.switch_ports = shape.switch_ports,
          .levels = shape.levels,
          .mode = shape.mode,
          .elem_counts = {10'000, 7, 20'000, 1'000}};
}

inline void expect_clean(BcubeWorld& world, TimeNs until = 30 * kSecond) {
  const bool done = world.run(until);
  for (const std::string& text : world.violations()) ADD_FAILURE() << text;
  EXPECT_TRUE(done);
}

// Whatever was lost, the job went on for everybody.
inline void expect_survived(BcubeWorld& world, TimeNs until = 30 * kSecond) {
  expect_clean(world, until);
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    EXPECT_EQ(world.failure(server).text, "") << server;
  if (testing::Test::HasFailure()) FAIL() << world.describe_stall();
}

inline std::vector<std::uint32_t> servers_of(const client::Bcube& bcube, std::uint32_t level,
                                             std::uint32_t switch_index) {
  std::vector<std::uint32_t> servers;
  for (std::uint32_t digit = 0; digit < bcube.switch_ports(); ++digit)
    servers.push_back(bcube.server_at(level, switch_index, digit));
  return servers;
}

// What dies with a switch: its appliance; where it only forwards, the cables of all its servers.
inline std::vector<BcubeWorld::Part> parts_of_switch(const BcubeShape& shape, std::uint32_t level,
                                                     std::uint32_t switch_index) {
  using Kind = BcubeWorld::Part::Kind;
  const auto bcube = client::Bcube::create(shape.switch_ports, shape.levels).value();
  if (shape.mode == client::BcubeMode::kAggregated)
    return {{.kind = Kind::kBox, .index = level * bcube.switches_per_level() + switch_index}};
  std::vector<BcubeWorld::Part> cables;
  for (const std::uint32_t server : servers_of(bcube, level, switch_index))
    cables.push_back({.kind = Kind::kCable, .index = server, .level = level});
  return cables;
}

}  // namespace sluice::sim
