// Pieces of broadcasts, barriers and transfers of state: the operation that the first piece of a
// step fixes, the completion of a piece, and the end of a broadcast whose root is gone.
#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// The size of chunk `chunk` of an operation of `size_bytes`.
std::size_t piece_bytes(std::uint32_t size_bytes, ChunkIndex chunk,
                        std::size_t chunk_bytes) noexcept {
  DCHECK(chunk * chunk_bytes <= size_bytes);
  return std::min<std::size_t>(chunk_bytes, size_bytes - chunk * chunk_bytes);
}

std::uint32_t chunk_count_of(const wire::Operation& operation, std::size_t chunk_bytes) noexcept {
  return static_cast<std::uint32_t>(
      std::max<std::size_t>(1, (operation.size_bytes + chunk_bytes - 1) / chunk_bytes));
}

}  // namespace

// Takes a piece. The root's data is sent to all ranks. A transfer is a broadcast whose first chunk
// also waits for a piece without data from its receiver, so that the source can't run ahead of it.
// In a broadcast the other ranks send such a piece to tell that they wait for the root: the shard
// would else not know of a broadcast whose root is gone before it has sent anything. It is not
// counted (kPassed).
Verdict Shard::take_piece(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Piece>();
  const Rank rank{packet.common().rank};
  const StreamId stream = wire::stream_of(body.operation.kind);
  Verdict verdict = check_chunk(job, stream, body.chunk);
  if (verdict == Verdict::kAccepted) verdict = check_step(job, stream, body.step);
  if (verdict != Verdict::kAccepted) return verdict;
  PieceSlice& slice = job.slices[id_.value].pieces_of(stream);
  const std::uint32_t slot_index = job.slot_index(stream, slice, body.step, body.chunk);
  verdict = slice.check(slot_index, body.step, rank);
  if (verdict != Verdict::kAccepted) return verdict;
  if (verdict = check_piece(job, slice, body, rank); verdict != Verdict::kAccepted) return verdict;
  if (slice.collective.step != body.step) fix_operation(job, slice, body);
  const bool is_root = rank == Rank{body.operation.root};
  if (body.operation.kind == CollectiveKind::kBroadcast && !is_root) return Verdict::kPassed;
  if (!slice.record.eligible.test(rank)) return Verdict::kNotAllowed;

  CHECK(slice.collective.step == body.step && slice.collective.operation == body.operation);
  Slot& slot = slice.slots[slot_index];
  if (slot.step != body.step) reopen(job, stream, slot_index, now);
  if (body.payload_bytes != 0) {
    std::memcpy(slice.data_of(slot_index), packet.payload().data(), body.payload_bytes);
    slot.payload_bytes = body.payload_bytes;
  }
  slice.count_in(slot_index, rank, body.flow.priority);
  job.slices[id_.value].contributions.add(1);
  if (try_complete_piece(job, stream, slot_index, now)) return Verdict::kCompleted;
  if (stream == StreamId::kState) report_lost_transfer(job);
  return body.payload_bytes == 0 ? Verdict::kNilFolded : Verdict::kFolded;
}

// Checks the whole piece before it fixes anything, since a rejected piece must not bind the other
// ranks. Once the operation of the step is fixed, every piece must agree with it.
Verdict Shard::check_piece(Job& job, const PieceSlice& slice, const wire::Piece& body,
                           Rank rank) noexcept {
  const wire::Operation operation = body.operation;
  const Rank root{operation.root};
  const StreamId stream = wire::stream_of(operation.kind);
  const bool transfer = stream == StreamId::kState;
  if (root.value >= job.spec.world_size) return Verdict::kBadField;
  const bool sized = operation.kind != CollectiveKind::kBarrier;
  const bool data = sized && rank == root;
  if (sized && !data && body.chunk != 0) return Verdict::kNotAllowed;
  // Only the two ranks of the transfer: a third rank's size would stop it.
  if (transfer && (root != job.transfer.source() || !slice.record.eligible.test(rank)))
    return Verdict::kNotAllowed;
  // A broadcast's record has its root alone, but the pieces of other ranks may disagree with it.
  const Collective& collective = slice.collective;
  DCHECK(collective.step == 0 || collective.step == slice.record.step);
  const bool fixed = collective.step == body.step;
  if (!job.members[rank.value].takes_part(index_of(stream), body.step) ||
      (!fixed && !slice.record.eligible.test(rank)))
    return Verdict::kNotAllowed;
  if (data != (body.payload_bytes != 0)) return Verdict::kShapeMismatch;

  if (fixed && collective.operation != operation) {
    if (!transfer)
      push_event({.kind = ShardEvent::Kind::kCollectiveMismatch,
                  .job = &job,
                  .rank = rank,
                  .stream = stream,
                  .step = body.step,
                  .expected = collective.operation,
                  .actual = operation});
    return Verdict::kCollectiveMismatch;
  }
  const std::size_t chunk_bytes = job.spec.chunk_bytes;
  const std::uint32_t chunk_count = chunk_count_of(operation, chunk_bytes);
  if (chunk_count > kCollectiveChunks) return Verdict::kBadLength;
  if (body.chunk >= chunk_count) return Verdict::kBadChunk;
  if (data && body.payload_bytes != piece_bytes(operation.size_bytes, body.chunk, chunk_bytes))
    return Verdict::kShapeMismatch;
  return Verdict::kAccepted;
}

// Binds all ranks to the operation of the step's first piece, and for a broadcast its record to the
// root.
void Shard::fix_operation(Job& job, PieceSlice& slice, const wire::Piece& body) noexcept {
  Collective& collective = slice.collective;
  CHECK(collective.step == 0 && body.step == slice.record.step);
  collective.step = body.step;
  collective.operation = body.operation;
  slice.step_chunks = chunk_count_of(body.operation, job.spec.chunk_bytes);
  DCHECK(slice.closed_count == 0 && slice.step_chunks <= slice.chunk_count);
  if (body.operation.kind == CollectiveKind::kTransfer) return;
  job.collective_begun.store(body.step, std::memory_order_relaxed);
  if (!collective.is_broadcast()) return;
  const Rank root{body.operation.root};
  const bool has_root = slice.record.eligible.test(root);
  slice.record.k = has_root;
  slice.record.eligible = has_root ? MemberMask::only(root) : MemberMask{};
  slice.record.required = slice.record.eligible;
  DCHECK(slice.record.consistent());
  if (!has_root) sweep(slice);
}

// Completes the piece if the record is satisfied. In a transfer only the first chunk also waits for
// the receiver. The receiver's piece alone completes no chunk, even if no other rank is left in the
// record.
bool Shard::try_complete_piece(Job& job, StreamId stream, std::uint32_t slot_index,
                               TimeNs now) noexcept {
  PieceSlice& slice = job.slices[id_.value].pieces_of(stream);
  Slot& slot = slice.slots[slot_index];
  DCHECK(slot.open_for(slice.record.step));
  DCHECK(slice.operations[slot_index] == slice.collective.operation);
  const bool transfer = stream == StreamId::kState;
  if (transfer && slot.payload_bytes == 0) return false;
  const bool needs_one = transfer && slice.local_chunk(slot_index) != 0;
  if (!needs_one &&
      !slice.record.satisfied_by(slice.mask_of(slot_index), slot.count, slice.mask_word_count))
    return false;
  slot.payload_sum = wire::sum_bytes(slice.payload_of(slot_index)).value;
  complete(job, stream, slot_index, now);
  return true;
}

// The root of the broadcast is gone: chunks that it has not sent are complete without data, for all
// ranks alike, which fails the call of each.
void Shard::close_without_root(Job& job, TimeNs now) noexcept {
  PieceSlice& slice = job.slices[id_.value].pieces_of(StreamId::kCollectives);
  const Step step = slice.record.step;
  CHECK(slice.collective.step == step && slice.collective.is_broadcast());
  const std::uint32_t base = job.slot_index(StreamId::kCollectives, slice, step, 0);
  const std::uint32_t end = base + slice.step_chunks;
  for (std::uint32_t slot_index = base; slot_index < end; ++slot_index) {
    const Slot& slot = slice.slots[slot_index];
    CHECK(!slot.open_for(step));  // a chunk is complete once its root has sent it
    if (slot.step == step) continue;
    reopen(job, StreamId::kCollectives, slot_index, now);
    complete(job, StreamId::kCollectives, slot_index, now);
  }
}

}  // namespace sluice::agg
