// How a relay's legs are joined again where they were lost, and when they are used there again.

#include <utility>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"

namespace sluice::client {
namespace {

// Of a job where a level's legs go back to, so that no leg gets into the one that they have left.
constexpr std::uint64_t kRunStep = std::uint64_t{1} << 32;

}  // namespace

// ---- attempts ----

void Relay::try_failbacks(TimeNs now) {
  if (state_ != SessionState::kRunning) return;
  for (std::uint32_t level = 0; level < detours_.failbacks.size(); ++level) {
    // Once all have moved: who still joins there for the first time would be refused.
    const bool moved = detours_.failovers[level].state() == Failover::State::kMoved;
    if (moved && detours_.failbacks[level].home.is_due(now)) try_failback(legs_.all[level], now);
    if (detours_.failbacks[level].standby.is_due(now))
      try_failback(legs_.all[detours_.failovers[level].standbys().states_leg], now);
  }
}

void Relay::try_failback(Leg& first, TimeNs now) {
  bool all_over = true;
  for_legs_beside(first, [&](const Leg& leg) { all_over &= leg.over; });
  if (!all_over) return;  // some still say that they leave
  detours_.failback_of(first)->begin();
  rejoin(first, now);
}

// A server that is back soon finds the others still at home, in the old jobs, which would take its
// first step for one of theirs. In a run of its own it waits for them.
void Relay::rejoin(Leg& leg, TimeNs now) {
  CHECK(leg.over && ended_legs_ != 0);
  --ended_legs_;
  leg.over = false;
  const std::uint64_t runs_before =
      leg.is_standby() ? 0 : detours_.failovers[leg.address.level].returns() + std::uint64_t{1};
  leg.session.rejoin(options_.run_id + kRunStep * runs_before, now);
}

void Relay::handle_attempt(Leg& leg, const Event& event, TimeNs now) {
  const std::uint32_t level = leg.address.level;
  Failback& failback = *detours_.failback_of(leg);
  if (event.kind == Event::Kind::kTensorDone && failback.state() == Failback::State::kRendezvous) {
    const Status status = rendezvous_.check(leg);
    if (status.ok()) return failback.end_rendezvous();
    events_.push({.kind = Event::Kind::kStalled, .step = tensors_.current(), .status = status});
    return fail_attempt(leg, now);
  }
  if (event.kind != Event::Kind::kStarted) return;
  if (failback.state() == Failback::State::kAsking) {
    failback.join_others();
    for_legs_beside(leg, [&](Leg& other) {
      if (&other != &leg) rejoin(other, now);
    });
  }
  bool all_run = failback.state() == Failback::State::kJoining;
  for_legs_beside(leg, [&](const Leg& other) { all_run &= other.runs(); });
  if (!all_run) return;
  if (!leg.is_standby()) {
    failback.begin_rendezvous();
    return begin_rendezvous(legs_.all[level], now);
  }
  failback.end(now);
  detours_.why[level] = {};
  detours_.failovers[level].regain();
  all_run_ns_[level] = now;
}

void Relay::begin_rendezvous(Leg& leg, TimeNs now) {
  if (Status status = rendezvous_.begin(leg, now); !status.ok()) fail(std::move(status), now);
}

// The others must learn that they wait in vain.
void Relay::fail_attempt(Leg& leg, TimeNs now) {
  detours_.failback_of(leg)->fail(now);
  for_legs_beside(leg,
                  [now](Leg& other) { other.session.leave(wire::LeaveReason::kAbnormal, now); });
}

// ---- votes ----

void Relay::vote(std::uint32_t level, TimeNs now) {
  Failover& failover = detours_.failovers[level];
  ReturnVote& vote = failover.return_vote();
  if (!vote.is_due()) return;
  const bool ready = detours_.failbacks[level].home.state() == Failback::State::kReady &&
                     vote.step() == tensors_.current() && !is_in_collective(level);
  const std::span<float> votes = vote.cast(ready, collectives_ended_[level]);
  failover.note_submitted();
  const Status status = legs_.all[failover.standbys().vote_leg].session.submit(
      {.input = votes.data(), .output = votes.data()}, now);
  if (!status.ok()) fail(status, now);
}

// In the step under way.
void Relay::come_to(std::uint32_t level, TimeNs now) {
  detours_.failovers[level].return_vote().come_to(tensors_.current());
  vote(level, now);
}

void Relay::handle_votes(std::uint32_t level, TimeNs now) {
  ReturnVote& votes = detours_.failovers[level].return_vote();
  if (votes.count()) CHECK(votes.return_step() == tensors_.current() + 1);
  vote(level, now);
  if (collective_ && !collective_->running) advance_collective(now);
  end_step_when_done(now);
}

// Where a collective goes depends on the sum of this step's votes. While states are exchanged
// there is no vote yet, but it is due at once then: others may come later and wait for it.
bool Relay::must_vote_first(std::uint32_t level, TimeNs now) {
  if (!detours_.is_away(level)) return false;
  come_to(level, now);
  return detours_.failovers[level].return_vote().is_voting();
}

void Relay::begin_next_step(TimeNs now) {
  tensors_.begin_next_step();
  for (std::uint32_t level = 0; level < detours_.failovers.size(); ++level) {
    if (detours_.failovers[level].return_vote().return_step() == tensors_.current())
      go_back(level, now);
    else if (detours_.has_moved(level) && is_in_collective(level))
      come_to(level, now);  // others may wait for its vote, and it for them
  }
}

// With the step that begins, as all servers of the switch do.
void Relay::go_back(std::uint32_t level, TimeNs now) {
  detours_.failovers[level].go_back();
  detours_.failbacks[level].home.end(now);
  detours_.why[level] = {};
  events_.push({.kind = Event::Kind::kReturned,
                .step = tensors_.current(),
                .status = Status(StatusCode::kUnreachable,
                                 detours_.describe(level, bcube_, options_.rank.value))});
  Leg* lost = nullptr;
  for_legs_beside(legs_.all[level], [&](Leg& leg) {
    const bool knows_why = lost == nullptr || leg.session.status().code() != StatusCode::kClosed;
    if (!leg.runs() && knows_why) lost = &leg;
  });
  if (lost != nullptr) move(*lost, lost->session.status(), now);
}

}  // namespace sluice::client
