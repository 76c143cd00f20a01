#include "tests/sim/worker.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "aggregator/wire/packet.h"
#include "tests/sim/random.h"
#include "tests/sim/world.h"

namespace sluice::sim {
namespace {
constexpr std::uint8_t kUntouched = 0xA5;
}

Worker::Worker(World& world, const Identity& id, const JobPlan& job_plan,
               const client::Layout& job_layout)
    : identity(id), plan(job_plan), layout(job_layout), world_(world), buffer_(kMaxDatagramBytes) {
  for (const client::TensorSpec& tensor : plan.tensors) {
    const std::size_t bytes = tensor.elem_count * dtype_bytes(tensor.dtype);
    inputs_.emplace_back(bytes);
    outputs_.emplace_back(bytes, kUntouched);
  }
  tensor_steps_.resize(plan.tensors.size());
}

void Worker::violation(const std::string& text) {
  world_.oracle().violation("job " + plan.name + " rank " + std::to_string(identity.rank.value) +
                            ": " + text);
}

void Worker::expect_ok(const Status& status, const char* what) {
  // A failure may be known to the session before its event is polled.
  const bool over = failed_ || session_->state() == client::SessionState::kClosed;
  if (!status.ok() && !over) violation(std::string(what) + " was refused: " + status.message());
}

void Worker::start(TimeNs now) {
  if (state_ != ProcessState::kWaiting) return;
  client::SessionOptions options = plan.session;
  options.job_name = plan.name;
  options.run_id = plan.run_id;
  options.rank = identity.rank;
  options.world_size = plan.world_size();
  options.secret = plan.secret;
  options.appliance_address = "10.255.0.1:7700";
  options.nonce = mix(world_.seed(), identity.index, plan.run_id);
  options.allow_nil = plan.allow_nil;
  session_ = std::make_unique<client::Session>(options, layout, plan.averaging, now);
  state_ = ProcessState::kRunning;
  progressed_at_ = now;
  pump(now);
}

void Worker::receive(FrameIndex frame, TimeNs now) {
  if (socket_.size() >= world_.options().socket_frames) {
    ++socket_drops_;
    return world_.pool().give_back(frame);
  }
  socket_.push_back(frame);
  if (state_ != ProcessState::kRunning || service_scheduled_) return;
  service_scheduled_ = true;
  world_.events().push(now + world_.draw_delay(world_.options().worker_delay_ns),
                       EventKind::kWorkerService, identity.index);
}

void Worker::service(TimeNs now) {
  service_scheduled_ = false;
  if (state_ != ProcessState::kRunning) return;
  while (!socket_.empty()) {
    const FrameIndex frame = socket_.front();
    socket_.pop_front();
    wire::Frame view;
    (void)wire::parse_frame(world_.pool()[frame].bytes, wire::UdpChecksums::kTrust, view);
    ++datagrams_in_;
    (void)session_->handle_datagram(view.payload, now);
    world_.pool().give_back(frame);
  }
  if (session_->next_timeout() <= now) session_->handle_timeout(now);
  pump(now);
}

void Worker::timeout(TimeNs now) {
  if (timer_at_ > now) return;  // an earlier timer replaced this one
  timer_at_ = kNever;
  if (state_ != ProcessState::kRunning) return;
  const std::uint64_t sent_before = datagrams_out_;
  const std::size_t events_before = log_.size();
  session_->handle_timeout(now);
  pump(now);
  const bool idle = sent_before == datagrams_out_ && events_before == log_.size();
  idle_timeouts_ = idle ? idle_timeouts_ + 1 : 0;
  if (idle_timeouts_ > 10'000) violation("the session's timer fires without an effect");
}

void Worker::run_app(TimeNs now) {
  if (state_ == ProcessState::kRunning) pump(now);
}

void Worker::kill() {
  state_ = ProcessState::kDead;
  while (!socket_.empty()) {
    world_.pool().give_back(socket_.front());
    socket_.pop_front();
  }
}

void Worker::pause() {
  if (state_ == ProcessState::kRunning) state_ = ProcessState::kPaused;
}

void Worker::resume(TimeNs now) {
  if (state_ != ProcessState::kPaused) return;
  state_ = ProcessState::kRunning;
  service(now);
}

void Worker::pump(TimeNs now) {
  for (std::uint32_t round = 0;; ++round) {
    if (round > 100'000) return violation("the session and its application never come to rest");
    ++pumps_;
    bool busy = poll_transmit(now);
    busy = poll_events(now) || busy;
    busy = advance(now) || busy;
    if (!busy) break;
  }
  set_timer(now);
}

void Worker::set_timer(TimeNs now) {
  const TimeNs next = session_->next_timeout();
  if (next == kNever) return;
  // A timer that is due already is served a little later, as a real thread would.
  const TimeNs at = std::max(next, now + kMicrosecond);
  if (timer_at_ != kNever && timer_at_ <= at) return;
  timer_at_ = at;
  world_.events().push(at, EventKind::kWorkerTimeout, identity.index);
}

bool Worker::poll_transmit(TimeNs now) {
  bool any = false;
  client::Transmit transmit;
  for (std::uint32_t i = 0; session_->poll_transmit(transmit, buffer_, now); ++i) {
    if (i > 100'000) {
      violation("Session::poll_transmit() never ends");
      break;
    }
    ++datagrams_out_;
    any = true;
    world_.send_from_worker(*this, transmit, {buffer_.data(), transmit.bytes}, now);
  }
  return any;
}

bool Worker::poll_events(TimeNs now) {
  bool any = false;
  client::Event event;
  while (session_->poll_event(event)) {
    any = true;
    on_event(event, now);
  }
  return any;
}

void Worker::on_event(const client::Event& event, TimeNs now) {
  using Kind = client::Event::Kind;
  log_.push_back(
      {event.kind, event.tensor, event.step, now, event.absent, event.non_finite, event.status});
  if (failed_) violation("an event after kFailed");
  if (event.kind != Kind::kStalled) progressed_at_ = now;
  switch (event.kind) {
    case Kind::kJoined:
    case Kind::kStalled: break;
    case Kind::kStarted:
      started_ = true;
      // A process that takes over a rank begins where the job stands.
      step_ = steps_done_ = session_->current_step() - 1;
      if (!plan.manual) phase_ = Phase::kNext;
      break;
    case Kind::kTensorDone:
      ++tensors_done_;
      check_tensor(event);
      if (plan.pipelined && event.step < plan.ranks[identity.rank.value].last_step)
        submit(event.tensor, event.step + 1, now);
      break;
    case Kind::kStepDone:
      if (event.step != steps_done_ + 1)
        violation("step " + std::to_string(event.step) + " is done after step " +
                  std::to_string(steps_done_));
      steps_done_ = event.step;
      if (plan.manual) break;
      if (!plan.pipelined && tensors_done_ < order_.size())
        violation("step " + std::to_string(event.step) + " is done before its tensors");
      if (!plan.pipelined || event.step == plan.ranks[identity.rank.value].last_step)
        phase_ = Phase::kNext;
      break;
    case Kind::kCollectiveDone:
      if (plan.manual) break;
      check_collective();
      ++next_collective_;
      phase_ = Phase::kNext;
      break;
    case Kind::kLeft:
      left_ = true;
      phase_ = Phase::kOver;
      break;
    case Kind::kFailed:
      failed_ = true;
      failure_ = event.status;
      failed_at_ = now;
      phase_ = Phase::kOver;
      break;
  }
}

bool Worker::advance(TimeNs now) {
  switch (phase_) {
    case Phase::kNext: return begin_next(now);
    case Phase::kSubmitting: return submit_due(now);
    default: return false;
  }
}

bool Worker::begin_next(TimeNs now) {
  const RankPlan& rank = plan.ranks[identity.rank.value];
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
  order_ = plan.submission_order(identity.rank, step_);
  app_due_ = now + rank.step_delay_ns;
  phase_ = Phase::kSubmitting;
  if (app_due_ > now) wake_app_at(app_due_);
  return true;
}

bool Worker::submit_due(TimeNs now) {
  if (app_due_ > now) return false;
  if (submitted_ < order_.size()) {
    submit(order_[submitted_++], step_, now);
    if (submitted_ < order_.size()) {
      app_due_ = now + world_.draw_delay(plan.ranks[identity.rank.value].compute_max_ns);
      if (app_due_ > now) wake_app_at(app_due_);
      return true;
    }
  }
  const bool needed = order_.size() < plan.tensors.size() && !plan.forget_end_step;
  if (needed || plan.call_end_step) expect_ok(session_->end_step(now), "end_step");
  phase_ = Phase::kStep;
  return true;
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
    store_element(spec.dtype, static_cast<float>(plan.gradient(identity.rank, step, tensor, i)),
                  input + i * elem_bytes);
  tensor_steps_[tensor] = step;
  const bool nil = plan.is_nil(identity.rank, step, tensor);
  if (nil) std::fill(outputs_[tensor].begin(), outputs_[tensor].end(), kUntouched);
  const client::Submission submission{.tensor = tensor,
                                      .input = nil ? nullptr : input,
                                      .output = outputs_[tensor].data(),
                                      .weight = plan.weight(identity.rank, step),
                                      .priority = plan.priority(identity.rank, step, tensor)};
  expect_ok(session_->submit(submission, now), "submit");
}

bool Worker::start_collective(TimeNs now) {
  const CollectivePlan& collective = plan.collectives[next_collective_];
  phase_ = Phase::kCollective;
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
  if (ending == Ending::kStay)
    finished_ = true;
  else
    session_->leave(ending == Ending::kAbnormal, now);
}

void Worker::check_collective() {
  const CollectivePlan& collective = plan.collectives[next_collective_];
  if (collective.kind == CollectiveKind::kBarrier) return;
  for (std::size_t i = 0; i < collective_buffer_.size(); ++i)
    if (collective_buffer_[i] != plan.broadcast_byte(next_collective_, i))
      return violation("byte " + std::to_string(i) + " of broadcast " +
                       std::to_string(next_collective_) + " is wrong");
}

void Worker::check_tensor(const client::Event& event) {
  if (plan.manual || !plan.check_values) return;
  const std::string where =
      "tensor " + std::to_string(event.tensor) + " of step " + std::to_string(event.step);
  if (event.tensor >= plan.tensors.size()) return violation("no such tensor: " + where);
  const bool nil = plan.is_nil(identity.rank, event.step, event.tensor);
  if (nil && !plan.nil_output) return;
  if (tensor_steps_[event.tensor] != event.step)
    return violation(where + " is done, submitted was step " +
                     std::to_string(tensor_steps_[event.tensor]));
  const ChunkIndex first = layout.first_chunk(event.tensor);
  const auto weight =
      world_.oracle().result_weight(identity.run, StreamId::kGradients, event.step, first);
  if (!weight) return violation(where + " is done without a result");
  std::uint64_t mask = 0;
  bool all_nil = true;
  for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
    if (!plan.takes_part(Rank{rank}, event.step)) continue;
    mask |= std::uint64_t{1} << rank;
    all_nil = all_nil && plan.is_nil(Rank{rank}, event.step, event.tensor);
  }
  if (event.absent != all_nil) return violation(where + (all_nil ? " is not" : " is") + " absent");
  if (all_nil) {
    for (const std::uint8_t byte : outputs_[event.tensor])
      if (byte != kUntouched) return violation(where + " is absent, its output was touched");
    return;
  }
  const Dtype dtype = plan.tensors[event.tensor].dtype;
  float divisor = static_cast<float>(*weight);
  if (dtype == Dtype::kFloat32 && plan.averaging == client::Averaging::kWorld)
    divisor = plan.world_size();
  if (dtype == Dtype::kFloat32 && plan.averaging == client::Averaging::kSum) divisor = 1;
  for (std::uint64_t i = 0; i < plan.tensors[event.tensor].elem_count; ++i) {
    const auto sum = static_cast<float>(plan.sum(mask, event.step, event.tensor, i));
    std::uint8_t expected[4];
    store_element(dtype, sum / divisor, expected);
    const std::size_t elem_bytes = dtype_bytes(dtype);
    if (std::memcmp(expected, outputs_[event.tensor].data() + i * elem_bytes, elem_bytes) != 0)
      return violation("element " + std::to_string(i) + " of " + where + " is not the average");
  }
}

void Worker::wake_app_at(TimeNs at) {
  world_.events().push(at, EventKind::kWorkerApp, identity.index);
}

std::size_t Worker::count(client::Event::Kind kind) const {
  return static_cast<std::size_t>(
      std::count_if(log_.begin(), log_.end(), [&](const auto& e) { return e.kind == kind; }));
}

std::string Worker::unbalanced() const {
  if (!session_) return {};
  const client::SessionStats& stats = session_->stats();
  const std::string who =
      "I7: rank " + std::to_string(identity.rank.value) + " of job " + plan.name + " ";
  if (stats.packets_sent != datagrams_out_)
    return who + "sent " + std::to_string(datagrams_out_) + " datagrams and counted " +
           std::to_string(stats.packets_sent);
  const std::uint64_t verdicts =
      std::accumulate(stats.verdicts.begin(), stats.verdicts.end(), std::uint64_t{0});
  if (stats.packets_received != datagrams_in_ || verdicts != datagrams_in_)
    return who + "received " + std::to_string(datagrams_in_) + " datagrams and counted " +
           std::to_string(stats.packets_received) + " with " + std::to_string(verdicts) +
           " verdicts";
  return {};
}

}  // namespace sluice::sim
