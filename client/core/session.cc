#include "client/core/session.h"

#include <algorithm>
#include <utility>

#include "client/core/session_impl.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kMinFlowCredit = 8;  // results that each flow may always have on the way

std::size_t event_capacity(const Layout& layout) { return 2 * layout.tensor_count() + 16; }

}  // namespace

Session::Impl::Impl(SessionOptions session_options, Layout layout, TimeNs now)
    : options(std::move(session_options)),
      link(event_capacity(layout)),
      gradients(options, std::move(layout), link),
      collectives(options, gradients.layout().chunk_bytes()),
      transfers(options, gradients.layout().chunk_bytes()),
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
  if (tell && link.joined()) membership.farewell(leave_body(wire::LeaveReason::kAbnormal));
  link.events.push({.kind = Event::Kind::kFailed, .status = std::move(why)});
}

Status Session::Impl::ready() const {
  if (state == SessionState::kClosed && !failure.ok()) return failure;
  if (state == SessionState::kClosed || state == SessionState::kLeaving)
    return {StatusCode::kClosed, place_of(options) + "this rank has left the job"};
  return {};
}

Status Session::Impl::ready_for_step() const {
  Status status = ready();
  if (status.ok() && state != SessionState::kJoining && gradients.stranded())
    return {StatusCode::kBehind, place_of(options) +
                                     "this rank lacks steps that the appliance does not keep: get "
                                     "the state of another rank (resync)"};
  return status;
}

Status Session::Impl::finish_call(Status status, TimeNs now) {
  if (!gradients.tolerant()) return status;  // nothing is done before its packets come
  if (status.code() == StatusCode::kExhausted) fail(status, true);  // step numbers are used up
  note_caught_up(now);
  return status;
}

wire::Leave Session::Impl::leave_body(wire::LeaveReason reason) const noexcept {
  return {.first_steps = {gradients.current_step(), collectives.current_step(), 1},
          .reason = reason};
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
      const std::uint16_t members = membership.joined_count();
      act(membership.handle(packet, now, verdict), now);
      if (membership.joined_count() != members) gradients.relearn();
      if (packet.type() == wire::PacketType::kStatus && state == SessionState::kRunning &&
          gradients.tolerant())
        transfers.handle_status(packet.body<wire::Status>(), link, now);
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
  const wire::Accept& accept = join.accept();
  const std::uint16_t shards = accept.shards;
  link.identity = join.identity();
  link.flows.assign(shards,
                    Flow(std::max(options.receive_credit_packets / shards, kMinFlowCredit)));
  facts = {.policy = accept.policy,
           .window_steps = accept.window,
           .resync_hold_ms = accept.resync_hold_ms};
  gradients.join(accept);
  const auto collective = static_cast<std::size_t>(StreamId::kCollectives);
  if (accept.rejoined != 0)
    collectives.join(std::max<Step>(1, accept.first_steps[collective]),
                     accept.open_steps[collective], link);
  membership.begin(link.identity, now);
  state = SessionState::kForming;
  const Step open_step = accept.open_steps[static_cast<std::size_t>(StreamId::kGradients)];
  if (open_step > 1 && !gradients.tolerant())
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

// ---- stragglers ----

Status Session::Impl::resync(TimeNs now) {
  if (!gradients.tolerant())
    return {StatusCode::kInvalidArgument,
            place_of(options) + "a synchronous job loses no step: there is no state to fetch"};
  if (!gradients.stranded()) {
    if (gradients.in_progress())
      return {StatusCode::kInvalidArgument,
              place_of(options) + "submissions are in flight: wait for them first"};
    gradients.strand();
  }
  transfers.request(link, now);
  return {};
}

void Session::Impl::note_caught_up(TimeNs now) noexcept {
  if (!transfers.received() || gradients.stranded()) return;
  if (gradients.up_to_date()) transfers.caught_up(now);
}

// ---- time ----

void Session::Impl::handle_timeout(TimeNs now) {
  if (state == SessionState::kClosed) return;
  if (state == SessionState::kJoining) {
    join.handle_timeout(now);
    if (join.outcome() == JoinMachine::Outcome::kFailed) return fail(join.failure(), false);
    if (now >= stall_report_due()) report_stall(now);
    return;
  }
  act(membership.handle_timeout(now), now);
  if (state != SessionState::kRunning) return;
  transfers.handle_timeout(now);
  work(now);
  if (now >= stall_report_due()) report_stall(now);
}

TimeNs Session::Impl::next_timeout() const noexcept {
  if (state == SessionState::kClosed) return kNever;
  if (state == SessionState::kJoining) return std::min(join.next_timeout(), stall_report_due());
  TimeNs next_ns = membership.next_timeout();
  if (state != SessionState::kRunning) return next_ns;
  next_ns = std::min({next_ns, gradients.recovery().next_timeout(), stall_report_due()});
  // Its leftovers are nobody's work once the collective is done.
  if (collectives.in_progress())
    next_ns = std::min(next_ns, collectives.pieces().recovery().next_timeout());
  return std::min(next_ns, transfers.next_timeout());
}

void Session::Impl::leave(wire::LeaveReason reason, TimeNs now) {
  if (state == SessionState::kClosed || state == SessionState::kLeaving) return;
  if (state == SessionState::kJoining) {
    state = SessionState::kClosed;
    link.events.push({.kind = Event::Kind::kLeft});
    return;
  }
  state = SessionState::kLeaving;
  // Whoever leaves in the middle of a step has given the others half a gradient, and in the middle
  // of a collective they wait for the rest of it: that is no finish.
  if (gradients.in_progress() || collectives.in_progress()) reason = wire::LeaveReason::kAbnormal;
  membership.leave(leave_body(reason), now);
  gradients.leave();
}

}  // namespace sluice::client
