#include "aggregator/core/shard.h"

#include <algorithm>

#include "aggregator/base/check.h"

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

}  // namespace

Verdict Shard::handle(const wire::Packet& packet, bool marked, TimeNs now) noexcept {
  Job* job = nullptr;
  Verdict verdict = admit(packet, marked, now, job);
  if (verdict == Verdict::kAccepted) {
    switch (packet.type()) {
      case wire::PacketType::kContribution: verdict = contribute(*job, packet, now); break;
      case wire::PacketType::kPiece: verdict = take_piece(*job, packet, now); break;
      case wire::PacketType::kProbe: verdict = probe(*job, packet); break;
      case wire::PacketType::kFinished: verdict = finished(*job, packet, now); break;
      default: verdict = Verdict::kCredit; break;
    }
  }
  verdicts_.count(verdict);
  return verdict;
}

// Membership and the flow's numbers, the same for every data packet.
Verdict Shard::admit(const wire::Packet& packet, bool marked, TimeNs now, Job*& job) noexcept {
  if (!wire::is_worker_data(packet.type())) return Verdict::kBadType;
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
  const wire::FlowHeader& header = packet.flow();
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
  if (header.flags & wire::kFlagReport) queue_feedback(*job, Rank{common.rank});
  return job->ended.load(std::memory_order_relaxed) ? Verdict::kJobEnded : Verdict::kAccepted;
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
  if (body.flow.flags & wire::kFlagNil) return Verdict::kFinished;
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

// Whether the chunk is this shard's and the step in its window.
Verdict Shard::check_step(Job& job, StreamId stream, Step step, ChunkIndex chunk) noexcept {
  const std::size_t index = index_of(stream);
  if (job.spec.chunk_counts[index] == 0) return Verdict::kBadStream;
  if (chunk >= job.spec.chunk_counts[index]) return Verdict::kBadChunk;
  if (shard_of(chunk, job.spec.shard_count) != id_.value) return Verdict::kWrongShard;
  if (!job.started()) return Verdict::kNotStarted;
  const Step open_step = current_slice(job, stream).record.step;
  if (step > open_step) return Verdict::kTooNew;
  return step == 0 || open_step - step >= job.spec.windows[index] ? Verdict::kTooOld
                                                                  : Verdict::kAccepted;
}

// Whether a slot of the window has nothing of `rank` yet and still waits for something.
Verdict Shard::check_slot(const Job& job, const StreamSlice& slice, std::uint32_t slot_index,
                          Step step, Rank rank) noexcept {
  const Slot& slot = slice.slots[slot_index];
  const bool begun = slot.step == step;
  if (begun && (test_bit(&slice.masks[slot_index * job.mask_word_count], rank) ||
                has_passed(job, slice, slot_index, rank)))
    return Verdict::kDuplicate;
  // Complete, or of a closed step: the result is out, and this worker is not in it.
  const bool over = step < slice.record.step || (begun && slot.complete);
  return over ? Verdict::kLate : Verdict::kAccepted;
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

bool Shard::try_complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept {
  return stream == StreamId::kGradients ? try_complete_sum(job, slot_index, now)
                                        : try_complete_piece(job, stream, slot_index, now);
}

// Freezes the slot: from now on its bytes and its mask never change.
void Shard::complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept {
  StreamSlice& slice = job.slices[id_.value].streams[index_of(stream)];
  Slot& slot = slice.slots[slot_index];
  CHECK(slot.step == slice.record.step && !slot.complete);
  slot.complete = true;
  slot.complete_us = wire_time_us(now);
  slot.payload_sum = wire::sum_bytes(slice.payload_of(slot_index)).value;
  job.slices[id_.value].slots_in_use.set(job.slices[id_.value].slots_in_use.read() - 1);
  // Close before the result can leave: whoever holds the last result may contribute to the next
  // step.
  close_chunk(job, stream, now);
  queue_result(job, stream, slot_index);
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
