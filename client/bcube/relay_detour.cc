// How a relay's lanes move to another switch, and what of the step under way is done there.
#include <algorithm>
#include <ranges>
#include <utility>

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"

namespace sluice::client {

// A lane is lost. Without its switch the others of the level are, too, and who has not seen that
// yet will. Whether it is a server that died, the spares say: there it is missing as well.
void Relay::lose(Lane& lane, const Status& why, TimeNs now) {
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  if (state_ == SessionState::kJoining) return lose_early(lane, why, now);
  if (is_lost(lane)) return fail_attempt(lane, now);
  Detour* const detour = detour_of(lane);
  // A server that has left takes its appliance along. Who needs that no more need not hear of it.
  if (mode_ == BcubeMode::kPlain && is_idle() && why.code() == StatusCode::kUnreachable) {
    lost_idle_ = true;
    return;
  }
  if (is_spare(lane) && detour->in_use()) return fail_moved(lane, why, now);
  if (is_spare(lane)) return lose_spare(lane, why, now);
  if (detour == nullptr || detour->state() == Detour::State::kNone) return fail(why, now);
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
  detours_[lost.place.level].give_up();
  way_of(lost)->lose(now);
  for_lanes_beside(lost,
                   [now](Lane& lane) { lane.session.leave(wire::LeaveReason::kAbnormal, now); });
  why_moved_[lost.place.level] = why;
}

void Relay::move(Lane& lost, const Status& why, TimeNs now) {
  const std::uint32_t level = lost.place.level;
  Detour& detour = detours_[level];
  detour.begin(tensors_.current(), meetings_over_[level]);
  why_moved_[level] = why;
  ways_[level].home.lose(now);
  for_lanes_beside(lost, [&](Lane& lane) {
    if (lane.session.state() != SessionState::kClosed) lane.session.handle_broken(why, now);
  });
  const Status status = lanes_[detour.spares().survey_lane].session.submit(
      {.input = detour.survey().data(), .output = detour.survey().data()}, now);
  if (!status.ok()) return fail(status, now);
  ++detour.busy;
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
  Detour& detour = detours_[level];
  CHECK(detour.in_use() && detour.busy != 0);
  --detour.busy;
  if (lane.place.way == Way::kSurvey) return go_on(level, now);
  if (lane.place.way == Way::kVote) return handle_votes(level, now);
  const std::uint32_t index = lane.first_row + event.tensor;
  Detour::Row& row = detour.rows()[index];
  CHECK(row.busy);
  row.busy = false;
  if (!row.silent) {
    Event of_lane = event;
    of_lane.tensor = row.tensor;
    handle_slice(lanes_[row.lane], of_lane, now);
  }
  if (row.waiting && !row.busy) send(level, index, row.submission, false, now);
  end_step_when_done(now);
}

// All are here, and know who has what.
void Relay::go_on(std::uint32_t level, TimeNs now) {
  Detour& detour = detours_[level];
  detour.handle_survey();
  events_.push({.kind = Event::Kind::kDetoured,
                .step = detour.step(),
                .status = Status(why_moved_[level].code(), describe_detour(level))});
  for (std::uint32_t row = 0; row < detour.rows().size() && status().ok(); ++row)
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
  if (detours_[level].is_collective_over())
    ++meetings_over_[level];
  else
    collective_->next_level = level;
  advance_collective(now);
}

// Empty: the lanes are where they belong.
std::string Relay::describe_detour(std::uint32_t level) const {
  const Detour& detour = detours_[level];
  const std::string& why = why_moved_[level].message();
  const std::string name = "level " + std::to_string(level);
  switch (detour.state()) {
    case Detour::State::kReady:
      if (detour.moves() == 0) return {};
      return name + ": switch " + std::to_string(bcube_.switch_of(options_.rank.value, level)) +
             " is used again, for which another one has stood in " +
             std::to_string(detour.moves()) + " times";
    case Detour::State::kNone: return name + " has no detour" + (why.empty() ? "" : ": " + why);
    case Detour::State::kAsking: return name + " is moving: " + why;
    case Detour::State::kMoved: break;
  }
  return name + ": from step " + std::to_string(detour.step()) + " on switch " +
         std::to_string(lanes_[detour.spares().survey_lane].place.switch_index) +
         " stands in for switch " + std::to_string(bcube_.switch_of(options_.rank.value, level)) +
         ", by way of the neighbours at level " + std::to_string(bcube_.detour_level(level)) +
         ": " + why;
}

// What this worker says of the row in the step that is finished first.
void Relay::go_on_with_row(std::uint32_t level, std::uint32_t index, TimeNs now) {
  Detour& detour = detours_[level];
  Detour::Row& row = detour.rows()[index];
  const Detour::Fate fate = detour.fate(index);
  const bool asked = row.asked == detour.step();
  if (!fate.over) {
    CHECK(row.asked <= detour.step());
    if (!asked) return;  // it comes
    expect_again(row);
    return send(level, index, row.submission, false, now);
  }
  Submission submission = row.submission;
  submission.tensor = 0;
  submission.input = nullptr;
  submission.output = detour.survey().data();  // of what is not wanted nothing is written
  submission.weight = 0;
  submission.wanted = false;
  const bool needed = asked && row.in_flight;
  const bool wanted = needed && row.way != Way::kUp && row.submission.wanted;
  if (fate.supplier && detour.is_self(*fate.supplier)) {
    const Passage& passage = passage_of(row);
    CHECK(passage.stages != 0 && passage.kept_weight <= UINT32_MAX);
    submission.input = passage.kept_absent ? nullptr : &kept_[passage.first_half];
    submission.weight = static_cast<std::uint32_t>(passage.kept_weight);
    submission.averaged = layout_.is_rounded(passage.slice.tensor);
  } else if (wanted) {
    submission.output = row.submission.output;
    submission.wanted = true;
  }
  send(level, index, submission, !needed, now);
  if (row.asked <= detour.step()) return;  // else its own step's follows
  row.waiting = true;
  expect_again(row);
}

// What was counted must be counted again.
void Relay::expect_again(Detour::Row& row) noexcept {
  passage_of(row).in_flight += !row.in_flight;
  row.in_flight = true;
}

// A submission of the relay's, at once or when what was asked before is done.
void Relay::offer(std::uint32_t level, std::uint32_t index, TimeNs now) {
  Detour& detour = detours_[level];
  Detour::Row& row = detour.rows()[index];
  if (detour.state() == Detour::State::kAsking || row.busy)
    row.waiting = true;
  else
    send(level, index, row.submission, false, now);
}

void Relay::send(std::uint32_t level, std::uint32_t index, Submission submission, bool silent,
                 TimeNs now) {
  Detour& detour = detours_[level];
  Detour::Row& row = detour.rows()[index];
  CHECK(detour.state() == Detour::State::kMoved && !row.busy);
  submission.tensor = row.spare_tensor;
  const Status status = lanes_[row.spare].session.submit(submission, now);
  if (!status.ok()) return fail(status, now);
  row.busy = true;
  row.silent = silent;
  row.waiting = false;
  ++detour.busy;
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
