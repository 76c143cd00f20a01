#include "aggregator/core/shard.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/signs.h"

namespace sluice::agg {
namespace {

// Sequence numbers wrap; "newer" is within half the circle.
bool newer(std::uint32_t left, std::uint32_t right) noexcept {
  return static_cast<std::int32_t>(left - right) > 0;
}

bool has_passed(const Job& job, const StreamSlice& slice, std::size_t slot_index,
                Rank rank) noexcept {
  return !slice.passes.empty() && test_bit(&slice.passes[slot_index * job.mask_word_count], rank);
}

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

Verdict Shard::handle(const wire::Packet& packet, bool marked, TimeNs now) noexcept {
  Job* job = nullptr;
  Verdict verdict = admit(packet, marked, now, job);
  if (verdict == Verdict::kCredit) {
    switch (packet.type()) {
      case wire::PacketType::kContribution: verdict = contribute(*job, packet, now); break;
      case wire::PacketType::kProbe: verdict = probe(*job, packet); break;
      case wire::PacketType::kFinished: verdict = finished(*job, packet, now); break;
      default: break;
    }
  }
  verdicts_.count(verdict);
  return verdict;
}

// Membership and the flow's numbers, the same for every data packet. kCredit means "go on".
Verdict Shard::admit(const wire::Packet& packet, bool marked, TimeNs now, Job*& job) noexcept {
  std::uint8_t flags = 0;
  switch (packet.type()) {
    case wire::PacketType::kContribution: flags = packet.body<wire::Contribution>().flags; break;
    case wire::PacketType::kProbe: flags = packet.body<wire::Probe>().flags; break;
    case wire::PacketType::kCredit: flags = packet.body<wire::Credit>().flags; break;
    case wire::PacketType::kFinished: flags = packet.body<wire::Finished>().flags; break;
    default: return Verdict::kBadType;
  }
  const wire::CommonHeader& common = packet.common();
  job = common.job < jobs_.size() ? jobs_[common.job] : nullptr;
  if (job == nullptr) return Verdict::kUnknownJob;
  if (common.rank >= job->spec.world_size) return Verdict::kBadRank;
  const Member& member = job->members[common.rank];
  if (common.cookie == 0 || common.cookie != member.cookie.load(std::memory_order_acquire)) {
    const bool stale =
        common.cookie != 0 && common.cookie == member.stale_cookie.load(std::memory_order_relaxed);
    return stale ? Verdict::kStaleCookie : Verdict::kBadCookie;
  }

  Flow& flow = job->slices[id_.value].flows[common.rank];
  if (flow.cookie != common.cookie) flow.restart(common.cookie);
  flow.last_heard_ns.store(now, std::memory_order_relaxed);
  const wire::FlowHeader header = packet.body<wire::FlowHeader>();
  ++flow.received_count;
  flow.marked_count += marked;
  if (newer(header.number, flow.highest_number)) {
    flow.highest_number = header.number;
    flow.echo_timestamp_us = header.timestamp_us;
    flow.echo_arrival_ns = now;
  }
  if (newer(header.credit, flow.credit)) {
    flow.credit = header.credit;
    flow.deferral_told = false;
    if (flow.pulling != 0) give_turn(*job, Rank{common.rank});
  }
  if (flags & wire::kFlagReport) queue_feedback(*job, Rank{common.rank});
  return job->ended.load(std::memory_order_relaxed) ? Verdict::kJobEnded : Verdict::kCredit;
}

bool Shard::is_member(const wire::CommonHeader& header) const noexcept {
  const Job* job = header.job < jobs_.size() ? jobs_[header.job] : nullptr;
  return job != nullptr && header.rank < job->spec.world_size && header.cookie != 0 &&
         header.cookie == job->members[header.rank].cookie.load(std::memory_order_acquire);
}

// A gradient is finished, whether its data comes or not: what the policy calls D_i. The first shard
// keeps the times of all. With kFlagNil there is none yet: the rank has only come to the step.
Verdict Shard::finished(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  if (id_.value != 0) return Verdict::kWrongShard;
  if (!job.started()) return Verdict::kNotStarted;
  const auto& body = packet.body<wire::Finished>();
  const Rank rank{packet.common().rank};
  if (body.step >
      job.windows[index_of(StreamId::kGradients)].open_step.load(std::memory_order_acquire))
    return Verdict::kTooNew;
  job.note_reached(rank, body.step);
  if (body.flags & wire::kFlagNil) return Verdict::kFinished;
  return job.report_finished(rank, body.step, now) ? Verdict::kFinished : Verdict::kDuplicate;
}

// The slice with the open step's record adopted. A member that left (or need not be waited for any
// more) between the record's publication and now is taken out here; one that leaves later is
// announced by a command.
StreamSlice& Shard::current_slice(Job& job, StreamId stream) noexcept {
  StreamSlice& slice = job.slices[id_.value].streams[index_of(stream)];
  const StreamWindow& window = job.windows[index_of(stream)];
  const Step open_step = window.open_step.load(std::memory_order_acquire);
  if (slice.record.step == open_step) return slice;

  slice.record = window.records[open_step % job.spec.windows[index_of(stream)]];
  slice.closed_count = 0;
  slice.sweeping = false;
  slice.first_arrival_ns = 0;
  slice.collective.next_step();
  slice.mean_square = slice.square_of_mean = 0;
  slice.conclusive = true;
  slice.signs_flipped = slice.signs_compared = 0;
  const bool holds = stream == StreamId::kGradients && job.spec.policy.tolerates_stragglers();
  for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) {
    const Member& member = job.members[rank];
    if (!member.takes_part(index_of(stream), open_step)) slice.record.remove(Rank{rank});
    if (holds && member.hold_from.load(std::memory_order_acquire) > open_step)
      slice.record.must.clear(Rank{rank});
  }
  return slice;
}

Verdict Shard::contribute(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  const auto& body = packet.body<wire::Contribution>();
  const StreamId stream = body.stream;
  const Rank rank{packet.common().rank};
  if (job.spec.chunk_counts[index_of(stream)] == 0) return Verdict::kBadStream;
  if (body.chunk >= job.spec.chunk_counts[index_of(stream)]) return Verdict::kBadChunk;
  if (shard_of(body.chunk, job.spec.shard_count) != id_.value) return Verdict::kWrongShard;
  if (!job.started()) return Verdict::kNotStarted;

  StreamSlice& slice = current_slice(job, stream);
  const std::uint32_t window = job.spec.windows[index_of(stream)];
  const Step open_step = slice.record.step;
  if (body.step > open_step) return Verdict::kTooNew;
  if (body.step == 0 || open_step - body.step >= window) return Verdict::kTooOld;

  const bool gradients = stream == StreamId::kGradients;
  const PolicyOptions& policy = job.spec.policy;
  if (gradients && policy.tolerates_stragglers()) job.note_reached(rank, body.step);
  const bool requeued = gradients && policy.tolerates_stragglers() && body.base_step != body.step;
  if (requeued) {
    if (body.base_step == 0 || body.base_step > body.step) return Verdict::kBadField;
    if (policy.late != LateMode::kRequeue ||
        (policy.max_staleness != 0 && body.step - body.base_step > policy.max_staleness))
      return Verdict::kStale;
  }

  JobSlice& job_slice = job.slices[id_.value];
  Flow& flow = job_slice.flows[rank.value];
  const std::uint32_t slot_index =
      (body.step % window) * slice.chunk_count + job.local_chunk(body.chunk);
  Slot& slot = slice.slots[slot_index];
  std::uint64_t* mask = &slice.masks[slot_index * job.mask_word_count];
  if (slot.step == body.step) {
    if (test_bit(mask, rank) || has_passed(job, slice, slot_index, rank))
      return Verdict::kDuplicate;
  }
  // Complete, or of a closed step: the result is out, and this worker is not in it.
  if (body.step < open_step || (slot.step == body.step && slot.complete)) {
    if (gradients) flow.late.add(1);
    return Verdict::kLate;
  }

  const bool nil = body.flags & wire::kFlagNil;
  if (!gradients) {
    const Verdict fixed = fix_collective(job, slice, body, rank);
    if (fixed != Verdict::kFolded) return fixed;
  } else {
    if (nil && !job.spec.allow_nil && !requeued) return Verdict::kShapeMismatch;
    if (body.elem_count > job.spec.max_elems[index_of(stream)] ||
        body.payload_bytes > job.spec.chunk_bytes || (!nil && body.dtype == Dtype::kBytes))
      return Verdict::kShapeMismatch;
  }
  if (!slice.record.may.test(rank)) return Verdict::kNotAllowed;

  if (slot.step != body.step) {  // the first contribution of this step
    reopen(job, slice, slot_index, body.step, now);
    if (slice.first_arrival_ns == 0) slice.first_arrival_ns = now;
  }
  if (requeued && nil) {  // it waits for this step with other chunks and has nothing for this one
    set_bit(&slice.passes[slot_index * job.mask_word_count], rank);
    ++slot.passed_count;
    return try_complete(job, stream, slot_index, now) ? Verdict::kCompleted : Verdict::kPassed;
  }
  if (!nil) {
    float* accumulator = slice.data.get() + slot_index * slice.stride_floats;
    const std::uint8_t* payload = packet.payload().data();
    if (body.dtype == Dtype::kBytes) {
      std::memcpy(accumulator, payload, body.payload_bytes);
    } else if (!slot.has_data()) {
      fold_store(accumulator, payload, body.elem_count, body.dtype);
    } else {
      if (body.elem_count != slot.elem_count || body.dtype != slot.dtype)
        return Verdict::kShapeMismatch;
      fold_add(accumulator, payload, body.elem_count, body.dtype);
    }
    if (gradients && job.policy().needs_norms() && body.weight != 0)
      slot.square_sum += squared_norm(payload, body.elem_count, body.dtype) / square(body.weight);
    ++slot.data_count;
    slot.elem_count = body.elem_count;
    slot.payload_bytes = body.payload_bytes;
    slot.dtype = body.dtype;
  }
  set_bit(mask, rank);
  ++slot.count;
  slot.weight =
      gradients ? slot.weight + body.weight : std::uint64_t{body.base_step} << 32 | body.weight;
  slot.priority = std::min(slot.priority, body.priority);
  job_slice.contributions.add(1);
  if (gradients) {
    flow.included.add(1);
    if (requeued) flow.requeued.add(1);
  }
  if (gradients && !requeued) {
    flow.last_contribution_ns = now;
    flow.last_contribution_step.store(body.step, std::memory_order_relaxed);
  }
  if (try_complete(job, stream, slot_index, now)) return Verdict::kCompleted;
  if (stream == StreamId::kState) report_lost_transfer(job, slice);
  return nil ? Verdict::kNilFolded : Verdict::kFolded;
}

// The slot holds `step` from now on, and nothing of it yet.
void Shard::reopen(Job& job, StreamSlice& slice, std::uint32_t slot_index, Step step,
                   TimeNs now) noexcept {
  Slot& slot = slice.slots[slot_index];
  const bool queued = slot.queued;
  const std::uint32_t next_queued = slot.next_queued;
  const bool abandoned = slot.step != 0 && !slot.complete;
  if (queued && slot.complete) results_overwritten_.add(1);
  slot = Slot{
      .step = step, .next_queued = next_queued, .first_us = wire_time_us(now), .queued = queued};
  std::fill_n(&slice.masks[slot_index * job.mask_word_count], job.mask_word_count,
              std::uint64_t{0});
  if (!slice.passes.empty())
    std::fill_n(&slice.passes[slot_index * job.mask_word_count], job.mask_word_count,
                std::uint64_t{0});
  if (!abandoned) job.slices[id_.value].slots_in_use.add(1);
}

// Freezes the slot when the record is satisfied. From then on its bytes, weight and mask never
// change.
bool Shard::try_complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept {
  StreamSlice& slice = job.slices[id_.value].streams[index_of(stream)];
  Slot& slot = slice.slots[slot_index];
  const std::uint64_t* mask = &slice.masks[slot_index * job.mask_word_count];
  // Of a transfer, only the first chunk waits for the receiver too.
  const bool transfer = stream == StreamId::kState;
  const bool free_chunk = transfer && slot_index % slice.chunk_count != 0;
  slot.k = slice.record.k;
  // The receiver's presence is no state, though the record may be left with nobody else.
  if (transfer && !slot.has_data()) return false;
  if (free_chunk) {
    // Nobody else is needed.
  } else if (slot.passed_count == 0) {
    if (!slice.record.satisfied_by(mask, slot.count, job.mask_word_count)) return false;
  } else {
    const StepRecord rest =
        slice.record.without(&slice.passes[slot_index * job.mask_word_count], job.mask_word_count);
    slot.k = rest.k;
    if (!rest.may.empty() && !rest.satisfied_by(mask, slot.count, job.mask_word_count))
      return false;
  }

  slot.complete = true;
  slot.complete_us = wire_time_us(now);
  if (slot.has_data()) {
    float* accumulator = slice.data.get() + slot_index * slice.stride_floats;
    auto* payload = reinterpret_cast<std::uint8_t*>(accumulator);
    if (stream == StreamId::kGradients && job.policy().needs_signs())
      observe_signs(job, slice, slot, slot_index % slice.chunk_count, accumulator);
    if (slot.dtype != Dtype::kBytes)
      slot.finite = finish(accumulator, slot.elem_count, slot.weight, slot.dtype, payload);
    slot.payload_sum = wire::sum_bytes({payload, slot.payload_bytes}).value;
    if (stream == StreamId::kGradients && job.policy().needs_norms())
      observe_norms(slice, slot, payload);
    slice.conclusive &= slot.finite;
  }
  job.slices[id_.value].slots_in_use.set(job.slices[id_.value].slots_in_use.read() - 1);
  // Close before the result can leave: whoever holds the last result may contribute to the next
  // step.
  close_chunk(job, stream, now);
  queue_result(job, stream, slot_index);
  return true;
}

void Shard::close_chunk(Job& job, StreamId stream, TimeNs now) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.streams[index_of(stream)];
  ++slice.closed_count;
  const std::uint32_t chunk_count =
      stream == StreamId::kGradients ? slice.chunk_count : slice.collective.chunk_count;
  if (slice.closed_count < chunk_count) return;

  const Step step = slice.record.step;
  job_slice.steps_closed.add(1);
  if (stream == StreamId::kGradients) {
    job_slice.step_duration.observe(now - slice.first_arrival_ns);
    TimeNs first_ns = kNever;
    for (const Flow& flow : job_slice.flows)
      if (flow.last_contribution_step.load(std::memory_order_relaxed) == step)
        first_ns = std::min(first_ns, flow.last_contribution_ns);
    for (Flow& flow : job_slice.flows)
      if (flow.last_contribution_step.load(std::memory_order_relaxed) == step)
        flow.lag.observe(flow.last_contribution_ns - first_ns);
  }
  StreamWindow& window = job.windows[index_of(stream)];
  if (window.shards_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (step >= kLastStep) {
    push_event({.kind = ShardEvent::Kind::kStepLimit, .job = &job, .stream = stream, .step = step});
    return;
  }
  job.publish(stream, step + 1, now);
}

}  // namespace sluice::agg
