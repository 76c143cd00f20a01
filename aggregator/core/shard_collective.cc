// Stream kCollectives, and transfers of state: what the first packet of a step fixes, and what
// becomes of a broadcast without its root.
#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// Bytes of chunk `chunk` of a collective of `size_bytes`.
std::size_t collective_chunk_bytes(std::uint32_t size_bytes, ChunkIndex chunk,
                                   std::size_t chunk_bytes) noexcept {
  return std::min<std::size_t>(chunk_bytes, size_bytes - chunk * chunk_bytes);
}

}  // namespace

// The first packet of a collective fixes its kind, root and size, and for a broadcast the record,
// but only when nothing in it is wrong: what is rejected must not bind the others. Every later one
// must agree. kFolded means "go on". A transfer is a broadcast whose first chunk also waits for a
// packet without data from its receiver, so that the source can't run ahead of it. Of a broadcast
// the others announce with such a packet that they wait for the root, or nobody would know of a
// root that goes before it has sent anything; it is counted nowhere (kPassed).
Verdict Shard::fix_collective(Job& job, StreamSlice& slice, const wire::Contribution& body,
                              Rank rank) noexcept {
  if ((body.weight >> 16) > static_cast<std::uint32_t>(CollectiveKind::kTransfer))
    return Verdict::kBadField;
  const CollectiveKind kind = wire::collective_kind(body.weight);
  const Rank root{wire::collective_root(body.weight)};
  const bool transfer = kind == CollectiveKind::kTransfer;
  if (root.value >= job.spec.world_size || transfer != (body.stream == StreamId::kState))
    return Verdict::kBadField;
  const bool broadcast = kind == CollectiveKind::kBroadcast;
  const bool sized = broadcast || transfer;
  const bool data = sized && rank == root;
  if (broadcast && rank != root && body.chunk != 0) return Verdict::kNotAllowed;
  // Only its two ranks: another one's size would stop the transfer.
  if (transfer && (root != job.transfer.source() || !slice.record.may.test(rank) ||
                   (rank != root && body.chunk != 0)))
    return Verdict::kNotAllowed;
  // A broadcast's record names its root alone, but the others may still disagree with it.
  Collective& collective = slice.collective;
  const bool fixed = collective.step == body.step;
  if (!job.members[rank.value].takes_part(index_of(body.stream), body.step) ||
      (!fixed && !slice.record.may.test(rank)))
    return Verdict::kNotAllowed;
  if (data != !(body.flags & wire::kFlagNil)) return Verdict::kShapeMismatch;
  if (sized ? body.base_step == 0 : body.base_step != 0)
    return sized ? Verdict::kBadLength : Verdict::kShapeMismatch;

  if (fixed &&
      (collective.kind_and_root != body.weight || collective.size_bytes != body.base_step)) {
    if (transfer) return Verdict::kCollectiveMismatch;
    push_event({.kind = ShardEvent::Kind::kCollectiveMismatch,
                .job = &job,
                .rank = rank,
                .stream = StreamId::kCollectives,
                .step = body.step,
                .expected = {collective.kind_and_root, collective.size_bytes},
                .actual = {body.weight, body.base_step}});
    return Verdict::kCollectiveMismatch;
  }
  const std::size_t chunk_bytes = job.spec.chunk_bytes;
  const std::size_t chunk_count =
      std::max<std::size_t>(1, (body.base_step + chunk_bytes - 1) / chunk_bytes);
  if (chunk_count > kCollectiveChunks) return Verdict::kBadLength;
  if (body.chunk >= chunk_count) return Verdict::kBadChunk;
  if (data &&
      (body.dtype != Dtype::kBytes ||
       body.payload_bytes != collective_chunk_bytes(body.base_step, body.chunk, chunk_bytes)))
    return Verdict::kShapeMismatch;
  const Verdict verdict = broadcast && rank != root ? Verdict::kPassed : Verdict::kFolded;
  if (fixed) return verdict;

  collective.step = body.step;
  collective.kind_and_root = body.weight;
  collective.size_bytes = body.base_step;
  collective.chunk_count = static_cast<std::uint32_t>(chunk_count);
  if (!transfer) job.collective_begun.store(body.step, std::memory_order_relaxed);
  if (broadcast) {
    const bool has_root = slice.record.may.test(root);
    slice.record.k = has_root;
    slice.record.may = has_root ? MemberMask::only(root) : MemberMask{};
    slice.record.must = slice.record.may;
    if (!has_root) sweep(slice);
  }
  return verdict;
}

// A broadcast whose root is gone: what it has not sent is complete without data, for everybody
// alike, which fails the call of each.
void Shard::close_without_root(Job& job, StreamSlice& slice, TimeNs now) noexcept {
  const Step step = slice.record.step;
  const std::uint64_t what =
      std::uint64_t{slice.collective.size_bytes} << 32 | slice.collective.kind_and_root;
  const std::uint32_t base =
      step % job.spec.windows[index_of(StreamId::kCollectives)] * slice.chunk_count;
  const std::uint32_t end = base + slice.collective.chunk_count;
  for (std::uint32_t slot_index = base; slot_index < end; ++slot_index) {
    Slot& slot = slice.slots[slot_index];
    CHECK(slot.step != step || slot.complete);  // a chunk is complete once its root has sent it
    if (slot.step == step) continue;
    reopen(job, slice, slot_index, step, now);
    slot.weight = what;
    slot.complete = true;
    slot.complete_us = wire_time_us(now);
    job.slices[id_.value].slots_in_use.set(job.slices[id_.value].slots_in_use.read() - 1);
    close_chunk(job, StreamId::kCollectives, now);
    queue_result(job, StreamId::kCollectives, slot_index);
  }
}

}  // namespace sluice::agg
