#include "client/core/member/membership.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLeaveRepeat = 50 * kMillisecond;
constexpr DurationNs kLeaveDeadline = 500 * kMillisecond;
constexpr DurationNs kNoticeGrace = 300 * kMillisecond;
// A worker that was stopped (debugger, migration) for longer than this was not listening: the
// appliance's silence counts from its return.
constexpr DurationNs kStoppedAfter = kSecond;
// The reason why ranks at such an address may be awaited in vain.
std::string inproc_hint(const std::string& address) {
  if (!address.starts_with("inproc://")) return {};
  return ": ranks of other processes cannot come to an inproc:// address, which is this process's";
}

StatusCode code_of(wire::NoticeCode code) noexcept {
  switch (code) {
    case wire::NoticeCode::kMemberDied:
    case wire::NoticeCode::kMemberSilent:
    case wire::NoticeCode::kMemberLeft: return StatusCode::kPeerLost;
    case wire::NoticeCode::kCollective: return StatusCode::kInvalidArgument;
    case wire::NoticeCode::kStepLimit: return StatusCode::kExhausted;
    case wire::NoticeCode::kResyncHold: return StatusCode::kRefused;
    case wire::NoticeCode::kShutdown:
    case wire::NoticeCode::kReplaced:
    case wire::NoticeCode::kMoved: break;
  }
  return StatusCode::kClosed;
}

}  // namespace

// The legal changes. The end is final; a failed session says farewell once more.
void Membership::become(Phase phase) noexcept {
  switch (phase) {
    case Phase::kForming: CHECK(false); break;
    case Phase::kRunning:
      CHECK(phase_ == Phase::kForming);
      std::ranges::fill(missing_, 0);
      break;
    case Phase::kLeaving: CHECK(phase_ == Phase::kForming || phase_ == Phase::kRunning); break;
    case Phase::kOver: break;
  }
  phase_ = phase;
}

void Membership::begin(const wire::Sender& identity, Restart restart, TimeNs now) noexcept {
  CHECK(identity.cookie != 0 && phase_ == Phase::kForming);
  survives_restart_ = restart.restart_ns != 0;
  patience_ns_ = std::max(options_.silence_timeout_ns, restart.restart_ns);
  forming_patience_ns_ = restart.returns_ns != 0 ? restart.returns_ns : options_.join_timeout_ns;
  identity_ = identity;
  joined_ns_ = grown_ns_ = heard_ns_ = woke_ns_ = now;
  send_keepalive_ = true;
  token_ = 0;
  next_send_ns_ = now + kKeepaliveInterval;
  joined_count_ = 1;
  for (std::uint16_t rank = 0; rank < options_.world_size; ++rank)
    if (rank != options_.rank.value) missing_[rank / 64] |= std::uint64_t{1} << (rank % 64);
  std::ranges::copy(missing_, unseen_);
}

Membership::Change Membership::handle(const wire::Packet& packet, TimeNs now, Verdict& verdict) {
  CHECK(identity_.cookie != 0);
  verdict = Verdict::kKeepalive;
  switch (packet.type()) {
    case wire::PacketType::kStatus: return handle_status(packet, now);
    case wire::PacketType::kPing: {
      const std::uint64_t token = packet.body<wire::Ping>().token;
      if (token != 0) token_ = token;  // this path is in question
      send_keepalive_ = phase_ != Phase::kOver;
      return Change::kNone;
    }
    case wire::PacketType::kNotice: verdict = Verdict::kJobEnded; return handle_notice(packet);
    default: verdict = Verdict::kDuplicate; return Change::kNone;  // late answers to the join
  }
}

Membership::Change Membership::handle_notice(const wire::Packet& packet) {
  if (phase_ == Phase::kOver) return Change::kNone;
  if (phase_ == Phase::kLeaving) {  // it ends for this worker either way
    become(Phase::kOver);
    return Change::kLeft;
  }
  const wire::NoticeCode code = packet.body<wire::Notice>().code;
  std::string why(packet.text());
  const std::string name = "job '" + options_.job_name + "': ";  // the place has it already
  if (why.starts_with(name)) why.erase(0, name.size());
  if (code != wire::NoticeCode::kShutdown || !survives_restart_)
    return fail(code_of(code), std::move(why));
  shutdown_ = std::move(why);
  return Change::kNone;
}

Membership::Change Membership::handle_status(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Status>();
  if (phase_ == Phase::kLeaving) {
    if (body.left == 0) return Change::kNone;
    become(Phase::kOver);
    return Change::kLeft;
  }
  if (phase_ == Phase::kOver) return Change::kNone;
  if (body.state == wire::JobState::kEnded) {
    ended_by_ns_ = std::min(ended_by_ns_, now + kNoticeGrace);
    return Change::kNone;
  }
  CHECK(phase_ == Phase::kForming || phase_ == Phase::kRunning);
  if (joined_count_ != body.joined_count) grown_ns_ = now;
  joined_count_ = body.joined_count;
  resumed_ = {.step = body.resume_step,
              .from = body.resume_from,
              .calls = body.resume_calls,
              .exchange = body.exchange,
              .exchange_over = body.exchange_over,
              .needs_state = body.needs_state != 0};
  drain_ = body.drain;
  const bool starts = phase_ == Phase::kForming && body.state == wire::JobState::kRunning;
  if (starts) become(Phase::kRunning);
  if (phase_ == Phase::kRunning && body.state == wire::JobState::kForming) return Change::kNone;
  for (std::size_t word = 0; word < kMaskWords; ++word)
    unseen_[word] &= missing_[word] = word < packet.mask_word_count() ? packet.mask_word(word) : 0;
  return starts ? Change::kStarted : Change::kNone;
}

void Membership::take_view(const wire::Packet& status, View& view) noexcept {
  if (phase_ != Phase::kRunning || status.body<wire::Status>().state != wire::JobState::kRunning)
    return;
  view.take(status);
  if (std::exchange(view_, view.number) != view.number) send_keepalive_ = true;
}

// A worker that did not run for a while cannot tell whether the appliance was silent.
void Membership::note_wakeup(TimeNs now) noexcept {
  DCHECK(now >= woke_ns_);
  if (now - woke_ns_ > kStoppedAfter) {
    const DurationNs stopped_ns = now - woke_ns_;
    heard_ns_ += stopped_ns;
    if (phase_ == Phase::kForming) {
      joined_ns_ += stopped_ns;
      grown_ns_ += stopped_ns;
    }
  }
  woke_ns_ = now;
}

Membership::Change Membership::handle_timeout(TimeNs now) {
  if (phase_ == Phase::kOver) return Change::kNone;
  note_wakeup(now);
  DCHECK(woke_ns_ == now);
  if (phase_ == Phase::kLeaving) {
    if (now >= leave_until_ns_) {
      become(Phase::kOver);
      return Change::kLeft;
    }
    if (now >= next_send_ns_) {
      send_leave_ = true;
      next_send_ns_ = now + kLeaveRepeat;
    }
    return Change::kNone;
  }
  if (now >= ended_by_ns_)
    return fail(StatusCode::kClosed, "the appliance says that the job has ended");
  if (now - heard_ns_ >= patience_ns_) return fail_silent(now);
  if (phase_ == Phase::kForming && now - joined_ns_ >= forming_patience_ns_)
    return fail(StatusCode::kTimedOut, describe_absent(now));
  if (now >= next_send_ns_) {
    send_keepalive_ = true;
    next_send_ns_ = now + kKeepaliveInterval;
  }
  return Change::kNone;
}

Membership::Change Membership::fail_silent(TimeNs now) {
  std::string text = "the appliance has been silent for " + seconds_text(now - heard_ns_);
  if (survives_restart_)
    text += " and has not come back within restart_timeout";
  else if (options_.restart_timeout_ns != 0)
    text += ", and an elastic job does not go on when its appliance restarts";
  if (!shutdown_.empty()) text += " (it had said: " + shutdown_ + ")";
  return fail(StatusCode::kUnreachable, text + ": look at its log, and at the network between");
}

TimeNs Membership::next_timeout() const noexcept {
  if (phase_ == Phase::kOver) return kNever;
  if (phase_ == Phase::kLeaving) return std::min(next_send_ns_, leave_until_ns_);
  TimeNs next_ns = std::min(next_send_ns_, ended_by_ns_);
  next_ns = std::min(next_ns, heard_ns_ + patience_ns_);
  if (phase_ == Phase::kForming) next_ns = std::min(next_ns, joined_ns_ + forming_patience_ns_);
  return next_ns;
}

std::size_t Membership::poll_transmit(std::span<std::uint8_t> out, const Counters& counters,
                                      TimeNs now) noexcept {
  DCHECK((!send_leave_ && !send_keepalive_) || identity_.cookie != 0);
  if (send_leave_) {
    send_leave_ = false;
    return wire::encode(
        out, identity_, leave_, {},
        {reinterpret_cast<const std::uint8_t*>(leave_text_.data()), leave_.text_bytes});
  }
  if (send_keepalive_) {
    send_keepalive_ = false;
    return wire::encode(out, identity_,
                        wire::Keepalive{.timestamp_us = wire_time_us(now),
                                        .token = token_,
                                        .suspended_ns = counters.suspended_ns,
                                        .oldest_request_iterations = static_cast<std::uint32_t>(
                                            counters.oldest_request_iterations),
                                        .view = view_});
  }
  return 0;
}

void Membership::leave(const wire::Leave& body, std::string why, TimeNs now) {
  if (phase_ == Phase::kLeaving || phase_ == Phase::kOver) return;
  CHECK(identity_.cookie != 0);
  become(Phase::kLeaving);
  leave_ = body;
  CHECK(why.size() <= kMaxReasonBytes);
  leave_.text_bytes = static_cast<std::uint16_t>(why.size());
  leave_text_ = std::move(why);
  send_leave_ = true;
  send_keepalive_ = false;
  next_send_ns_ = now + kLeaveRepeat;
  // The others wait for a rank that ends before them until they hear its leave.
  const bool uneven = body.reason == wire::LeaveReason::kUneven;
  leave_until_ns_ = now + (uneven ? options_.silence_timeout_ns : kLeaveDeadline);
}

void Membership::farewell(const wire::Leave& body) noexcept {
  CHECK(identity_.cookie != 0);
  become(Phase::kOver);
  leave_ = body;
  send_leave_ = true;
  send_keepalive_ = false;
}

bool Membership::lacks_ranks() const noexcept {
  const auto words = std::span(missing_).first((options_.world_size + 63u) / 64);
  return std::ranges::any_of(words, [](std::uint64_t word) { return word != 0; });
}

std::string Membership::missing_ranks() const { return list_ranks(missing_, kMaskWords); }

std::string Membership::describe_forming() const {
  return std::to_string(joined_count_) + " of " + std::to_string(options_.world_size) +
         " ranks here; waiting for " + missing_ranks() + inproc_hint(options_.appliance_address);
}

// Ranks whose patience ended before this one's have gone because of the ranks that never came.
std::string Membership::describe_absent(TimeNs now) const {
  std::uint64_t gone[kMaskWords];
  std::size_t unseen_count = 0;
  for (std::size_t word = 0; word < kMaskWords; ++word) {
    gone[word] = missing_[word] & ~unseen_[word];
    unseen_count += static_cast<std::size_t>(std::popcount(unseen_[word]));
  }
  std::string text = std::to_string(options_.world_size - unseen_count) + " of " +
                     std::to_string(options_.world_size) + " ranks joined within " +
                     seconds_text(now - joined_ns_);
  if (unseen_count != 0) text += "; missing: " + list_ranks(unseen_, kMaskWords);
  if (std::ranges::any_of(gone, [](std::uint64_t word) { return word != 0; }))
    text += "; no longer here: " + list_ranks(gone, kMaskWords);
  return text + ". Start them, or look at their logs" + inproc_hint(options_.appliance_address);
}

Membership::Change Membership::fail(StatusCode code, std::string message) {
  CHECK(code != StatusCode::kOk && failure_.ok());
  become(Phase::kOver);
  send_keepalive_ = false;
  failure_ = Status(code, error_prefix(options_) + std::move(message));
  return Change::kFailed;
}

}  // namespace sluice::client
