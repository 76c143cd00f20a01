#include "client/bcube/topology.h"

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"

namespace sluice::client {

Result<Bcube> Bcube::create(std::uint32_t switch_ports, std::uint32_t levels) {
  const std::string name = Bcube(switch_ports, levels).name() + ": ";
  if (switch_ports < 2 || switch_ports > kMaxWorkers)
    return Status(StatusCode::kInvalidArgument,
                  name + "a switch has 2 to " + std::to_string(kMaxWorkers) + " ports");
  if (levels == 0) return Status(StatusCode::kInvalidArgument, name + "there is 1 level at least");
  std::uint64_t servers = 1;
  for (std::uint32_t level = 0; level < levels && servers <= kMaxBcubeServers; ++level)
    servers *= switch_ports;
  if (servers > kMaxBcubeServers)
    return Status(StatusCode::kInvalidArgument,
                  name + "has more than " + std::to_string(kMaxBcubeServers) + " servers");
  return Bcube(switch_ports, levels);
}

Status Bcube::check_world(std::size_t world_size) const {
  if (world_size == servers()) return {};
  return {StatusCode::kInvalidArgument, "world size " + std::to_string(world_size) + ", but " +
                                            name() + " has " + std::to_string(servers()) +
                                            " servers"};
}

std::uint32_t Bcube::stages_owned(std::uint32_t rank, std::uint32_t owner,
                                  std::uint32_t thread) const noexcept {
  DCHECK(rank < servers() && owner < servers() && thread < k_);
  std::uint32_t stage = 0;
  while (stage < k_ &&
         digit(rank, level_of(thread, stage)) == digit(owner, level_of(thread, stage)))
    ++stage;
  return stage;
}

}  // namespace sluice::client
