// A job that moves to the next of its addresses: member/standby.h decides when, this carries it
// out.
#include <algorithm>
#include <memory>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/session.h"

namespace sluice::client {

void Session::consider_move(TimeNs now) {
  const bool joining = state_ == SessionState::kJoining;
  const bool forming = state_ == SessionState::kForming;
  if (!joining && !forming && state_ != SessionState::kRunning) return;
  if (restart_timeout_ns() == 0) return;
  if (forming && changed_ && patience_left(now) <= 0) return;  // it names who is missing
  Standby::Situation at{.is_new = joining};
  if (joining) {
    at.silent_ns = join_.is_unheard() ? now - join_.started_ns() : 0;
  } else {
    at.silent_ns = now - membership_.heard_ns();
    at.ends = !moving_ && membership_.ends();
    if (!moving_) at.drain = membership_.drain();
    at.between_steps = forming || std::ranges::none_of(streams_, &Stream::in_progress);
    if (forming && !moving_ && membership_.lacks_ranks())
      at.incomplete_ns = now - membership_.grown_ns();
    // The next appliance would wait for ranks that are lost, as it cannot know that.
    const bool loses_ranks = groups_ != nullptr || facts_.policy.tolerates_stragglers();
    at.must_stay = loses_ranks && state_ == SessionState::kRunning &&
                   (membership_.lacks_ranks() || (groups_ != nullptr && collectives_.has_call()));
  }
  if (std::string text = standby_.take_warning(now); !text.empty())
    link_.events.push({.kind = Event::Kind::kStalled,
                       .step = current_step(),
                       .status = Status(StatusCode::kUnreachable, std::move(text))});
  if (const auto epoch = standby_.decide(at, now)) move(*epoch, now);
}

// Whatever the appliance before sends from now on counts for nothing, and nothing is sent to it but
// that this rank has left: a result that it still makes is lost to all ranks alike.
void Session::move(std::uint32_t epoch, TimeNs now) {
  CHECK(epoch > options_.epoch && state_ != SessionState::kClosed);
  const bool joining = state_ == SessionState::kJoining;
  if (!joining && !moving_)
    former_ = {.identity = link_.identity, .address = standby_.address(), .tell = true};
  if (!joining && !changed_) lost_ns_ = membership_.heard_ns();
  options_.epoch = epoch;
  options_.nonce += kNonceStep;
  standby_.moved(now);
  if (standby_.exists()) options_.appliance_address = options_.addresses[standby_.address()];
  if (joining) {
    std::destroy_at(&join_);
    std::construct_at(&join_, options_, layout_, now);
    return;
  }
  moving_ = changed_ = true;
  refused_.clear();
  resumption_.reset();
  missing_ = {};
  become(SessionState::kForming);
  membership_.heard(now);
  ask_anew(now);
}

// Questions to the next address, and the farewell to the one before.
bool Session::poll_move(Transmit& transmit, std::span<std::uint8_t> out) noexcept {
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return false;
  if (std::exchange(former_.tell, false)) {
    transmit.address = former_.address;
    transmit.bytes = wire::encode(out, former_.identity, leave_body(wire::LeaveReason::kMoved));
    return true;
  }
  transmit.bytes = standby_.poll_transmit(out);
  if (transmit.bytes == 0) return false;
  transmit.address = standby_.next_address();
  return true;
}

}  // namespace sluice::client
