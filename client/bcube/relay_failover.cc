// How a relay's legs move to another switch, and what of the step under way is done there.
#include <algorithm>
#include <ranges>
#include <utility>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"

namespace sluice::client {

// When a session reports its switch unreachable, every session at that level is about to. A server
// that is missing is missing at the other switch, too, so a dead server is told from a dead switch.
void Relay::lose(Leg& leg, const Status& why, TimeNs now) {
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  if (state_ == SessionState::kJoining) return lose_early(leg, why, now);
  if (detours_.is_lost(leg)) return fail_attempt(leg, now);
  Failover* const failover = detours_.failover_of(leg);
  // A server that has left takes its appliance along. Who needs that no more need not hear of it.
  if (mode_ == BcubeMode::kPlain && is_idle() && why.code() == StatusCode::kUnreachable) {
    lost_idle_ = true;
    return;
  }
  if (leg.is_standby() && failover->in_use()) return fail_moved(leg, why, now);
  if (leg.is_standby()) return lose_standby(leg, why, now);
  if (failover == nullptr || failover->state() == Failover::State::kNone) return fail(why, now);
  move(leg, why, now);
}

void Relay::fail_moved(const Leg& leg, const Status& why, TimeNs now) {
  fail({why.code(), detours_.why[leg.address.level].message() + "; and where its lanes move to, " +
                        why.message()},
       now);
}

// What was lost while nobody needed it, once somebody does. The standbys first: they may be needed.
void Relay::lose_what_is_needed(TimeNs now) {
  if (!lost_idle_ || state_ != SessionState::kRunning || is_idle()) return;
  lost_idle_ = false;
  for (Leg& leg : std::views::reverse(legs_.all))
    if (leg.over && !detours_.is_lost(leg)) lose(leg, leg.session.status(), now);
}

// While it is not needed the job goes on.
void Relay::lose_standby(const Leg& lost, const Status& why, TimeNs now) {
  detours_.failovers[lost.address.level].give_up();
  detours_.failback_of(lost)->lose(now);
  for_legs_beside(lost, [now](Leg& leg) { leg.session.leave(wire::LeaveReason::kAbnormal, now); });
  detours_.why[lost.address.level] = why;
}

void Relay::move(Leg& lost, const Status& why, TimeNs now) {
  const std::uint32_t level = lost.address.level;
  Failover& failover = detours_.failovers[level];
  failover.begin(tensors_.current(), collectives_ended_[level]);
  detours_.why[level] = why;
  detours_.failbacks[level].home.lose(now);
  for_legs_beside(lost, [&](Leg& leg) {
    if (leg.session.state() != SessionState::kClosed) leg.session.handle_broken(why, now);
  });
  float* const states = failover.handover().states().data();
  const Status status = legs_.all[failover.standbys().states_leg].session.submit(
      {.input = states, .output = states}, now);
  if (!status.ok()) return fail(status, now);
  failover.note_submitted();
  if (is_in_collective(level)) collective_->cut = true;
}

// A switch tells nobody of a silent server while no neighbour waits for it there. But it may have
// moved and wait for their states, and they, at another level, in the end for it.
void Relay::miss_silent(TimeNs now) {
  if (state_ != SessionState::kRunning || is_idle()) return;
  for (std::uint32_t level = 0; level < bcube_.levels(); ++level) {
    Leg& rendezvous = legs_.all[level];
    if (!rendezvous.runs() || detours_.has_moved(level) || !rendezvous.session.lacks_ranks())
      continue;
    lose(rendezvous,
         {StatusCode::kPeerLost, rendezvous.session.place() +
                                     "the appliance hears no more of rank " +
                                     rendezvous.session.missing_ranks() + ", which is needed"},
         now);
  }
}

void Relay::handle_standby(Leg& leg, const Event& event, TimeNs now) {
  const std::uint32_t level = leg.address.level;
  Failover& failover = detours_.failovers[level];
  failover.note_done();
  if (leg.address.role == Role::kStates) return go_on(level, now);
  if (leg.address.role == Role::kVote) return handle_votes(level, now);
  const std::uint32_t index = leg.first_row + event.tensor;
  Failover::Row& row = failover.rows()[index];
  const There was = std::exchange(row.there, There::kNothing);
  CHECK(was >= There::kAwaited);
  if (was == There::kAwaited) {
    Event of_leg = event;
    of_leg.tensor = row.tensor;
    handle_slice(legs_.all[row.leg], of_leg, now);
  }
  if (was == There::kForOthersFirst) send(level, index, row.submission, There::kAwaited, now);
  end_step_when_done(now);
}

// All are here, and know who has what.
void Relay::go_on(std::uint32_t level, TimeNs now) {
  Failover& failover = detours_.failovers[level];
  failover.end_exchange();
  events_.push({.kind = Event::Kind::kDetoured,
                .step = failover.handover().first_step(),
                .status = Status(detours_.why[level].code(),
                                 detours_.describe(level, bcube_, options_.rank.value))});
  for (std::uint32_t row = 0; row < failover.rows().size() && status().ok(); ++row)
    go_on_with_row(level, row, now);
  go_on_with_collective(level, now);
  vote(level, now);
  end_step_when_done(now);
}

// In which this worker was when its legs moved.
void Relay::go_on_with_collective(std::uint32_t level, TimeNs now) {
  if (!is_in_collective(level) || !collective_->cut) return;
  collective_->cut = false;
  collective_->running = false;
  if (detours_.failovers[level].handover().is_collective_over())
    ++collectives_ended_[level];
  else
    collective_->next_level = level;
  advance_collective(now);
}

// This worker's part in the row, in the step that is finished first.
void Relay::go_on_with_row(std::uint32_t level, std::uint32_t index, TimeNs now) {
  Failover::Row& row = detours_.failovers[level].rows()[index];
  Handover& handover = detours_.failovers[level].handover();
  const Handover::Fate fate = handover.fate(index);
  if (fate == Handover::Fate::kContributeFirst) return;
  if (fate == Handover::Fate::kContributeAgain) {
    contribute_again(level, index);
    return send(level, index, row.submission, There::kAwaited, now);
  }
  Submission submission = row.submission;
  submission.input = nullptr;
  submission.output = handover.states().data();  // nothing is written: it is not wanted
  submission.weight = 0;
  submission.wanted = false;
  if (fate == Handover::Fate::kGive) {
    const SliceState& state = state_of(row);
    CHECK(state.stages != 0 && state.kept_weight <= UINT32_MAX);
    submission.input = state.kept_absent ? nullptr : &kept_[state.first_partial];
    submission.weight = static_cast<std::uint32_t>(state.kept_weight);
    submission.averaged = layout_.is_rounded(state.slice.tensor);
  } else if (fate == Handover::Fate::kTake) {
    CHECK(row.submission.wanted);
    submission.output = row.submission.output;
    submission.wanted = true;
  }
  send(level, index, submission, handover.needs(index) ? There::kAwaited : There::kForOthers, now);
  if (!handover.is_ahead_in(index)) return;
  contribute_again(level, index);  // its own step's follows
  hold_back(row);
}

// What was counted at the lost switch must be counted again.
void Relay::contribute_again(std::uint32_t level, std::uint32_t index) noexcept {
  Handover& handover = detours_.failovers[level].handover();
  state_of(detours_.failovers[level].rows()[index]).in_flight += !handover.awaits(index);
  handover.contribute(index, handover.contributed(index));
}

// A submission of the relay's, at once or when what was asked before is done.
void Relay::offer(std::uint32_t level, std::uint32_t index, TimeNs now) {
  Failover& failover = detours_.failovers[level];
  Failover::Row& row = failover.rows()[index];
  if (failover.state() == Failover::State::kExchanging || row.is_under_way())
    hold_back(row);
  else
    send(level, index, row.submission, There::kAwaited, now);
}

// Until the servers' states are known, or the others have what they wait for.
void Relay::hold_back(Failover::Row& row) noexcept {
  CHECK(row.there != There::kAwaited);
  row.there = row.is_under_way() ? There::kForOthersFirst : There::kHeldBack;
}

void Relay::send(std::uint32_t level, std::uint32_t index, Submission submission, There as,
                 TimeNs now) {
  Failover& failover = detours_.failovers[level];
  Failover::Row& row = failover.rows()[index];
  CHECK(failover.state() == Failover::State::kMoved && !row.is_under_way());
  submission.tensor = row.standby_tensor;
  const Status status = legs_.all[row.standby].session.submit(submission, now);
  if (!status.ok()) return fail(status, now);
  row.there = as;
  failover.note_submitted();
}

// The sum of all, as it came: who lacks it when a switch is lost gets it from here.
void Relay::keep(SliceState& state, Role role) noexcept {
  CHECK(state.whole);
  if (kept_.empty() || state.stages == 0) return;
  state.kept_weight = state.weight;
  state.kept_absent = state.value == nullptr;
  if (!state.kept_absent && role != Role::kTurn)  // there it came into what is kept
    std::copy_n(state.value, state.slice.elem_count, &kept_[state.first_partial]);
}

}  // namespace sluice::client
