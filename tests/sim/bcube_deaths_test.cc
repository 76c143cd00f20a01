// Whatever dies in the middle of a job, in every shape: the step under way is finished with exact
// sums and equal replicas, or all who live say who is dead.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

using client::BcubeMode;
using Kind = BcubeWorld::Part::Kind;

class BcubeAnyDeath : public testing::TestWithParam<BcubeShape> {
 protected:
  // Steps of up to 600 ms, so that a silence lasts some of them.
  BcubeOptions options_of_deaths() const {
    BcubeOptions options = options_of(GetParam());
    options.elem_counts = {2'000, 7};
    options.member_timeout_ns = 2 * kSecond;
    options.compute_max_ns = 600 * kMillisecond;
    options.steps = 36;
    return options;
  }
  client::Bcube bcube() const {
    return client::Bcube::create(GetParam().switch_ports, GetParam().levels).value();
  }
  // The last level's, where the last server is.
  std::uint32_t level() const { return GetParam().levels - 1; }
  std::uint32_t last() const { return bcube().servers() - 1; }
  std::uint32_t last_switch() const { return bcube().switch_of(last(), level()); }
  std::vector<std::uint32_t> concerned() const {
    return servers_of(bcube(), level(), last_switch());
  }
  // All who live end within this time, and somebody names who is dead.
  void expect_named(const BcubeWorld& world, std::uint32_t dead, DurationNs within_ns) {
    bool named = false;
    for (std::uint32_t server = 0; server < world.bcube().servers(); ++server) {
      const BcubeWorld::Failure& failure = world.failure(server);
      if (server == dead) continue;
      EXPECT_NE(failure.text, "") << "server " << server;
      EXPECT_LE(failure.after_ns, within_ns) << "server " << server << failure.text;
      for (std::uint32_t at = 0; at < world.bcube().levels(); ++at) {
        const std::string place = "(level " + std::to_string(at) + ", switch " +
                                  std::to_string(world.bcube().switch_of(dead, at));
        const std::string rank = "rank " + std::to_string(world.bcube().digit(dead, at));
        const std::size_t found = failure.text.find(place);
        named |= found != std::string::npos && failure.text.find(rank, found) != std::string::npos;
      }
    }
    EXPECT_TRUE(named);
  }
};

// Who forwards the datagrams of lanes that have moved dies too. They find no other way.
TEST_P(BcubeAnyDeath, OfAForwarderIsNamed) {
  const std::uint32_t forwarder = bcube().detour_neighbour(last(), level());
  BcubeWorld world(options_of_deaths());
  world.kill({.parts = parts_of_switch(GetParam(), level(), last_switch()),
              .after_ns = 130 * kMillisecond,
              .then_server = forwarder,
              .then_after_ns = 8 * kSecond});
  world.run(8 * kSecond);
  for (const std::uint32_t server : concerned()) EXPECT_EQ(world.relay(server).detours(), 1u);
  expect_clean(world, 100 * kSecond);
  expect_named(world, forwarder, (8 + 10) * kSecond);
}

INSTANTIATE_TEST_SUITE_P(All, BcubeAnyDeath, testing::ValuesIn(shapes_with_detours()), name_of);

}  // namespace
}  // namespace sluice::sim
