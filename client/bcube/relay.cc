#include "client/bcube/relay.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/sums/average.h"

namespace sluice::client {
namespace {

// Of who contributes no data, only to be counted.
constexpr std::uint32_t kNoWeight = 0;

}  // namespace

Relay::Relay(SessionOptions options, const Bcube& bcube, BcubeMode mode, Layout layout)
    : Calls(std::move(options), std::move(layout)),
      bcube_(bcube),
      mode_(mode),
      packed_(layout_.chunk_bytes()),
      progress_(layout_.tensor_count()),
      unused_results_(layout_.tensor_count()),
      rendezvous_(bcube_, options_.rank.value),
      all_run_ns_(bcube_.levels()),
      collectives_ended_(bcube_.levels()),
      events_(layout_.tensor_count() + 8) {
  CHECK(options_.executor == nullptr);  // a slice is packed as soon as its step begins
  facts_.averaging = resolved(options_.averaging, {});
  for (std::uint32_t tensor = 0; tensor < tensors_.count(); ++tensor)
    tensors_.set_averaging(tensor, facts_.averaging);
  if (options_.trace) trace_.enable(layout_.tensor_count());
}

Result<std::unique_ptr<Relay>> Relay::create(SessionOptions options, const Bcube& bcube,
                                             BcubeMode mode, Layout layout, TimeNs now,
                                             const PrepareLeg& prepare) {
  if (Status status = check_legs(options, bcube, layout); !status.ok()) return status;
  std::unique_ptr<Relay> relay(new Relay(std::move(options), bcube, mode, std::move(layout)));
  if (Status status = relay->make_legs(now, prepare); !status.ok()) return status;
  return relay;
}

Status Relay::make_legs(TimeNs now, const PrepareLeg& prepare) {
  Result<Legs> made = LegPlanner(options_, bcube_, mode_, layout_, residuals_).make(now, prepare);
  if (!made.ok()) return made.status();
  legs_ = std::move(made).value();
  partial_sums_.resize(legs_.partial_elems);
  detours_ = {
      .failovers = std::move(legs_.failovers), .failbacks{}, .why = std::move(legs_.why_none)};
  detours_.failbacks.resize(detours_.failovers.size());
  const auto is_ready = [](const Failover& each) {
    return each.state() == Failover::State::kReady;
  };
  if (std::ranges::any_of(detours_.failovers, is_ready)) kept_.resize(partial_sums_.size());
  if (options_.trace) part_trace_.plan(bcube_, mode_, layout_.tensor_count(), legs_);
  return {};
}

// The legs tell the others; nobody waits for that.
void Relay::fail(Status why, TimeNs now) {
  CHECK(!why.ok());
  if (state_ == SessionState::kClosed) return;
  failure_ = std::move(why);
  state_ = SessionState::kClosed;
  beginning_.reset();
  for (Leg& leg : legs_.all)
    if (leg.session.state() != SessionState::kClosed)
      leg.session.leave(wire::LeaveReason::kAbnormal, now);
  for (std::uint32_t tensor = 0; tensor < tensors_.count(); ++tensor)
    if (tensors_.in_flight(tensor))
      events_.push({.kind = Event::Kind::kTensorLost, .tensor = tensor, .status = failure_});
  events_.push({.kind = Event::Kind::kFailed, .status = failure_});
}

// ---- what the legs say ----

// A leg's answer may be another leg's submission, which may be done at once. A slice at a time,
// which is rounded on the way: a caller may come between, and waits for no more than a burst.
bool Relay::act_on_call(TimeNs now) {
  bool acted = false;
  try_failbacks(now);
  for (Leg& leg : legs_.all)
    for (Event event; leg.session.poll_event(event); acted = true) handle(leg, event, now);
  lose_what_is_needed(now);
  await_standbys(now);
  if (state_ == SessionState::kJoining) miss_absent(now);
  if (state_ == SessionState::kJoining) acted |= start_when_all_are_here(now);
  miss_silent(now);
  if (state_ != SessionState::kRunning) return acted;
  std::uint32_t tensor = 0;
  if (!beginning_ && tensors_.next_joined(tensor)) begin(tensor, now);
  if (!beginning_) return acted;
  begin_slice(now);
  return true;
}

void Relay::end_leg(Leg& leg) {
  CHECK(ended_legs_ < legs_.all.size() && !leg.over);
  leg.over = true;
  if (++ended_legs_ != legs_.all.size() || state_ == SessionState::kClosed) return;
  state_ = SessionState::kClosed;
  events_.push({.kind = Event::Kind::kLeft});
}

void Relay::handle(Leg& leg, const Event& event, TimeNs now) {
  switch (event.kind) {
    case Event::Kind::kLeft: return end_leg(leg);
    case Event::Kind::kFailed: lose(leg, event.status, now); return end_leg(leg);
    default: break;
  }
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  const bool standby = leg.is_standby();
  if (event.kind == Event::Kind::kCollectiveDone) return handle_collective(leg, event, now);
  if (detours_.is_lost(leg)) return handle_attempt(leg, event, now);
  if (standby && !detours_.has_moved(leg.address.level)) return;
  switch (event.kind) {
    case Event::Kind::kStarted:
      if (leg.address.role == Role::kRendezvous) begin_rendezvous(leg, now);
      return;
    case Event::Kind::kCreditLimits: return events_.push(event);
    case Event::Kind::kStalled:  // one for all
      if (stall_told_ns_ != 0 && now - stall_told_ns_ < options_.stall_report_ns) return;
      stall_told_ns_ = now;
      return events_.push({.kind = event.kind, .step = tensors_.current(), .status = event.status});
    case Event::Kind::kTensorDone:
      if (!leg.parts.empty() || standby) part_trace_.take(leg, legs_, detours_, tensors_.current());
      if (standby) return handle_standby(leg, event, now);
      if (leg.address.role != Role::kRendezvous) return handle_slice(leg, event, now);
      if (Status status = rendezvous_.check(leg); !status.ok()) return fail(status, now);
      rendezvous_.note_met(leg.address.level);
      return;
    default: return;
  }
}

void Relay::handle_slice(Leg& leg, const Event& event, TimeNs now) {
  SliceState& state = legs_.slices[leg.slices[event.tensor]];
  CHECK(state.in_flight != 0);
  --state.in_flight;
  const std::uint32_t stage = leg.address.stage;
  const bool owns = stage < state.stages;
  // A sum on its way is contributed with its weight, which has 32 bits.
  const std::uint64_t own_weight = leg.address.role == Role::kUp && owns ? state.weight : 0;
  if (event.weight > UINT32_MAX - own_weight)
    return fail(
        {StatusCode::kInvalidArgument,
         error_prefix(options_) + "the weights of step " + std::to_string(tensors_.current()) +
             " sum to " + std::to_string(event.weight + own_weight) +
             " or more, and over a BCube of several levels to " + std::to_string(UINT32_MAX) +
             " at most: divide all ranks' weights by one "
             "number"},
        now);
  if (Failover* const failover = detours_.failover_of(leg))
    failover->handover().finish(leg.first_row + event.tensor);
  if (leg.address.role == Role::kUp && owns) {
    add_partial_sum(state, event);
    reduce_slice(state, stage + 1, now);
  } else if (leg.address.role == Role::kTurn || (leg.address.role == Role::kDown && !owns)) {
    state.weight = event.weight;
    if (leg.address.role == Role::kTurn && !kept_.empty() && !event.absent)
      std::copy_n(&kept_[state.first_partial], state.slice.elem_count, state.output);
    state.value = event.absent ? nullptr : state.output;
    state.non_finite |= event.non_finite;
    state.whole = true;
    keep(state, leg.address.role);
    broadcast_slice(state, stage, now);
  }
  if (state.whole && state.in_flight == 0) finish(state, now);
}

// ---- a slice's way ----

void Relay::begin(std::uint32_t tensor, TimeNs now) {
  const bool left_out = tensors_.part(tensor) == Tensors::Part::kLeftOut;
  std::vector<float>& unused = unused_results_[tensor];
  if (left_out) unused.resize(layout_.tensor(tensor).elem_count);
  const Submission submission =
      left_out
          ? Submission{.output = unused.data(), .weight = last_weight_, .priority = kLeastUrgent}
          : tensors_.submission(tensor);
  const std::uint32_t first = legs_.first_slices[tensor], end = legs_.first_slices[tensor + 1];
  progress_[tensor] = {.slices_left = end - first};
  if (!left_out)
    trace_.queued(tensor, tensors_.current(), submission.priority, true, submission.ready_ns, now);
  if (submission.input != nullptr && residuals_.covers(tensor))
    residuals_.begin_step(tensor, static_cast<const float*>(submission.input));
  beginning_ = {.tensor = tensor, .submission = submission, .next = first};
  for (std::uint32_t level = 0; level < detours_.failovers.size();
       ++level)  // no slice will bring it there
    if (detours_.failovers[level].rows().empty()) come_to(level, now);
}

void Relay::begin_slice(TimeNs now) {
  CHECK(beginning_.has_value());
  SliceState& state = legs_.slices[beginning_->next];
  CHECK(state.in_flight == 0 && state.slice.tensor == beginning_->tensor);
  const Submission& submission = beginning_->submission;
  const auto* input = static_cast<const float*>(submission.input);
  auto* const output = static_cast<float*>(submission.output);
  if (input != nullptr && residuals_.covers(state.slice.tensor)) {
    take_what_leaves(state.slice, input, output);
    input = output;
  }
  state.value = input == nullptr ? nullptr : input + state.slice.first_elem;
  state.output = output + state.slice.first_elem;
  state.weight = submission.weight;
  state.priority = submission.priority;
  state.ready_ns = submission.ready_ns;
  state.whole = false;
  state.non_finite = false;
  if (++beginning_->next == legs_.first_slices[state.slice.tensor + 1]) beginning_.reset();
  reduce_slice(state, 0, now);
}

// The rest becomes residual.
void Relay::take_what_leaves(const Slice& slice, const float* gradient, float* output) {
  const std::uint32_t tensor = slice.tensor;
  const std::uint64_t chunk_elems = chunk_elems_of(bcube_, layout_, tensor);
  const std::uint64_t end = slice.first_elem + slice.elem_count;
  for (std::uint64_t first = slice.first_elem; first < end; first += chunk_elems) {
    const ChunkSpan span{
        .tensor = tensor,
        .first_elem = first,
        .elem_count = static_cast<std::uint16_t>(std::min(chunk_elems, end - first))};
    residuals_.pack(span, gradient + first, packed_.data());
    residuals_.update(span, gradient + first, true);
    agg::fold_store(output + first, packed_.data(), span.elem_count, layout_.wire_dtype(tensor));
  }
}

// Contributes what this worker has to the sum of its next half-way owner, or takes what the others
// have for this one.
void Relay::reduce_slice(SliceState& state, std::uint32_t stage, TimeNs now) {
  CHECK(stage <= turn_stage() && stage <= state.stages && state.weight <= UINT32_MAX);
  const auto weight = static_cast<std::uint32_t>(state.weight);
  const LegTensor& up = state.up[stage];
  if (stage == turn_stage()) {  // its input must outlive the result, or nobody could begin again
    float* const output = kept_.empty() ? state.output : &kept_[state.first_partial];
    return submit_slice(state, up, {.input = state.value, .output = output, .weight = weight}, now);
  }
  if (stage < state.stages)
    return submit_slice(state, up,
                        {.output = &partial_sums_[state.first_partial], .weight = kNoWeight}, now);
  // Its sum comes down as soon as it is whole, so this worker is ready for it.
  submit_slice(state, up,
               {.input = state.value, .output = state.output, .weight = weight, .wanted = false},
               now);
  submit_slice(state, state.down[stage], {.output = state.output, .weight = kNoWeight}, now);
}

// The others' sum came; with this worker's own it is the partial sum, which stands in the output.
void Relay::add_partial_sum(SliceState& state, const Event& event) noexcept {
  state.weight += event.weight;
  state.non_finite |= event.non_finite;
  if (event.absent) return;
  const float* others = &partial_sums_[state.first_partial];
  if (state.value == nullptr)
    std::copy_n(others, state.slice.elem_count, state.output);
  else
    std::transform(others, others + state.slice.elem_count, state.value, state.output,
                   std::plus<>());
  state.value = state.output;
}

// The sum of all is here: to everybody who is below this worker in the stages before.
void Relay::broadcast_slice(SliceState& state, std::uint32_t from_stage, TimeNs now) {
  CHECK(state.whole && from_stage <= state.stages && state.weight <= UINT32_MAX);
  for (std::uint32_t stage = from_stage; stage-- != 0;)
    submit_slice(state, state.down[stage],
                 {.input = state.value,
                  .output = state.output,
                  .weight = static_cast<std::uint32_t>(state.weight),
                  .wanted = false,
                  .averaged = layout_.is_rounded(state.slice.tensor)},
                 now);
}

// Networks whose ports send what has farthest to go keep all of them busy, those whose ports send
// what came first need not (Andrews et al., JACM 2001). In plain servers' ports send both ways.
Priority Relay::priority_of(const SliceState& state, Role role) const noexcept {
  const bool down = mode_ == BcubeMode::kAggregated && role == Role::kDown;
  const unsigned behind = down ? kPrioritiesOfClass : 0;
  return static_cast<Priority>(std::min<unsigned>(state.priority + behind, kLeastUrgent));
}

void Relay::submit_slice(SliceState& state, const LegTensor& stop, Submission submission,
                         TimeNs now) {
  Leg& leg = legs_.all[stop.leg];
  submission.tensor = stop.tensor;
  submission.priority = priority_of(state, leg.address.role);
  submission.ready_ns = std::max(now, state.ready_ns);
  ++state.in_flight;
  if (Failover* const failover = detours_.failover_of(leg)) {
    const std::uint32_t index = leg.first_row + stop.tensor;
    failover->rows()[index].submission = submission;
    failover->handover().contribute(index, tensors_.current());
    failover->return_vote().come_to(tensors_.current());
    if (failover->in_use()) {
      offer(leg.address.level, index, now);
      return vote(leg.address.level, now);
    }
    if (detours_.will_move(leg)) return;
  }
  const Status status = leg.session.submit(submission, now);
  if (!status.ok()) fail(status, now);
}

// The same bits of the same sum, or rounded average, on every server.
void Relay::finish(SliceState& state, TimeNs now) {
  CHECK(state.whole && state.in_flight == 0);
  const std::uint32_t tensor = state.slice.tensor;
  const bool wants_sum = tensors_.averaging(tensor) == AveragingChoice::kSum;
  const bool is_mean = layout_.is_rounded(tensor);
  const std::span<float> values{state.output, state.slice.elem_count};
  const auto weight = static_cast<float>(state.weight);
  if (state.value != nullptr && wants_sum && is_mean)
    for (float& value : values) value *= weight;
  if (state.value != nullptr && !wants_sum && !is_mean)
    for (float& value : values) value /= weight;
  if (state.value != nullptr && !wants_sum) state.non_finite |= state.weight == 0;
  Progress& progress = progress_[tensor];
  progress.weight = state.weight;
  progress.any_data |= state.value != nullptr;
  progress.non_finite |= state.non_finite;
  CHECK(progress.slices_left != 0);
  if (--progress.slices_left != 0) return;
  const Step step = tensors_.current();
  const bool left_out = tensors_.part(tensor) == Tensors::Part::kLeftOut;
  tensors_.done(
      tensor,
      {.weight = progress.weight, .absent = !progress.any_data, .non_finite = progress.non_finite},
      now);
  if (!left_out) trace_.done(tensor, step, now);
  if (!left_out) part_trace_.close(tensor, step);
  if (!left_out)
    events_.push({.kind = Event::Kind::kTensorDone,
                  .tensor = tensor,
                  .step = step,
                  .weight = progress.weight,
                  .absent = !progress.any_data,
                  .non_finite = progress.non_finite});
  step_weight_ = progress.weight;
  end_step_when_done(now);
}

// Who would leave now must leave nothing undone at another switch.
void Relay::end_step_when_done(TimeNs now) {
  if (!tensors_.all_done()) return;
  if (detours_.is_busy()) return;
  const Step step = tensors_.current();
  note_step(step, step_weight_);
  events_.push({.kind = Event::Kind::kStepDone, .step = step, .weight = step_weight_});
  begin_next_step(now);
}

}  // namespace sluice::client
