// Contributions to sums: how each is added, when a sum is complete, and what the policy observes.
#include <algorithm>
#include <array>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/base/prefetch.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/shard.h"
#include "aggregator/core/signs.h"
#include "aggregator/core/sparse.h"

namespace sluice::agg {
namespace {

double square(std::uint64_t weight) noexcept {
  const auto value = static_cast<double>(weight);
  return value * value;
}

// The stored signs of a chunk, which SAINA's detection compares at the end of a round. Null: the
// step ends no round, or the policy does not need them.
std::uint64_t* signs_to_compare(const Policy& policy, GradientSlice& slice,
                                std::uint32_t slot_index) noexcept {
  if (!policy.needs_signs() || slice.record.step % policy.options().round_steps != 0)
    return nullptr;
  DCHECK(slice.sign_words != 0);
  return slice.signs.data() + slice.local_chunk(slot_index) * slice.sign_words;
}

void observe_signs(GradientSlice& slice, std::uint32_t slot_index, std::uint16_t stride,
                   std::uint64_t flipped) noexcept {
  const std::uint32_t local_chunk = slice.local_chunk(slot_index);
  if (slice.signs_known[local_chunk]) {
    slice.summary.signs_flipped += flipped;
    slice.summary.signs_compared += sign_count(slice.sums[slot_index].elem_count, stride);
  }
  slice.signs_known[local_chunk] = true;
}

// For the noise scale: norms of the same W = k workers in every chunk. Chunks without data of some
// of them are left out.
bool wants_norms(const Policy& policy, const GradientSlice& slice, const Sum& sum) noexcept {
  return policy.needs_norms() && sum.data_count >= 2 && sum.data_count == slice.record.k &&
         sum.weight != 0;
}

void observe_norms(GradientSlice& slice, const Sum& sum, double squared_norm) noexcept {
  DCHECK(sum.square_sum >= 0 || !sum.finite);
  slice.summary.mean_square += sum.square_sum / sum.data_count;
  slice.summary.square_of_mean += squared_norm / (sum.is_mean() ? 1.0 : square(sum.weight));
}

// Turns the sum into the result, in the slot.
void finish_sum(const Job& job, GradientSlice& slice, std::uint32_t slot_index,
                ChunkIndex chunk) noexcept {
  Sum& sum = slice.sums[slot_index];
  Slot& slot = slice.slots[slot_index];
  float* const acc = slice.data_of(slot_index);
  auto* const payload = reinterpret_cast<std::uint8_t*>(acc);
  const std::uint16_t stride = job.spec.policy.sign_stride;
  std::uint64_t* const signs = signs_to_compare(job.policy(), slice, slot_index);
  const bool sampled = signs != nullptr && stride != kAllSigns;
  const std::uint64_t flipped = sampled ? exchange_signs(acc, sum.elem_count, stride, signs) : 0;
  const Wanted wanted{.signs = sampled ? nullptr : signs,
                      .norm = wants_norms(job.policy(), slice, sum)};
  const std::uint64_t divisor = sum.averaged ? 1 : sum.weight;
  const Finished found =
      sum.is_unbiased()
          ? finish_unbiased(acc, sum.elem_count, divisor, sum.result,
                            rounding_seed(acc, sum.elem_count, chunk), payload, wanted)
          : finish(acc, sum.elem_count, divisor, sum.result, payload, wanted);
  sum.finite = found.finite;
  slot.payload_sum = found.sum.value;
  DCHECK(wire::finish_checksum(found.sum) ==
         wire::finish_checksum(wire::sum_bytes(slice.payload_of(slot_index))));
  if (signs != nullptr) observe_signs(slice, slot_index, stride, flipped + found.signs_flipped);
  if (wanted.norm) observe_norms(slice, sum, found.squared_norm);
  slice.summary.conclusive &= sum.finite;
}

// Whether the step takes a gradient of `body.base_step`, its own or a late one.
Verdict check_base(const Job& job, const wire::Contribution& body) noexcept {
  const PolicyOptions& policy = job.spec.policy;
  DCHECK(body.step != 0);
  if (!policy.tolerates_stragglers() || body.base_step == body.step) return Verdict::kAccepted;
  if (body.base_step == 0 || body.base_step > body.step) return Verdict::kBadField;
  const bool stale =
      policy.late != LateMode::kRequeue ||
      (policy.max_staleness != 0 && body.step - body.base_step > policy.max_staleness);
  return stale ? Verdict::kStale : Verdict::kAccepted;
}

void begin_at_zero(GradientSlice& slice, std::uint32_t slot_index) noexcept {
  Sum& sum = slice.sums[slot_index];
  DCHECK(sum.elem_count != 0 && sum.elem_count <= slice.stride_floats);
  if (!sum.begun) std::fill_n(slice.data_of(slot_index), sum.elem_count, 0.0f);
  sum.begun = true;
}

// Returns the payload's squared norm if that is needed.
double accumulate(GradientSlice& slice, std::uint32_t slot_index, const std::uint8_t* payload,
                  bool needs_norm) noexcept {
  Sum& sum = slice.sums[slot_index];
  DCHECK(sum.begun == sum.has_data());
  DCHECK(sum.elem_count <= slice.stride_floats);
  float* acc = slice.data_of(slot_index);
  const bool begun = std::exchange(sum.begun, true);
  if (needs_norm) return fold_with_norm(acc, begun, payload, sum.elem_count, sum.dtype);
  (begun ? fold_add : fold_store)(acc, payload, sum.elem_count, sum.dtype);
  return 0;
}

// The payload of a rank, in a reproducible job.
struct EarlyPayload {
  Rank rank;
  std::span<const std::uint8_t> payload;
};

// Payloads to add to a slot, in this order, as many as one pass takes.
struct Addends {
  std::array<const std::uint8_t*, kAddendsPerPass> payloads;
  std::size_t count = 0;

  void add(GradientSlice& slice, std::uint32_t slot_index, const std::uint8_t* payload) noexcept {
    DCHECK(payload != nullptr && count < payloads.size());
    payloads[count++] = payload;
    if (count == payloads.size()) flush(slice, slot_index);
  }
  void flush(GradientSlice& slice, std::uint32_t slot_index) noexcept {
    if (count == 0) return;
    DCHECK(count <= payloads.size());
    Sum& sum = slice.sums[slot_index];
    fold_several(slice.data_of(slot_index), sum.begun, {payloads.data(), count}, sum.elem_count,
                 sum.dtype);
    sum.begun = true;
    count = 0;
  }
};

// Adds the payloads whose turn it is, in the order of ranks: waiting ones, and `arrived`. `arrived`
// null: the slot is complete, and no more will come.
void accumulate_turns(const Job& job, GradientSlice& slice, std::uint32_t slot_index,
                      const EarlyPayload* arrived) noexcept {
  const std::size_t chunk = slice.local_chunk(slot_index);
  std::uint16_t& next = slice.next_ranks[chunk];
  const std::uint16_t arrived_rank = arrived != nullptr ? arrived->rank.value : UINT16_MAX;
  CHECK(next <= arrived_rank);  // it is eligible and not in: its turn can't have gone by
  Addends addends;
  for (; next < job.spec.world_size; ++next) {
    const Rank turn{next};
    if (next == arrived_rank)
      addends.add(slice, slot_index, arrived->payload.data());
    else if (const std::uint8_t* waiting = slice.early.take(chunk, turn); waiting != nullptr)
      addends.add(slice, slot_index, waiting);
    else if (arrived != nullptr && slice.record.eligible.test(turn) &&
             !test_bit(slice.mask_of(slot_index), turn))
      break;
  }
  addends.flush(slice, slot_index);
  if (arrived != nullptr && next <= arrived_rank)
    slice.early.keep(chunk, arrived->rank, arrived->payload);
}

void accumulate_in_order(const Job& job, GradientSlice& slice, std::uint32_t slot_index, Rank rank,
                         std::span<const std::uint8_t> payload) noexcept {
  DCHECK(slice.record.eligible.test(rank) && !test_bit(slice.mask_of(slot_index), rank));
  const EarlyPayload arrived{rank, payload};
  accumulate_turns(job, slice, slot_index, &arrived);
}

void accumulate_in_order(const Job& job, GradientSlice& slice, std::uint32_t slot_index, Rank rank,
                         const wire::SparseEntry& entry) noexcept {
  const Sum& sum = slice.sums[slot_index];
  std::array<std::uint8_t, kMaxChunkBytes> dense;  // as payloads that wait, so one pass adds all
  const std::size_t bytes = payload_bytes(sum.dtype, sum.elem_count);
  CHECK(bytes <= dense.size());
  expand(entry, sum.elem_count, sum.dtype, dense.data());
  accumulate_in_order(job, slice, slot_index, rank, std::span(dense).first(bytes));
}

// Whether the job's chunks may have this shape.
bool fits(const JobSpec& spec, const Shape& shape) noexcept {
  return shape.elem_count <= spec.max_elems[index_of(StreamId::kGradients)] &&
         payload_bytes(shape.dtype, shape.elem_count) <= spec.chunk_bytes &&
         payload_bytes(shape.result, shape.elem_count) <= spec.chunk_bytes;
}

// Adds a chunk's elements, the packet's or an entry's, to the slot. `alike`: their shape is that of
// the slot's sum. False: the shapes differ.
bool fold(const Job& job, GradientSlice& slice, std::uint32_t slot_index,
          const wire::Packet& packet, const wire::SparseEntry* entry, bool alike) noexcept {
  const auto& body = packet.body<wire::Contribution>();
  Sum& sum = slice.sums[slot_index];
  const std::uint8_t* payload = packet.payload().data();
  DCHECK(body.elem_count <= slice.stride_floats);
  if (!alike) {
    if (sum.has_data()) return false;
    static_cast<Shape&>(sum) = Shape::of(body);
    slice.slots[slot_index].payload_bytes =
        static_cast<std::uint16_t>(payload_bytes(sum.result, sum.elem_count));
  }
  const Rank rank{packet.common().rank};
  const bool needs_norm = job.policy().needs_norms() && body.weight != 0;
  double norm = 0;
  DCHECK(!needs_norm || !slice.in_rank_order());
  if (slice.in_rank_order() && entry != nullptr) {
    accumulate_in_order(job, slice, slot_index, rank, *entry);
  } else if (slice.in_rank_order()) {
    accumulate_in_order(job, slice, slot_index, rank, packet.payload());
  } else if (entry != nullptr) {
    begin_at_zero(slice, slot_index);
    add_sparse(slice.data_of(slot_index), *entry, body.elem_count, body.dtype);
    if (needs_norm && entry->value_count != 0)
      norm = squared_norm(entry->values, entry->value_count, body.dtype);
  } else {
    norm = accumulate(slice, slot_index, payload, needs_norm);
  }
  sum.sparse |= entry != nullptr;
  ++sum.data_count;
  DCHECK(sum.data_count <= job.spec.world_size);
  if (needs_norm) sum.square_sum += norm / square(body.weight);
  return true;
}

// Whether the slot surely waits for more contributions: a cheap test for all but the last one.
bool needs_more(const GradientSlice& slice, std::uint32_t slot_index) noexcept {
  DCHECK(slice.slots[slot_index].open_for(slice.record.step));
  return slice.sums[slot_index].abstained_count == 0 &&
         slice.slots[slot_index].count < slice.record.k;
}

// Whether the slot satisfies its record, of which the ranks that abstained are taken out.
bool satisfied(GradientSlice& slice, std::uint32_t slot_index) noexcept {
  const std::uint64_t* mask = slice.mask_of(slot_index);
  const std::uint16_t count = slice.slots[slot_index].count;
  Sum& sum = slice.sums[slot_index];
  if (sum.abstained_count == 0) {
    sum.k = slice.record.k;
    return slice.record.satisfied_by(mask, count, slice.mask_word_count);
  }
  DCHECK(slice.consistent(slot_index));
  const std::uint64_t* abstained = slice.abstained_of(slot_index);
  const StepRecord rest = slice.record.without(abstained, slice.mask_word_count);
  sum.k = rest.k;
  return rest.eligible.empty() || rest.satisfied_by(mask, count, slice.mask_word_count);
}

// Makes the result of a sparse sum an entry of a sparse packet, if that is shorter and fits.
void shorten(const Job& job, GradientSlice& slice, std::uint32_t slot_index) noexcept {
  Sum& sum = slice.sums[slot_index];
  Slot& slot = slice.slots[slot_index];
  auto* payload = reinterpret_cast<std::uint8_t*>(slice.data_of(slot_index));
  DCHECK(slot.payload_bytes == payload_bytes(sum.result, sum.elem_count));
  std::array<std::uint8_t, kMaxChunkBytes> entry;
  const std::size_t most_bytes =
      std::min<std::size_t>(slot.payload_bytes - 1u, job.spec.chunk_bytes - wire::kSparseHeadBytes);
  const std::size_t bytes =
      compress(payload, sum.elem_count, sum.result, std::span(entry).first(most_bytes));
  if (bytes == kNotCompressed) return;
  CHECK(bytes <= most_bytes);
  std::memcpy(payload, entry.data(), bytes);
  slot.payload_bytes = static_cast<std::uint16_t>(bytes);
  sum.is_entry = true;
}

}  // namespace

Shard::Location Shard::locate(const wire::Packet& packet) const noexcept {
  const wire::CommonHeader& common = packet.common();
  Location found{.job = common.job < jobs_.size() ? jobs_[common.job] : nullptr};
  if (found.job == nullptr || packet.type() != wire::PacketType::kContribution) return found;
  const auto& body = packet.body<wire::Contribution>();
  const Job& job = *found.job;
  if (check_chunk(job, StreamId::kGradients, body.chunk) != Verdict::kAccepted) return found;
  const GradientSlice& slice = job.slices[id_.value].gradients;
  found.slot_index = job.slot_index(StreamId::kGradients, slice, body.step, body.chunk);
  DCHECK(found.slot_index < slice.slots.size());
  __builtin_prefetch(&slice.slots[found.slot_index], 1);
  __builtin_prefetch(&slice.sums[found.slot_index], 1);
  __builtin_prefetch(slice.mask_of(found.slot_index).data(), 1);
  prefetch_front<Use::kWrite>(slice.data_of(found.slot_index), packet.payload().size());
  return found;
}

Verdict Shard::contribute(Job& job, const wire::Packet& packet, std::uint32_t slot_index,
                          const wire::SparseEntry* entry, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Contribution>();
  const Rank rank{packet.common().rank};
  DCHECK(rank.value < job.spec.world_size);
  if (slot_index == kNoSlot) return check_chunk(job, StreamId::kGradients, body.chunk);
  Verdict verdict = check_step(job, StreamId::kGradients, body.step);
  if (verdict != Verdict::kAccepted) return verdict;
  const bool tolerant = job.spec.policy.tolerates_stragglers();
  if (tolerant && job.gathers()) return Verdict::kNotStarted;
  if (tolerant) job.note_reached(rank, body.step);
  if (verdict = check_base(job, body); verdict != Verdict::kAccepted) return verdict;

  JobSlice& job_slice = job.slices[id_.value];
  GradientSlice& slice = job_slice.gradients;
  Flow& flow = job_slice.flows[rank.value];
  Slot& slot = slice.slots[slot_index];
  // A rank abstains once.
  if (slot.step == body.step && slice.has_abstained(slot_index, rank)) return Verdict::kDuplicate;
  verdict = slice.check(slot_index, body.step, rank);
  if (verdict == Verdict::kLate) flow.late.add(1);
  if (verdict != Verdict::kAccepted) return verdict;

  const bool nil = body.flow.flags & wire::kFlagNil;
  const bool requeued = tolerant && body.base_step != body.step;
  const Shape shape = Shape::of(body);
  const Sum& sum = slice.sums[slot_index];
  const bool alike = slot.step == body.step && sum.has_data() && shape == sum;
  const bool may_lack_data = job.spec.allow_nil || requeued || body.step == job.resumed_step();
  if ((!alike && !fits(job.spec, shape)) || (nil && !may_lack_data)) return Verdict::kShapeMismatch;
  if (!slice.record.eligible.test(rank)) return Verdict::kNotAllowed;

  if (slot.step != body.step) {  // the first contribution of this step
    reopen(job, StreamId::kGradients, slot_index, now);
    if (slice.first_arrival_ns == 0) slice.first_arrival_ns = now;
  }
  DCHECK(slot.open_for(body.step) && slice.first_arrival_ns <= now);
  if (requeued && nil) {  // the rank abstains: it waits for this step with other chunks
    DCHECK(!test_bit(slice.mask_of(slot_index), rank));
    set_bit(slice.abstained_of(slot_index), rank);
    ++slice.sums[slot_index].abstained_count;
    DCHECK(slice.consistent(slot_index));
    return try_complete_sum(job, slot_index, now) ? Verdict::kCompleted : Verdict::kPassed;
  }
  if (!nil && !fold(job, slice, slot_index, packet, entry, alike)) return Verdict::kShapeMismatch;
  if (body.flow.flags & wire::kFlagUnwanted) slice.note_unwanted(slot_index, rank);
  // A contribution without data does not make the result urgent.
  slice.count_in(slot_index, rank, nil ? kLeastUrgent : body.flow.priority);
  job_slice.contributions.add(1);
  slice.sums[slot_index].weight += body.weight;
  flow.included.add(1);
  if (requeued) {
    flow.requeued.add(1);
  } else {
    flow.last_contribution_ns = now;
    flow.last_contribution_step.store(body.step, std::memory_order_relaxed);
  }
  DCHECK(slice.consistent(slot_index));
  if (!needs_more(slice, slot_index) && try_complete_sum(job, slot_index, now))
    return Verdict::kCompleted;
  return nil ? Verdict::kNilFolded : Verdict::kFolded;
}

bool Shard::try_complete_sum(Job& job, std::uint32_t slot_index, TimeNs now) noexcept {
  GradientSlice& slice = job.slices[id_.value].gradients;
  Sum& sum = slice.sums[slot_index];
  DCHECK(slice.slots[slot_index].open_for(slice.record.step));
  DCHECK(sum.data_count <= slice.slots[slot_index].count);
  if (!satisfied(slice, slot_index)) return false;
  const std::uint64_t* const mask = slice.mask_of(slot_index);
  const bool all_in = slice.record.eligible.subset_of(mask, slice.mask_word_count);
  sum.eligible_count = all_in ? slice.slots[slot_index].count
                              : slice.record.eligible_count(mask, slice.mask_word_count);
  CHECK(sum.eligible_count >= slice.slots[slot_index].count);
  if (slice.in_rank_order()) accumulate_turns(job, slice, slot_index, nullptr);
  DCHECK(sum.begun == sum.has_data());
  if (sum.has_data()) {
    finish_sum(job, slice, slot_index, job.global_chunk(slice.local_chunk(slot_index), id_));
    if (sum.sparse) shorten(job, slice, slot_index);
  } else {
    slice.slots[slot_index].priority = Priority{0};  // short, and others may wait for nothing else
  }
  complete(job, StreamId::kGradients, slot_index, now);
  return true;
}

}  // namespace sluice::agg
