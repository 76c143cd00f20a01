// The application of a worker: the loop that a user would write.
#include <algorithm>

#include "tests/sim/random.h"
#include "tests/sim/worker.h"
#include "tests/sim/world.h"

namespace sluice::sim {

void Worker::on_event(const client::Event& event, TimeNs now) {
  using Kind = client::Event::Kind;
  log_.push_back(
      {event.kind, event.tensor, event.step, now, event.absent, event.non_finite, event.status});
  if (failed_) violation("an event after kFailed");
  if (event.kind != Kind::kStalled) progressed_at_ = now;
  switch (event.kind) {
    case Kind::kJoined: break;
    case Kind::kOperationDone: groups_->on_event(event); break;
    case Kind::kTensorLost:  // what was in flight shows in what comes with it
      if (layout.tensor(event.tensor).far) far_.over(event.tensor, nullptr);
      break;
    case Kind::kStalled:
    case Kind::kCreditLimits:
    case Kind::kDetoured: break;
    case Kind::kReturned: returned = event.status.message(); break;
    case Kind::kPushDone:
    case Kind::kPullDone: store_->on_event(event); break;
    case Kind::kStarted: on_started(); break;
    case Kind::kTensorDone:
      ++tensors_done_;
      absent_[event.tensor] = event.absent;
      if (layout.tensor(event.tensor).far)
        far_.over(event.tensor,
                  event.absent ? nullptr : reinterpret_cast<float*>(outputs_[event.tensor].data()));
      check_tensor(event);
      if (plan.pipelined && event.step < plan.ranks[identity.rank.value].last_step)
        submit(event.tensor, event.step + 1, now);
      break;
    case Kind::kStepDone: on_step_done(event); break;
    case Kind::kCollectiveDone:
      if (plan.manual) break;
      world_.oracle().on_collective_done(party(), next_collective_, event.status);
      if (event.status.ok()) check_collective();
      ++next_collective_;
      phase_ = Phase::kNext;
      break;
    case Kind::kFellBehind: on_fell_behind(event); break;
    case Kind::kStateWanted:
      state_wanted_ = true;
      // It waits: nothing changes the parameters now.
      if (phase_ == Phase::kStep || phase_ == Phase::kCollective || finished_) give_state(now);
      break;
    case Kind::kStateUnwanted: state_wanted_ = false; break;
    case Kind::kStateSent:
      std::fill(given_.begin(), given_.end(), kUntouched);  // a late read of it shows
      given_ = {};
      break;
    case Kind::kStateReceived: on_state_received(event); break;
    case Kind::kLeft:
      left_ = true;
      phase_ = Phase::kOver;
      world_.note_over(identity.run);
      break;
    case Kind::kFailed:
      failed_ = true;
      failure_ = event.status;
      failed_at_ = now;
      phase_ = Phase::kOver;
      world_.note_over(identity.run);
      break;
  }
}

void Worker::on_started() {
  started_ = true;
  world_.oracle().note_window(identity.run, session_->facts().window_steps);
  // A process that takes over a rank begins where the job stands.
  step_ = steps_done_ = session_->current_step() - 1;
  // One that joins a running job has no part in what the others have called before.
  if (!session_->behind_status().ok())
    next_collective_ = world_.oracle().collective_at(identity.run, session_->collective_step());
  if (!plan.manual) phase_ = Phase::kNext;
  if (plan.is_operations()) {
    groups_ = std::make_unique<GroupLoop>(world_, *this);
    groups_->start(world_.now());
  }
  if (!plan.is_store()) return;
  store_ = std::make_unique<StoreLoop>(world_, *this);
  store_->start();
}

void Worker::on_step_done(const client::Event& event) {
  if (event.step != steps_done_ + 1)
    violation("step " + std::to_string(event.step) + " is done after step " +
              std::to_string(steps_done_));
  steps_done_ = event.step;
  if (plan.manual) return;
  if (!plan.pipelined && tensors_done_ < order_.size())
    violation("step " + std::to_string(event.step) + " is done before its tensors");
  if (plan.tolerates_stragglers()) apply_step(event.step);
  if (!plan.pipelined || event.step == plan.ranks[identity.rank.value].last_step)
    phase_ = Phase::kNext;
}

void Worker::on_fell_behind(const client::Event& event) {
  if (!plan.tolerates_stragglers())
    violation("step " + std::to_string(event.step) + " went on without this rank");
  if (plan.manual) return;
  if (phase_ == Phase::kSubmitting || phase_ == Phase::kStep) phase_ = Phase::kNext;
}

// A worker of a store that has pushed all waits for the others, reads the final parameters, and
// leaves.
bool Worker::advance_loop(TimeNs now) {
  if (failed_ || left_) return false;
  const bool busy = store_ ? store_->advance(now) : groups_->advance(now);
  steps_done_ = store_ ? store_->counted() : groups_->rounds_done();
  const bool over = store_ ? store_->over() : groups_->over();
  if (phase_ == Phase::kNext && over) finish(now);
  if (!store_) return busy;
  if (!store_->has_read_last() || session_->state() != client::SessionState::kRunning) return busy;
  session_->leave(wire::LeaveReason::kFinished, now);
  return true;
}

bool Worker::advance(TimeNs now) {
  if (store_ || groups_) return advance_loop(now);
  switch (phase_) {
    case Phase::kNext: return begin_next(now);
    case Phase::kSubmitting: return submit_due(now);
    default: return false;
  }
}

bool Worker::begin_next(TimeNs now) {
  const RankPlan& rank = plan.ranks[identity.rank.value];
  if (plan.tolerates_stragglers()) {
    if (!session_->behind_status().ok()) return begin_resync(now);
    step_ = steps_done_;
    give_state(now);
  }
  const Step next = (plan.pipelined ? steps_done_ : step_) + 1;
  if (next_collective_ < plan.collectives.size() &&
      plan.collectives[next_collective_].before_step <= next)
    return start_collective(now);
  if (next > rank.last_step) {
    finish(now);
    return true;
  }
  step_ = next;
  submitted_ = 0;
  tensors_done_ = 0;
  if (plan.tolerates_stragglers() && session_->behind() != 0) return begin_catching_up(now);
  catching_up_ = false;
  if (plan.flush_last && step_ == rank.last_step) {
    flushes_ = true;
    expect_ok(session_->flush_residuals(), "flush_residuals");
  }
  order_ = plan.submission_order(identity.rank, step_);
  app_due_ = now + plan.compute_ns(identity.rank, step_);
  phase_ = Phase::kSubmitting;
  if (app_due_ > now) wake_app_at(app_due_);
  return true;
}

// A step that this replica applies without having computed for it.
bool Worker::begin_catching_up(TimeNs now) {
  if (session_->current_step() != step_)
    violation("the session is at step " + std::to_string(session_->current_step()) +
              ", its application at " + std::to_string(step_));
  catching_up_ = true;
  order_.resize(plan.tensors.size());
  phase_ = Phase::kStep;
  for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
    order_[tensor] = tensor;
    tensor_steps_[tensor] = step_;
    std::fill(outputs_[tensor].begin(), outputs_[tensor].end(), kUntouched);
    const client::Submission submission{.tensor = tensor,
                                        .output = outputs_[tensor].data(),
                                        .priority = plan.priority(identity.rank, step_, tensor),
                                        .contribute = false,
                                        .far = far_of(tensor, nullptr)};
    if (expect_ok(session_->submit(submission, now), "catching up")) continue;
    phase_ = Phase::kNext;
    return true;
  }
  ++steps_caught_up_;
  return true;
}

bool Worker::begin_resync(TimeNs now) {
  phase_ = Phase::kResync;
  give_up(steps_done_ + 1);
  return expect_ok(session_->resync(now), "resync");
}

void Worker::on_state_received(const client::Event& event) {
  const std::string where = "the state of step " + std::to_string(event.step);
  if (!event.status.ok()) return violation(where + " is lost: " + event.status.message());
  if (phase_ != Phase::kResync && !plan.manual) return violation(where + " came unasked");
  if (!session_->has_state()) return violation(where + " is not there");
  const client::ReceivedState state = session_->take_state(world_.now());
  if (!decode_state(plan, {state.data.get(), state.bytes}, event.step, replica_))
    return violation(where + " is not what a rank has given");
  if (session_->current_step() != event.step + 1)
    violation("the session goes on at step " + std::to_string(session_->current_step()) +
              " after " + where);
  ++resyncs_;
  world_.oracle().on_state(party(), event.step);
  step_ = steps_done_ = event.step;
  if (event.step != 0) world_.oracle().on_applied(party(), event.step, replica_);
  if (!plan.manual) phase_ = Phase::kNext;
}

void Worker::give_state(TimeNs now) {
  if (!state_wanted_) return;
  state_wanted_ = false;
  std::vector<std::uint8_t> state = encode_state(plan, replica_, steps_done_);
  if (!session_->send_state(state, steps_done_, now)) return;
  ++states_given_;
  given_ = std::move(state);
}

bool Worker::submit_due(TimeNs now) {
  if (app_due_ > now) return false;
  if (submitted_ < order_.size()) {
    submit(order_[submitted_++], step_, now);
    if (phase_ != Phase::kSubmitting) return true;
    if (submitted_ < order_.size()) {
      app_due_ =
          now + (plan.gap_rule ? plan.gap_rule(step_, order_[submitted_ - 1])
                               : world_.draw_delay(plan.ranks[identity.rank.value].compute_max_ns));
      if (app_due_ > now) wake_app_at(app_due_);
      return true;
    }
  }
  ++steps_computed_;
  const bool needed = order_.size() < plan.tensors.size() && !plan.forget_end_step;
  if (needed || plan.call_end_step) expect_ok(session_->end_step(), "end_step");
  phase_ = Phase::kStep;
  give_state(now);  // the others may wait for a rank that waits for it
  return true;
}

client::FarTensor* Worker::far_of(std::uint32_t tensor, const std::uint8_t* input) {
  if (!layout.tensor(tensor).far) return nullptr;
  return far_.submit(tensor, reinterpret_cast<const float*>(input), flushes_);
}

void Worker::submit(std::uint32_t tensor, Step step, TimeNs now) {
  const client::TensorSpec& spec = plan.tensors[tensor];
  const std::size_t elem_bytes = dtype_bytes(spec.dtype);
  if (plan.move_buffers) {
    inputs_[tensor] = std::vector<std::uint8_t>(inputs_[tensor].size());
    outputs_[tensor] = std::vector<std::uint8_t>(outputs_[tensor].size());
  }
  std::uint8_t* input = plan.in_place ? outputs_[tensor].data() : inputs_[tensor].data();
  if (!plan.in_place) std::fill(outputs_[tensor].begin(), outputs_[tensor].end(), kUntouched);
  for (std::uint64_t i = 0; i < spec.elem_count; ++i)
    store_element(spec.dtype, plan.gradient(identity.rank, step, tensor, i),
                  input + i * elem_bytes);
  tensor_steps_[tensor] = step;
  const bool nil = plan.is_nil(identity.rank, step, tensor);
  if (nil) std::fill(outputs_[tensor].begin(), outputs_[tensor].end(), kUntouched);
  const client::Submission submission{.tensor = tensor,
                                      .input = nil ? nullptr : input,
                                      .output = outputs_[tensor].data(),
                                      .weight = plan.weight(identity.rank, step),
                                      .priority = plan.priority(identity.rank, step, tensor),
                                      .far = far_of(tensor, nil ? nullptr : input)};
  std::vector<float> velocity;
  if (plan.has_velocity(tensor)) {
    client::Kept kept;
    if (session_->residual(tensor, kept).ok() && kept.values.size() == 2 * spec.elem_count)
      velocity.assign(kept.values.begin() + static_cast<std::ptrdiff_t>(spec.elem_count),
                      kept.values.end());
  }
  if (expect_ok(session_->submit(submission, now), "submit")) {
    world_.oracle().on_submitted(party(), step, tensor, !nil, velocity);
  } else if (phase_ == Phase::kSubmitting) {
    phase_ = Phase::kNext;  // fallen behind
  }
}

bool Worker::start_collective(TimeNs now) {
  const CollectivePlan& collective = plan.collectives[next_collective_];
  phase_ = Phase::kCollective;
  const bool is_behind = session_->epoch() < world_.epoch(identity.run);  // others have moved
  world_.oracle().on_collective_begun(
      party(), next_collective_, session_->collective_step(),
      is_behind ? Oracle::Appliance::kBefore : Oracle::Appliance::kHere);
  if (collective.kind == CollectiveKind::kBarrier) {
    expect_ok(session_->barrier(now), "barrier");
    return true;
  }
  collective_buffer_.assign(collective.size_bytes, kUntouched);
  if (identity.rank == collective.root)
    for (std::size_t i = 0; i < collective_buffer_.size(); ++i)
      collective_buffer_[i] = plan.broadcast_byte(next_collective_, i);
  expect_ok(session_->broadcast(collective.root, collective_buffer_.data(),
                                collective_buffer_.size(), now),
            "broadcast");
  return true;
}

void Worker::finish(TimeNs now) {
  phase_ = Phase::kOver;
  const Ending ending = plan.ranks[identity.rank.value].ending;
  // With a state that has the last step already there is nothing to do, nor to wait for.
  const bool idle = log_.back().kind == client::Event::Kind::kStateReceived;
  if (ending == Ending::kStay || (ending == Ending::kTogether && !idle)) {
    finished_ = true;
    world_.note_over(identity.run);
  } else {
    session_->leave(ending == Ending::kAbnormal ? wire::LeaveReason::kAbnormal
                    : ending == Ending::kUneven ? wire::LeaveReason::kUneven
                                                : wire::LeaveReason::kFinished,
                    now);
  }
}

void Worker::leave_together(TimeNs now) {
  all_over_ = true;
  if (state_ != ProcessState::kRunning || !finished_ || left_ || failed_ || !together()) return;
  if (store_)
    store_->read_last();
  else
    session_->leave(wire::LeaveReason::kFinished, now);
  pump(now);
}

void Worker::wake_app_at(TimeNs at) {
  world_.events().push(at, EventKind::kWorkerApp, identity.index);
}

}  // namespace sluice::sim
