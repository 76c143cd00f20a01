// What happens in a simulated world: a member dies, aborts a group, or leaves it; the appliance is
// killed and comes back without its memory, and members join it and its groups go on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tests/sim/group_world.h"

namespace sluice::sim {

class GroupFaults {
 public:
  explicit GroupFaults(GroupWorld& world) noexcept : world_(world) {}

  // ---- members ----
  void kill(Rank rank);
  void abort(Rank rank);  // of group 0: it ends what it has called and calls nothing more there
  void leave_if_done(Rank rank);

  // ---- the appliance ----
  std::size_t restarts() const noexcept { return count_; }
  // Of each packet that leaves: kills the appliance when its time has come.
  void count_packet();
  // Each group of which all members have told where they were, or are lost.
  void resume_groups();

 private:
  void depart(Rank rank, agg::OperationsRequest request);
  void start_appliance();
  void join_again(std::uint16_t rank, std::uint64_t boot);
  void tell_position(std::uint16_t rank, std::size_t group, std::uint64_t boot);
  void go_on(std::uint16_t group);

  GroupWorld& world_;
  std::size_t count_ = 0;
  std::uint64_t since_boot_ = 0;  // packets
  std::optional<Rank> gone_;      // from group 0, as the appliance knows
  // Of each group: what members have told the appliance that is up.
  std::vector<std::map<std::uint16_t, wire::GroupPosition>> positions_;
};

}  // namespace sluice::sim
