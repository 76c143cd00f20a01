// What a shard sends, and when: results to every member within its credit, between them a reply now
// and then. One datagram a call, encoded straight into the caller's buffer.
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/serial.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

constexpr std::uint32_t kResultsPerReply = 8;

bool beyond_credit(const Flow& flow) noexcept { return newer(flow.next_number, flow.credit); }

}  // namespace

void Shard::queue_result(Job& job, StreamId stream, std::uint32_t slot_index) noexcept {
  StreamSlice& slice = job.slices[id_.value].of(stream);
  Slot& slot = slice.slots[slot_index];
  CHECK(slot.state == SlotState::kComplete);
  if (slot.queued) return;  // its old place in the queue serves the new result
  slot.queued = true;
  slot.next_queued = kNoSlot;
  if (slice.queue_head == kNoSlot) {
    CHECK(active_count_ < active_.size());
    slice.queue_head = slot_index;
    slice.head_step = 0;
    active_[(active_head_ + active_count_++) % active_.size()] = {&job, stream};
  } else {
    slice.slots[slice.queue_tail].next_queued = slot_index;
  }
  slice.queue_tail = slot_index;
}

// Results and replies in turn. While results wait, a reply has every ninth turn: so that whoever
// asks for much costs the steps of others little, and is still answered.
bool Shard::poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  if (results_in_turn_ >= kResultsPerReply) {
    results_in_turn_ = 0;
    if (poll_reply(transmit, out, now)) return true;
  }
  if (poll_result(transmit, out, now)) {
    ++results_in_turn_;
    return true;
  }
  return poll_reply(transmit, out, now);  // deferring a result may have queued feedback
}

bool Shard::poll_result(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  while (active_count_ != 0) {
    const ActiveSlice front = active_[active_head_];
    Job& job = *front.job;
    JobSlice& job_slice = job.slices[id_.value];
    StreamSlice& slice = job_slice.of(front.stream);
    const std::uint32_t slot_index = slice.queue_head;
    CHECK(slot_index < slice.slots.size() && slice.slots[slot_index].queued);
    Slot& slot = slice.slots[slot_index];
    if (slice.head_step != slot.step) {  // a new head, or its slot was reopened under it
      slice.head_step = slot.step;
      slice.head_rank = 0;
    }
    while (slot.state == SlotState::kComplete && slice.head_rank < job.spec.world_size) {
      const Rank rank{static_cast<std::uint16_t>(slice.head_rank++)};
      if (!job.members[rank.value].reachable.load(std::memory_order_relaxed)) continue;
      if (!is_for(job, front.stream, slot.step, rank)) continue;
      Flow& flow = flow_to(job, rank);
      if (beyond_credit(flow)) {
        ++flow.deferred_count;
        job_slice.results_deferred.add(1);
        if (!flow.deferral_told) queue_feedback(job, rank);
        flow.deferral_told = true;
        continue;
      }
      if (!write_result(job, front.stream, slot_index, rank, 0, transmit, out, now)) continue;
      job_slice.results_sent.add(1);
      return true;
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

// The flow to a member. Its process may be one that has sent this shard nothing yet (a result that
// it has no part in, a rank taken over): numbers must not start again with its first packet.
Flow& Shard::flow_to(Job& job, Rank rank) noexcept {
  Flow& flow = job.slices[id_.value].flows[rank.value];
  const Cookie cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed);
  if (flow.cookie != cookie) flow.restart(cookie);
  return flow;
}

// A state goes to the two ranks that its step was opened for. Who they are stands in the published
// record: it is kept as long as the step, while another transfer may be under way already.
bool Shard::is_for(const Job& job, StreamId stream, Step step, Rank rank) noexcept {
  if (stream != StreamId::kState) return true;
  const std::size_t index = index_of(stream);
  const StepRecord& record = job.windows[index].records[step % job.spec.windows[index]];
  return record.step == step && record.may.test(rank);
}

wire::Sender Shard::sender_of(const Job& job, Rank rank) noexcept {
  return {.job = job.spec.id.value,
          .rank = rank.value,
          .cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed)};
}

// The numbers of the flow to a member, in a header whose priority and flags stay; returns what they
// add to the checksum.
wire::PartialSum Shard::fill_feedback(Job& job, Rank rank, wire::FeedbackHeader& header,
                                      TimeNs now) noexcept {
  Flow& flow = flow_to(job, rank);
  const wire::FeedbackHeader numbers{
      .number = flow.next_number++,
      .received_count = flow.received_count,
      .highest_number = flow.highest_number,
      .marked_count = flow.marked_count,
      .echo_timestamp_us = flow.echo_timestamp_us,
      .hold_us = static_cast<std::uint32_t>((now - flow.echo_arrival_ns) / kMicrosecond),
      .deferred_count = flow.deferred_count,
      .open_step = job.open_step(StreamId::kGradients),
      .priority = 0,
      .flags = 0};
  header.number = numbers.number;
  header.received_count = numbers.received_count;
  header.highest_number = numbers.highest_number;
  header.marked_count = numbers.marked_count;
  header.echo_timestamp_us = numbers.echo_timestamp_us;
  header.hold_us = numbers.hold_us;
  header.deferred_count = numbers.deferred_count;
  header.open_step = numbers.open_step;
  return wire::sum_of(numbers);
}

// False: it does not fit.
bool Shard::write_result(Job& job, StreamId stream, std::uint32_t slot_index, Rank rank,
                         std::uint8_t flags, Transmit& transmit, std::span<std::uint8_t> out,
                         TimeNs now) noexcept {
  const Slot& slot = job.slices[id_.value].of(stream).slots[slot_index];
  DCHECK(slot.state == SlotState::kComplete);
  transmit.job = job.spec.id;
  transmit.rank = rank;
  transmit.bytes = 0;
  transmit.priority = slot.priority;
  transmit.reply = false;
  if (stream == StreamId::kGradients)
    write_sum(job, slot_index, rank, flags, transmit, out, now);
  else
    write_piece(job, stream, slot_index, rank, flags, transmit, out, now);
  return transmit.bytes != 0;
}

void Shard::prepare_sum(const Job& job, std::uint32_t slot_index, std::uint8_t flags,
                        TimeNs now) noexcept {
  const GradientSlice& slice = job.slices[id_.value].gradients;
  const Slot& slot = slice.slots[slot_index];
  const Sum& sum = slice.sums[slot_index];
  if (prepared_.job == &job && prepared_.slot_index == slot_index && prepared_.step == slot.step &&
      prepared_.now == now && prepared_.flags == flags)
    return;
  const std::uint32_t now_us = wire_time_us(now);
  wire::ResultHeader body{.k = sum.k,
                          .step = slot.step,
                          .chunk = job.global_chunk(slot_index % slice.chunk_count, id_),
                          .weight = sum.weight,
                          .first_age_us = now_us - slot.first_us,
                          .complete_age_us = now_us - slot.complete_us,
                          .elem_count = sum.elem_count,
                          .dtype = sum.dtype,
                          .mask_words = static_cast<std::uint8_t>(slice.mask_word_count)};
  body.feedback.priority = slot.priority;
  body.feedback.flags = flags;
  if (!sum.has_data()) body.feedback.flags |= wire::kFlagNil;
  if (!sum.finite) body.feedback.flags |= wire::kFlagNonFinite;
  if (sum.dtype != Dtype::kFloat32) body.feedback.flags |= wire::kFlagMean;
  const std::size_t head_bytes =
      wire::encode(prepared_.head, {.job = job.spec.id.value}, body, slice.mask_of(slot_index));
  CHECK(head_bytes != 0);
  prepared_.job = &job;
  prepared_.slot_index = slot_index;
  prepared_.step = slot.step;
  prepared_.now = now;
  prepared_.flags = flags;
  prepared_.sum = wire::sum_bytes(std::span(prepared_.head).first(head_bytes)) +
                  wire::PartialSum{slot.payload_sum};
}

// The prepared head, its member's name and numbers, and the payload, which was summed once for all
// members. What is added here to the checksum is taken from the numbers: to read them back would
// wait for the stores.
void Shard::write_sum(Job& job, std::uint32_t slot_index, Rank rank, std::uint8_t flags,
                      Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept {
  const std::span<const std::uint8_t> payload =
      job.slices[id_.value].gradients.payload_of(slot_index);
  const std::size_t head_bytes =
      wire::packet_bytes(sizeof(wire::ResultHeader), job.mask_word_count, 0);
  if (out.size() < head_bytes + payload.size()) return;
  prepare_sum(job, slot_index, flags, now);
  constexpr std::size_t kFixedBytes = wire::packet_bytes(sizeof(wire::ResultHeader), 1, 0);
  std::memcpy(out.data(), prepared_.head.data(), kFixedBytes);
  if (head_bytes > kFixedBytes)
    std::memcpy(&out[kFixedBytes], &prepared_.head[kFixedBytes], head_bytes - kFixedBytes);
  if (!payload.empty()) std::memcpy(&out[head_bytes], payload.data(), payload.size());

  const Cookie cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed);
  auto& common = *reinterpret_cast<wire::CommonHeader*>(out.data());
  common.rank = rank.value;
  common.cookie = cookie;
  auto& body = *reinterpret_cast<wire::ResultHeader*>(&out[sizeof common]);
  transmit.bytes = head_bytes + payload.size();
  transmit.sum = prepared_.sum + fill_feedback(job, rank, body.feedback, now) +
                 wire::PartialSum{rank.value + (cookie & 0xffffffff) + (cookie >> 32)};
}

void Shard::write_piece(Job& job, StreamId stream, std::uint32_t slot_index, Rank rank,
                        std::uint8_t flags, Transmit& transmit, std::span<std::uint8_t> out,
                        TimeNs now) noexcept {
  const PieceSlice& slice = job.slices[id_.value].pieces_of(stream);
  const Slot& slot = slice.slots[slot_index];
  wire::PieceResult body{.step = slot.step,
                         .chunk = job.global_chunk(slot_index % slice.chunk_count, id_),
                         .operation = slice.operations[slot_index],
                         .mask_words = static_cast<std::uint8_t>(job.mask_word_count),
                         .payload_bytes = slot.payload_bytes};
  body.feedback.priority = slot.priority;
  body.feedback.flags = flags;
  fill_feedback(job, rank, body.feedback, now);
  transmit.bytes = wire::encode(out, sender_of(job, rank), body, slice.mask_of(slot_index),
                                slice.payload_of(slot_index));
  if (transmit.bytes == 0) return;
  transmit.sum = wire::sum_bytes(out.first(transmit.bytes - slot.payload_bytes)) +
                 wire::PartialSum{slot.payload_sum};
}

}  // namespace sluice::agg
