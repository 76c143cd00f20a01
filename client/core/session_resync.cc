// A session that has fallen behind: the state of another rank that it asks for, and its own that it
// gives.
#include <algorithm>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/session.h"

namespace sluice::client {

std::uint32_t Session::behind() const noexcept {
  const Step next = tensors_.filling();
  const Step ahead = open_step() > next ? open_step() - next : 0;
  return ahead + (waiting_late_chunks() != 0 ? 1 : 0);
}

Status Session::resync(TimeNs now) {
  Status status = this->status();
  if (!status.ok()) return status;
  if (!facts_.policy.tolerates_stragglers())
    return {StatusCode::kInvalidArgument,
            error_prefix(options_) + "a synchronous job loses no step: there is no state to fetch"};
  if (behind_status().ok()) {
    const std::uint32_t in_flight = tensors_.in_flight_count();
    if (in_flight != 0)
      return {StatusCode::kBusy, error_prefix(options_) + "resync: " + std::to_string(in_flight) +
                                     " tensors are in flight; wait for them first"};
    if (gradients_->in_progress())
      return {StatusCode::kInvalidArgument,
              error_prefix(options_) + "resync: step " + std::to_string(current_step()) +
                  " is not finished; submit the rest of it and wait for it first"};
    gradients_->fall_behind(
        {StatusCode::kBehind,
         error_prefix(options_) + "this rank has asked for the state of another one"});
    CHECK(!behind_status().ok());
  }
  if (!transfers_->has_state()) transfers_->request(now);
  return {};
}

ReceivedState Session::take_state(TimeNs now) {
  ReceivedState state = transfers_->take_state();
  CHECK(!behind_status().ok());
  gradients_->resume(state.step + 1, now);
  note_caught_up(now);
  return state;
}

Status Session::check_state_step(Step step) const {
  Status status = this->status();
  if (!status.ok() || !behind_status().ok()) return status.ok() ? behind_status() : status;
  CHECK(current_step() != 0);
  const Step last = current_step() - 1;
  if (step == last) return {};
  return {StatusCode::kInvalidArgument,
          error_prefix(options_) + "send_state: step " + std::to_string(step) +
              " is not the last finished one, " + std::to_string(last)};
}

bool Session::send_state(std::span<const std::uint8_t> state, Step step, TimeNs now) {
  return status().ok() && transfers_ != nullptr && transfers_->give(state, step, now);
}

void Session::note_caught_up(TimeNs now) noexcept {
  if (transfers_ == nullptr || !transfers_->received() || !behind_status().ok()) return;
  if (gradients_->up_to_date()) transfers_->caught_up(now);
}

}  // namespace sluice::client
