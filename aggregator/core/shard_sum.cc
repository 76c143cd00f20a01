// Contributions to sums: what one adds to its slot, when a sum is complete, and what the policy is
// shown of it.
#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/shard.h"
#include "aggregator/core/signs.h"

namespace sluice::agg {
namespace {

double square(std::uint64_t weight) noexcept {
  const auto value = static_cast<double>(weight);
  return value * value;
}

// SAINA's detection: at the end of a round, the signs of a chunk's sum against those of the round
// before.
void observe_signs(const Job& job, StreamSlice& slice, const Slot& slot, std::uint32_t local_chunk,
                   const float* sum) noexcept {
  const PolicyOptions& policy = job.spec.policy;
  if (slot.step % policy.round_steps != 0) return;
  const std::uint64_t flipped = exchange_signs(sum, slot.elem_count, policy.sign_stride,
                                               slice.signs.data() + local_chunk * slice.sign_words);
  if (slice.signs_known[local_chunk]) {
    slice.signs_flipped += flipped;
    slice.signs_compared += sign_count(slot.elem_count, policy.sign_stride);
  }
  slice.signs_known[local_chunk] = true;
}

// For the noise scale: norms of the same W = k workers in every chunk, so chunks that some of them
// left out say nothing.
void observe_norms(StreamSlice& slice, const Slot& slot, const std::uint8_t* payload) noexcept {
  if (slot.data_count < 2 || slot.data_count != slice.record.k || slot.weight == 0) return;
  const bool is_mean = slot.dtype != Dtype::kFloat32;
  slice.mean_square += slot.square_sum / slot.data_count;
  slice.square_of_mean +=
      squared_norm(payload, slot.elem_count, slot.dtype) / (is_mean ? 1.0 : square(slot.weight));
}

}  // namespace

// Whether its step may take a gradient of `body.base_step`: its own, or a late one.
Verdict Shard::check_base(const Job& job, const wire::Contribution& body) noexcept {
  const PolicyOptions& policy = job.spec.policy;
  if (!policy.tolerates_stragglers() || body.base_step == body.step) return Verdict::kAccepted;
  if (body.base_step == 0 || body.base_step > body.step) return Verdict::kBadField;
  const bool stale =
      policy.late != LateMode::kRequeue ||
      (policy.max_staleness != 0 && body.step - body.base_step > policy.max_staleness);
  return stale ? Verdict::kStale : Verdict::kAccepted;
}

Verdict Shard::contribute(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Contribution>();
  const Rank rank{packet.common().rank};
  Verdict verdict = check_step(job, StreamId::kGradients, body.step, body.chunk);
  if (verdict != Verdict::kAccepted) return verdict;
  const bool tolerant = job.spec.policy.tolerates_stragglers();
  if (tolerant) job.note_reached(rank, body.step);
  if (verdict = check_base(job, body); verdict != Verdict::kAccepted) return verdict;

  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.streams[index_of(StreamId::kGradients)];
  Flow& flow = job_slice.flows[rank.value];
  const std::uint32_t slot_index =
      job.slot_index(StreamId::kGradients, slice, body.step, body.chunk);
  verdict = check_slot(job, slice, slot_index, body.step, rank);
  if (verdict == Verdict::kLate) flow.late.add(1);
  if (verdict != Verdict::kAccepted) return verdict;

  const bool nil = body.flow.flags & wire::kFlagNil;
  const bool requeued = tolerant && body.base_step != body.step;
  if (body.elem_count > job.spec.max_elems[index_of(StreamId::kGradients)] ||
      packet.payload().size() > job.spec.chunk_bytes || (nil && !job.spec.allow_nil && !requeued))
    return Verdict::kShapeMismatch;
  if (!slice.record.may.test(rank)) return Verdict::kNotAllowed;

  Slot& slot = slice.slots[slot_index];
  if (slot.step != body.step) {  // the first contribution of this step
    reopen(job, slice, slot_index, body.step, now);
    if (slice.first_arrival_ns == 0) slice.first_arrival_ns = now;
  }
  if (requeued && nil) {  // it waits for this step with other chunks and has nothing for this one
    set_bit(&slice.passes[slot_index * job.mask_word_count], rank);
    ++slot.passed_count;
    return try_complete_sum(job, slot_index, now) ? Verdict::kCompleted : Verdict::kPassed;
  }
  if (!nil && !fold(job, slice, slot_index, packet)) return Verdict::kShapeMismatch;
  set_bit(&slice.masks[slot_index * job.mask_word_count], rank);
  ++slot.count;
  slot.weight += body.weight;
  slot.priority = std::min(slot.priority, body.flow.priority);
  job_slice.contributions.add(1);
  flow.included.add(1);
  if (requeued) {
    flow.requeued.add(1);
  } else {
    flow.last_contribution_ns = now;
    flow.last_contribution_step.store(body.step, std::memory_order_relaxed);
  }
  if (try_complete_sum(job, slot_index, now)) return Verdict::kCompleted;
  return nil ? Verdict::kNilFolded : Verdict::kFolded;
}

// Adds the packet's elements to the slot's. False: they are others than those that it has.
bool Shard::fold(const Job& job, StreamSlice& slice, std::uint32_t slot_index,
                 const wire::Packet& packet) noexcept {
  const auto& body = packet.body<wire::Contribution>();
  Slot& slot = slice.slots[slot_index];
  float* accumulator = slice.data.get() + slot_index * slice.stride_floats;
  const std::uint8_t* payload = packet.payload().data();
  if (!slot.has_data()) {
    fold_store(accumulator, payload, body.elem_count, body.dtype);
    slot.elem_count = body.elem_count;
    slot.dtype = body.dtype;
    slot.payload_bytes = static_cast<std::uint16_t>(packet.payload().size());
  } else {
    if (body.elem_count != slot.elem_count || body.dtype != slot.dtype) return false;
    fold_add(accumulator, payload, body.elem_count, body.dtype);
  }
  ++slot.data_count;
  if (job.policy().needs_norms() && body.weight != 0)
    slot.square_sum += squared_norm(payload, body.elem_count, body.dtype) / square(body.weight);
  return true;
}

// Completes the slot if the record is satisfied. False: it waits for more.
bool Shard::try_complete_sum(Job& job, std::uint32_t slot_index, TimeNs now) noexcept {
  StreamSlice& slice = job.slices[id_.value].streams[index_of(StreamId::kGradients)];
  Slot& slot = slice.slots[slot_index];
  const std::uint64_t* mask = &slice.masks[slot_index * job.mask_word_count];
  slot.k = slice.record.k;
  if (slot.passed_count == 0) {
    if (!slice.record.satisfied_by(mask, slot.count, job.mask_word_count)) return false;
  } else {
    const StepRecord rest =
        slice.record.without(&slice.passes[slot_index * job.mask_word_count], job.mask_word_count);
    slot.k = rest.k;
    if (!rest.may.empty() && !rest.satisfied_by(mask, slot.count, job.mask_word_count))
      return false;
  }
  if (slot.has_data()) {
    float* accumulator = slice.data.get() + slot_index * slice.stride_floats;
    auto* payload = reinterpret_cast<std::uint8_t*>(accumulator);
    if (job.policy().needs_signs())
      observe_signs(job, slice, slot, slot_index % slice.chunk_count, accumulator);
    slot.finite = finish(accumulator, slot.elem_count, slot.weight, slot.dtype, payload);
    if (job.policy().needs_norms()) observe_norms(slice, slot, payload);
    slice.conclusive &= slot.finite;
  }
  complete(job, StreamId::kGradients, slot_index, now);
  return true;
}

}  // namespace sluice::agg
