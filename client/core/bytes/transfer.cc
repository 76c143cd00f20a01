#include "client/core/bytes/transfer.h"

#include <algorithm>
#include <initializer_list>
#include <new>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/link/flow.h"

namespace sluice::client {
namespace {

constexpr DurationNs kAskAgain = 250 * kMillisecond;
constexpr Priority kStatePriority = kLeastUrgent;  // gradients do not wait for it

}  // namespace

// The legal changes of role.
void Transfers::become(Role role) noexcept {
  const auto from = [this](std::initializer_list<Role> roles) {
    return std::find(roles.begin(), roles.end(), role_) != roles.end();
  };
  switch (role) {
    case Role::kNone: CHECK(giver() || role_ == Role::kTelling); break;
    case Role::kAsking: CHECK(!giver() && role_ != Role::kAsking); break;
    case Role::kReceiving: CHECK(from({Role::kAsking, Role::kReceiving})); break;
    case Role::kReceived: CHECK(role_ == Role::kReceiving); break;
    case Role::kTelling: CHECK(role_ == Role::kReceived); break;
    case Role::kWanted: CHECK(from({Role::kNone, Role::kReceived, Role::kTelling})); break;
    case Role::kGiving: CHECK(role_ == Role::kWanted); break;
    case Role::kGiven: CHECK(role_ == Role::kGiving); break;
  }
  role_ = role;
}

// ---- receiver ----

void Transfers::request(TimeNs now) {
  if (role_ == Role::kAsking || role_ == Role::kReceiving) return;
  if (giver()) stop_giving();
  become(Role::kAsking);
  ++number_;
  CHECK(number_ != 0);
  first_step_ = 0;
  failure_ = {};
  tell(now);
}

void Transfers::caught_up(TimeNs now) noexcept {
  if (role_ != Role::kReceived) return;
  CHECK(!send_control_ && receiving_ == nullptr);
  become(Role::kTelling);
  told_ns_ = now;
  tell(now);
}

void Transfers::change_appliance(TimeNs now) {
  begin_anew();
  if (giver()) stop_giving();
  receiving_.reset();
  first_step_ = given_step_ = 0;
  if (role_ == Role::kReceiving) become(Role::kAsking);
  if (role_ == Role::kAsking) tell(now);
}

// The request or the report leaves now, and once more until a status shows that it has arrived.
void Transfers::tell(TimeNs now) noexcept {
  CHECK(role_ == Role::kAsking || role_ == Role::kTelling);
  send_control_ = true;
  next_control_ns_ = now + kAskAgain;
}

void Transfers::stop_telling() noexcept {
  send_control_ = false;
  next_control_ns_ = kNever;
}

void Transfers::start_receiving(const wire::Status& status, TimeNs now) noexcept {
  CHECK(status.transfer_step > first_step_);
  become(Role::kReceiving);
  receiving_ns_ = now;
  first_step_ = status.transfer_step;
  source_ = Rank{status.transfer_source};
  stop_telling();
  receiving_.reset();
  state_.reset();
  move_to(first_step_);
  begin_header(now);
}

// ---- giver ----

bool Transfers::give(std::span<const std::uint8_t> state, Step step, TimeNs now) {
  if (role_ != Role::kWanted) return false;
  become(Role::kGiving);
  CHECK(given_step_ < first_step_);
  given_step_ = first_step_;
  given_ = state;
  header_ = {.bytes = state.size(), .step = step};
  move_to(first_step_);
  begin_header(now);
  return true;
}

void Transfers::stop_giving() {
  CHECK(giver());
  if (role_ == Role::kGiving) {
    move_to(current_step());
    link_.events.push({.kind = Event::Kind::kStateSent});
  }
  if (role_ == Role::kWanted) link_.events.push({.kind = Event::Kind::kStateUnwanted});
  given_ = {};
  become(Role::kNone);
}

// ---- pieces ----

Piece Transfers::next_piece(std::uint32_t bytes) const noexcept {
  return {.kind = CollectiveKind::kTransfer,
          .root = source_,
          .bytes = bytes,
          .part = giver() ? Piece::Part::kData : Piece::Part::kPresence,
          .priority = kStatePriority};
}

void Transfers::begin_header(TimeNs now) noexcept {
  CHECK(role_ == Role::kReceiving || role_ == Role::kGiving);
  in_header_ = true;
  offset_ = 0;
  Piece piece = next_piece(sizeof(Header));
  if (giver())
    piece.source = reinterpret_cast<const std::uint8_t*>(&header_);
  else
    piece.sink = reinterpret_cast<std::uint8_t*>(&header_);
  begin(piece, now);
}

void Transfers::begin_data(TimeNs now) noexcept {
  CHECK(giver() ? given_.size() == header_.bytes : receiving_ != nullptr);
  in_header_ = false;
  begin(data_piece(offset_), now);
}

Piece Transfers::data_piece(std::uint64_t offset) const noexcept {
  CHECK(offset < header_.bytes);
  Piece piece = next_piece(static_cast<std::uint32_t>(
      std::min<std::uint64_t>(header_.bytes - offset, max_piece_bytes())));
  if (giver())
    piece.source = given_.data() + offset;
  else
    piece.sink = receiving_.get() + offset;
  return piece;
}

// The giver does not wait for packets that were lost on the way here.
Piece Transfers::following() const noexcept {
  if (role_ != Role::kReceiving || in_header_) return {};
  const std::uint64_t offset = offset_ + piece().bytes;
  return offset < header_.bytes ? data_piece(offset) : Piece{};
}

void Transfers::piece_done(bool /*lost*/, TimeNs now) {
  CHECK(role_ == Role::kReceiving || role_ == Role::kGiving);
  next_step();
  if (!in_header_) offset_ += piece().bytes;
  CHECK(in_header_ || offset_ <= header_.bytes);
  if (in_header_ && !giver()) {
    // The other rank states the size. An operating system that promises more memory than it has
    // would end this process for it.
    const bool fits = header_.bytes <= options_.max_state_bytes;
    if (fits) receiving_.reset(new (std::nothrow) std::uint8_t[header_.bytes]);
    if (receiving_ == nullptr) return refuse_state(fits, now);
  }
  if (offset_ < header_.bytes) return begin_data(now);
  if (giver()) {
    become(Role::kGiven);
    given_ = {};
    link_.events.push({.kind = Event::Kind::kStateSent});
  } else {
    become(Role::kReceived);
    state_ = {.data = std::move(receiving_), .bytes = header_.bytes, .step = header_.step};
    ++link_.counters.resyncs;
    link_.events.push({.kind = Event::Kind::kStateReceived, .step = header_.step, .peer = source_});
  }
}

// There is no memory for the state. The others need not be held for this rank.
void Transfers::refuse_state(bool fits, TimeNs now) {
  CHECK(receiving_ == nullptr && !giver());
  become(Role::kReceived);
  caught_up(now);
  std::string why = error_prefix(options_) + "no memory for the state of rank " +
                    std::to_string(source_.value) + ", " + std::to_string(header_.bytes) + " bytes";
  if (!fits) why += "; this machine has " + std::to_string(options_.max_state_bytes);
  failure_ = Status(StatusCode::kExhausted, std::move(why));
  link_.events.push({.kind = Event::Kind::kStateReceived, .status = failure_});
}

// ---- control port ----

bool Transfers::is_answer_after(const wire::Status& status, TimeNs time_ns) noexcept {
  return status.echo_timestamp_us != 0 &&
         ahead(status.echo_timestamp_us, wire_time_us(time_ns)) > 0;
}

void Transfers::handle_status(const wire::Status& status, TimeNs now) {
  if (!tolerant_) return;
  const bool named = status.transfer_step != 0;
  const bool mine =
      named && status.transfer_target == options_.rank.value && status.transfer_number == number_;
  if (mine &&
      (role_ == Role::kAsking || (role_ == Role::kReceiving && status.transfer_step > first_step_)))
    return start_receiving(status, now);
  // The transfer is over, but not for this rank, which was given up for a while: ask once more.
  if (role_ == Role::kReceiving && !mine && is_answer_after(status, receiving_ns_)) {
    move_to(current_step());
    become(Role::kAsking);
    tell(now);
  }
  // A status that answers a keepalive sent after the report, and does not name this transfer any
  // more, shows that the report has arrived.
  if (role_ == Role::kTelling && !mine && is_answer_after(status, told_ns_)) {
    become(Role::kNone);
    stop_telling();
  }
  const bool wanted = named && status.transfer_source == options_.rank.value;
  // Statuses overtake each other: an earlier status ends nothing.
  const bool newer = status.transfer_step > first_step_ || is_answer_after(status, wanted_ns_);
  if (giver() && newer && (!wanted || status.transfer_step != first_step_)) stop_giving();
  if (!wanted || role_ == Role::kAsking || role_ == Role::kReceiving || giver()) return;
  // The transfer's steps may hold another state already, or the transfer is older than this rank's
  // own.
  if (status.transfer_step <= given_step_ ||
      (role_ != Role::kNone && status.transfer_step <= first_step_))
    return;
  become(Role::kWanted);
  wanted_ns_ = now;
  stop_telling();
  first_step_ = status.transfer_step;
  source_ = options_.rank;
  target_ = Rank{status.transfer_target};
  CHECK(first_step_ > given_step_);
  link_.events.push({.kind = Event::Kind::kStateWanted, .peer = target_});
}

std::size_t Transfers::poll_control(std::span<std::uint8_t> out) noexcept {
  if (!send_control_) return 0;
  send_control_ = false;
  const bool done = role_ == Role::kTelling;
  CHECK(done || role_ == Role::kAsking);
  return wire::encode(out, link_.identity,
                      wire::Resync{.number = number_, .done = static_cast<std::uint8_t>(done)});
}

void Transfers::handle_timeout(TimeNs now) {
  if (now >= next_control_ns_) tell(now);
}

TimeNs Transfers::next_timeout() const noexcept {
  return std::min(next_control_ns_, PieceStream::next_timeout());
}

std::string Transfers::describe(TimeNs) const {
  if (role_ == Role::kAsking) return "the appliance has not found a rank to give its state yet";
  if (role_ != Role::kReceiving) return {};
  std::string text = "waiting for the state of rank " + std::to_string(source_.value) + ": ";
  if (in_header_) return text + "it has not begun to send";
  return text + std::to_string(offset_) + " of " + std::to_string(header_.bytes) +
         " bytes are here";
}

}  // namespace sluice::client
