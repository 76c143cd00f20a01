// How a relay's lanes are joined again where they were lost, and when they are used there again.

#include "aggregator/base/check.h"
#include "client/bcube/relay.h"

namespace sluice::client {
namespace {

// Of a job where a level's lanes go back to, so that no lane gets into the one that they have left.
constexpr std::uint64_t kRunStep = std::uint64_t{1} << 32;

}  // namespace

// ---- attempts ----

void Relay::try_ways(TimeNs now) {
  if (state_ != SessionState::kRunning) return;
  for (std::uint32_t level = 0; level < ways_.size(); ++level) {
    // Once all have moved: who still joins there for the first time would be refused.
    const bool moved = failovers_[level].state() == Failover::State::kMoved;
    if (moved && ways_[level].home.is_due(now)) try_way(lanes_[level], now);
    if (ways_[level].spare.is_due(now))
      try_way(lanes_[failovers_[level].spares().survey_lane], now);
  }
}

void Relay::try_way(Lane& first, TimeNs now) {
  bool all_over = true;
  for_lanes_beside(first, [&](const Lane& lane) { all_over &= lane.over; });
  if (!all_over) return;  // some still say that they leave
  way_of(first)->begin();
  rejoin(first, now);
}

// A server that is back soon finds the others still at home, in the old jobs, which would take its
// first step for one of theirs. In a run of its own it waits for them.
void Relay::rejoin(Lane& lane, TimeNs now) {
  CHECK(lane.over && ended_lanes_ != 0);
  --ended_lanes_;
  lane.over = false;
  const std::uint64_t runs_before =
      is_spare(lane) ? 0 : failovers_[lane.place.level].returns() + std::uint64_t{1};
  lane.session.rejoin(options_.run_id + kRunStep * runs_before, now);
}

void Relay::handle_attempt(Lane& lane, const Event& event, TimeNs now) {
  const std::uint32_t level = lane.place.level;
  WayBack& way = *way_of(lane);
  if (event.kind == Event::Kind::kTensorDone && way.state() == WayBack::State::kMeeting) {
    const Status status = check_meeting(lane);
    if (status.ok()) return way.met();
    events_.push({.kind = Event::Kind::kStalled, .step = tensors_.current(), .status = status});
    return fail_attempt(lane, now);
  }
  if (event.kind != Event::Kind::kStarted) return;
  if (way.state() == WayBack::State::kAsking) {
    way.join_others();
    for_lanes_beside(lane, [&](Lane& other) {
      if (&other != &lane) rejoin(other, now);
    });
  }
  bool all_run = way.state() == WayBack::State::kJoining;
  for_lanes_beside(lane, [&](const Lane& other) { all_run &= runs(other); });
  if (!all_run) return;
  if (!is_spare(lane)) {
    way.meet();
    return meet(lanes_[level], now);
  }
  way.end(now);
  why_moved_[level] = {};
  failovers_[level].regain();
  all_run_ns_[level] = now;
}

// The others must learn that they wait in vain.
void Relay::fail_attempt(Lane& lane, TimeNs now) {
  way_of(lane)->fail(now);
  for_lanes_beside(lane,
                   [now](Lane& other) { other.session.leave(wire::LeaveReason::kAbnormal, now); });
}

// ---- votes ----

void Relay::vote(std::uint32_t level, TimeNs now) {
  Failover& failover = failovers_[level];
  ReturnVote& vote = failover.return_vote();
  if (!vote.is_due()) return;
  const bool ready = ways_[level].home.state() == WayBack::State::kReady &&
                     vote.step() == tensors_.current() && !is_in_collective(level);
  const std::span<float> votes = vote.cast(ready, meetings_over_[level]);
  failover.note_submitted();
  const Status status = lanes_[failover.spares().vote_lane].session.submit(
      {.input = votes.data(), .output = votes.data()}, now);
  if (!status.ok()) fail(status, now);
}

// In the step under way.
void Relay::come_to(std::uint32_t level, TimeNs now) {
  failovers_[level].return_vote().come_to(tensors_.current());
  vote(level, now);
}

void Relay::handle_votes(std::uint32_t level, TimeNs now) {
  ReturnVote& votes = failovers_[level].return_vote();
  if (votes.count()) CHECK(votes.return_step() == tensors_.current() + 1);
  vote(level, now);
  if (collective_ && !collective_->running) advance_collective(now);
  end_step_when_done(now);
}

// Where a collective goes depends on the sum of this step's votes. While the survey is under way
// there is no vote yet, but it is due at once then: others may come later and wait for it.
bool Relay::must_vote_first(std::uint32_t level, TimeNs now) {
  if (!is_away(level)) return false;
  come_to(level, now);
  return failovers_[level].return_vote().is_voting();
}

void Relay::begin_next_step(TimeNs now) {
  tensors_.begin_next_step();
  for (std::uint32_t level = 0; level < failovers_.size(); ++level) {
    if (failovers_[level].return_vote().return_step() == tensors_.current())
      go_back(level, now);
    else if (has_moved(level) && is_in_collective(level))
      come_to(level, now);  // others may wait for its vote, and it for them
  }
}

// With the step that begins, as all servers of the switch do.
void Relay::go_back(std::uint32_t level, TimeNs now) {
  failovers_[level].go_back();
  ways_[level].home.end(now);
  why_moved_[level] = {};
  events_.push({.kind = Event::Kind::kReturned,
                .step = tensors_.current(),
                .status = Status(StatusCode::kUnreachable, describe_failover(level))});
  Lane* lost = nullptr;
  for_lanes_beside(lanes_[level], [&](Lane& lane) {
    const bool knows_why = lost == nullptr || lane.session.status().code() != StatusCode::kClosed;
    if (!runs(lane) && knows_why) lost = &lane;
  });
  if (lost != nullptr) move(*lost, lost->session.status(), now);
}

}  // namespace sluice::client
