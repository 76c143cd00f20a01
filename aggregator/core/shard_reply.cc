// Replies: answers to probes, the results that they pull, and feedback.
//
// Replies are sent in turns, first among jobs and then among the members of a job, one datagram a
// turn. A member's outstanding replies are bounded by kRepliesPerMember and by its credit, and lie
// in its job's memory, so they can't take another member's place.
#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/base/serial.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

static_assert(kRepliesPerMember == 32, "a bit of Flow::unanswered and Flow::pulling each");

// Pulled results may exceed the member's last credit by this many packets. A credit does not count
// the results that the member has asked for, and falls behind by those that were lost: without a
// block's worth beyond it, a lost tail would never be pulled. An answer is always sent, and the
// next probe has a credit that counts it, so a member waits for two round trips at most.
constexpr std::int32_t kPullsBeyondCredit = kChunksPerBlock;

bool may_pull(const Flow& flow) noexcept {
  return ahead(flow.next_number, flow.credit) <= kPullsBeyondCredit;
}

bool has_reply(const Flow& flow) noexcept {
  return flow.feedback_queued || flow.unanswered != 0 || (flow.pulling != 0 && may_pull(flow));
}

// The first bit of `bits`, which has any, at or after `from`, in a circle.
std::uint8_t next_bit(std::uint32_t bits, unsigned from) noexcept {
  DCHECK(bits != 0);
  const auto distance =
      static_cast<unsigned>(std::countr_zero(std::rotr(bits, static_cast<int>(from % 32))));
  return static_cast<std::uint8_t>((from + distance) % 32);
}

constexpr std::uint32_t bit(std::uint32_t index) noexcept { return std::uint32_t{1} << index; }

// Of a step before the one with which the job goes on from a lost appliance: no member has had some
// result of the block to give.
bool is_forgotten(const Job& job, const GradientSlice& slice, const Reply& reply) noexcept {
  if (reply.step >= job.resumed_step() || job.givers().empty() || job.gathers()) return false;
  const std::uint64_t chunks = job.chunks_in_block(StreamId::kGradients, reply.block);
  const std::uint32_t first =
      job.slot_index(StreamId::kGradients, slice, reply.step, reply.block * kChunksPerBlock);
  for (std::uint64_t rest = chunks; rest != 0; rest &= rest - 1)
    if (!slice.slots[first + static_cast<std::uint32_t>(std::countr_zero(rest))].complete_for(
            reply.step))
      return true;
  return false;
}

void note_awaited(Awaited& awaited, Step step, ChunkIndex chunk,
                  const std::array<std::uint64_t, kMaskWords>& ranks) noexcept {
  DCHECK(step != 0);  // 0 would say that no worker has asked
  for (std::size_t word = 0; word < kMaskWords; ++word)
    awaited.ranks[word].store(ranks[word], std::memory_order_relaxed);
  awaited.chunk.store(chunk, std::memory_order_relaxed);
  awaited.step.store(step, std::memory_order_release);
}

}  // namespace

Verdict Shard::probe(Job& job, const wire::Packet& packet) noexcept {
  const auto& body = packet.body<wire::Probe>();
  const std::uint32_t block_count = job.block_count(body.stream);
  if (block_count == 0) return Verdict::kBadStream;
  if (body.block >= block_count) return Verdict::kBadChunk;
  if (job.owner_of(body.block * kChunksPerBlock) != id_) return Verdict::kWrongShard;
  const Rank rank{packet.common().rank};
  DCHECK(rank.value < job.spec.world_size);
  const Step open_step = job.open_step(body.stream);
  if (body.stream == StreamId::kGradients && body.step <= open_step)
    job.note_reached(rank, body.step);
  return queue_reply(job, rank,
                     {.asked = body.want & job.chunks_in_block(body.stream, body.block),
                      .step = body.step,
                      .block = body.block,
                      .probe_number = body.flow.number,
                      .stream = body.stream});
}

Verdict Shard::queue_reply(Job& job, Rank rank, const Reply& wanted) noexcept {
  Flow& flow = job.slices[id_.value].flows[rank.value];
  const std::uint32_t place = place_for_reply(job, rank, wanted);
  if (place == kRepliesPerMember) {
    replies_dropped_.add(1);
    return Verdict::kProbe;
  }
  // A worker asks for a result once until it is overdue. So a promised result that has not left yet
  // stays wanted: probes that arrive before the member's turn would else put it off for ever. Other
  // results that the probe asks for leave only after an answer, which finds out which of them
  // exist.
  Reply& reply = reply_at(job, rank, place);
  const bool promised = (flow.pulling & bit(place)) && reply.block == wanted.block &&
                        reply.stream == wanted.stream && reply.step == wanted.step;
  DCHECK(!promised || reply.want != 0);
  const Reply before = reply;
  reply = wanted;
  if (promised) {
    reply.asked |= before.asked;
    reply.want = before.want;
  }
  flow.unanswered |= bit(place);
  if (!promised) flow.pulling &= ~bit(place);
  give_turn(job, rank);
  return Verdict::kProbe;
}

Reply& Shard::reply_at(Job& job, Rank rank, std::uint32_t place) noexcept {
  DCHECK(place < kRepliesPerMember);
  return job.slices[id_.value].replies[std::size_t{rank.value} * kRepliesPerMember + place];
}

// The place of an earlier reply about the probe's block, which the new one replaces. Else a free
// place, or that of a reply that was answered: the member asks again for results that it still
// lacks.
std::uint32_t Shard::place_for_reply(Job& job, Rank rank, const Reply& wanted) noexcept {
  const Flow& flow = job.slices[id_.value].flows[rank.value];
  const std::uint32_t taken = flow.unanswered | flow.pulling;
  for (std::uint32_t rest = taken; rest != 0; rest &= rest - 1) {
    const auto place = static_cast<std::uint32_t>(std::countr_zero(rest));
    const Reply& reply = reply_at(job, rank, place);
    DCHECK((flow.pulling & bit(place)) == 0 || reply.want != 0);
    if (reply.block == wanted.block && reply.stream == wanted.stream &&
        (wanted.stream != StreamId::kOperations || reply.step == wanted.step))
      return place;
  }
  if (~taken != 0) return static_cast<std::uint32_t>(std::countr_zero(~taken));
  const std::uint32_t answered = flow.pulling & ~flow.unanswered;
  return answered != 0 ? next_bit(answered, flow.last_reply) : kRepliesPerMember;
}

void Shard::queue_feedback(Job& job, Rank rank) noexcept {
  job.slices[id_.value].flows[rank.value].feedback_queued = true;
  give_turn(job, rank);
}

// Puts the member into its job's ring of turns, and the job into the shard's, unless they are in
// it.
void Shard::give_turn(Job& job, Rank rank) noexcept {
  JobSlice& slice = job.slices[id_.value];
  DCHECK(rank.value < job.spec.world_size);
  Flow& flow = slice.flows[rank.value];
  if (flow.has_turn) return;
  CHECK(slice.turn_count < slice.turns.size());
  flow.has_turn = true;
  DCHECK(slice.turn_count != 0 || reply_job_count_ < reply_jobs_.size());
  if (slice.turn_count == 0)
    reply_jobs_[(reply_job_head_ + reply_job_count_++) % reply_jobs_.size()] = &job;
  std::size_t at = slice.turn_head + slice.turn_count++;
  if (at >= slice.turns.size()) at -= slice.turns.size();
  slice.turns[at] = rank;
}

// Takes the member whose turn it is out of both rings.
Rank Shard::take_turn(Job& job) noexcept {
  JobSlice& slice = job.slices[id_.value];
  CHECK(slice.turn_count != 0);
  const Rank rank = slice.turns[slice.turn_head];
  if (++slice.turn_head == slice.turns.size()) slice.turn_head = 0;
  --slice.turn_count;
  CHECK(slice.flows[rank.value].has_turn && reply_job_count_ != 0);
  slice.flows[rank.value].has_turn = false;
  reply_job_head_ = (reply_job_head_ + 1) % reply_jobs_.size();
  --reply_job_count_;
  if (slice.turn_count != 0)
    reply_jobs_[(reply_job_head_ + reply_job_count_++) % reply_jobs_.size()] = &job;
  return rank;
}

bool Shard::poll_reply(Transmit& transmit, TimeNs now) noexcept {
  while (reply_job_count_ != 0) {
    Job& job = *reply_jobs_[reply_job_head_];
    DCHECK(jobs_[job.spec.id.value] == &job);
    const Rank rank = take_turn(job);
    const bool written = write_reply(job, rank, transmit, now);
    const OperationShard* const operations = job.slices[id_.value].operations.get();
    if (has_reply(job.slices[id_.value].flows[rank.value]) ||
        (operations != nullptr && operations->has_notice(rank)))
      give_turn(job, rank);
    transmit.reply = true;
    if (written) return true;
  }
  return false;
}

// Writes the member's next reply: feedback first, then answers and pulled results alternately. A
// member that asks again before each turn would else get answers alone. False: it has none.
bool Shard::write_reply(Job& job, Rank rank, Transmit& transmit, TimeNs now) noexcept {
  JobSlice& job_slice = job.slices[id_.value];
  Flow& flow = flow_to(job, rank);
  const std::span<std::uint8_t> out = transmit.buffer;
  transmit = {.buffer = out, .job = job.spec.id, .rank = rank};
  if (flow.feedback_queued) {
    flow.feedback_queued = false;
    wire::Feedback body{.shard = id_.value};
    fill_feedback(job, flow_to(job, rank), body.feedback, now);
    transmit.bytes = wire::encode(out, sender_of(job, rank), body);
    transmit.sum = wire::sum_bytes(out.first(transmit.bytes));
    return transmit.bytes != 0;
  }
  if (job_slice.operations != nullptr && write_notice(job, rank, transmit, now)) return true;
  const bool pulls = flow.pulling != 0 && may_pull(flow);
  if (flow.unanswered != 0 && !(pulls && flow.answered_last)) {
    const std::uint8_t place = next_bit(flow.unanswered, flow.last_reply + 1);
    Reply& reply = reply_at(job, rank, place);
    transmit.bytes = write_answer(job, rank, reply, out, now);
    transmit.sum = wire::sum_bytes(out.first(transmit.bytes));
    transmit.priority = reply.priority;
    flow.unanswered &= ~bit(place);
    flow.pulling = reply.want != 0 ? flow.pulling | bit(place) : flow.pulling & ~bit(place);
    flow.answered_last = true;
    flow.last_reply = place;
    return transmit.bytes != 0;
  }
  flow.answered_last = false;
  while (flow.pulling != 0 && may_pull(flow)) {
    flow.last_reply = next_bit(flow.pulling, flow.last_reply);
    Reply& reply = reply_at(job, rank, flow.last_reply);
    CHECK(reply.want != 0);
    const auto chunk = static_cast<std::uint32_t>(std::countr_zero(reply.want));
    if (!has_steps(reply.stream)) {
      const Reply asked = reply;
      reply.want &= reply.want - 1;
      if (reply.want == 0) flow.pulling &= ~bit(flow.last_reply);
      const bool written =
          asked.stream == StreamId::kOperations
              ? write_pulled_part(job, rank, asked, chunk, transmit, now)
              : write_pulled_values(job, rank, asked.block * kChunksPerBlock + chunk, transmit,
                                    now);
      if (!written) continue;
      job_slice.results_pulled.add(1);
      return true;
    }
    const StreamSlice& slice = job_slice.of(reply.stream);
    const std::uint32_t slot_index =
        job.slot_index(reply.stream, slice, reply.step, reply.block * kChunksPerBlock + chunk);
    const Slot& slot = slice.slots[slot_index];
    const std::uint64_t leaving =
        reply.stream == StreamId::kGradients
            ? job_slice.gradients.alike_to(slot_index, reply.want, job.spec.chunk_bytes)
            : reply.want & -reply.want;
    DCHECK(leaving != 0 && (leaving & ~reply.want) == 0);
    reply.want &= ~leaving;
    if (reply.want == 0) flow.pulling &= ~bit(flow.last_reply);
    if (!slot.complete_for(reply.step)) continue;  // reopened since the answer
    const ResultPart part{.slot_index = slot_index, .chunks = leaving, .flags = wire::kFlagPulled};
    if (!write_result(job, reply.stream, part, rank, transmit, now)) continue;
    job_slice.results_pulled.add(1);
    return true;
  }
  return false;
}

// Cold: recovery only. Also promises the results that are asked for and exist.
std::size_t Shard::write_answer(Job& job, Rank rank, Reply& reply, std::span<std::uint8_t> out,
                                TimeNs now) noexcept {
  const std::size_t index = index_of(reply.stream);
  reply.want |= std::exchange(reply.asked, 0);
  if (reply.stream == StreamId::kOperations) return write_part_answer(job, rank, reply, out, now);
  const std::uint32_t window = job.spec.windows[index];
  wire::Answer body{.step = reply.step,
                    .block = reply.block,
                    .probe_number = reply.probe_number,
                    .first_incomplete = wire::kNoChunk,
                    .stream = reply.stream};
  MissingRanks missing{};
  if (!has_steps(reply.stream)) {
    fill_store_answer(job, rank, reply, body, missing);
    return encode_answer(job, rank, reply, body, missing, out, now);
  }
  JobSlice& own = job.slices[id_.value];
  StreamSlice& slice = job.started() ? current_slice(job, reply.stream) : own.of(reply.stream);
  const Step open_step = slice.record.step;
  body.open_step = open_step;
  if (reply.step > open_step || reply.step == 0) {
    body.status = wire::AnswerStatus::kNotOpen;
  } else if (open_step - reply.step >= window ||
             (reply.stream == StreamId::kGradients && is_forgotten(job, own.gradients, reply))) {
    body.status = wire::AnswerStatus::kGone;
  } else {
    const std::uint32_t first_chunk = reply.block * kChunksPerBlock;
    const std::uint64_t all = job.chunks_in_block(reply.stream, reply.block);
    const auto chunks = static_cast<std::uint32_t>(std::bit_width(all));
    const std::uint32_t first_slot = job.slot_index(reply.stream, slice, reply.step, first_chunk);
    DCHECK(chunks != 0 && first_slot + chunks <= slice.slots.size());
    // A rank that is not eligible is told that its part is counted, else it would send it again for
    // ever: a rank that was given up and has come back does not know. (Before a collective's step
    // has begun, the rank may still become eligible.)
    const bool record_fixed =
        reply.stream == StreamId::kGradients ||
        (reply.stream == StreamId::kCollectives && own.pieces[0].collective.step == open_step);
    const bool outside =
        record_fixed && reply.step == open_step && !slice.record.eligible.test(rank);
    if (outside) body.counted = all;
    for (std::uint32_t bit = 0; bit < chunks; ++bit) {
      const Slot& slot = slice.slots[first_slot + bit];
      const std::uint64_t* mask = slice.mask_of(first_slot + bit);
      const bool touched = slot.step == reply.step;
      // A rank that abstains counts as well: it has nothing more to send.
      const std::uint64_t* abstained = reply.stream == StreamId::kGradients
                                           ? own.gradients.abstained_of(first_slot + bit)
                                           : nullptr;
      const bool given =
          reply.stream == StreamId::kGradients && job.gathers() && slot.complete_for(reply.step);
      if (given || (touched && (test_bit(mask, rank) || (abstained && test_bit(abstained, rank)))))
        body.counted |= std::uint64_t{1} << bit;
      if (slot.complete_for(reply.step)) {
        // A result that still waits in the queue is about to be sent, and need not be pulled. A
        // result that has left may wait in an egress queue of its priority, which the answer must
        // not overtake.
        reply.priority = std::max(reply.priority, slot.priority);
        if (!slot.queued) body.complete |= std::uint64_t{1} << bit;
      } else if (body.first_incomplete == wire::kNoChunk) {
        body.first_incomplete = first_chunk + bit;
        for (std::size_t word = 0; word < job.mask_word_count; ++word)
          missing[word] = slice.record.eligible.words()[word] &
                          ~(touched ? mask[word] | (abstained ? abstained[word] : 0) : 0);
      }
    }
  }
  if (body.first_incomplete != wire::kNoChunk && reply.stream == StreamId::kGradients &&
      reply.step == open_step)
    note_awaited(own.awaited, reply.step, body.first_incomplete, missing);
  reply.want &= job.is_for(reply.stream, reply.step, rank) ? body.complete : 0;
  return encode_answer(job, rank, reply, body, missing, out, now);
}

// Adds the ranks whose parts are missing, if a chunk is incomplete, and how long ago each was
// heard.
std::size_t Shard::encode_answer(Job& job, Rank rank, const Reply& reply, wire::Answer& body,
                                 const MissingRanks& missing, std::span<std::uint8_t> out,
                                 TimeNs now) noexcept {
  std::array<wire::MissingAge, kMaxMissingAges> ages{};
  std::size_t age_count = 0;
  fill_feedback(job, flow_to(job, rank), body.feedback, now);
  body.feedback.priority = reply.priority;
  if (body.first_incomplete != wire::kNoChunk) {
    body.mask_words = static_cast<std::uint8_t>(job.mask_word_count);
    for (std::uint16_t other = 0; other < job.spec.world_size && age_count < ages.size(); ++other) {
      if (!test_bit(missing.data(), Rank{other})) continue;
      TimeNs heard_ns = job.members[other].last_heard_ns.load(std::memory_order_relaxed);
      for (const JobSlice& job_slice : job.slices)
        heard_ns = std::max(heard_ns,
                            job_slice.flows[other].last_heard_ns.load(std::memory_order_relaxed));
      ages[age_count++] = {.rank = other,
                           .last_heard_ms = static_cast<std::uint32_t>(
                               std::max<DurationNs>(0, now - heard_ns) / kMillisecond)};
    }
    body.age_count = static_cast<std::uint8_t>(age_count);
  }
  DCHECK(body.mask_words == 0 || body.first_incomplete != wire::kNoChunk);
  return wire::encode(
      out, sender_of(job, rank), body, {missing.data(), body.mask_words},
      {reinterpret_cast<const std::uint8_t*>(ages.data()), age_count * sizeof(wire::MissingAge)});
}

}  // namespace sluice::agg
