// The public calls of a Session: each checks whether the session still works and passes on.
#include <utility>

#include "client/core/session_impl.h"

namespace sluice::client {

Session::Session(SessionOptions options, Layout layout, TimeNs now)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(layout), now)) {}

Session::~Session() = default;

Verdict Session::handle_datagram(std::span<const std::uint8_t> bytes, TimeNs now) noexcept {
  SessionStats& stats = impl_->link.stats;
  ++stats.packets_received;
  stats.bytes_received += bytes.size();
  wire::Packet packet;
  Verdict verdict{};
  if (wire::parse(bytes, packet, verdict)) verdict = impl_->handle(packet, now);
  ++stats.verdicts[static_cast<std::size_t>(verdict)];
  return verdict;
}

bool Session::poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  if (out.size() < impl_->datagram_bytes) return false;
  transmit = {};
  if (impl_->state == SessionState::kJoining) {
    transmit.bytes = impl_->join.poll_transmit(out);
  } else {
    transmit.bytes = impl_->membership.poll_transmit(out, now);
    if (transmit.bytes == 0 && impl_->state == SessionState::kRunning)
      transmit.bytes = impl_->transfers.poll_control(impl_->link, out);
    if (transmit.bytes == 0 && impl_->state == SessionState::kRunning)
      transmit.bytes = impl_->poll_data(transmit, out, now);
  }
  if (transmit.bytes == 0) return false;
  ++impl_->link.stats.packets_sent;
  impl_->link.stats.bytes_sent += transmit.bytes;
  return true;
}

TimeNs Session::next_timeout() const noexcept { return impl_->next_timeout(); }
void Session::handle_timeout(TimeNs now) noexcept { impl_->handle_timeout(now); }

void Session::handle_unreachable(TimeNs now) noexcept {
  if (impl_->state != SessionState::kJoining) return;  // a member waits for the silence timeout
  impl_->join.handle_unreachable(now);
  if (impl_->join.outcome() == JoinMachine::Outcome::kFailed)
    impl_->fail(impl_->join.failure(), false);
}

void Session::handle_too_big(std::size_t datagram_bytes, std::size_t path_datagram_bytes,
                             bool certain, TimeNs) noexcept {
  if (impl_->state == SessionState::kClosed) return;
  const bool joining = impl_->state == SessionState::kJoining;
  if (!joining && !certain) return;  // datagrams of this size have passed; losses are recovered
  impl_->fail(impl_->join.too_big(datagram_bytes, path_datagram_bytes), !joining);
}

Status Session::submit(const Submission& submission, TimeNs now) noexcept {
  Status status = impl_->ready_for_step();
  if (!status.ok()) return status;
  // Its first gradient after a resync: the others need not wait for this worker any more.
  if (submission.contribute) impl_->transfers.caught_up(now);
  return impl_->finish_call(impl_->gradients.submit(submission, now), now);
}

Status Session::end_step(TimeNs now) noexcept {
  Status status = impl_->ready_for_step();
  return status.ok() ? impl_->finish_call(impl_->gradients.end_step(now), now) : status;
}

Status Session::broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) noexcept {
  Status status = impl_->ready();
  impl_->transfers.caught_up(now);  // it computes no gradient before this is done
  if (status.ok()) status = impl_->collectives.broadcast(root, buffer, bytes, now);
  if (impl_->state == SessionState::kRunning) impl_->work(now);
  return status;
}

Status Session::barrier(TimeNs now) noexcept {
  Status status = impl_->ready();
  impl_->transfers.caught_up(now);
  return status.ok() ? impl_->collectives.barrier(now) : status;
}

void Session::leave(wire::LeaveReason reason, TimeNs now) noexcept { impl_->leave(reason, now); }
bool Session::poll_event(Event& event) noexcept { return impl_->link.events.pop(event); }
SessionState Session::state() const noexcept { return impl_->state; }
Step Session::current_step() const noexcept { return impl_->gradients.current_step(); }
Step Session::collective_step() const noexcept { return impl_->collectives.current_step(); }
std::uint16_t Session::shard_count() const noexcept { return impl_->link.shard_count(); }
const SessionStats& Session::stats() const noexcept { return impl_->link.stats; }
bool Session::preparing() const noexcept {
  return impl_->state == SessionState::kJoining && impl_->join.preparing();
}
std::string Session::describe_stall(TimeNs now) const { return impl_->describe_stall(now); }

// ---- stragglers ----

Status Session::resync(TimeNs now) noexcept {
  Status status = impl_->ready();
  return status.ok() ? impl_->resync(now) : status;
}

std::unique_ptr<std::uint8_t[]> Session::take_state() noexcept {
  return impl_->transfers.take_state();
}

bool Session::send_state(std::span<const std::uint8_t> state, Step step, TimeNs now) noexcept {
  return impl_->ready().ok() && impl_->transfers.give(state, step, impl_->link, now);
}

bool Session::poll_trace(TensorTimes& times) noexcept {
  return impl_->gradients.trace().poll(times);
}
std::string Session::describe_plan() const { return impl_->gradients.describe_plan(); }

Step Session::open_step() const noexcept { return impl_->gradients.open_step(); }
std::uint32_t Session::waiting_late_chunks() const noexcept {
  return impl_->gradients.waiting_late_chunks();
}
bool Session::must_resync() const noexcept { return impl_->gradients.stranded(); }
const JobFacts& Session::facts() const noexcept { return impl_->facts; }
const StepReport* Session::report(Step step) const noexcept {
  return impl_->gradients.report(step);
}

}  // namespace sluice::client
