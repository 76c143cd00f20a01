// Which legs of a server have nothing to send before a time limit of theirs or before something
// happens to them. A world with dozens of legs asks the others alone.
#pragma once

#include <algorithm>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "client/bcube/relay.h"

namespace sluice::sim {

class IdleLegs {
 public:
  // Something has happened to a leg, or may have happened to all.
  void wake(std::size_t leg) {
    if (!until_.empty()) until_[leg] = 0;
  }
  void wake_all() { std::ranges::fill(until_, 0); }
  // Also those that the relay has opened or ended without a word.
  void look_at(const std::deque<client::Leg>& legs) {
    until_.resize(legs.size());
    states_.resize(legs.size());
    for (std::size_t leg = 0; leg < legs.size(); ++leg) {
      const client::SessionState state = legs[leg].session.state();
      if (std::exchange(states_[leg], state) != state) wake(leg);
    }
  }
  bool is_idle(std::size_t leg, TimeNs now) const { return until_[leg] > now; }
  // The next datagram of a leg. False: it is idle.
  bool poll(std::size_t leg, client::Leg& asked, client::Transmit& transmit,
            std::span<std::uint8_t> out, TimeNs now) {
    if (asked.session.poll_transmit(transmit, out, now)) return true;
    until_[leg] = asked.session.next_timeout();
    return false;
  }
  void handle_timeouts(std::deque<client::Leg>& legs, TimeNs now) {
    for (std::size_t leg = 0; leg < legs.size(); ++leg) {
      if (due(leg, legs[leg]) > now) continue;
      legs[leg].session.handle_timeout(now);
      wake(leg);
    }
  }
  TimeNs next_timeout(const std::deque<client::Leg>& legs, TimeNs now) const {
    TimeNs next = kNever;
    for (std::size_t leg = 0; leg < legs.size(); ++leg)
      next = std::min(next, std::max(due(leg, legs[leg]), now + kMicrosecond));
    return next;
  }

 private:
  // A leg that waits for room on its port is not idle.
  TimeNs due(std::size_t leg, const client::Leg& asked) const {
    const bool idle = leg < until_.size() && until_[leg] != 0;
    return idle ? until_[leg] : asked.session.next_timeout();
  }

  std::vector<TimeNs> until_;  // of each leg; 0: it is to be asked
  std::vector<client::SessionState> states_;
};

}  // namespace sluice::sim
