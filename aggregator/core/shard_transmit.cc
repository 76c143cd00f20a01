// What a shard sends: results to every member within its credit, answers to probes and the results
// that they pull, and feedback. One datagram a call, encoded straight into the caller's buffer.
#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

bool beyond_credit(const Flow& flow) noexcept {
  return static_cast<std::int32_t>(flow.next_number - flow.credit) > 0;
}

// The flow to a member. Its process may be one that has sent this shard nothing yet (a result that
// it has no part in, a rank taken over): numbers must not start again with its first packet.
Flow& flow_to(Job& job, JobSlice& slice, Rank rank) noexcept {
  Flow& flow = slice.flows[rank.value];
  const Cookie cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed);
  if (flow.cookie != cookie) flow.restart(cookie);
  return flow;
}

void note_awaited(Awaited& awaited, Step step, ChunkIndex chunk,
                  const std::array<std::uint64_t, kMaskWords>& ranks) noexcept {
  for (std::size_t word = 0; word < kMaskWords; ++word)
    awaited.ranks[word].store(ranks[word], std::memory_order_relaxed);
  awaited.chunk.store(chunk, std::memory_order_relaxed);
  awaited.step.store(step, std::memory_order_release);
}

// A state goes to the two ranks that its step was opened for. Who they are stands in the published
// record: it is kept as long as the step, while another transfer may be under way already.
bool is_for(const Job& job, StreamId stream, Step step, Rank rank) noexcept {
  if (stream != StreamId::kState) return true;
  const std::size_t index = index_of(stream);
  const StepRecord& record = job.windows[index].records[step % job.spec.windows[index]];
  return record.step == step && record.may.test(rank);
}

wire::Sender sender_of(const Job& job, Rank rank) noexcept {
  return {.job = job.spec.id.value,
          .rank = rank.value,
          .cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed)};
}

}  // namespace

void Shard::queue_result(Job& job, StreamId stream, std::uint32_t slot_index) noexcept {
  StreamSlice& slice = job.slices[id_.value].streams[index_of(stream)];
  Slot& slot = slice.slots[slot_index];
  if (slot.queued) return;  // its old place in the queue serves the new result
  slot.queued = true;
  slot.next_queued = kNoSlot;
  if (slice.queue_head == kNoSlot) {
    slice.queue_head = slot_index;
    slice.head_step = 0;
    active_[(active_head_ + active_count_++) % active_.size()] = {&job, stream};
  } else {
    slice.slots[slice.queue_tail].next_queued = slot_index;
  }
  slice.queue_tail = slot_index;
}

bool Shard::push_reply(const Reply& reply) noexcept {
  if (reply_count_ == replies_.size()) {
    replies_dropped_.add(1);
    return false;
  }
  replies_[(reply_head_ + reply_count_++) % replies_.size()] = reply;
  return true;
}

void Shard::queue_feedback(Job& job, Rank rank) noexcept {
  Flow& flow = job.slices[id_.value].flows[rank.value];
  if (!flow.feedback_queued) flow.feedback_queued = push_reply({.job = &job, .rank = rank});
}

Verdict Shard::probe(Job& job, const wire::Packet& packet) noexcept {
  const auto& body = packet.body<wire::Probe>();
  const std::uint32_t chunk_count = job.spec.chunk_counts[index_of(body.stream)];
  if (chunk_count == 0) return Verdict::kBadStream;
  if (body.block >= (chunk_count + kChunksPerBlock - 1) / kChunksPerBlock)
    return Verdict::kBadChunk;
  if (shard_of(body.block * kChunksPerBlock, job.spec.shard_count) != id_.value)
    return Verdict::kWrongShard;
  push_reply({.job = &job,
              .rank = Rank{packet.common().rank},
              .stream = body.stream,
              .is_answer = true,
              .step = body.step,
              .block = body.block,
              .probe_number = body.flow.number,
              .want = body.want});
  return Verdict::kProbe;
}

bool Shard::poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  if (poll_reply(transmit, out, now) || poll_result(transmit, out, now)) return true;
  return poll_reply(transmit, out, now);  // deferring a result may have queued feedback
}

bool Shard::poll_reply(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  while (reply_count_ != 0) {
    Reply& reply = replies_[reply_head_];
    Job& job = *reply.job;
    transmit = {.job = job.spec.id, .rank = reply.rank};
    if (!reply.is_answer) {
      job.slices[id_.value].flows[reply.rank.value].feedback_queued = false;
      const wire::Feedback body{.feedback = next_feedback(job, reply.rank, now),
                                .shard = id_.value};
      transmit.bytes = wire::encode(out, sender_of(job, reply.rank), body);
    } else if (!reply.answered) {
      transmit.bytes = write_answer(reply, out, now);
      transmit.priority = reply.priority;
      reply.answered = true;
    } else if (reply.want != 0) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(reply.want));
      reply.want &= reply.want - 1;
      const StreamSlice& slice = job.slices[id_.value].streams[index_of(reply.stream)];
      const std::uint32_t slot_index =
          reply.step % job.spec.windows[index_of(reply.stream)] * slice.chunk_count +
          job.local_chunk(reply.block * kChunksPerBlock + bit);
      const Slot& slot = slice.slots[slot_index];
      if (slot.step != reply.step || !slot.complete) continue;  // reopened since the answer
      transmit =
          write_result(job, reply.stream, slot_index, reply.rank, wire::kFlagPulled, out, now);
      job.slices[id_.value].results_pulled.add(1);
    }
    if (!reply.is_answer || (reply.answered && reply.want == 0)) {
      reply_head_ = (reply_head_ + 1) % replies_.size();
      --reply_count_;
    }
    if (transmit.bytes != 0) return true;
  }
  return false;
}

bool Shard::poll_result(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  while (active_count_ != 0) {
    const ActiveSlice front = active_[active_head_];
    Job& job = *front.job;
    JobSlice& job_slice = job.slices[id_.value];
    StreamSlice& slice = job_slice.streams[index_of(front.stream)];
    const std::uint32_t slot_index = slice.queue_head;
    Slot& slot = slice.slots[slot_index];
    if (slice.head_step != slot.step) {  // a new head, or its slot was reopened under it
      slice.head_step = slot.step;
      slice.head_rank = 0;
    }
    while (slot.complete && slice.head_rank < job.spec.world_size) {
      const Rank rank{static_cast<std::uint16_t>(slice.head_rank++)};
      if (!job.members[rank.value].reachable.load(std::memory_order_relaxed)) continue;
      if (!is_for(job, front.stream, slot.step, rank)) continue;
      Flow& flow = flow_to(job, job_slice, rank);
      if (beyond_credit(flow)) {
        ++flow.deferred_count;
        job_slice.results_deferred.add(1);
        if (!flow.deferral_told) queue_feedback(job, rank);
        flow.deferral_told = true;
        continue;
      }
      transmit = write_result(job, front.stream, slot_index, rank, 0, out, now);
      job_slice.results_sent.add(1);
      if (transmit.bytes != 0) return true;
    }
    // Every member was served (or the slot was reopened before it could be): next slot, next
    // stream.
    slot.queued = false;
    slice.queue_head = slot.next_queued;
    slice.head_step = 0;
    active_head_ = (active_head_ + 1) % active_.size();
    --active_count_;
    if (slice.queue_head != kNoSlot)
      active_[(active_head_ + active_count_++) % active_.size()] = front;
  }
  return false;
}

wire::FeedbackHeader Shard::next_feedback(Job& job, Rank rank, TimeNs now) noexcept {
  Flow& flow = flow_to(job, job.slices[id_.value], rank);
  return {.number = flow.next_number++,
          .received_count = flow.received_count,
          .highest_number = flow.highest_number,
          .marked_count = flow.marked_count,
          .echo_timestamp_us = flow.echo_timestamp_us,
          .hold_us = static_cast<std::uint32_t>((now - flow.echo_arrival_ns) / kMicrosecond),
          .deferred_count = flow.deferred_count,
          .open_step = job.windows[index_of(StreamId::kGradients)].open_step.load(
              std::memory_order_acquire)};
}

Transmit Shard::write_result(Job& job, StreamId stream, std::uint32_t slot_index, Rank rank,
                             std::uint8_t flags, std::span<std::uint8_t> out, TimeNs now) noexcept {
  const StreamSlice& slice = job.slices[id_.value].streams[index_of(stream)];
  const Slot& slot = slice.slots[slot_index];
  const std::uint32_t local = slot_index % slice.chunk_count;
  if (!slot.has_data()) flags |= wire::kFlagNil;
  if (!slot.finite) flags |= wire::kFlagNonFinite;
  if (slot.dtype == Dtype::kFloat16 || slot.dtype == Dtype::kBfloat16) flags |= wire::kFlagMean;
  const wire::ResultHeader body{.feedback = next_feedback(job, rank, now),
                                .step = slot.step,
                                .chunk = job.global_chunk(local, id_),
                                .weight = slot.weight,
                                .first_age_us = wire_time_us(now) - slot.first_us,
                                .complete_age_us = wire_time_us(now) - slot.complete_us,
                                .elem_count = slot.elem_count,
                                .payload_bytes = slot.payload_bytes,
                                .k = slot.k,
                                .mask_words = static_cast<std::uint8_t>(job.mask_word_count),
                                .stream = stream,
                                .dtype = slot.dtype,
                                .priority = slot.priority,
                                .flags = flags};
  const float* data = slice.data.get() + slot_index * slice.stride_floats;
  const std::size_t bytes =
      wire::encode(out, sender_of(job, rank), body,
                   {&slice.masks[slot_index * job.mask_word_count], job.mask_word_count},
                   {reinterpret_cast<const std::uint8_t*>(data), slot.payload_bytes});
  return {.job = job.spec.id,
          .rank = rank,
          .bytes = bytes,
          .priority = slot.priority,
          .tail_bytes = slot.payload_bytes,
          .tail_sum = {slot.payload_sum}};
}

// Cold: recovery only. Also narrows `reply.want` to the results that exist.
std::size_t Shard::write_answer(Reply& reply, std::span<std::uint8_t> out, TimeNs now) noexcept {
  Job& job = *reply.job;
  const std::size_t index = index_of(reply.stream);
  const std::uint32_t window = job.spec.windows[index];
  wire::Answer body{.feedback = next_feedback(job, reply.rank, now),
                    .step = reply.step,
                    .block = reply.block,
                    .probe_number = reply.probe_number,
                    .first_incomplete = wire::kNoChunk,
                    .stream = reply.stream};
  std::array<std::uint64_t, kMaskWords> missing{};
  std::array<wire::MissingAge, kMaxMissingAges> ages{};
  std::size_t age_count = 0;

  const StreamSlice& slice =
      job.started() ? current_slice(job, reply.stream) : job.slices[id_.value].streams[index];
  const Step open_step = slice.record.step;
  body.open_step = open_step;
  if (reply.step > open_step || reply.step == 0) {
    body.status = wire::AnswerStatus::kNotOpen;
  } else if (open_step - reply.step >= window) {
    body.status = wire::AnswerStatus::kGone;
  } else {
    const std::uint32_t first_chunk = reply.block * kChunksPerBlock;
    const std::uint32_t chunks =
        std::min(kChunksPerBlock, job.spec.chunk_counts[index] - first_chunk);
    const std::uint32_t first_slot =
        reply.step % window * slice.chunk_count + job.local_chunk(first_chunk);
    // Nothing is needed of a rank outside the record: it would send again for ever. One that was
    // given up and has come back does not know.
    const bool outside = reply.stream == StreamId::kGradients && reply.step == open_step &&
                         !slice.record.may.test(reply.rank);
    if (outside) body.counted = ~std::uint64_t{0} >> (kChunksPerBlock - chunks);
    for (std::uint32_t bit = 0; bit < chunks; ++bit) {
      const Slot& slot = slice.slots[first_slot + bit];
      const std::uint64_t* mask = &slice.masks[(first_slot + bit) * job.mask_word_count];
      const bool touched = slot.step == reply.step;
      // A pass counts as well: the worker has nothing more to send.
      const std::uint64_t* passes =
          slice.passes.empty() ? nullptr : &slice.passes[(first_slot + bit) * job.mask_word_count];
      if (touched && (test_bit(mask, reply.rank) || (passes && test_bit(passes, reply.rank))))
        body.counted |= std::uint64_t{1} << bit;
      if (touched && slot.complete) {
        // A result that still waits in the queue is on its way: nobody needs to pull it.
        // One that has left may stand in a less urgent queue, which the answer must not overtake.
        reply.priority = std::max(reply.priority, slot.priority);
        if (!slot.queued) body.complete |= std::uint64_t{1} << bit;
      } else if (body.first_incomplete == wire::kNoChunk) {
        body.first_incomplete = first_chunk + bit;
        for (std::size_t word = 0; word < job.mask_word_count; ++word)
          missing[word] = slice.record.may.words()[word] &
                          ~(touched ? mask[word] | (passes ? passes[word] : 0) : 0);
      }
    }
  }
  if (body.first_incomplete != wire::kNoChunk) {
    if (reply.stream == StreamId::kGradients && reply.step == open_step)
      note_awaited(job.slices[id_.value].awaited, reply.step, body.first_incomplete, missing);
    body.mask_words = static_cast<std::uint8_t>(job.mask_word_count);
    for (std::uint16_t rank = 0; rank < job.spec.world_size && age_count < ages.size(); ++rank) {
      if (!test_bit(missing.data(), Rank{rank})) continue;
      TimeNs heard_ns = job.members[rank].last_heard_ns.load(std::memory_order_relaxed);
      for (const JobSlice& job_slice : job.slices)
        heard_ns =
            std::max(heard_ns, job_slice.flows[rank].last_heard_ns.load(std::memory_order_relaxed));
      ages[age_count++] = {.rank = rank,
                           .last_heard_ms = static_cast<std::uint32_t>(
                               std::max<DurationNs>(0, now - heard_ns) / kMillisecond)};
    }
    body.age_count = static_cast<std::uint8_t>(age_count);
  }
  reply.want &= is_for(job, reply.stream, reply.step, reply.rank) ? body.complete : 0;
  body.priority = reply.priority;
  return wire::encode(
      out, sender_of(job, reply.rank), body, {missing.data(), body.mask_words},
      {reinterpret_cast<const std::uint8_t*>(ages.data()), age_count * sizeof(wire::MissingAge)});
}

}  // namespace sluice::agg
