// What a group does with results, answers and outcomes: how its operations end, in words.
#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/operations/describe.h"
#include "client/core/operations/group.h"

namespace sluice::client {

Verdict Group::handle(const wire::Packet& packet, std::uint16_t shard, TimeNs now) {
  const wire::GroupState* state = nullptr;
  switch (packet.type()) {
    case wire::PacketType::kPartResult: state = &packet.body<wire::PartResult>().group; break;
    case wire::PacketType::kPartAnswer: state = &packet.body<wire::PartAnswer>().group; break;
    case wire::PacketType::kFloor: state = &packet.body<wire::Floor>().group; break;
    case wire::PacketType::kOutcome: state = &packet.body<wire::Outcome>().group; break;
    default: return Verdict::kBadType;
  }
  if (state->generation != facts_.generation) return Verdict::kOtherGeneration;
  Sequence& sequence = of(state->sequence);
  const bool sure = shard == 0 && state->ended == 0 && ended_ == 0;
  if (shard == 0) {
    note(wire::unwrap(state->noted, noted_));
    if (state->ended > ended_) {
      ended_ = state->ended;
      if (!broken_) ask_about_all(now);
    }
  }
  sequence.learn(*state, sure, now);
  collect_done();
  Verdict verdict = Verdict::kFloors;
  if (packet.type() == wire::PacketType::kPartResult) {
    verdict = sequence.in_use() ? sequence.handle_result(packet, now) : Verdict::kTooNew;
    if (Called* const called = find(sequence.take_doubtful()); called != nullptr)
      ask_about(*called, now);
  } else if (packet.type() == wire::PacketType::kPartAnswer) {
    verdict = sequence.handle_answer(packet, now);
  } else if (packet.type() == wire::PacketType::kOutcome) {
    verdict = handle_outcome(packet, now);
  } else if (packet.body<wire::Floor>().stopped != 0) {
    sequence.ask_floor();
  }
  collect_done();
  return verdict;
}

Verdict Group::handle_outcome(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Outcome>();
  const std::uint64_t by_all = wire::unwrap(body.called_by_all, called_by_all_);
  if (by_all > called_by_all_ && by_all <= next_) called_by_all_ = by_all;
  const bool breaks =
      body.code == wire::OutcomeCode::kLost || body.code == wire::OutcomeCode::kDiffers;
  Called* const called = find(wire::unwrap(body.number, noted_));
  if (breaks && !broken_) broken_by_ = body;
  if (called == nullptr || called->done) {
    if (breaks) note_broken(now);
    return Verdict::kCall;
  }
  called->asked = 0;
  called->next_ns = now + kAskInterval;
  quiet_until_ns_ = 0;
  // Of the oldest: whoever is behind with it is behind with the others.
  if (body.code == wire::OutcomeCode::kOpen &&
      called == &*std::ranges::find(called_, false, &Called::done)) {
    behind_number_ = called->number;
    behind_count_ = body.behind_count;
    for (std::size_t i = 0; i < behind_count_; ++i) behind_[i] = packet.behind(i);
  }
  // Of a completed one the results are still to come.
  if (body.code == wire::OutcomeCode::kOpen || body.code == wire::OutcomeCode::kCompleted) {
    if (called->unsure) finish(*called, {}, completed_code(*called));
    return Verdict::kCall;
  }
  finish(*called, end_of(packet, *called), body.code, body.rank);
  if (breaks) note_broken(now);
  return Verdict::kCall;
}

// All that is open is asked about at once, and then again as calls are that are not noted.
void Group::note_broken(TimeNs now) noexcept {
  if (std::exchange(broken_, true)) return;
  broken_from_ = next_;
  ask_about_all(now);
}

std::string Group::place_of(const Called& called) const {
  return error_prefix_ + "group '" + name_ + "', operation " + std::to_string(called.number) + ": ";
}

Status Group::end_of(const wire::Packet& packet, const Called& called) const {
  const auto& outcome = packet.body<wire::Outcome>();
  std::string behind;
  for (std::size_t i = 0; i < outcome.behind_count; ++i)
    behind += sluice::client::describe(packet.behind(i), i == 0);
  const std::string rank = "rank " + std::to_string(outcome.rank);
  const std::string what = sluice::client::describe(called.what);
  switch (outcome.code) {
    case wire::OutcomeCode::kCancelled:
      return {StatusCode::kTimedOut, place_of(called) + what + " was cancelled by " + rank +
                                         ", which waited no longer; the group goes on" + behind};
    case wire::OutcomeCode::kDiffers: {
      const wire::Description expected = outcome.expected;
      const wire::Description actual = outcome.actual;
      const std::string where =
          expected.number == outcome.number
              ? std::string()
              : what + " is over, as operation " + std::to_string(expected.number) + " failed: ";
      return {StatusCode::kInvalidArgument,
              place_of(called) + where + rank + " called " + sluice::client::describe(actual) +
                  ", rank " + std::to_string(outcome.other) + " " +
                  sluice::client::describe(expected) +
                  "; all members must call the same operations in the same order"};
    }
    case wire::OutcomeCode::kLost:
      return {StatusCode::kPeerLost,
              place_of(called) + what + " lacks " + rank + ", which has left or was lost"};
    case wire::OutcomeCode::kNoMemory:
      return {StatusCode::kExhausted,
              place_of(called) + what +
                  " gets no slots: those of the job are all in use; remove groups, or give the job "
                  "more memory at the appliance"};
    case wire::OutcomeCode::kOpen:
    case wire::OutcomeCode::kCompleted: break;
  }
  CHECK(false);
  return {};
}

}  // namespace sluice::client
