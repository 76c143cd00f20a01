// The datagrams of a shard: results to every member within its credit, and replies between them,
// written into the caller's buffers.
#include <algorithm>
#include <bit>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/serial.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

constexpr std::uint32_t kResultsPerReply = 8;
// Datagrams that a stream of a job sends before the next one has its turn. With fewer, most results
// would be prepared twice.
constexpr std::uint32_t kDatagramsPerTurn = 32;

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
    DCHECK(slice.slots[slice.queue_tail].queued);
    slice.slots[slice.queue_tail].next_queued = slot_index;
  }
  slice.queue_tail = slot_index;
}

// Results and replies in turn. While results wait, every ninth datagram is a reply: a member that
// asks for much delays other members' steps little, and is still answered.
std::size_t Shard::poll_transmit(std::span<Transmit> burst, TimeNs now) noexcept {
  std::size_t count = 0;
  DCHECK(results_in_turn_ <= kResultsPerReply);
  while (count < burst.size()) {
    if (results_in_turn_ >= kResultsPerReply) {
      results_in_turn_ = 0;
      if (poll_reply(burst[count], now)) return count + 1;
    }
    const std::size_t turn =
        std::min<std::size_t>(burst.size() - count, kResultsPerReply - results_in_turn_);
    const std::size_t results = poll_results(burst.subspan(count, turn), now);
    results_in_turn_ += static_cast<std::uint32_t>(results);
    count += results;
    if (results == turn) continue;
    // Deferring a result may have queued feedback.
    return poll_reply(burst[count], now) ? count + 1 : count;
  }
  return count;
}

std::size_t Shard::poll_results(std::span<Transmit> burst, TimeNs now) noexcept {
  std::size_t count = 0;
  while (active_count_ != 0) {
    const ActiveSlice front = active_[active_head_];
    Job& job = *front.job;
    DCHECK(jobs_[job.spec.id.value] == &job);
    JobSlice& job_slice = job.slices[id_.value];
    if (front.stream == StreamId::kPulls) {
      if (count == burst.size()) return count;
      count += send_values(job, burst.subspan(count), now);
      next_active(job_slice.store_active);
      continue;
    }
    if (front.stream == StreamId::kOperations) {
      if (count == burst.size()) return count;
      count += send_parts(job, burst.subspan(count), now);
      next_active(job_slice.operations_active);
      continue;
    }
    StreamSlice& slice = job_slice.of(front.stream);
    GradientSlice* const sums =
        front.stream == StreamId::kGradients ? &job_slice.gradients : nullptr;
    const std::uint32_t slot_index = slice.queue_head;
    CHECK(slot_index < slice.slots.size() && slice.slots[slot_index].queued);
    Slot& slot = slice.slots[slot_index];
    if (slice.head_step != slot.step) {  // a new head, or its slot was reopened under it
      slice.head_step = slot.step;
      slice.head_rank = 0;
      if (sums != nullptr)
        sums->head_chunks =
            slot.state == SlotState::kComplete ? sums->chunks_at_head(job.spec.chunk_bytes) : 0;
    }
    const ResultPart part{.slot_index = slot_index,
                          .chunks = sums != nullptr ? sums->head_chunks : 0};
    if (slot.state == SlotState::kComplete) {
      const std::size_t room =
          std::min<std::size_t>(burst.size() - count, kDatagramsPerTurn - sent_in_turn_);
      const std::size_t sent = fan_out(job, front.stream, part, burst.subspan(count, room), now);
      count += sent;
      sent_in_turn_ += static_cast<std::uint32_t>(sent);
      DCHECK(count <= burst.size() && slice.head_rank <= job.spec.world_size);
      if (slice.head_rank < job.spec.world_size) {
        if (sent_in_turn_ < kDatagramsPerTurn) return count;  // the burst is full
        next_active(true);
        continue;
      }
    }
    // Every member was served (or the slot was reopened before it could be): next slot, next
    // stream.
    leave_queue(slice, part.chunks);
    next_active(slice.queue_head != kNoSlot);
  }
  return count;
}

// The first of the ring has had its turn. It moves behind the others if it has `more`, else it
// leaves.
void Shard::next_active(bool more) noexcept {
  CHECK(active_count_ != 0);
  sent_in_turn_ = 0;
  const ActiveSlice front = active_[active_head_];
  active_head_ = (active_head_ + 1) % active_.size();
  --active_count_;
  DCHECK(active_count_ < active_.size());
  if (more) active_[(active_head_ + active_count_++) % active_.size()] = front;
}

// Takes the head out of the queue and, if it was served, the `chunks` that left in its packet.
void Shard::leave_queue(StreamSlice& slice, std::uint64_t chunks) noexcept {
  const std::uint32_t head = slice.queue_head;
  DCHECK(head < slice.slots.size());
  const Slot& served = slice.slots[head];
  const auto pop = [&slice] {
    Slot& slot = slice.slots[slice.queue_head];
    DCHECK(slot.queued);
    slot.queued = false;
    slice.queue_head = slot.next_queued;
  };
  pop();
  DCHECK(slice.queue_head != head);  // a queue that leads back to itself has no end
  slice.head_step = 0;
  if (chunks == 0 || served.state != SlotState::kComplete) return;
  const std::uint32_t first = head - slice.local_chunk(head) % kChunksPerBlock;
  while (slice.queue_head != kNoSlot && slice.queue_head - first < kChunksPerBlock &&
         (chunks >> (slice.queue_head - first) & 1) != 0 &&
         slice.slots[slice.queue_head].complete_for(served.step))
    pop();
  DCHECK(slice.queue_head == kNoSlot || slice.slots[slice.queue_head].queued);
}

// Writes the complete slot's result for its members from `head_rank` of the slice on: for all that
// are left, or as many as the burst has room for.
std::size_t Shard::fan_out(Job& job, StreamId stream, const ResultPart& part,
                           std::span<Transmit> burst, TimeNs now) noexcept {
  if (burst.empty()) return 0;
  JobSlice& job_slice = job.slices[id_.value];
  StreamSlice& slice = job_slice.of(stream);
  const Slot& slot = slice.slots[part.slot_index];
  DCHECK(slot.queued && slot.complete_for(slice.head_step));
  PreparedSum prepared;
  if (stream == StreamId::kGradients) prepare_sum(job, part, now, prepared);
  std::size_t count = 0;
  for (; slice.head_rank < job.spec.world_size && count < burst.size(); ++slice.head_rank) {
    const Rank rank{static_cast<std::uint16_t>(slice.head_rank)};
    if (stream == StreamId::kGradients && job_slice.gradients.is_unwanted(part.slot_index, rank))
      continue;
    Flow* const flow = flow_that_may_get(job, stream, slot.step, rank);
    if (flow == nullptr) continue;
    Transmit& transmit = burst[count];
    transmit.job = job.spec.id;
    transmit.rank = rank;
    transmit.priority = stream == StreamId::kGradients ? prepared.priority : slot.priority;
    transmit.reply = false;
    const bool written = stream == StreamId::kGradients
                             ? write_sum(job, prepared, *flow, transmit, now)
                             : write_piece(job, stream, part, rank, transmit, now);
    count += written;
  }
  job_slice.results_sent.add(count);
  return count;
}

// Null: no result is sent to this member now. A member without credit will ask for it.
Flow* Shard::flow_that_may_get(Job& job, StreamId stream, Step step, Rank rank) noexcept {
  if (!job.members[rank.value].reachable.load(std::memory_order_relaxed)) return nullptr;
  if (!job.is_for(stream, step, rank)) return nullptr;
  Flow& flow = flow_to(job, rank);
  DCHECK(flow.cookie != 0);
  if (!beyond_credit(flow)) return &flow;
  ++flow.deferred_count;
  job.slices[id_.value].results_deferred.add(1);
  if (!flow.deferral_told) queue_feedback(job, rank);
  flow.deferral_told = true;
  return nullptr;
}

// The flow to a member. Its process may not have sent this shard a packet yet (it has no part in
// the result, or has taken the rank over). The flow starts here then, so that its numbers do not
// start again with the first packet.
Flow& Shard::flow_to(Job& job, Rank rank) noexcept {
  DCHECK(rank.value < job.spec.world_size);
  Flow& flow = job.slices[id_.value].flows[rank.value];
  const Cookie cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed);
  if (flow.cookie != cookie) flow.restart(cookie);
  return flow;
}

wire::Sender Shard::sender_of(const Job& job, Rank rank) noexcept {
  DCHECK(rank.value < job.spec.world_size);
  return {.job = job.spec.id.value,
          .rank = rank.value,
          .cookie = job.members[rank.value].cookie.load(std::memory_order_relaxed)};
}

// Writes the numbers of the flow to a member into a header, keeping its priority and flags. Returns
// what they add to the checksum.
wire::PartialSum Shard::fill_feedback(const Job& job, Flow& flow, wire::FeedbackHeader& header,
                                      TimeNs now) noexcept {
  DCHECK(flow.cookie != 0 && flow.echo_arrival_ns <= now);
  flow.deferred_told = flow.deferred_count;
  const wire::FeedbackHeader numbers{
      .number = flow.next_number++,
      .received_count = flow.received_count,
      .highest_number = flow.highest_number,
      .arrived_before = flow.arrived_before,
      .marked_count = flow.marked_count,
      .echo_timestamp_us = flow.echo_timestamp_us,
      .hold_us = static_cast<std::uint32_t>((now - flow.echo_arrival_ns) / kMicrosecond),
      .deferred_count = flow.deferred_count,
      .open_step = job.told_open_step(),
      .priority = 0,
      .flags = 0};
  header.number = numbers.number;
  header.received_count = numbers.received_count;
  header.highest_number = numbers.highest_number;
  header.arrived_before = numbers.arrived_before;
  header.marked_count = numbers.marked_count;
  header.echo_timestamp_us = numbers.echo_timestamp_us;
  header.hold_us = numbers.hold_us;
  header.deferred_count = numbers.deferred_count;
  header.open_step = numbers.open_step;
  return wire::sum_of(numbers);
}

// Writes one result that was asked for. False: it does not fit.
bool Shard::write_result(Job& job, StreamId stream, const ResultPart& part, Rank rank,
                         Transmit& transmit, TimeNs now) noexcept {
  const Slot& slot = job.slices[id_.value].of(stream).slots[part.slot_index];
  DCHECK(slot.state == SlotState::kComplete);
  transmit.priority = slot.priority;
  if (stream != StreamId::kGradients) return write_piece(job, stream, part, rank, transmit, now);
  PreparedSum prepared;
  prepare_sum(job, part, now, prepared);
  transmit.priority = prepared.priority;
  return write_sum(job, prepared, flow_to(job, rank), transmit, now);
}

void Shard::prepare_sum(const Job& job, const ResultPart& part, TimeNs now,
                        PreparedSum& prepared) noexcept {
  const std::uint32_t slot_index = part.slot_index;
  const GradientSlice& slice = job.slices[id_.value].gradients;
  const Slot& slot = slice.slots[slot_index];
  const Sum& sum = slice.sums[slot_index];
  DCHECK(slot.state == SlotState::kComplete && sum.data_count <= slot.count);
  DCHECK(slot.count <= sum.eligible_count);
  const std::uint32_t now_us = wire_time_us(now);
  wire::ResultHeader body{.k = sum.k,
                          .step = slot.step,
                          .chunk = job.global_chunk(slice.local_chunk(slot_index), id_),
                          .weight = sum.weight,
                          .first_age_us = now_us - sum.first_us,
                          .complete_age_us = now_us - sum.complete_us,
                          .may_count = sum.eligible_count,
                          .elem_count = sum.elem_count,
                          .dtype = sum.result,
                          .mask_words = static_cast<std::uint8_t>(slice.mask_word_count)};
  body.feedback.priority = slot.priority;
  body.feedback.flags = part.flags;
  prepared.head_bytes = wire::packet_bytes(sizeof body, slice.mask_word_count, 0);
  std::size_t list_bytes = 0;
  if (slice.can_share(slot_index)) {
    list_bytes = list_chunks(slice, part, body, &prepared.head[prepared.head_bytes]);
    prepared.payload = {};
    prepared.sum = {};
  } else {
    prepared.payload = slice.payload_of(slot_index);
    prepared.sum = wire::PartialSum{slot.payload_sum};
  }
  if (!sum.finite) body.feedback.flags |= wire::kFlagNonFinite;
  if (sum.is_mean()) body.feedback.flags |= wire::kFlagMean;
  prepared.priority = body.feedback.priority;
  [[maybe_unused]] const std::size_t head_bytes =
      wire::encode(prepared.head, {.job = job.spec.id.value}, body, slice.mask_of(slot_index));
  CHECK(head_bytes == prepared.head_bytes);
  prepared.head_bytes += list_bytes;
  DCHECK(prepared.head_bytes <= prepared.head.size());
  prepared.sum =
      prepared.sum + wire::sum_bytes(std::span(prepared.head).first(prepared.head_bytes));
}

// Lists the chunks that leave in the slot's packet, and their entries if they have any. The packet
// names the first chunk and has the priority of the most urgent.
std::size_t Shard::list_chunks(const GradientSlice& slice, const ResultPart& part,
                               wire::ResultHeader& body, std::uint8_t* out) noexcept {
  const std::size_t first = part.slot_index - slice.local_chunk(part.slot_index) % kChunksPerBlock;
  const bool sparse = slice.sums[part.slot_index].has_data();
  const std::uint64_t chunks = slice.still_complete(part.slot_index, part.chunks);
  CHECK(chunks != 0);
  DCHECK((chunks >> (part.slot_index - first) & 1) != 0);
  std::uint64_t filled = 0;
  std::uint8_t* at = out + (sparse ? wire::kSparseHeadBytes : sizeof chunks);
  for (std::uint64_t rest = sparse ? chunks : 0; rest != 0; rest &= rest - 1) {
    const std::size_t other = first + static_cast<std::size_t>(std::countr_zero(rest));
    const std::span<const std::uint8_t> entry = slice.payload_of(other);
    body.feedback.priority = std::min(body.feedback.priority, slice.slots[other].priority);
    if (entry.empty()) continue;
    filled |= rest & -rest;
    std::memcpy(at, entry.data(), entry.size());
    at += entry.size();
  }
  body.feedback.flags |= sparse ? wire::kFlagSparse : wire::kFlagNil;
  body.chunk -= body.chunk % kChunksPerBlock;
  body.chunk += static_cast<ChunkIndex>(std::countr_zero(chunks));
  std::memcpy(out, &chunks, sizeof chunks);
  if (sparse) std::memcpy(out + sizeof chunks, &filled, sizeof filled);
  return static_cast<std::size_t>(at - out);
}

// Writes the prepared head with the member's name and numbers. The payload, whose checksum was
// computed once for all members, stays where it lies. The checksum of the numbers is computed from
// the values: reading them back would wait for the stores. False: it does not fit.
bool Shard::write_sum(const Job& job, const PreparedSum& prepared, Flow& flow, Transmit& transmit,
                      TimeNs now) noexcept {
  if (transmit.buffer.size() < prepared.head_bytes + prepared.payload.size()) return false;
  std::uint8_t* out = transmit.buffer.data();
  constexpr std::size_t kFixedBytes = wire::packet_bytes(sizeof(wire::ResultHeader), 1, 0);
  DCHECK(prepared.head_bytes >= kFixedBytes);
  std::memcpy(out, prepared.head.data(), kFixedBytes);
  if (prepared.head_bytes > kFixedBytes)
    std::memcpy(out + kFixedBytes, &prepared.head[kFixedBytes], prepared.head_bytes - kFixedBytes);

  auto& common = *reinterpret_cast<wire::CommonHeader*>(out);
  common.rank = transmit.rank.value;
  common.cookie = flow.cookie;
  auto& body = *reinterpret_cast<wire::ResultHeader*>(out + sizeof common);
  transmit.bytes = prepared.head_bytes;
  transmit.shared = prepared.payload;
  transmit.sum =
      prepared.sum + fill_feedback(job, flow, body.feedback, now) +
      wire::PartialSum{transmit.rank.value + (flow.cookie & 0xffffffff) + (flow.cookie >> 32)};
  return true;
}

// False: it does not fit.
bool Shard::write_piece(Job& job, StreamId stream, const ResultPart& part, Rank rank,
                        Transmit& transmit, TimeNs now) noexcept {
  const std::uint32_t slot_index = part.slot_index;
  const PieceSlice& slice = job.slices[id_.value].pieces_of(stream);
  const Slot& slot = slice.slots[slot_index];
  DCHECK(slot.state == SlotState::kComplete && slot.payload_bytes <= job.spec.chunk_bytes);
  wire::PieceResult body{.step = slot.step,
                         .chunk = job.global_chunk(slice.local_chunk(slot_index), id_),
                         .operation = slice.operations[slot_index],
                         .mask_words = static_cast<std::uint8_t>(job.mask_word_count),
                         .payload_bytes = slot.payload_bytes};
  body.feedback.priority = slot.priority;
  body.feedback.flags = part.flags;
  fill_feedback(job, flow_to(job, rank), body.feedback, now);
  transmit.shared = {};
  transmit.bytes = wire::encode(transmit.buffer, sender_of(job, rank), body,
                                slice.mask_of(slot_index), slice.payload_of(slot_index));
  if (transmit.bytes == 0) return false;
  transmit.sum = wire::sum_bytes(transmit.buffer.first(transmit.bytes - slot.payload_bytes)) +
                 wire::PartialSum{slot.payload_sum};
  return true;
}

}  // namespace sluice::agg
