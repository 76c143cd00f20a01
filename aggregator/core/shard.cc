#include "aggregator/core/shard.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/base/serial.h"

namespace sluice::agg {
namespace {

void observe_durations(JobSlice& job_slice, Step step, TimeNs now) noexcept {
  DCHECK(job_slice.gradients.first_arrival_ns <= now);
  job_slice.step_duration.observe(now - job_slice.gradients.first_arrival_ns);
  TimeNs first_ns = kNever;
  for (const Flow& flow : job_slice.flows)
    if (flow.last_contribution_step.load(std::memory_order_relaxed) == step)
      first_ns = std::min(first_ns, flow.last_contribution_ns);
  DCHECK(first_ns >= job_slice.gradients.first_arrival_ns);
  for (Flow& flow : job_slice.flows)
    if (flow.last_contribution_step.load(std::memory_order_relaxed) == step)
      flow.lag.observe(flow.last_contribution_ns - first_ns);
}

}  // namespace

Verdict Shard::handle(const wire::Packet& packet, const Location& location, bool marked,
                      TimeNs now) noexcept {
  Verdict verdict = Verdict::kAccepted;
  if (!wire::is_worker_data(packet.type()))
    verdict = Verdict::kBadType;
  else if (location.job == nullptr)
    verdict = Verdict::kUnknownJob;
  else
    verdict = admit(packet, *location.job, marked, now);
  if (verdict == Verdict::kAccepted) {
    Job& job = *location.job;
    DCHECK(jobs_[job.spec.id.value] == &job);
    switch (packet.type()) {
      case wire::PacketType::kContribution: {
        const std::uint64_t chunks = packet.chunks();  // not by counting them: that is a call
        verdict = (chunks & (chunks - 1)) == 0 && (packet.flow().flags & wire::kFlagSparse) == 0
                      ? contribute(job, packet, location.slot_index, nullptr, now)
                      : contribute_each(job, packet, location.slot_index, now);
        break;
      }
      case wire::PacketType::kHeld: verdict = take_held(job, packet, now); break;
      case wire::PacketType::kPull: verdict = take_pull(job, packet, now); break;
      case wire::PacketType::kCopies:
      case wire::PacketType::kCopy:
      case wire::PacketType::kPush: verdict = take_push(job, packet, now); break;
      case wire::PacketType::kPart:
      case wire::PacketType::kCall:
      case wire::PacketType::kFloors: verdict = take_group_packet(job, packet); break;
      case wire::PacketType::kPartProbe: verdict = probe_parts(job, packet); break;
      case wire::PacketType::kPiece: verdict = take_piece(job, packet, now); break;
      case wire::PacketType::kProbe: verdict = probe(job, packet); break;
      case wire::PacketType::kFinished: verdict = finished(job, packet, now); break;
      default: verdict = Verdict::kCredit; break;
    }
  }
  CHECK(verdict != Verdict::kAccepted);
  verdicts_.count(verdict);
  return verdict;
}

// Checks membership and updates the flow's numbers, as for every data packet.
Verdict Shard::admit(const wire::Packet& packet, Job& job, bool marked, TimeNs now) noexcept {
  const wire::CommonHeader& common = packet.common();
  if (common.rank >= job.spec.world_size) return Verdict::kBadRank;
  const Member& member = job.members[common.rank];
  if (common.cookie == 0 || common.cookie != member.cookie.load(std::memory_order_acquire)) {
    const bool stale =
        common.cookie != 0 && common.cookie == member.stale_cookie.load(std::memory_order_relaxed);
    return stale ? Verdict::kStaleCookie : Verdict::kBadCookie;
  }

  Flow& flow = job.slices[id_.value].flows[common.rank];
  if (flow.cookie != common.cookie) flow.restart(common.cookie);
  DCHECK(flow.cookie == common.cookie);
  flow.last_heard_ns.store(now, std::memory_order_relaxed);
  const wire::FlowHeader& header = packet.flow();
  flow.marked_count += marked;
  if (flow.note_arrival(header.number)) {
    flow.echo_timestamp_us = header.timestamp_us;
    flow.echo_arrival_ns = now;
  }
  if (newer(header.credit, flow.credit)) {
    flow.credit = header.credit;
    flow.deferral_told = false;
    // Results were deferred since the last packet told of it; they may be the last ones, which no
    // packet follows.
    if (flow.deferred_count != flow.deferred_told) queue_feedback(job, Rank{common.rank});
    if (flow.pulling != 0) give_turn(job, Rank{common.rank});
  }
  if (header.flags & wire::kFlagReport) queue_feedback(job, Rank{common.rank});
  return job.ended.load(std::memory_order_relaxed) ? Verdict::kJobEnded : Verdict::kAccepted;
}

bool Shard::is_member(const wire::CommonHeader& header) const noexcept {
  const Job* job = header.job < jobs_.size() ? jobs_[header.job] : nullptr;
  DCHECK(job == nullptr || job->spec.id.value == header.job);
  return job != nullptr && header.rank < job->spec.world_size && header.cookie != 0 &&
         header.cookie == job->members[header.rank].cookie.load(std::memory_order_acquire);
}

// Notes that a rank has finished a gradient, whether or not its data comes; this gives the policy's
// D_i. Shard 0 keeps the times of all ranks. With kFlagNil no gradient is finished: the rank has
// only reached the step.
Verdict Shard::finished(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  if (id_.value != 0) return Verdict::kWrongShard;
  if (!job.started()) return Verdict::kNotStarted;
  const auto& body = packet.body<wire::Finished>();
  const Rank rank{packet.common().rank};
  DCHECK(rank.value < job.spec.world_size);
  const Step open = job.open_step(StreamId::kGradients);
  if (body.step > open) return Verdict::kTooNew;
  job.note_reached(rank, body.step);
  if (body.flow.flags & wire::kFlagNil) return Verdict::kFinished;
  return job.clock().report(job.members[rank.value].finished, body.step, open, now)
             ? Verdict::kFinished
             : Verdict::kDuplicate;
}

// Copies the open step's record into the slice. Members that have left since its publication, or
// need not be waited for any more, are taken out here; a command announces members that leave
// later.
void Shard::adopt_record(Job& job, StreamId stream, Step open_step) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.of(stream);
  const std::size_t index = index_of(stream);
  CHECK(open_step > slice.record.step);
  slice.record = job.windows[index].records[open_step % job.spec.windows[index]];
  CHECK(slice.record.step == open_step);
  DCHECK(std::ranges::none_of(slice.slots, [open_step](const Slot& slot) {
    return slot.step >= open_step;  // all of the new step's are still to come
  }));
  slice.closed_count = 0;
  slice.sweeping = false;
  const bool gradients = stream == StreamId::kGradients;
  if (gradients) {
    job_slice.gradients.begin_step();
  } else {
    job_slice.pieces_of(stream).begin_step();
  }
  const bool holds = gradients && job.spec.policy.tolerates_stragglers();
  for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) {
    const Member& member = job.members[rank];
    if (!member.takes_part(index, open_step)) slice.record.remove(Rank{rank});
    if (holds && member.hold_from.load(std::memory_order_acquire) > open_step)
      slice.record.required.clear(Rank{rank});
  }
  DCHECK(slice.record.consistent() && slice.step_chunks != 0);
  if (!gradients || open_step != job.resumed_step() || job.givers().empty()) return;
  GradientSlice& sums = job_slice.gradients;
  sums.gathers = true;
  for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank)
    if (job.givers().test(Rank{rank}) && slice.record.eligible.test(Rank{rank}))
      sums.unheard.set(Rank{rank});
}

// Checks that the chunk exists and belongs to this shard.
Verdict Shard::check_chunk(const Job& job, StreamId stream, ChunkIndex chunk) const noexcept {
  const std::uint32_t chunk_count = job.spec.chunk_counts[index_of(stream)];
  DCHECK(id_.value < job.spec.shard_count);
  if (chunk_count == 0) return Verdict::kBadStream;
  if (chunk >= chunk_count) return Verdict::kBadChunk;
  return job.owner_of(chunk) == id_ ? Verdict::kAccepted : Verdict::kWrongShard;
}

// Reopens the slot for the open step, empty.
void Shard::reopen(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.of(stream);
  DCHECK(slot_index < slice.slots.size());
  Slot& slot = slice.slots[slot_index];
  DCHECK(!slot.open_for(slice.record.step) && !slot.complete_for(slice.record.step));
  if (slot.queued && slot.state == SlotState::kComplete) results_overwritten_.add(1);
  DCHECK(stream == StreamId::kGradients ||
         job_slice.pieces_of(stream).collective.step == slice.record.step);
  if (!slot.abandoned()) job_slice.slots_in_use.add(1);
  slot.open(slice.record.step);
  std::uint64_t* const mask = slice.mask_of(slot_index);
  *mask = 0;  // the only word of most jobs: no call
  if (slice.mask_word_count > 1) std::fill_n(mask, slice.mask_word_count, std::uint64_t{0});
  if (stream == StreamId::kGradients)
    job_slice.gradients.open_sum(slot_index, now);
  else
    job_slice.pieces_of(stream).open_piece(slot_index);
}

// Completes the slot if its record is satisfied. False: it waits for more.
bool Shard::try_complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept {
  return stream == StreamId::kGradients ? try_complete_sum(job, slot_index, now)
                                        : try_complete_piece(job, stream, slot_index, now);
}

// Completes the slot: its bytes and its mask do not change any more.
void Shard::complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.of(stream);
  Slot& slot = slice.slots[slot_index];
  CHECK(slot.step == slice.record.step && slice.closed_count < slice.step_chunks);
  DCHECK(count_bits(slice.mask_of(slot_index), slice.mask_word_count) == slot.count);
  DCHECK(job_slice.slots_in_use.read() != 0);
  slot.complete();
  if (stream == StreamId::kGradients)
    job_slice.gradients.sums[slot_index].complete_us = wire_time_us(now);
  job_slice.slots_in_use.set(job_slice.slots_in_use.read() - 1);
  // The part is closed before the result can leave: a worker that has the last result may
  // contribute to the next step.
  if (++slice.closed_count == slice.step_chunks) close_part(job, stream, now);
  queue_result(job, stream, slot_index);
}

// Closes the shard's part of the open step: all its chunks are complete. The summary is handed over
// before the shard that closes last can read it.
void Shard::close_part(Job& job, StreamId stream, TimeNs now) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  const StreamSlice& slice = job_slice.of(stream);
  const Step step = slice.record.step;
  CHECK(job.open_step(stream) == step);  // no other shard can open the next step before
  DCHECK(std::ranges::count_if(slice.slots, [step](const Slot& slot) {
           return slot.complete_for(step);
         }) == std::ptrdiff_t{slice.step_chunks});
  job_slice.steps_closed.add(1);
  if (stream == StreamId::kGradients) {
    observe_durations(job_slice, step, now);
    job.summaries[id_.value] = job_slice.gradients.summary;
    job.summaries[id_.value].k = slice.record.k;
  }
  StreamWindow& window = job.windows[index_of(stream)];
  const std::uint32_t left = window.shards_left.fetch_sub(1, std::memory_order_acq_rel);
  CHECK(left != 0);
  if (left != 1) return;
  if (step >= kLastStep) {
    push_event({.kind = ShardEvent::Kind::kStepLimit, .job = &job, .stream = stream, .step = step});
    return;
  }
  job.publish(stream, step + 1, now);
}

}  // namespace sluice::agg
