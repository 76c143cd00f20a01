// How a relay's lanes move to another switch, and what of the step under way is done there.
#include <algorithm>
#include <ranges>
#include <utility>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"

namespace sluice::client {

// When a session reports its switch unreachable, every session at that level is about to. A server
// that is missing is missing at the other switch, too, so a dead server is told from a dead switch.
void Relay::lose(Lane& lane, const Status& why, TimeNs now) {
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  if (state_ == SessionState::kJoining) return lose_early(lane, why, now);
  if (is_lost(lane)) return fail_attempt(lane, now);
  Failover* const failover = failover_of(lane);
  // A server that has left takes its appliance along. Who needs that no more need not hear of it.
  if (mode_ == BcubeMode::kPlain && is_idle() && why.code() == StatusCode::kUnreachable) {
    lost_idle_ = true;
    return;
  }
  if (is_spare(lane) && failover->in_use()) return fail_moved(lane, why, now);
  if (is_spare(lane)) return lose_spare(lane, why, now);
  if (failover == nullptr || failover->state() == Failover::State::kNone) return fail(why, now);
  move(lane, why, now);
}

void Relay::fail_moved(const Lane& lane, const Status& why, TimeNs now) {
  fail({why.code(),
        why_moved_[lane.place.level].message() + "; and where its lanes move to, " + why.message()},
       now);
}

// What was lost while nobody needed it, once somebody does. The spares first: they may be needed.
void Relay::lose_what_is_needed(TimeNs now) {
  if (!lost_idle_ || state_ != SessionState::kRunning || is_idle()) return;
  lost_idle_ = false;
  for (Lane& lane : std::views::reverse(lanes_))
    if (lane.over && !is_lost(lane)) lose(lane, lane.session.status(), now);
}

// While it is not needed the job goes on.
void Relay::lose_spare(const Lane& lost, const Status& why, TimeNs now) {
  failovers_[lost.place.level].give_up();
  way_of(lost)->lose(now);
  for_lanes_beside(lost,
                   [now](Lane& lane) { lane.session.leave(wire::LeaveReason::kAbnormal, now); });
  why_moved_[lost.place.level] = why;
}

void Relay::move(Lane& lost, const Status& why, TimeNs now) {
  const std::uint32_t level = lost.place.level;
  Failover& failover = failovers_[level];
  failover.begin(tensors_.current(), meetings_over_[level]);
  why_moved_[level] = why;
  ways_[level].home.lose(now);
  for_lanes_beside(lost, [&](Lane& lane) {
    if (lane.session.state() != SessionState::kClosed) lane.session.handle_broken(why, now);
  });
  float* const states = failover.handover().states().data();
  const Status status = lanes_[failover.spares().survey_lane].session.submit(
      {.input = states, .output = states}, now);
  if (!status.ok()) return fail(status, now);
  failover.note_submitted();
  if (is_in_collective(level)) collective_->cut = true;
}

// A switch tells nobody of a silent server while no neighbour waits for it there. But it may have
// moved and wait for their surveys, and they, at another level, in the end for it.
void Relay::miss_silent(TimeNs now) {
  if (state_ != SessionState::kRunning || is_idle()) return;
  for (std::uint32_t level = 0; level < bcube_.levels(); ++level) {
    Lane& meeting = lanes_[level];
    if (!runs(meeting) || has_moved(level) || !meeting.session.lacks_ranks()) continue;
    lose(meeting,
         {StatusCode::kPeerLost, meeting.session.place() + "the appliance hears no more of rank " +
                                     meeting.session.missing_ranks() + ", which is needed"},
         now);
  }
}

void Relay::handle_spare(Lane& lane, const Event& event, TimeNs now) {
  const std::uint32_t level = lane.place.level;
  Failover& failover = failovers_[level];
  failover.note_done();
  if (lane.place.way == Way::kSurvey) return go_on(level, now);
  if (lane.place.way == Way::kVote) return handle_votes(level, now);
  const std::uint32_t index = lane.first_row + event.tensor;
  Failover::Row& row = failover.rows()[index];
  const There was = std::exchange(row.there, There::kNothing);
  CHECK(was >= There::kAwaited);
  if (was == There::kAwaited) {
    Event of_lane = event;
    of_lane.tensor = row.tensor;
    handle_slice(lanes_[row.lane], of_lane, now);
  }
  if (was == There::kForOthersFirst) send(level, index, row.submission, There::kAwaited, now);
  end_step_when_done(now);
}

// All are here, and know who has what.
void Relay::go_on(std::uint32_t level, TimeNs now) {
  Failover& failover = failovers_[level];
  failover.end_exchange();
  events_.push({.kind = Event::Kind::kDetoured,
                .step = failover.handover().first_step(),
                .status = Status(why_moved_[level].code(), describe_failover(level))});
  for (std::uint32_t row = 0; row < failover.rows().size() && status().ok(); ++row)
    go_on_with_row(level, row, now);
  go_on_with_collective(level, now);
  vote(level, now);
  end_step_when_done(now);
}

// In which this worker was when its lanes moved.
void Relay::go_on_with_collective(std::uint32_t level, TimeNs now) {
  if (!is_in_collective(level) || !collective_->cut) return;
  collective_->cut = false;
  collective_->running = false;
  if (failovers_[level].handover().is_collective_over())
    ++meetings_over_[level];
  else
    collective_->next_level = level;
  advance_collective(now);
}

// Empty: the lanes are where they belong.
std::string Relay::describe_failover(std::uint32_t level) const {
  const Failover& failover = failovers_[level];
  const std::string& why = why_moved_[level].message();
  const std::string name = "level " + std::to_string(level);
  switch (failover.state()) {
    case Failover::State::kReady:
      if (failover.moves() == 0) return {};
      return name + ": switch " + std::to_string(bcube_.switch_of(options_.rank.value, level)) +
             " is used again, for which another one has stood in " +
             std::to_string(failover.moves()) + " times";
    case Failover::State::kNone: return name + " has no detour" + (why.empty() ? "" : ": " + why);
    case Failover::State::kExchanging: return name + " is moving: " + why;
    case Failover::State::kMoved: break;
  }
  return name + ": from step " + std::to_string(failover.handover().first_step()) + " on switch " +
         std::to_string(lanes_[failover.spares().survey_lane].place.switch_index) +
         " stands in for switch " + std::to_string(bcube_.switch_of(options_.rank.value, level)) +
         ", by way of the neighbours at level " + std::to_string(bcube_.detour_level(level)) +
         ": " + why;
}

// This worker's part in the row, in the step that is finished first.
void Relay::go_on_with_row(std::uint32_t level, std::uint32_t index, TimeNs now) {
  Failover::Row& row = failovers_[level].rows()[index];
  Handover& handover = failovers_[level].handover();
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
    const Passage& passage = passage_of(row);
    CHECK(passage.stages != 0 && passage.kept_weight <= UINT32_MAX);
    submission.input = passage.kept_absent ? nullptr : &kept_[passage.first_half];
    submission.weight = static_cast<std::uint32_t>(passage.kept_weight);
    submission.averaged = layout_.is_rounded(passage.slice.tensor);
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
  Handover& handover = failovers_[level].handover();
  passage_of(failovers_[level].rows()[index]).in_flight += !handover.awaits(index);
  handover.contribute(index, handover.contributed(index));
}

// A submission of the relay's, at once or when what was asked before is done.
void Relay::offer(std::uint32_t level, std::uint32_t index, TimeNs now) {
  Failover& failover = failovers_[level];
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
  Failover& failover = failovers_[level];
  Failover::Row& row = failover.rows()[index];
  CHECK(failover.state() == Failover::State::kMoved && !row.is_under_way());
  submission.tensor = row.spare_tensor;
  const Status status = lanes_[row.spare].session.submit(submission, now);
  if (!status.ok()) return fail(status, now);
  row.there = as;
  failover.note_submitted();
}

// The sum of all, as it came: who lacks it when a switch is lost gets it from here.
void Relay::keep(Passage& passage, Way way) noexcept {
  CHECK(passage.whole);
  if (kept_.empty() || passage.stages == 0) return;
  passage.kept_weight = passage.weight;
  passage.kept_absent = passage.value == nullptr;
  if (!passage.kept_absent && way != Way::kTurn)  // there it came into what is kept
    std::copy_n(passage.value, passage.slice.elem_count, &kept_[passage.first_half]);
}

}  // namespace sluice::client
