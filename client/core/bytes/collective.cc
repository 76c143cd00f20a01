#include "client/core/bytes/collective.h"

#include <algorithm>
#include <string>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

static_assert(2 * kBroadcastsPerBarrier <= kMaxWindow);

std::string describe_operation(const wire::Operation& operation) {
  if (operation.kind == CollectiveKind::kBarrier) return "a barrier";
  return "a broadcast step of " + std::to_string(operation.size_bytes) + " bytes from rank " +
         std::to_string(operation.root);
}

}  // namespace

Collectives::Collectives(const SessionOptions& options, std::size_t chunk_bytes, Link& link,
                         Step first_step)
    : PieceStream(StreamId::kCollectives, chunk_bytes, first_step, link), options_(options) {}

Status Collectives::join(const wire::Accept& accept) {
  CHECK(!started_);
  if (accept.rejoined == 0) return {};
  const Step first_step = std::max<Step>(1, accept.first_steps[index_of(id())]);
  move_to(first_step);
  if (accept.open_steps[index_of(id())] < first_step) hold();
  return {};
}

void Collectives::start(TimeNs now) {
  CHECK(!started_);
  started_ = true;
  if (call_) run(*call_, now);
}

void Collectives::begin_call(std::optional<Rank> root, void* buffer, std::size_t bytes,
                             TimeNs now) {
  CHECK(!call_ && (!root || root->value < options_.world_size));
  call_ = {.root = root, .buffer = static_cast<std::uint8_t*>(buffer), .bytes = bytes};
  has_all_bytes_ = false;
  if (started_ && !exchanging_) run(*call_, now);
}

void Collectives::run(const Call& call, TimeNs now) {
  CHECK(started_ && !running_);
  running_ = true;
  call_step_ = current_step();
  root_ = call.root.value_or(Rank{});
  buffer_ = call.buffer;
  bytes_ = call.bytes;
  offset_ = 0;
  since_barrier_ = 0;
  failure_ = {};
  begin_piece(now);
}

// ---- an appliance that is lost and comes back ----

void Collectives::change_appliance() noexcept {
  position_ = position();
  has_all_bytes_ |= running_ && !exchanging_ && last_;
  begin_anew();
  started_ = exchanging_ = running_ = false;
  changed_ = true;
}

void Collectives::begin_exchange() noexcept {
  CHECK(!started_ && !running_);
  started_ = exchanging_ = true;
}

void Collectives::exchange(Rank root, std::span<std::uint8_t> buffer, TimeNs now) {
  CHECK(exchanging_ && root.value < options_.world_size);
  run({.root = root, .buffer = buffer.data(), .bytes = buffer.size()}, now);
}

void Collectives::end_exchange(bool call_is_over, TimeNs now) {
  CHECK(exchanging_ && !running_ && (call_ || !call_is_over));
  exchanging_ = false;
  if (call_is_over)
    end_call(current_step());
  else if (call_)
    run(*call_, now);
}

void Collectives::end_call(Step step) {
  CHECK(call_.has_value());
  call_.reset();
  ++calls_ended_;
  link_.events.push({.kind = Event::Kind::kCollectiveDone, .step = step, .status = failure_});
}

// The next step of the call: data while there is some and the window allows, else a barrier.
void Collectives::begin_piece(TimeNs now) noexcept {
  CHECK(running_ && offset_ <= bytes_ && since_barrier_ <= kBroadcastsPerBarrier);
  const std::size_t left = bytes_ - offset_;
  Piece piece;
  last_ = left == 0 && since_barrier_ < kBroadcastsPerBarrier;
  if (left == 0 || since_barrier_ == kBroadcastsPerBarrier) {
    since_barrier_ = 0;
  } else {
    piece = {.kind = CollectiveKind::kBroadcast,
             .root = root_,
             .bytes = static_cast<std::uint32_t>(std::min(left, max_piece_bytes())),
             .part = is_root() ? Piece::Part::kData : Piece::Part::kPresence,
             .source = buffer_ + offset_,
             .sink = is_root() ? nullptr : buffer_ + offset_};
    ++since_barrier_;
  }
  begin(piece, now);
}

Verdict Collectives::handle_result(const wire::Packet& packet, TimeNs now) {
  return started_ ? PieceStream::handle_result(packet, now) : Verdict::kNotStarted;
}

void Collectives::mismatch(const wire::Operation& other) {
  if (other == piece().operation())
    return link_.fail({StatusCode::kRefused,
                       error_prefix(options_) + describe_step() +
                           ": another process of this rank has sent other bytes; a synchronous job "
                           "cannot be joined in mid-run: stop the other ranks and start it again"});
  link_.fail({StatusCode::kInvalidArgument,
              error_prefix(options_) + "collective step " + std::to_string(current_step()) +
                  ": this rank called " + describe_operation(piece().operation()) +
                  ", another one " + describe_operation(other) +
                  "; all ranks must call the same collectives in the same order"});
}

void Collectives::piece_done(bool lost, TimeNs now) {
  CHECK(running_ && offset_ + piece().bytes <= bytes_);
  CHECK(!lost || piece().kind == CollectiveKind::kBroadcast);
  const Step step = current_step();
  offset_ = lost ? bytes_ : offset_ + piece().bytes;
  if (lost)
    failure_ = Status(StatusCode::kPeerLost,
                      error_prefix(options_) + "broadcast of " + std::to_string(bytes_) +
                          " bytes: its root, rank " + std::to_string(root_.value) +
                          ", has left or was lost before all of it was sent; the job goes on");
  if (last_) {
    CHECK(offset_ == bytes_);
    running_ = false;
    if (!exchanging_) end_call(step);
  }
  if (step >= kLastStep)
    return link_.fail({StatusCode::kExhausted,
                       error_prefix(options_) + "collective step " + std::to_string(step) +
                           " was the last one, its number cannot grow: start a new job "
                           "from a checkpoint"});
  next_step();
  if (running_) begin_piece(now);
}

Verdict Collectives::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  if (!in_progress() || body.step != current_step()) return Verdict::kProbe;
  if (body.status != wire::AnswerStatus::kGone) return PieceStream::handle_answer(packet, now);
  link_.fail({StatusCode::kClosed, error_prefix(options_) + describe_step() +
                                       " is no longer kept by the appliance, which is at step " +
                                       std::to_string(body.open_step) +
                                       ": the other ranks went on without it"});
  return Verdict::kTooOld;
}

std::string Collectives::describe_step() const {
  if (!started_) return "a collective that waits for the job to start";
  if (exchanging_) return "what the ranks know of the step in which the appliance was lost";
  return "collective step " + std::to_string(current_step()) + ", " +
         describe_operation(piece().operation());
}

std::string Collectives::describe(TimeNs now) const {
  if (!in_progress()) return {};
  return describe_step() + " has made no progress for " + seconds_text(now - last_progress_ns());
}

}  // namespace sluice::client
