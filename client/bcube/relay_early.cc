// What is not there before the first step, and when a relay begins without it.
#include <algorithm>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"
#include "client/core/sums/average.h"

namespace sluice::client {

// A switch that does not answer, or that a server does not reach, is done without when all of its
// servers are where its legs move to: only then is it known that none of them is missing. What was
// refused is somebody's mistake.
void Relay::lose_early(Leg& leg, const Status& why, TimeNs now) {
  const std::uint32_t level = leg.address.level;
  Failover* const failover = detours_.failover_of(leg);
  if (failover == nullptr) return fail(why, now);
  const bool home_lost = detours_.failbacks[level].home.is_lost();
  if (leg.is_standby()) {
    if (home_lost) return fail_moved(leg, why, now);
    return detours_.is_lost(leg) ? void() : lose_standby(leg, why, now);
  }
  if (home_lost) return;
  const bool mistake = why.code() != StatusCode::kUnreachable &&
                       why.code() != StatusCode::kTimedOut && why.code() != StatusCode::kPeerLost &&
                       why.code() != StatusCode::kClosed;
  if (mistake || failover->state() == Failover::State::kNone) return fail(why, now);
  detours_.why[level] = why;
  detours_.failbacks[level].home.lose(now);
  for_legs_beside(leg,
                  [now](Leg& other) { other.session.leave(wire::LeaveReason::kAbnormal, now); });
  if (all_run_ns_[level] != 0) return move_early(level, now);
  events_.push({.kind = Event::Kind::kStalled, .status = why});
}

void Relay::move_early(std::uint32_t level, TimeNs now) {
  const Status why = detours_.why[level];
  move(legs_.all[level], why, now);
}

// Whether all servers of a switch are where its legs would move to. Whoever forwards to them may
// start late, but not much later than this worker's job.
void Relay::await_standbys(TimeNs now) {
  if (state_ != SessionState::kJoining && state_ != SessionState::kRunning) return;
  for (std::uint32_t level = 0; level < detours_.failovers.size(); ++level) {
    const Failover& failover = detours_.failovers[level];
    if (all_run_ns_[level] != 0 || failover.state() == Failover::State::kNone) continue;
    Leg& states = legs_.all[failover.standbys().states_leg];
    const Leg* waiting = nullptr;
    for_legs_beside(states, [&](const Leg& leg) {
      if (waiting == nullptr && !leg.runs()) waiting = &leg;
    });
    if (waiting == nullptr) {
      all_run_ns_[level] = now;
      if (failover.state() == Failover::State::kReady && detours_.failbacks[level].home.is_lost())
        move_early(level, now);
    } else if (state_ == SessionState::kRunning &&
               now - started_ns_ >= options_.connect_timeout_ns) {
      lose(states,
           {StatusCode::kUnreachable,
            waiting->session.describe_stall(now) + "; not all servers reach it"},
           now);
    }
  }
}

// Who reaches a switch does not hear that another one does not. But all of its servers run, so who
// is not there by now will not come.
void Relay::miss_absent(TimeNs now) {
  for (std::uint32_t level = 0; level < detours_.failovers.size(); ++level) {
    if (detours_.failovers[level].state() != Failover::State::kReady || all_run_ns_[level] == 0)
      continue;
    const Leg* late = nullptr;
    for_legs_beside(legs_.all[level], [&](const Leg& leg) {
      if (leg.session.preparing()) all_run_ns_[level] = now;  // whoever is next waits for that
      if (!leg.runs()) late = &leg;
    });
    if (late == nullptr || now - all_run_ns_[level] < options_.silence_timeout_ns) continue;
    const std::string missing = late->session.missing_ranks();
    lose(legs_.all[level],
         {StatusCode::kTimedOut, late->session.place() +
                                     (missing.empty() ? "no answer" : "missing: " + missing) +
                                     ", though all servers of the switch run"},
         now);
  }
}

// At home, or where the legs of a level that was lost early have moved.
bool Relay::start_when_all_are_here(TimeNs now) {
  CHECK(state_ == SessionState::kJoining);
  const auto awaited = [this](const Leg& leg) {
    if (leg.is_standby() || detours_.has_moved(leg.address.level)) return false;
    return !leg.runs() || !rendezvous_.has_met(leg.address.level);
  };
  if (std::ranges::any_of(legs_.all, awaited)) return false;
  state_ = SessionState::kRunning;
  started_ns_ = now;
  const auto first = std::ranges::find_if(legs_.all, &Leg::runs);
  CHECK(first != legs_.all.end());
  facts_ = first->session.facts();
  facts_.averaging = resolved(options_.averaging, {});  // a standby's would be a sum
  shards_ = first->session.counters().shards;
  events_.push({.kind = Event::Kind::kStarted});
  return true;
}

}  // namespace sluice::client
