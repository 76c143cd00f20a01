#include "client/core/session.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kMinFlowCredit = 8;  // results that each flow may always have on the way

std::size_t event_capacity(const Layout& layout) { return 2 * layout.tensor_count() + 16; }

// A part of one membership begins as it did for the first; those who refer to it keep its address.
template <class Part, class... Args>
void begin_anew(Part& part, Args&&... args) noexcept {
  std::destroy_at(&part);
  std::construct_at(&part, std::forward<Args>(args)...);
}

}  // namespace

Session::Session(SessionOptions options, Layout layout, TimeNs now)
    : Calls(std::move(options), std::move(layout)),
      link_(event_capacity(layout_)),
      collectives_(options_, layout_.chunk_bytes(), link_),
      join_(options_, layout_, now),
      membership_(options_),
      standby_(options_, layout_, now),
      datagram_bytes_(join_bytes(layout_, options_.world_size)) {
  make_streams();
  link_.counters.chunk_bytes = layout_.chunk_bytes();
  link_.counters.receive_credit_packets = options_.receive_credit_packets;
  act_on_join(now);
}

// Collectives leave first: ranks wait for them. A state goes last, but its probes are few.
void Session::make_streams() {
  if (options_.store) return make_store();
  if (options_.operations) {
    groups_ = std::make_unique<GroupStream>(options_, layout_.chunk_bytes(), link_);
    streams_ = {groups_.get(), &collectives_};
    probe_order_ = send_order_ = {&collectives_, groups_.get()};
    return;
  }
  gradients_ = std::make_unique<GradientStream>(options_, layout_, tensors_, residuals_, link_);
  transfers_ = std::make_unique<Transfers>(options_, layout_.chunk_bytes(), link_);
  streams_ = {gradients_.get(), &collectives_, transfers_.get()};
  probe_order_ = {&collectives_, transfers_.get(), gradients_.get()};
  send_order_ = {&collectives_, gradients_.get(), transfers_.get()};
}

void Session::make_store() {
  store_ = std::make_unique<Store>(options_, layout_, link_);
  streams_ = {&store_->pushes(), &store_->pulls(), &collectives_};
  probe_order_ = {&store_->pulls(), &store_->pushes(), &collectives_};
  send_order_ = {&collectives_, &store_->pulls(), &store_->pushes()};
}

// The only changes that there are.
void Session::become(SessionState state) noexcept {
  switch (state) {
    case SessionState::kJoining: CHECK(state_ == SessionState::kClosed); break;
    case SessionState::kForming:
      CHECK(state_ == SessionState::kJoining || state_ == SessionState::kForming ||
            state_ == SessionState::kRunning);
      break;
    case SessionState::kRunning: CHECK(state_ == SessionState::kForming); break;
    case SessionState::kLeaving:
      CHECK(state_ == SessionState::kForming || state_ == SessionState::kRunning);
      break;
    case SessionState::kClosed: CHECK(state_ != SessionState::kClosed); break;
  }
  state_ = state;
}

void Session::rejoin(std::uint64_t run_id, TimeNs now) noexcept {
  become(SessionState::kJoining);
  options_.run_id = run_id;
  options_.nonce += kNonceStep;
  options_.epoch = 0;
  if (standby_.exists()) options_.appliance_address = options_.addresses.front();
  link_.disconnect();
  begin_anew(tensors_, options_, layout_);
  begin_anew(residuals_, layout_, options_.prune, options_.executor);
  begin_anew(collectives_, options_, layout_.chunk_bytes(), link_);
  make_streams();
  begin_anew(join_, options_, layout_, now);
  begin_anew(membership_, options_);
  begin_anew(standby_, options_, layout_, now);
  has_started_ = changed_ = moving_ = false;
  asking_.reset();
  resumption_.reset();
  held_.reset();
  exchanges_ = {};
  view_ = {};
  facts_ = {};
  failure_ = {};
  missing_ = {};
  stall_reported_ns_ = 0;
  last_stall_.clear();
  act_on_join(now);
}

// ---- how it ends ----

void Session::fail(Status why, bool tell, TimeNs now) {
  CHECK(!why.ok());
  if (state_ == SessionState::kClosed) return;
  failure_ = why;
  if (tell && link_.joined()) membership_.farewell(leave_body(wire::LeaveReason::kAbnormal));
  close({.kind = Event::Kind::kFailed, .status = std::move(why)}, now);
}

void Session::close(Event event, TimeNs now) {
  CHECK(event.kind == Event::Kind::kFailed || event.kind == Event::Kind::kLeft);
  asking_.reset();
  last_stall_ = describe_stall(now);
  become(SessionState::kClosed);
  const Status why = status();
  for (Stream* const one : streams_) one->give_up(why);
  link_.events.push(std::move(event));
}

wire::Leave Session::leave_body(wire::LeaveReason reason) const noexcept {
  return {.first_steps = {tensors_.current(), collectives_.current_step(), 1}, .reason = reason};
}

void Session::leave(wire::LeaveReason reason, TimeNs now) {
  if (state_ == SessionState::kClosed || state_ == SessionState::kLeaving) return;
  if (state_ == SessionState::kJoining) return close({.kind = Event::Kind::kLeft}, now);
  become(SessionState::kLeaving);
  asking_.reset();
  moving_ = false;
  CHECK(link_.joined());
  // Whoever leaves in the middle of a step has given the others half a gradient, and in the middle
  // of a collective they wait for the rest of it: that is no finish.
  if (reason != wire::LeaveReason::kAborted && std::ranges::any_of(streams_, &Stream::owes_others))
    reason = wire::LeaveReason::kAbnormal;
  membership_.leave(leave_body(reason), abort_reason_, now);
  for (Stream* const one : streams_) one->leave();
}

// ---- the application's calls ----

// A session's first gradient after a resync, or a collective, which comes before any gradient: the
// other ranks need not wait for this one any more.
void Session::submitted(const Submission& submission, TimeNs now) noexcept {
  if (submission.contribute && transfers_ != nullptr) transfers_->caught_up(now);
}

Status Session::begin_collective(std::optional<Rank> root, void* buffer, std::size_t bytes,
                                 TimeNs now) {
  if (transfers_ != nullptr) transfers_->caught_up(now);
  collectives_.begin_call(root, buffer, bytes, now);
  return {};
}

bool Session::act_on_call(TimeNs now) {
  if (state_ != SessionState::kRunning || !tensor_stream().schedule_next(now)) return false;
  if (!link_.failure.ok())
    fail(link_.failure, true, now);
  else
    note_caught_up(now);
  return true;
}

// ---- datagrams of the control port ----

Verdict Session::handle_datagram(std::span<const std::uint8_t> bytes, TimeNs now) {
  ++link_.counters.packets_received;
  link_.counters.bytes_received += bytes.size();
  wire::Packet packet;
  Verdict verdict = wire::parse(bytes, packet);
  if (ok(verdict)) verdict = handle(packet, now);
  DCHECK(static_cast<std::size_t>(verdict) < kVerdictCount);
  ++verdicts_[static_cast<std::size_t>(verdict)];
  const PacketUse use = kVerdictInfo[static_cast<std::size_t>(verdict)].use;
  link_.counters.invalid_packets += use == PacketUse::kMalformed || use == PacketUse::kForeign;
  return verdict;
}

Verdict Session::handle(const wire::Packet& packet, TimeNs now) {
  if (state_ == SessionState::kClosed) return Verdict::kJobEnded;
  if (standby_.is_answer(packet)) {
    const Verdict verdict = standby_.handle(packet, now);
    consider_move(now);
    return verdict;
  }
  if (state_ == SessionState::kJoining) return handle_join_answer(packet, now);
  switch (packet.type()) {
    case wire::PacketType::kChallenge:
    case wire::PacketType::kAccept:
    case wire::PacketType::kPreparing:
    case wire::PacketType::kDiffers:
    case wire::PacketType::kRefuse:
      return asking_.has_value() ? handle_answer_to_asking(packet, now)
                                 : Verdict::kDuplicate;  // a late answer to the join
    default: break;
  }
  CHECK(link_.joined());
  const wire::CommonHeader& common = packet.common();
  if (common.cookie != link_.identity.cookie || moving_) return Verdict::kBadCookie;
  if (common.job != link_.identity.job) return Verdict::kUnknownJob;
  if (common.rank != link_.identity.rank) return Verdict::kBadRank;
  // The run has moved and this rank has not heard of it: whoever asks hears where to.
  if (packet.type() == wire::PacketType::kNotice && restart_timeout_ns() != 0 &&
      packet.body<wire::Notice>().code == wire::NoticeCode::kMoved) {
    membership_.heard(now);  // the appliance is alive
    if (next_asking() != kNever && !asking_.has_value()) ask_again(now);
    return Verdict::kJobEnded;
  }
  membership_.heard(now);
  asking_.reset();
  switch (packet.type()) {
    case wire::PacketType::kStatus:
    case wire::PacketType::kPing:
    case wire::PacketType::kNotice: return handle_control(packet, now);
    case wire::PacketType::kGroupMade:
      return groups_ != nullptr && state_ == SessionState::kRunning
                 ? groups_->handle_made(packet, now)
                 : Verdict::kBadType;
    case wire::PacketType::kResult:
    case wire::PacketType::kPieceResult:
    case wire::PacketType::kValues:
    case wire::PacketType::kAnswer:
    case wire::PacketType::kPartResult:
    case wire::PacketType::kPartAnswer:
    case wire::PacketType::kFloor:
    case wire::PacketType::kOutcome:
    case wire::PacketType::kFeedback: return handle_data(packet, now);
    default: return Verdict::kBadType;
  }
}

Verdict Session::handle_control(const wire::Packet& packet, TimeNs now) {
  Verdict verdict{};
  const std::uint16_t members = membership_.joined_count();
  CHECK(state_ != SessionState::kJoining && state_ != SessionState::kClosed);
  act(membership_.handle(packet, now, verdict), now);
  if (membership_.joined_count() != members)
    for (Stream* const one : streams_) one->members_changed();
  if (packet.type() == wire::PacketType::kStatus && state_ == SessionState::kRunning) {
    if (store_ != nullptr) membership_.take_view(packet, view_);
    for (Stream* const one : streams_) one->handle_status(packet.body<wire::Status>(), now);
  }
  consider_move(now);
  return verdict;
}

Verdict Session::handle_join_answer(const wire::Packet& packet, TimeNs now) {
  CHECK(!link_.joined());
  const Verdict verdict = join_.handle(packet, now);
  standby_.learn(join_.epoch());
  act_on_join(now);
  consider_move(now);
  return verdict;
}

void Session::act_on_join(TimeNs now) {
  if (join_.outcome() == JoinMachine::Outcome::kFailed) {
    const bool untried = options_.epoch + 1 < options_.addresses.size() && standby_.is_there(now);
    if (untried && (join_.is_draining() || join_.is_unheard()))
      return move(options_.epoch + 1, now);
    fail(join_.failure(), false, now);
  }
  if (join_.outcome() == JoinMachine::Outcome::kAccepted) after_join(now);
}

void Session::after_join(TimeNs now) {
  CHECK(state_ == SessionState::kJoining && !link_.joined());
  const wire::Accept& accept = join_.accept();
  use_flows(join_);
  options_.rank = Rank{link_.identity.rank};  // an elastic job has given it
  facts_ = {.policy = accept.policy,
            .window_steps = accept.window,
            .resync_hold_ms = accept.resync_hold_ms,
            .averaging = resolved(options_.averaging, accept.policy)};
  Status joined;
  for (Stream* const one : streams_)
    if (Status status = one->join(accept); joined.ok()) joined = std::move(status);
  membership_.begin(link_.identity, {.restart_ns = restart_timeout_ns()}, now);
  become(SessionState::kForming);
  if (!joined.ok()) return fail(std::move(joined), true, now);
  if (standby_.exists() && restart_timeout_ns() == 0)
    return fail(
        {StatusCode::kInvalidArgument,
         place() + "a job moves to another address only with a restart_timeout: give one address, "
                   "or leave restart_timeout as it is"},
        true, now);
  link_.events.push({.kind = Event::Kind::kJoined});
}

void Session::use_flows(const JoinMachine& join) {
  const std::uint16_t shards = join.accept().shards;
  link_.identity = join.identity();
  link_.flows.assign(shards,
                     Flow(std::max(options_.receive_credit_packets / shards, kMinFlowCredit)));
  link_.counters.shards = shards;
}

void Session::start(TimeNs now) {
  become(SessionState::kRunning);
  CHECK(link_.joined() && link_.shard_count() != 0);
  const bool is_new = !std::exchange(has_started_, true);
  if (groups_ != nullptr) exchanges_.entered = std::uint64_t{options_.epoch} + 1;
  collectives_.count_from(membership_.resumed().calls);
  // Without having changed: it is new to a synchronous job that was lost in its first step.
  const bool resumes =
      membership_.resume_step() != 0 &&
      (store_ != nullptr ? !is_new : changed_ || !facts_.policy.tolerates_stragglers());
  if (is_new)
    link_.events.push({.kind = Event::Kind::kStarted});
  else if (!resumes)
    return fail({StatusCode::kRefused, place() + "the appliance has begun the job anew, and this "
                                                 "rank is in the middle of it"},
                true, now);
  // A new process in a job that goes on from an appliance that is lost.
  const bool lacks_state = membership_.resumed().needs_state && behind_status().ok();
  if (resumes || lacks_state) return begin_exchange(now);
  changed_ = false;
  exchanges_.over = membership_.resumed().exchange;  // it has nothing of before
  for (Stream* const one : streams_) one->start(now);
  work(now);
}

void Session::act(Membership::Change change, TimeNs now) {
  switch (change) {
    case Membership::Change::kNone: break;
    case Membership::Change::kStarted: start(now); break;
    case Membership::Change::kLeft: close({.kind = Event::Kind::kLeft}, now); break;
    case Membership::Change::kFailed:
      // The rank of a job that never formed becomes free at once.
      fail(membership_.failure(), membership_.failure().code() == StatusCode::kTimedOut, now);
      break;
  }
}

// ---- what the path said ----

void Session::handle_unreachable(TimeNs now) {
  if (state_ != SessionState::kJoining) return;  // a member waits for the silence timeout
  join_.handle_unreachable(now);
  act_on_join(now);
}

void Session::handle_too_big(std::size_t datagram_bytes, std::size_t path_datagram_bytes,
                             bool certain, TimeNs now) {
  if (state_ == SessionState::kClosed) return;
  const bool joining = state_ == SessionState::kJoining;
  if (!joining && !certain) return;  // datagrams of this size have passed; losses are recovered
  fail(join_.too_big(datagram_bytes, path_datagram_bytes), !joining, now);
}

// ---- time ----

void Session::handle_timeout(TimeNs now) {
  if (state_ == SessionState::kClosed) return;
  // What told the appliance before that this rank has left may be lost, and others may be there.
  if (standby_.handle_timeout(now) && state_ == SessionState::kForming && changed_)
    former_.tell = former_.identity.cookie != 0;
  if (state_ == SessionState::kJoining) {
    join_.handle_timeout(now);
    act_on_join(now);
    consider_move(now);
    if (now >= stall_report_due()) report_stall(now);
    return;
  }
  CHECK(link_.joined());
  if (!moving_) act(membership_.handle_timeout(now), now);
  if (state_ != SessionState::kClosed && now >= next_asking()) ask_again(now);
  consider_move(now);
  if (state_ == SessionState::kForming && now >= stall_report_due()) report_stall(now);
  if (state_ != SessionState::kRunning) return;
  for (Flow& flow : link_.flows) flow.handle_timeout(now);
  for (Stream* const one : streams_) one->handle_timeout(now);
  work(now);
  if (now >= stall_report_due()) report_stall(now);
}

TimeNs Session::next_timeout() const noexcept {
  if (state_ == SessionState::kClosed) return kNever;
  if (state_ == SessionState::kJoining)
    return std::min({join_.next_timeout(), stall_report_due(), standby_.next_timeout()});
  TimeNs next_ns = std::min(next_asking(), standby_.next_timeout());
  if (!moving_) next_ns = std::min(next_ns, membership_.next_timeout());
  if (state_ == SessionState::kForming) return std::min(next_ns, stall_report_due());
  if (state_ != SessionState::kRunning) return next_ns;
  next_ns = std::min(next_ns, stall_report_due());
  for (const Stream* const one : streams_) next_ns = std::min(next_ns, one->next_timeout());
  for (const Flow& flow : link_.flows) next_ns = std::min(next_ns, flow.next_timeout());
  return next_ns;
}

}  // namespace sluice::client
