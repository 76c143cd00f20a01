#include "client/bcube/detours.h"

namespace sluice::client {

std::string Detours::describe(std::uint32_t level, const Bcube& bcube, std::uint32_t rank) const {
  const Failover& failover = failovers[level];
  const std::string& reason = why[level].message();
  const std::string name = "level " + std::to_string(level);
  const std::string home = std::to_string(bcube.switch_of(rank, level));
  switch (failover.state()) {
    case Failover::State::kReady:
      if (failover.moves() == 0) return {};
      return name + ": switch " + home + " is used again, for which another one has stood in " +
             std::to_string(failover.moves()) + " times";
    case Failover::State::kNone:
      return name + " has no detour" + (reason.empty() ? "" : ": " + reason);
    case Failover::State::kExchanging: return name + " is moving: " + reason;
    case Failover::State::kMoved: break;
  }
  const std::uint32_t other = bcube.switch_of(bcube.detour_neighbour(rank, level), level);
  return name + ": from step " + std::to_string(failover.handover().first_step()) + " on switch " +
         std::to_string(other) + " stands in for switch " + home +
         ", by way of the neighbours at level " + std::to_string(bcube.detour_level(level)) + ": " +
         reason;
}

}  // namespace sluice::client
