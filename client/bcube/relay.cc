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
      spares_(layout_.tensor_count()),
      meetings_(bcube_.levels()),
      met_(bcube_.levels()),
      all_run_ns_(bcube_.levels()),
      meetings_over_(bcube_.levels()),
      why_moved_(bcube_.levels()),
      events_(layout_.tensor_count() + 8) {
  CHECK(options_.executor == nullptr);  // a slice is packed as soon as its step begins
  facts_.averaging = resolved(options_.averaging, {});
  for (std::uint32_t tensor = 0; tensor < tensors_.count(); ++tensor)
    tensors_.set_averaging(tensor, facts_.averaging);
  if (options_.trace) trace_.enable(layout_.tensor_count());
}

Result<std::unique_ptr<Relay>> Relay::create(SessionOptions options, const Bcube& bcube,
                                             BcubeMode mode, Layout layout, TimeNs now,
                                             const PrepareLane& prepare) {
  if (Status status = check(options, bcube, layout); !status.ok()) return status;
  std::unique_ptr<Relay> relay(new Relay(std::move(options), bcube, mode, std::move(layout)));
  relay->plan_passages();
  if (Status status = relay->make_lanes(now, prepare); !status.ok()) return status;
  return relay;
}

// The lanes tell the others; nobody waits for that.
void Relay::fail(Status why, TimeNs now) {
  CHECK(!why.ok());
  if (state_ == SessionState::kClosed) return;
  failure_ = std::move(why);
  state_ = SessionState::kClosed;
  beginning_.reset();
  for (Lane& lane : lanes_)
    if (lane.session.state() != SessionState::kClosed)
      lane.session.leave(wire::LeaveReason::kAbnormal, now);
  for (std::uint32_t tensor = 0; tensor < tensors_.count(); ++tensor)
    if (tensors_.in_flight(tensor))
      events_.push({.kind = Event::Kind::kTensorLost, .tensor = tensor, .status = failure_});
  events_.push({.kind = Event::Kind::kFailed, .status = failure_});
}

// ---- what the lanes say ----

// A lane's answer may be another lane's submission, which may be done at once. A slice at a time,
// which is rounded on the way: a caller may come between, and waits for no more than a burst.
bool Relay::act_on_call(TimeNs now) {
  bool acted = false;
  try_ways(now);
  for (Lane& lane : lanes_)
    for (Event event; lane.session.poll_event(event); acted = true) handle(lane, event, now);
  lose_what_is_needed(now);
  await_spares(now);
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

void Relay::end_lane(Lane& lane) {
  CHECK(ended_lanes_ < lanes_.size() && !lane.over);
  lane.over = true;
  if (++ended_lanes_ != lanes_.size() || state_ == SessionState::kClosed) return;
  state_ = SessionState::kClosed;
  events_.push({.kind = Event::Kind::kLeft});
}

void Relay::handle(Lane& lane, const Event& event, TimeNs now) {
  switch (event.kind) {
    case Event::Kind::kLeft: return end_lane(lane);
    case Event::Kind::kFailed: lose(lane, event.status, now); return end_lane(lane);
    default: break;
  }
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  const bool spare = is_spare(lane);
  if (event.kind == Event::Kind::kCollectiveDone) return handle_collective(lane, event, now);
  if (is_lost(lane)) return handle_attempt(lane, event, now);
  if (spare && !has_moved(lane.place.level)) return;
  switch (event.kind) {
    case Event::Kind::kStarted:
      if (lane.place.way == Way::kMeeting) meet(lane, now);
      return;
    case Event::Kind::kStalled:  // one for all
      if (stall_told_ns_ != 0 && now - stall_told_ns_ < options_.stall_report_ns) return;
      stall_told_ns_ = now;
      return events_.push({.kind = event.kind, .step = tensors_.current(), .status = event.status});
    case Event::Kind::kTensorDone:
      if (!lane.parts.empty() || spare) trace_slices(lane);
      if (spare) return handle_spare(lane, event, now);
      if (lane.place.way != Way::kMeeting) return handle_slice(lane, event, now);
      if (Status status = check_meeting(lane); !status.ok()) return fail(status, now);
      met_[lane.place.level] = true;
      return;
    default: return;
  }
}

void Relay::handle_slice(Lane& lane, const Event& event, TimeNs now) {
  Passage& passage = passages_[lane.slices[event.tensor]];
  CHECK(passage.in_flight != 0);
  --passage.in_flight;
  const std::uint32_t stage = lane.place.stage;
  const bool owns = stage < passage.stages;
  // A sum on its way is contributed with its weight, which has 32 bits.
  const std::uint64_t own_weight = lane.place.way == Way::kUp && owns ? passage.weight : 0;
  if (event.weight > UINT32_MAX - own_weight)
    return fail(
        {StatusCode::kInvalidArgument,
         error_prefix(options_) + "the weights of step " + std::to_string(tensors_.current()) +
             " sum to " + std::to_string(event.weight + own_weight) +
             " or more, and over a BCube of several levels to " + std::to_string(UINT32_MAX) +
             " at most: divide all ranks' weights by one "
             "number"},
        now);
  if (Failover* const failover = failover_of(lane))
    failover->handover().finish(lane.first_row + event.tensor);
  if (lane.place.way == Way::kUp && owns) {
    add_half(passage, event);
    climb(passage, stage + 1, now);
  } else if (lane.place.way == Way::kTurn || (lane.place.way == Way::kDown && !owns)) {
    passage.weight = event.weight;
    if (lane.place.way == Way::kTurn && !kept_.empty() && !event.absent)
      std::copy_n(&kept_[passage.first_half], passage.slice.elem_count, passage.output);
    passage.value = event.absent ? nullptr : passage.output;
    passage.non_finite |= event.non_finite;
    passage.whole = true;
    keep(passage, lane.place.way);
    descend(passage, stage, now);
  }
  if (passage.whole && passage.in_flight == 0) finish(passage, now);
}

// ---- a slice's way ----

void Relay::begin(std::uint32_t tensor, TimeNs now) {
  const bool left_out = tensors_.part(tensor) == Tensors::Part::kLeftOut;
  std::vector<float>& spare = spares_[tensor];
  if (left_out) spare.resize(layout_.tensor(tensor).elem_count);
  const Submission submission =
      left_out
          ? Submission{.output = spare.data(), .weight = last_weight_, .priority = kLeastUrgent}
          : tensors_.submission(tensor);
  const std::uint32_t first = first_passages_[tensor], end = first_passages_[tensor + 1];
  progress_[tensor] = {.slices_left = end - first};
  if (!left_out)
    trace_.queued(tensor, tensors_.current(), submission.priority, true, submission.ready_ns, now);
  if (submission.input != nullptr && residuals_.covers(tensor))
    residuals_.begin_step(tensor, static_cast<const float*>(submission.input));
  beginning_ = {.tensor = tensor, .submission = submission, .next = first};
  for (std::uint32_t level = 0; level < failovers_.size(); ++level)  // no slice will bring it there
    if (failovers_[level].rows().empty()) come_to(level, now);
}

void Relay::begin_slice(TimeNs now) {
  CHECK(beginning_.has_value());
  Passage& passage = passages_[beginning_->next];
  CHECK(passage.in_flight == 0 && passage.slice.tensor == beginning_->tensor);
  const Submission& submission = beginning_->submission;
  const auto* input = static_cast<const float*>(submission.input);
  auto* const output = static_cast<float*>(submission.output);
  if (input != nullptr && residuals_.covers(passage.slice.tensor)) {
    take_what_leaves(passage.slice, input, output);
    input = output;
  }
  passage.value = input == nullptr ? nullptr : input + passage.slice.first_elem;
  passage.output = output + passage.slice.first_elem;
  passage.weight = submission.weight;
  passage.priority = submission.priority;
  passage.ready_ns = submission.ready_ns;
  passage.whole = false;
  passage.non_finite = false;
  if (++beginning_->next == first_passages_[passage.slice.tensor + 1]) beginning_.reset();
  climb(passage, 0, now);
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
void Relay::climb(Passage& passage, std::uint32_t stage, TimeNs now) {
  CHECK(stage <= turn_stage() && stage <= passage.stages && passage.weight <= UINT32_MAX);
  const auto weight = static_cast<std::uint32_t>(passage.weight);
  const Stop& up = passage.up[stage];
  if (stage == turn_stage()) {  // its input must outlive the result, or nobody could begin again
    float* const output = kept_.empty() ? passage.output : &kept_[passage.first_half];
    return submit_slice(passage, up, {.input = passage.value, .output = output, .weight = weight},
                        now);
  }
  if (stage < passage.stages)
    return submit_slice(passage, up, {.output = &halves_[passage.first_half], .weight = kNoWeight},
                        now);
  // Its sum comes down as soon as it is whole, so this worker is ready for it.
  submit_slice(
      passage, up,
      {.input = passage.value, .output = passage.output, .weight = weight, .wanted = false}, now);
  submit_slice(passage, passage.down[stage], {.output = passage.output, .weight = kNoWeight}, now);
}

// The others' sum came; with this worker's own it is the half-way sum, which stands in the output.
void Relay::add_half(Passage& passage, const Event& event) noexcept {
  passage.weight += event.weight;
  passage.non_finite |= event.non_finite;
  if (event.absent) return;
  const float* others = &halves_[passage.first_half];
  if (passage.value == nullptr)
    std::copy_n(others, passage.slice.elem_count, passage.output);
  else
    std::transform(others, others + passage.slice.elem_count, passage.value, passage.output,
                   std::plus<>());
  passage.value = passage.output;
}

// The sum of all is here: to everybody who is below this worker in the stages before.
void Relay::descend(Passage& passage, std::uint32_t from_stage, TimeNs now) {
  CHECK(passage.whole && from_stage <= passage.stages && passage.weight <= UINT32_MAX);
  for (std::uint32_t stage = from_stage; stage-- != 0;)
    submit_slice(passage, passage.down[stage],
                 {.input = passage.value,
                  .output = passage.output,
                  .weight = static_cast<std::uint32_t>(passage.weight),
                  .wanted = false,
                  .averaged = layout_.is_rounded(passage.slice.tensor)},
                 now);
}

// Networks whose ports send what has farthest to go keep all of them busy, those whose ports send
// what came first need not (Andrews et al., JACM 2001). In plain servers' ports send both ways.
Priority Relay::priority_of(const Passage& passage, Way way) const noexcept {
  const bool down = mode_ == BcubeMode::kAggregated && way == Way::kDown;
  const unsigned behind = down ? kPrioritiesOfClass : 0;
  return static_cast<Priority>(std::min<unsigned>(passage.priority + behind, kLeastUrgent));
}

void Relay::submit_slice(Passage& passage, const Stop& stop, Submission submission, TimeNs now) {
  Lane& lane = lanes_[stop.lane];
  submission.tensor = stop.tensor;
  submission.priority = priority_of(passage, lane.place.way);
  submission.ready_ns = std::max(now, passage.ready_ns);
  ++passage.in_flight;
  if (Failover* const failover = failover_of(lane)) {
    const std::uint32_t index = lane.first_row + stop.tensor;
    failover->rows()[index].submission = submission;
    failover->handover().contribute(index, tensors_.current());
    failover->return_vote().come_to(tensors_.current());
    if (failover->in_use()) {
      offer(lane.place.level, index, now);
      return vote(lane.place.level, now);
    }
    if (will_move(lane)) return;
  }
  const Status status = lane.session.submit(submission, now);
  if (!status.ok()) fail(status, now);
}

// The same bits of the same sum, or rounded average, on every server.
void Relay::finish(Passage& passage, TimeNs now) {
  CHECK(passage.whole && passage.in_flight == 0);
  const std::uint32_t tensor = passage.slice.tensor;
  const bool wants_sum = tensors_.averaging(tensor) == AveragingChoice::kSum;
  const bool is_mean = layout_.is_rounded(tensor);
  const std::span<float> values{passage.output, passage.slice.elem_count};
  const auto weight = static_cast<float>(passage.weight);
  if (passage.value != nullptr && wants_sum && is_mean)
    for (float& value : values) value *= weight;
  if (passage.value != nullptr && !wants_sum && !is_mean)
    for (float& value : values) value /= weight;
  if (passage.value != nullptr && !wants_sum) passage.non_finite |= passage.weight == 0;
  Progress& progress = progress_[tensor];
  progress.weight = passage.weight;
  progress.any_data |= passage.value != nullptr;
  progress.non_finite |= passage.non_finite;
  CHECK(progress.slices_left != 0);
  if (--progress.slices_left != 0) return;
  const Step step = tensors_.current();
  const bool left_out = tensors_.part(tensor) == Tensors::Part::kLeftOut;
  tensors_.done(
      tensor,
      {.weight = progress.weight, .absent = !progress.any_data, .non_finite = progress.non_finite},
      now);
  if (!left_out) trace_.done(tensor, step, now);
  if (!left_out) close_parts(tensor, step);
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
  if (std::ranges::any_of(failovers_, &Failover::is_busy)) return;
  const Step step = tensors_.current();
  note_step(step, step_weight_);
  events_.push({.kind = Event::Kind::kStepDone, .step = step, .weight = step_weight_});
  begin_next_step(now);
}

}  // namespace sluice::client
