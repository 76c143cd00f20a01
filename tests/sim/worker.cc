#include "tests/sim/worker.h"

#include <algorithm>

#include "aggregator/wire/packet.h"
#include "tests/sim/random.h"
#include "tests/sim/world.h"

namespace sluice::sim {
Worker::Worker(World& world, const Identity& id, const JobPlan& job_plan,
               const client::Layout& job_layout)
    : identity(id),
      plan(job_plan),
      layout(job_layout),
      world_(world),
      buffer_(kMaxDatagramBytes),
      far_(plan, layout) {
  for (const client::TensorSpec& tensor : plan.tensors) {
    const std::size_t bytes = tensor.elem_count * dtype_bytes(tensor.dtype);
    inputs_.emplace_back(bytes);
    outputs_.emplace_back(bytes, kUntouched);
  }
  tensor_steps_.resize(plan.tensors.size());
  absent_.resize(plan.tensors.size());
}

void Worker::violation(const std::string& text) {
  world_.oracle().violation("job " + plan.name + " rank " + std::to_string(identity.rank.value) +
                            ": " + text);
}

bool Worker::expect_ok(const Status& status, const char* what) {
  if (status.ok()) return true;
  // A failure, or having fallen behind, may be known to the session before its event is polled.
  const bool over = failed_ || session_->state() == client::SessionState::kClosed;
  const bool behind = status.code() == StatusCode::kBehind && plan.tolerates_stragglers();
  if (!over && !behind) violation(std::string(what) + " was refused: " + status.message());
  return false;
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
  if (world_.options().standby) options.addresses = {"10.255.0.1:7700", "10.255.0.2:7700"};
  options.nonce = mix(world_.options().seed, identity.index, plan.run_id);
  options.allow_nil = plan.allow_nil;
  options.averaging = plan.averaging;
  options.reproducible = plan.reproducible && !plan.reproducible_of_appliance;
  if (plan.policy_of_appliance) {
    options.has_policy = false;
    options.policy = {};
  }
  session_ = std::make_unique<client::Session>(options, layout, now);
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
    const Verdict verdict = session_->handle_datagram(view.payload, now);
    if (plan.tolerates_stragglers() &&
        (verdict == Verdict::kFolded || verdict == Verdict::kCompleted)) {
      wire::Packet packet;
      if (ok(wire::parse(view.payload, packet)) && packet.type() == wire::PacketType::kResult)
        world_.oracle().on_result_used(party(), packet);
    }
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
  if (state_ != ProcessState::kPaused || frozen_) return;
  state_ = ProcessState::kRunning;
  service(now);
  if (all_over_) leave_together(now);
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
    world_.send_from_worker(*this, transmit, client::gather(transmit, buffer_), now);
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

}  // namespace sluice::sim
