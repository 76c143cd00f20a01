// Helpers of the tests of a BCube in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/bcube_world.h"

namespace sluice::sim {

// Whether to run every shape and every seed: `./run test full` sets the variable.
inline bool is_full_tier() { return std::getenv("SLUICE_FULL_TIER") != nullptr; }

// The distance between two seeds of a long series. Seven shares no divisor with what the tests
// derive from a seed (modulo 2, 3, 4, 5), so a part of the series has every kind.
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

// All shapes. The largest, of 81 and 64 ports, take most of the time and are left to the full tier.
inline std::vector<BcubeShape> bcube_shapes() {
  std::vector<BcubeShape> shapes;
  for (const BcubeShape& shape : kBcubeShapes) {
    const auto bcube = client::Bcube::create(shape.switch_ports, shape.levels).value();
    if (is_full_tier() || bcube.servers() * shape.levels < 64) shapes.push_back(shape);
  }
  return shapes;
}

// The shapes in which another switch can stand in for a dead one.
inline std::vector<BcubeShape> shapes_with_detours(std::optional<client::BcubeMode> mode = {}) {
  std::vector<BcubeShape> shapes;
  for (const BcubeShape& shape : bcube_shapes())
    if (shape.levels > 1 && shape.mode == mode.value_or(shape.mode)) shapes.push_back(shape);
  return shapes;
}

// The shapes for tests that would take too long with all of them.
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

// The job has gone on for every server.
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

// The parts that die with a switch: its appliance, or the cables of all its servers where it only
// forwards.
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
