#include "client/core/collective.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "client/core/join.h"

namespace sluice::client {
namespace {

constexpr std::uint32_t kBroadcastsPerBarrier = 4;  // half of the window of kMaxWindow steps
constexpr DurationNs kFirstProbe = 5 * kMillisecond;
constexpr Step kLastStep = UINT32_MAX - 1;

std::string describe_fixed(std::uint32_t bytes, std::uint32_t kind_and_root) {
  if (wire::collective_kind(kind_and_root) == CollectiveKind::kBarrier) return "a barrier";
  return "a broadcast step of " + std::to_string(bytes) + " bytes from rank " +
         std::to_string(wire::collective_root(kind_and_root));
}

}  // namespace

Collectives::Collectives(const SessionOptions& options, std::size_t chunk_bytes, Step first_step)
    : options_(options), chunk_bytes_(chunk_bytes), step_(first_step) {}

void Collectives::start(TimeNs now) noexcept {
  started_ = true;
  if (busy_) begin_piece(now);
}

Status Collectives::broadcast(Rank root, void* buffer, std::size_t bytes, TimeNs now) noexcept {
  if (root.value >= options_.world_size)
    return {StatusCode::kInvalidArgument,
            place_of(options_) + "broadcast from rank " + std::to_string(root.value) +
                ": the world has ranks 0 to " + std::to_string(options_.world_size - 1)};
  if (buffer == nullptr && bytes != 0)
    return {StatusCode::kInvalidArgument, place_of(options_) + "broadcast of " +
                                              std::to_string(bytes) + " bytes to a null buffer"};
  return begin_call(true, root, buffer, bytes, now);
}

Status Collectives::barrier(TimeNs now) noexcept {
  return begin_call(false, Rank{}, nullptr, 0, now);
}

Status Collectives::begin_call(bool is_broadcast, Rank root, void* buffer, std::size_t bytes,
                               TimeNs now) noexcept {
  if (busy_)
    return {StatusCode::kInvalidArgument,
            place_of(options_) + "a collective was called before the last one was done (" +
                describe() + "): wait for it first"};
  busy_ = true;
  is_broadcast_ = is_broadcast;
  root_ = root;
  buffer_ = static_cast<std::uint8_t*>(buffer);
  bytes_ = bytes;
  offset_ = 0;
  since_barrier_ = 0;
  last_progress_ns_ = now;
  if (started_) begin_piece(now);
  return {};
}

// The next step of the call: data while there is some and the window allows, else a barrier.
void Collectives::begin_piece(TimeNs now) noexcept {
  const std::size_t left = bytes_ - offset_;
  if (left == 0 || since_barrier_ == kBroadcastsPerBarrier) {
    piece_ = {};
    since_barrier_ = 0;
  } else {
    piece_.kind = CollectiveKind::kBroadcast;
    piece_.bytes =
        static_cast<std::uint32_t>(std::min<std::size_t>(left, kCollectiveChunks * chunk_bytes_));
    piece_.chunk_count =
        static_cast<std::uint32_t>((piece_.bytes + chunk_bytes_ - 1) / chunk_bytes_);
    piece_.data = buffer_ + offset_;
    ++since_barrier_;
  }
  chunks_left_ = piece_.chunk_count;
  recovery_.begin_step();
  queue_.clear();
  const bool contribute = piece_.kind == CollectiveKind::kBarrier || is_root();
  const TimeNs probe_at_ns = passed_step_ >= step_ ? now : now + kFirstProbe;
  for (ChunkIndex chunk = 0; chunk < piece_.chunk_count; ++chunk) {
    if (contribute) {
      recovery_.expect(chunk);
      queue_.push(chunk, 0);
    } else {
      recovery_.await(chunk, probe_at_ns);
    }
  }
}

std::size_t Collectives::chunk_size(ChunkIndex chunk) const noexcept {
  return std::min<std::size_t>(chunk_bytes_, piece_.bytes - chunk * chunk_bytes_);
}

std::uint32_t Collectives::piece_root() const noexcept {
  const bool broadcast = piece_.kind == CollectiveKind::kBroadcast;
  return wire::pack_collective(piece_.kind, broadcast ? root_.value : std::uint16_t{0});
}

std::size_t Collectives::write_next(Link& link, std::span<std::uint8_t> out, TimeNs now) noexcept {
  const ChunkIndex chunk = queue_.pop();
  if (!recovery_.take(chunk)) return 0;
  Flow& flow = link.flows[0];
  wire::Contribution body{.flow = flow.next_header(now),
                          .step = step_,
                          .chunk = chunk,
                          .base_step = piece_.bytes,
                          .weight = piece_root(),
                          .stream = StreamId::kCollectives,
                          .dtype = Dtype::kBytes};
  std::span<const std::uint8_t> payload;
  if (piece_.kind == CollectiveKind::kBroadcast) {
    payload = {piece_.data + chunk * chunk_bytes_, chunk_size(chunk)};
    body.elem_count = body.payload_bytes = static_cast<std::uint16_t>(payload.size());
  } else {
    body.flags |= wire::kFlagNil;
  }
  if (flow.take_report_flag(queue_.empty())) body.flags |= wire::kFlagReport;
  if (recovery_.sent(chunk, body.flow.number, now, flow)) ++link.stats.retransmissions;
  return wire::encode(out, link.identity, body, {}, payload);
}

Outcome Collectives::handle_result(const wire::Packet& packet, Link& link, TimeNs now) noexcept {
  const auto& body = packet.body<wire::ResultHeader>();
  if (!started_) return {Verdict::kNotStarted, {}};
  if (body.step > step_ || (body.step == step_ && !busy_)) {  // not called here yet: pulled later
    passed_step_ = std::max(passed_step_, Step{body.step});
    return {Verdict::kTooNew, {}};
  }
  if (body.step < step_) {
    ++link.stats.duplicate_results;
    return {Verdict::kDuplicate, {}};
  }
  const auto kind_and_root = static_cast<std::uint32_t>(body.weight);
  const auto bytes = static_cast<std::uint32_t>(body.weight >> 32);
  if (kind_and_root != piece_root() || bytes != piece_.bytes)
    return {Verdict::kCollectiveMismatch,
            Status(StatusCode::kInvalidArgument,
                   place_of(options_) + "collective step " + std::to_string(step_) +
                       ": this rank called " + describe_fixed(piece_.bytes, piece_root()) +
                       ", another one " + describe_fixed(bytes, kind_and_root) +
                       "; all ranks must call the same collectives in the same order")};
  if (body.chunk >= piece_.chunk_count) return {Verdict::kBadChunk, {}};
  const bool broadcast = piece_.kind == CollectiveKind::kBroadcast;
  if (broadcast != !(body.flags & wire::kFlagNil) ||
      (broadcast && (body.dtype != Dtype::kBytes || body.elem_count != chunk_size(body.chunk))))
    return {Verdict::kShapeMismatch, {}};
  if (!recovery_.result(body.chunk, now, link.flows[0])) {
    ++link.stats.duplicate_results;
    return {Verdict::kDuplicate, {}};
  }
  last_progress_ns_ = now;
  if (broadcast && !is_root())
    std::memcpy(piece_.data + body.chunk * chunk_bytes_, packet.payload().data(),
                packet.payload().size());
  if (--chunks_left_ != 0) return {Verdict::kFolded, {}};
  return {Verdict::kCompleted, finish_piece(link, now)};
}

Status Collectives::finish_piece(Link& link, TimeNs now) noexcept {
  const bool was_barrier = piece_.kind == CollectiveKind::kBarrier;
  offset_ += piece_.bytes;
  if (was_barrier && offset_ == bytes_) {
    busy_ = false;
    link.events.push({.kind = Event::Kind::kCollectiveDone, .step = step_});
  }
  if (step_ >= kLastStep)
    return {StatusCode::kExhausted,
            place_of(options_) + "collective step " + std::to_string(step_) +
                " was the last one, its number cannot grow: start a new job from a checkpoint"};
  ++step_;
  if (busy_) begin_piece(now);
  return {};
}

Outcome Collectives::handle_answer(const wire::Packet& packet, Link& link, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Answer>();
  if (!in_progress() || body.step != step_) return {Verdict::kProbe, {}};
  if (body.block != 0) return {Verdict::kBadChunk, {}};
  if (body.status == wire::AnswerStatus::kGone)
    return {Verdict::kTooOld,
            Status(StatusCode::kClosed,
                   place_of(options_) + describe() +
                       " is no longer kept by the appliance, which is at step " +
                       std::to_string(body.open_step) + ": the other ranks went on without it")};
  std::uint64_t lost = recovery_.answer(body, now, link.flows[0]);
  for (; lost != 0; lost &= lost - 1)
    queue_.push(static_cast<ChunkIndex>(std::countr_zero(lost)), 0);
  return {Verdict::kProbe, {}};
}

std::string Collectives::describe() const {
  if (!started_) return "a collective that waits for the job to start";
  return "collective step " + std::to_string(step_) + ", " +
         describe_fixed(piece_.bytes, piece_root());
}

}  // namespace sluice::client
