#include "client/core/bytes/piece.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace sluice::client {
namespace {

constexpr DurationNs kFirstProbe = 5 * kMillisecond;

}  // namespace

void PieceStream::begin(const Piece& piece, TimeNs now) noexcept {
  piece_ = piece;
  chunk_count_ = std::max(1u, chunks_of(piece));
  CHECK(chunk_count_ <= kCollectiveChunks);
  CHECK(piece.part != Piece::Part::kData || piece.bytes == 0 || piece.source != nullptr);
  chunks_left_ = chunk_count_;
  lost_ = false;
  last_progress_ns_ = now;
  recovery_->begin_step();
  queue_.clear();
  const bool passed = passed_step_ >= step_;
  const TimeNs probe_at_ns = passed || held_ ? now : now + kFirstProbe;
  // A rank that comes after the root need not say that it waits.
  const bool present =
      piece.part == Piece::Part::kPresence && !(passed && piece.kind == CollectiveKind::kBroadcast);
  const std::uint64_t here = std::exchange(early_, 0);
  DCHECK((here & 1) == 0 && (here == 0 || !held_));  // something is left to do
  for (ChunkIndex chunk = 0; chunk < chunk_count_; ++chunk) {
    if (here >> chunk & 1) {
      --chunks_left_;
      continue;
    }
    if (!held_ && (piece.part == Piece::Part::kData || (present && chunk == 0))) {
      recovery_->expect(chunk);
      queue_.push(chunk, 0);
    } else {
      recovery_->await(chunk, probe_at_ns);
    }
  }
}

void PieceStream::move_to(Step step) noexcept {
  recovery_->abandon(link_.flows);
  queue_.clear();
  chunks_left_ = 0;
  early_ = 0;
  CHECK(step != 0);
  step_ = step;
}

void PieceStream::begin_anew() noexcept {
  recovery_->begin_step();
  queue_.clear();
  chunks_left_ = 0;
  early_ = 0;
  passed_step_ = 0;
  held_ = false;
  step_ = 1;
}

std::uint32_t PieceStream::chunks_of(const Piece& piece) const noexcept {
  return static_cast<std::uint32_t>((piece.bytes + chunk_bytes_ - 1) / chunk_bytes_);
}

std::size_t PieceStream::chunk_size(const Piece& piece, ChunkIndex chunk) const noexcept {
  DCHECK(chunk * chunk_bytes_ < piece.bytes);
  return std::min<std::size_t>(chunk_bytes_, piece.bytes - chunk * chunk_bytes_);
}

// The first chunk is never kept: it waits for this worker's presence, and shows that the worker has
// gone on.
Verdict PieceStream::keep_early(const wire::Packet& packet) noexcept {
  const auto& body = packet.body<wire::PieceResult>();
  const Piece next = following();
  if (next.sink == nullptr || body.operation != next.operation()) return Verdict::kTooNew;
  if (body.chunk == 0 || body.chunk >= chunks_of(next)) return Verdict::kTooNew;
  if (body.payload_bytes != chunk_size(next, body.chunk)) return Verdict::kShapeMismatch;
  const std::uint64_t bit = std::uint64_t{1} << body.chunk;
  if (early_ & bit) {
    ++link_.counters.duplicate_results;
    return Verdict::kDuplicate;
  }
  early_ |= bit;
  std::memcpy(next.sink + body.chunk * chunk_bytes_, packet.payload().data(), body.payload_bytes);
  return Verdict::kFolded;
}

bool PieceStream::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  while (!queue_.empty() && link_.flows[0].may_send(!recovery_->nothing_outstanding(0)) &&
         link_.flows[0].on_pace(now)) {
    const ChunkIndex chunk = queue_.head(0);
    queue_.pop(0);
    if (!recovery_->take(chunk)) continue;  // it need not be sent after all
    CHECK(chunk < chunk_count_ && chunks_left_ != 0);
    transmit = {
        .bytes = write_chunk(chunk, out, now), .port_offset = 1, .priority = piece_.priority};
    return true;
  }
  return false;
}

std::size_t PieceStream::write_chunk(ChunkIndex chunk, std::span<std::uint8_t> out,
                                     TimeNs now) noexcept {
  Flow& flow = link_.flows[0];
  wire::Piece body{.flow = flow.next_header(now, piece_.priority),
                   .step = step_,
                   .chunk = chunk,
                   .operation = piece_.operation()};
  DCHECK(piece_.part == Piece::Part::kData || chunk == 0);
  std::span<const std::uint8_t> payload;
  if (piece_.part == Piece::Part::kData)
    payload = {piece_.source + chunk * chunk_bytes_, chunk_size(piece_, chunk)};
  body.payload_bytes = static_cast<std::uint16_t>(payload.size());
  if (flow.take_report_flag(queue_.empty(), now)) body.flow.flags |= wire::kFlagReport;
  if (recovery_->sent(chunk, body.flow.number, now, flow)) ++link_.counters.retransmissions;
  return wire::encode(out, link_.identity, body, {}, payload);
}

Verdict PieceStream::handle_result(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::PieceResult>();
  if (body.step > step_ || (body.step == step_ && !busy())) {  // not begun here: pulled later
    passed_step_ = std::max(passed_step_, Step{body.step});
    return busy() && body.step == step_ + 1 ? keep_early(packet) : Verdict::kTooNew;
  }
  if (body.step < step_) {
    ++link_.counters.duplicate_results;
    return Verdict::kDuplicate;
  }
  if (body.operation != piece_.operation()) {
    mismatch(body.operation);
    return Verdict::kCollectiveMismatch;
  }
  if (body.chunk >= chunk_count_) return Verdict::kBadChunk;
  const bool lost = body.payload_bytes == 0 && piece_.kind == CollectiveKind::kBroadcast;
  const bool data = piece_.bytes != 0 && !lost;
  if (body.payload_bytes != (data ? chunk_size(piece_, body.chunk) : 0))
    return Verdict::kShapeMismatch;
  // An earlier process of this rank may have sent other data, and then the ranks would differ in
  // silence.
  if (data && piece_.kind == CollectiveKind::kBroadcast && piece_.part == Piece::Part::kData &&
      std::memcmp(piece_.source + body.chunk * chunk_bytes_, packet.payload().data(),
                  packet.payload().size()) != 0) {
    mismatch(body.operation);
    return Verdict::kCollectiveMismatch;
  }
  if (!recovery_->result(body.chunk, now, link_.flows[0])) {
    ++link_.counters.duplicate_results;
    return Verdict::kDuplicate;
  }
  last_progress_ns_ = now;
  lost_ |= lost;
  if (data && piece_.sink != nullptr)
    std::memcpy(piece_.sink + body.chunk * chunk_bytes_, packet.payload().data(),
                packet.payload().size());
  CHECK(0 < chunks_left_ && chunks_left_ <= chunk_count_);
  if (--chunks_left_ != 0) return Verdict::kFolded;
  piece_done(lost_, now);
  return Verdict::kCompleted;
}

Verdict PieceStream::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  if (!busy() || body.step != step_) return Verdict::kProbe;
  if (body.block != 0) return Verdict::kBadChunk;
  if (held_ && body.status == wire::AnswerStatus::kOpen) {
    held_ = false;
    recovery_->abandon(link_.flows);
    begin(piece_, now);
    return Verdict::kProbe;
  }
  send_again(0, recovery_->answer(body, now, link_.flows[0]));
  return Verdict::kProbe;
}

void PieceStream::send_again(std::uint32_t block, std::uint64_t chunks) {
  DCHECK(block == 0 && (chunk_count_ >= kChunksPerBlock || chunks >> chunk_count_ == 0));
  for (; chunks != 0; chunks &= chunks - 1) queue_.push(first_chunk(block, chunks), 0);
}

}  // namespace sluice::client
