#include "client/core/session.h"

#include <algorithm>
#include <utility>

#include "client/core/session_impl.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kMinFlowCredit = 8;  // results that each flow may always have on the way

std::size_t event_capacity(const Layout& layout) { return 2 * layout.tensor_count() + 16; }

}  // namespace

Session::Impl::Impl(SessionOptions session_options, Layout layout, Averaging averaging, TimeNs now)
    : options(std::move(session_options)),
      link(event_capacity(layout)),
      gradients(options, std::move(layout), averaging),
      collectives(options, gradients.layout().chunk_bytes()),
      join(options, gradients.layout(), now),
      membership(options),
      datagram_bytes(
          std::max(wire::datagram_bytes(gradients.layout().chunk_bytes(), options.world_size),
                   sizeof(wire::CommonHeader) + sizeof(wire::Join))) {
  if (join.outcome() == JoinMachine::Outcome::kFailed) fail(join.failure(), false);
}

void Session::Impl::fail(Status why, bool tell) {
  if (state == SessionState::kClosed) return;
  state = SessionState::kClosed;
  failure = why;
  if (tell && link.joined()) membership.farewell(leave_body(true));
  link.events.push({.kind = Event::Kind::kFailed, .status = std::move(why)});
}

Status Session::Impl::ready() const {
  if (state == SessionState::kClosed && !failure.ok()) return failure;
  if (state == SessionState::kClosed || state == SessionState::kLeaving)
    return {StatusCode::kClosed, place_of(options) + "this rank has left the job"};
  return {};
}

wire::Leave Session::Impl::leave_body(bool abnormal) const noexcept {
  return {.first_steps = {gradients.current_step(), collectives.current_step(), 1},
          .reason = abnormal ? wire::LeaveReason::kAbnormal : wire::LeaveReason::kFinished};
}

// ---- datagrams of the control port ----

Verdict Session::Impl::handle(const wire::Packet& packet, TimeNs now) {
  if (state == SessionState::kClosed) return Verdict::kJobEnded;
  if (state == SessionState::kJoining) return handle_join_answer(packet, now);
  switch (packet.type()) {
    case wire::PacketType::kChallenge:
    case wire::PacketType::kAccept:
    case wire::PacketType::kRefuse: return Verdict::kDuplicate;  // late answers to the join
    default: break;
  }
  const wire::CommonHeader& common = packet.common();
  if (common.cookie != link.identity.cookie) return Verdict::kBadCookie;
  if (common.job != link.identity.job) return Verdict::kUnknownJob;
  if (common.rank != link.identity.rank) return Verdict::kBadRank;
  membership.heard(now);
  switch (packet.type()) {
    case wire::PacketType::kStatus:
    case wire::PacketType::kPing:
    case wire::PacketType::kNotice: {
      Verdict verdict{};
      act(membership.handle(packet, now, verdict), now);
      return verdict;
    }
    case wire::PacketType::kResult:
    case wire::PacketType::kAnswer:
    case wire::PacketType::kFeedback: return handle_data(packet, now);
    default: return Verdict::kBadType;
  }
}

Verdict Session::Impl::handle_join_answer(const wire::Packet& packet, TimeNs now) {
  const Verdict verdict = join.handle(packet, now);
  if (join.outcome() == JoinMachine::Outcome::kFailed) fail(join.failure(), false);
  if (join.outcome() == JoinMachine::Outcome::kAccepted) after_join(now);
  return verdict;
}

void Session::Impl::after_join(TimeNs now) {
  const std::uint16_t shards = join.accept().shards;
  link.identity = join.identity();
  link.flows.assign(shards,
                    Flow(std::max(options.receive_credit_packets / shards, kMinFlowCredit)));
  gradients.join(shards);
  membership.begin(link.identity, now);
  state = SessionState::kForming;
  const Step open_step = join.accept().open_steps[static_cast<std::size_t>(StreamId::kGradients)];
  if (open_step > 1)
    return fail({StatusCode::kRefused,
                 place_of(options) + "the job is at step " + std::to_string(open_step) +
                     "; a synchronous job cannot be joined in mid-run: stop the other ranks and "
                     "start it again from a checkpoint"},
                true);
  link.events.push({.kind = Event::Kind::kJoined});
}

void Session::Impl::start(TimeNs now) {
  state = SessionState::kRunning;
  gradients.start(now);
  collectives.start(now);
  link.events.push({.kind = Event::Kind::kStarted});
  work(now);
}

void Session::Impl::act(Membership::Change change, TimeNs now) {
  switch (change) {
    case Membership::Change::kNone: break;
    case Membership::Change::kStarted: start(now); break;
    case Membership::Change::kLeft:
      state = SessionState::kClosed;
      link.events.push({.kind = Event::Kind::kLeft});
      break;
    case Membership::Change::kFailed:
      // The rank of a job that never formed becomes free at once.
      fail(membership.failure(), membership.failure().code() == StatusCode::kTimedOut);
      break;
  }
}

// ---- time ----

void Session::Impl::handle_timeout(TimeNs now) {
  if (state == SessionState::kClosed) return;
  if (state == SessionState::kJoining) {
    join.handle_timeout(now);
    if (join.outcome() == JoinMachine::Outcome::kFailed) fail(join.failure(), false);
    return;
  }
  act(membership.handle_timeout(now), now);
  if (state != SessionState::kRunning) return;
  work(now);
  if (now >= stall_report_due()) report_stall(now);
}

TimeNs Session::Impl::next_timeout() const noexcept {
  if (state == SessionState::kClosed) return kNever;
  if (state == SessionState::kJoining) return join.next_timeout();
  TimeNs next_ns = membership.next_timeout();
  if (state != SessionState::kRunning) return next_ns;
  next_ns = std::min({next_ns, gradients.recovery().next_timeout(), stall_report_due()});
  // Its leftovers are nobody's work once the collective is done.
  if (collectives.in_progress()) next_ns = std::min(next_ns, collectives.recovery().next_timeout());
  return next_ns;
}

void Session::Impl::leave(bool abnormal, TimeNs now) {
  if (state == SessionState::kClosed || state == SessionState::kLeaving) return;
  if (state == SessionState::kJoining) {
    state = SessionState::kClosed;
    link.events.push({.kind = Event::Kind::kLeft});
    return;
  }
  state = SessionState::kLeaving;
  // Whoever leaves in the middle of a step has given the others half a gradient: that is no finish.
  membership.leave(leave_body(abnormal || gradients.in_progress()), now);
}

// ---- the public calls ----

Session::Session(SessionOptions options, Layout layout, Averaging averaging, TimeNs now)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(layout), averaging, now)) {}

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
  Status status = impl_->ready();
  return status.ok() ? impl_->gradients.submit(submission, now) : status;
}

Status Session::end_step(TimeNs now) noexcept {
  Status status = impl_->ready();
  return status.ok() ? impl_->gradients.end_step(now) : status;
}

Status Session::broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) noexcept {
  Status status = impl_->ready();
  if (status.ok()) status = impl_->collectives.broadcast(root, buffer, bytes, now);
  if (impl_->state == SessionState::kRunning) impl_->work(now);
  return status;
}

Status Session::barrier(TimeNs now) noexcept {
  Status status = impl_->ready();
  return status.ok() ? impl_->collectives.barrier(now) : status;
}

void Session::leave(bool abnormal, TimeNs now) noexcept { impl_->leave(abnormal, now); }
bool Session::poll_event(Event& event) noexcept { return impl_->link.events.pop(event); }
SessionState Session::state() const noexcept { return impl_->state; }
Step Session::current_step() const noexcept { return impl_->gradients.current_step(); }
std::uint16_t Session::shard_count() const noexcept { return impl_->link.shard_count(); }
const SessionStats& Session::stats() const noexcept { return impl_->link.stats; }
std::string Session::describe_stall(TimeNs now) const { return impl_->describe_stall(now); }

}  // namespace sluice::client
