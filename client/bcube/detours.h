// Which levels of a relay have moved, what was lost there, and why.
//
// Pure facts, which the relay changes (relay_failover.cc, relay_failback.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "client/bcube/failback.h"
#include "client/bcube/failover.h"
#include "client/bcube/legs.h"

namespace sluice::client {

struct Detours {
  // Of a level.
  struct Failbacks {
    Failback home;
    Failback standby;
  };
  std::vector<Failover> failovers;   // by level; none: nothing can move
  std::vector<Failbacks> failbacks;  // likewise
  std::vector<Status> why;           // by level: why it has moved, or has no detour any more

  Failover* failover_of(const Leg& leg) noexcept {
    return failovers.empty() ? nullptr : &failovers[leg.address.level];
  }
  Failback* failback_of(const Leg& leg) noexcept {
    if (failbacks.empty()) return nullptr;
    Failbacks& of_level = failbacks[leg.address.level];
    return leg.is_standby() ? &of_level.standby : &of_level.home;
  }
  bool is_lost(const Leg& leg) const noexcept {
    if (failbacks.empty()) return false;
    const Failbacks& of_level = failbacks[leg.address.level];
    return (leg.is_standby() ? of_level.standby : of_level.home).is_lost();
  }
  // Its legs have moved.
  bool has_moved(std::uint32_t level) const noexcept {
    return !failovers.empty() && failovers[level].in_use();
  }
  // At the level, but not where it was lost.
  bool is_away(std::uint32_t level) const noexcept {
    return has_moved(level) && failovers[level].return_vote().return_step() == 0;
  }
  bool is_detoured(const Leg& leg) const noexcept {
    return leg.address.role < Role::kRendezvous && has_moved(leg.address.level);
  }
  // Its failure has not been told yet, or it moves when it is back.
  bool will_move(const Leg& leg) noexcept {
    const Failover* const failover = failover_of(leg);
    return failover != nullptr && leg.session.state() == SessionState::kClosed &&
           (failover->state() == Failover::State::kReady ||
            failover->return_vote().return_step() != 0);
  }
  bool is_voting() const noexcept {
    return std::ranges::any_of(failovers,
                               [](const Failover& each) { return each.return_vote().is_voting(); });
  }
  bool is_busy() const noexcept { return std::ranges::any_of(failovers, &Failover::is_busy); }
  // Levels at which another switch stands in.
  std::uint32_t count() const noexcept {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        failovers, [](const Failover& each) { return each.state() == Failover::State::kMoved; }));
  }
  // Empty: the level's legs are where they belong.
  std::string describe(std::uint32_t level, const Bcube& bcube, std::uint32_t rank) const;
};

}  // namespace sluice::client
