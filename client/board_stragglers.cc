// The board of a job that tolerates stragglers: where the others are, what happened in each step,
// and other ranks' states.
#include <algorithm>
#include <utility>

#include "client/board.h"

namespace sluice::client {

JobFacts Board::facts() const {
  const Lock lock(mutex_);
  return facts_;
}

std::uint32_t Board::behind() const {
  const Lock lock(mutex_);
  const Step others_at = others_at_.load(std::memory_order_relaxed);
  const std::uint32_t finished = others_at > open_step_ ? others_at - open_step_ : 0;
  return finished + (late_.load(std::memory_order_relaxed) ? 1 : 0);
}

bool Board::must_resync() const {
  const Lock lock(mutex_);
  return stranded_;
}

Outcome Board::step_report(Step step, StepReport* report) const {
  const Lock lock(mutex_);
  Step wanted = step;
  if (step == 0)  // steps that came as another rank's state have none
    for (const StepReport& one : reports_) wanted = std::max(wanted, one.step);
  *report = reports_[wanted % kReportedSteps];
  if (wanted != 0 && report->step == wanted) return {};
  const std::string what = step == 0 ? "no step is" : "step " + std::to_string(step) + " is not";
  return {SLUICE_NOT_FOUND, what + " among the last " + std::to_string(kReportedSteps) +
                                " that this rank has applied itself (it is at step " +
                                std::to_string(done_step_) +
                                "; another rank's state has no reports)"};
}

// The session is at `step` now, and nothing of before counts.
void Board::go_on_at(Step step) {
  open_step_ = step;
  done_step_ = step - 1;
  closed_full_ = false;
  in_flight_ = 0;
  for (TensorState& tensor : tensors_) {
    tensor.steps = step - 1;
    tensor.in_flight = false;
  }
}

Outcome Board::resync(const WaitOptions& options, sluice_state* state) {
  Lock lock(mutex_);
  if (ended_) return outcome_;
  if (!tolerant()) {
    return {SLUICE_INVALID_ARGUMENT,
            place_ + "a synchronous job loses no step: there is no state to fetch"};
  }
  if (in_flight_ != 0) {
    return {SLUICE_BUSY, "resync: " + std::to_string(in_flight_) +
                             " tensors are in flight; wait for them first"};
  }
  if (resync_caller_) return {SLUICE_BUSY, "resync: another thread waits for the state already"};
  if (!resyncing_) {
    resyncing_ = true;
    state_arrived_ = false;
    resync_outcome_ = {};
    if (!stranded_) {
      stranded_ = true;
      why_stranded_ = {SLUICE_BEHIND, place_ + "this rank has asked for the state of another one"};
    }
    push({.kind = Command::Kind::kResync});
  }
  resync_caller_ = true;
  Outcome outcome = wait(lock, options, "resync",
                         [this] { return !ended_ && (state_arrived_ || !resync_outcome_.ok()); });
  resync_caller_ = false;
  if (!outcome.ok()) return outcome;
  resyncing_ = false;
  if (!resync_outcome_.ok()) return resync_outcome_;
  state_ = std::move(incoming_);
  stranded_ = false;
  for (TensorState& tensor : tensors_) tensor.abandoned = false;
  *state = {.struct_size = sizeof *state,
            .data = state_.data.get(),
            .bytes = state_.bytes,
            .step = state_.step,
            .reserved = 0};
  return {};
}

std::int32_t Board::state_wanted() const {
  const Lock lock(mutex_);
  return state_wanted_;
}

Outcome Board::send_state(const void* data, std::uint64_t bytes, Step step) {
  if (data == nullptr || bytes == 0) {
    return {SLUICE_INVALID_ARGUMENT, "send_state: data is NULL or bytes is 0"};
  }
  {
    const Lock lock(mutex_);
    if (ended_) return outcome_;
    if (state_wanted_ < 0) return {};
    if (stranded_) return why_stranded_;
    if (step != done_step_) {
      return {SLUICE_INVALID_ARGUMENT, "send_state: step " + std::to_string(step) +
                                           " is not the last finished one, " +
                                           std::to_string(done_step_)};
    }
  }
  const auto* begin = static_cast<const std::uint8_t*>(data);
  std::vector<std::uint8_t> copy(begin, begin + bytes);
  const Lock lock(mutex_);
  if (ended_) return outcome_;
  state_wanted_ = -1;
  push({.kind = Command::Kind::kSendState, .step = step, .state = std::move(copy)});
  return {};
}

// ---- progress thread ----

void Board::publish_position(Step open_step, bool late) noexcept {
  others_at_.store(open_step, std::memory_order_relaxed);
  late_.store(late, std::memory_order_relaxed);
}

std::vector<std::uint32_t> Board::fell_behind(const Event& event) {
  const Lock lock(mutex_);
  std::vector<std::uint32_t> abandoned;
  for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (!tensors_[tensor].in_flight) continue;
    tensors_[tensor].abandoned = true;
    abandoned.push_back(tensor);
  }
  stranded_ = true;
  why_stranded_ = event.status;
  go_on_at(event.step);
  changed_.notify_all();
  return abandoned;
}

void Board::state_received(ReceivedState state) {
  const Lock lock(mutex_);
  go_on_at(state.step + 1);
  incoming_ = std::move(state);
  state_arrived_ = true;
  changed_.notify_all();
}

void Board::resync_failed(const Outcome& outcome) {
  const Lock lock(mutex_);
  resync_outcome_ = outcome;
  // The session never began it, so this rank goes on with the step that it is in.
  if (outcome.code == SLUICE_INVALID_ARGUMENT) stranded_ = false;
  changed_.notify_all();
}

void Board::set_state_wanted(std::int32_t rank) {
  const Lock lock(mutex_);
  state_wanted_ = rank;
}

}  // namespace sluice::client
