// A packet of several chunks of a block: each has an entry of few elements, or none has data.
#include <bit>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// Counts a contribution without data in its slot, which is open.
void count_absent(JobSlice& job_slice, std::uint32_t slot_index, const wire::Contribution& body,
                  Rank rank, TimeNs now) noexcept {
  GradientSlice& slice = job_slice.gradients;
  Flow& flow = job_slice.flows[rank.value];
  if (slice.first_arrival_ns == 0) slice.first_arrival_ns = now;
  if (body.flow.flags & wire::kFlagUnwanted) slice.note_unwanted(slot_index, rank);
  slice.count_in(slot_index, rank, kLeastUrgent);
  slice.sums[slot_index].weight += body.weight;
  job_slice.contributions.add(1);
  flow.included.add(1);
  flow.last_contribution_ns = now;
  flow.last_contribution_step.store(body.step, std::memory_order_relaxed);
  DCHECK(slice.consistent(slot_index));
}

}  // namespace

// A block lies in one slice and one step, so the slots of its chunks are neighbours. The packet's
// verdict is the most useful one of its chunks. In a job in which no rank abstains, all chunks
// without data say the same, and that is checked once.
Verdict Shard::contribute_each(Job& job, const wire::Packet& packet, std::uint32_t first_slot,
                               TimeNs now) noexcept {
  const std::uint64_t chunks = packet.chunks();
  const int first = std::countr_zero(chunks);
  const auto& body = packet.body<wire::Contribution>();
  const auto last = body.chunk + static_cast<ChunkIndex>(std::bit_width(chunks) - 1 - first);
  Verdict whole = check_chunk(job, StreamId::kGradients, last);
  if (whole == Verdict::kAccepted && first_slot == kNoSlot)
    whole = check_chunk(job, StreamId::kGradients, body.chunk);
  if (whole != Verdict::kAccepted) return whole;
  DCHECK(first_slot != kNoSlot);
  const Rank rank{packet.common().rank};
  JobSlice& job_slice = job.slices[id_.value];
  GradientSlice& slice = job_slice.gradients;
  const bool sparse = body.flow.flags & wire::kFlagSparse;
  const bool alike = !sparse && !job.spec.policy.tolerates_stragglers();
  if (alike) {
    whole = check_step(job, StreamId::kGradients, body.step);
    if (whole != Verdict::kAccepted) return whole;
    if (!job.spec.allow_nil && body.step != job.resumed_step()) return Verdict::kShapeMismatch;
    if (!slice.record.eligible.test(rank)) return Verdict::kNotAllowed;
  }
  std::span<const std::uint8_t> entries = packet.payload();
  Verdict best = Verdict::kAccepted;
  for (std::uint64_t rest = chunks; rest != 0; rest &= rest - 1) {
    const auto slot = first_slot + static_cast<std::uint32_t>(std::countr_zero(rest) - first);
    DCHECK(slot < slice.slots.size());
    Verdict verdict{};
    if (alike) {
      verdict = slice.check(slot, body.step, rank);
      if (verdict == Verdict::kLate) job_slice.flows[rank.value].late.add(1);
      if (verdict == Verdict::kAccepted) {
        if (slice.slots[slot].step != body.step) reopen(job, StreamId::kGradients, slot, now);
        count_absent(job_slice, slot, body, rank, now);
        const bool full = slice.slots[slot].count >= slice.record.k;
        verdict =
            full && try_complete_sum(job, slot, now) ? Verdict::kCompleted : Verdict::kNilFolded;
      }
    } else {
      wire::SparseEntry entry;
      if ((packet.filled() & rest & -rest) != 0)
        entry = wire::take_entry(entries, body.elem_count, body.dtype);
      verdict = contribute(job, packet, slot, sparse ? &entry : nullptr, now);
    }
    if (best == Verdict::kAccepted || is_better(verdict, best)) best = verdict;
  }
  DCHECK(best != Verdict::kAccepted);
  DCHECK(!sparse || entries.empty());  // each entry belongs to a chunk
  return best;
}

}  // namespace sluice::agg
