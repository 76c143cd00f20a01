// A job with k < n that goes on from an appliance that is lost: its members give the results that
// they have before anybody contributes.
//
// All that have a result of a chunk have the same one, mask and weight included, so the first copy
// fixes the slot, and the others are duplicates. To a probe, a result that somebody has given
// counts as the asking member's. A member says to each shard when the shard has all that the member
// has. The open step takes contributions once all have said so to all shards: nobody then has a
// result that a new sum could contradict.
#include <algorithm>
#include <bit>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// Whether the job could have made such a result.
bool is_possible(const Job& job, const wire::Packet& packet) noexcept {
  const auto& body = packet.body<wire::Held>();
  const JobSpec& spec = job.spec;
  std::size_t count = 0;
  const MemberMask all = MemberMask::all(spec.world_size);
  if (packet.mask_word_count() != job.mask_word_count) return false;
  for (std::size_t word = 0; word < packet.mask_word_count(); ++word) {
    if ((packet.mask_word(word) & ~all.words()[word]) != 0) return false;
    count += static_cast<std::size_t>(std::popcount(packet.mask_word(word)));
  }
  return body.elem_count <= spec.max_elems[index_of(StreamId::kGradients)] &&
         packet.payload().size() <= spec.chunk_bytes && body.may_count >= count &&
         body.may_count <= spec.world_size && body.k <= spec.world_size &&
         (count != 0 || (body.flow.flags & wire::kFlagNil) != 0);
}

}  // namespace

Verdict Shard::take_held(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Held>();
  const Rank rank{packet.common().rank};
  if (job.givers().empty()) return Verdict::kNotAllowed;
  if (!has_part(job, StreamId::kGradients)) return Verdict::kWrongShard;
  const StreamSlice& current = current_slice(job, StreamId::kGradients);
  GradientSlice& slice = job.slices[id_.value].gradients;
  if (!slice.unheard.test(rank)) return Verdict::kDuplicate;
  if (body.chunk == wire::kNoChunk) {
    slice.unheard.clear(rank);
    note_gathered(job);
    return Verdict::kCredit;
  }
  if (const Verdict verdict = check_chunk(job, StreamId::kGradients, body.chunk);
      verdict != Verdict::kAccepted)
    return verdict;
  const Step open_step = current.record.step;
  if (body.step > job.resumed_step()) return Verdict::kTooNew;
  if (body.step == 0 || open_step - body.step >= job.spec.windows[index_of(StreamId::kGradients)])
    return Verdict::kTooOld;
  const bool nil = (body.flow.flags & wire::kFlagNil) != 0;
  if (!is_possible(job, packet) || packet.chunks() != chunk_bit(body.chunk))
    return Verdict::kShapeMismatch;
  const std::uint32_t index = job.slot_index(StreamId::kGradients, slice, body.step, body.chunk);
  Slot& slot = slice.slots[index];
  if (slot.step >= body.step) return Verdict::kDuplicate;

  slot.open(body.step);
  for (std::size_t word = 0; word < job.mask_word_count; ++word)
    slice.mask_of(index)[word] = packet.mask_word(word);
  slot.count = static_cast<std::uint16_t>(count_bits(slice.mask_of(index), job.mask_word_count));
  slot.priority = body.flow.priority;
  Sum& sum = slice.sums[index];
  sum = {};
  sum.first_us = sum.complete_us = wire_time_us(now);
  sum.weight = body.weight;
  sum.k = body.k;
  sum.eligible_count = body.may_count;
  sum.finite = (body.flow.flags & wire::kFlagNonFinite) == 0;
  if (std::uint64_t* const abstained = slice.abstained_of(index); abstained != nullptr)
    std::fill_n(abstained, slice.mask_word_count, std::uint64_t{0});
  if (!nil) {
    sum.elem_count = body.elem_count;
    sum.dtype = sum.result = body.dtype;
    sum.averaged = (body.flow.flags & wire::kFlagMean) != 0;
    sum.data_count = slot.count;
    sum.begun = true;
    std::memcpy(slice.data_of(index), packet.payload().data(), packet.payload().size());
    slot.payload_bytes = static_cast<std::uint16_t>(packet.payload().size());
    slot.payload_sum = wire::sum_bytes(slice.payload_of(index)).value;
  }
  if (body.step != open_step) {
    slot.complete();
    queue_result(job, StreamId::kGradients, index);
    return Verdict::kCompleted;
  }
  // The policy has not seen what is in it.
  slice.summary.conclusive = false;
  if (slice.first_arrival_ns == 0) slice.first_arrival_ns = now;
  job.slices[id_.value].slots_in_use.add(1);
  complete(job, StreamId::kGradients, index, now);
  return Verdict::kCompleted;
}

// The last shard tells all members, which wait for that alone. Of a store it has just been done.
void Shard::note_gathered(Job& job) noexcept {
  GradientSlice& slice = job.slices[id_.value].gradients;
  if (!job.spec.store && (!slice.gathers || !slice.unheard.empty())) return;
  slice.gathers = false;
  if (!job.shard_has_gathered()) return;
  for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank)
    if (job.members[rank].reachable.load(std::memory_order_acquire))
      queue_feedback(job, Rank{rank});
}

}  // namespace sluice::agg
