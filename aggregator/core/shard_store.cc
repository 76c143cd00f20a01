// The packets and members of a store. store/store.h decides about pushes and pulls; this file
// parses their packets and writes values.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {
namespace {

// What a member has of an appliance that is lost.
Verdict take_copies(StoreShard& store, const wire::Packet& packet) noexcept {
  const Rank rank{packet.common().rank};
  if (packet.type() == wire::PacketType::kCopy) {
    const auto& body = packet.body<wire::Copy>();
    std::array<std::uint64_t, kMaskWords> odd;
    for (std::size_t word = 0; word < packet.mask_word_count(); ++word)
      odd[word] = packet.mask_word(word);
    return store.give({.rank = rank,
                       .chunk = body.chunk,
                       .clock = body.clock,
                       .version = body.version,
                       .odd = std::span(odd).first(packet.mask_word_count()),
                       .values = packet.payload()});
  }
  const auto& body = packet.body<wire::Copies>();
  StoreCopies copies{.rank = rank,
                     .block = body.block,
                     .pushed = body.pushed,
                     .pushes = body.pushes != 0,
                     .chunk_count = body.block_chunks};
  for (std::uint32_t index = 0; index < copies.chunk_count; ++index) {
    std::uint32_t above = 0;
    std::memcpy(&above, &packet.payload()[index * sizeof above], sizeof above);
    if (above != 0) copies.versions[index] = body.base + (above - 1);
  }
  return store.state(copies);
}

}  // namespace

Verdict Shard::take_push(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  JobSlice& slice = job.slices[id_.value];
  DCHECK((slice.store != nullptr) == job.spec.store.has_value());
  if (slice.store == nullptr) return Verdict::kBadType;
  if (!job.started()) return Verdict::kNotStarted;
  if (packet.type() != wire::PacketType::kPush) {
    const bool resumed = slice.store->resumes();
    const Verdict verdict = take_copies(*slice.store, packet);
    if (resumed && !slice.store->resumes()) note_gathered(job);
    return verdict;
  }
  const auto& body = packet.body<wire::Push>();
  const Rank rank{packet.common().rank};
  const Verdict verdict = slice.store->push({.rank = rank,
                                             .iteration = body.iteration,
                                             .chunk = body.chunk,
                                             .rate = body.rate,
                                             .block_chunks = body.block_chunks,
                                             .values = packet.payload(),
                                             .now = now});
  if (use_of(verdict) == PacketUse::kUseful) {
    slice.contributions.add(1);
    slice.flows[rank.value].included.add(1);
  }
  queue_values(job);
  return verdict;
}

Verdict Shard::take_pull(Job& job, const wire::Packet& packet, TimeNs now) noexcept {
  JobSlice& slice = job.slices[id_.value];
  DCHECK((slice.store != nullptr) == job.spec.store.has_value());
  if (slice.store == nullptr) return Verdict::kBadType;
  if (!job.started()) return Verdict::kNotStarted;
  const auto& body = packet.body<wire::Pull>();
  const Verdict verdict = slice.store->pull({.rank = Rank{packet.common().rank},
                                             .block = body.block,
                                             .chunks = body.chunks,
                                             .need = body.need,
                                             .own = body.own,
                                             .priority = body.flow.priority,
                                             .now = now});
  queue_values(job);
  return verdict;
}

// A store with answers to send is in the ring of streams with results.
void Shard::queue_values(Job& job) noexcept {
  JobSlice& slice = job.slices[id_.value];
  DCHECK(slice.store != nullptr);
  if (slice.store_active || !slice.store->has_answers()) return;
  CHECK(active_count_ < active_.size());
  slice.store_active = true;
  active_[(active_head_ + active_count_++) % active_.size()] = {&job, StreamId::kPulls};
}

// A store's turn among the results, as long as that of a sum, whose result is sent to all members.
// A member without credit is sent nothing, and will ask.
std::size_t Shard::send_values(Job& job, std::span<Transmit> burst, TimeNs now) noexcept {
  JobSlice& slice = job.slices[id_.value];
  DCHECK(slice.store_active);
  DCHECK(!burst.empty());  // or its turn would come again without end
  const std::size_t turn = std::min<std::size_t>(burst.size(), job.spec.world_size);
  std::size_t count = 0;
  for (StoreAnswer answer; count < turn && slice.store->poll_answer(answer);)
    if (flow_that_may_get(job, StreamId::kPulls, 0, answer.rank) != nullptr)
      count += write_values(job, answer, 0, burst[count], now);
  slice.results_sent.add(count);
  slice.store_active = slice.store->has_answers();
  return count;
}

// False: it does not fit.
bool Shard::write_values(Job& job, const StoreAnswer& answer, std::uint8_t flags,
                         Transmit& transmit, TimeNs now) noexcept {
  const std::span<const std::uint8_t> payload{
      reinterpret_cast<const std::uint8_t*>(answer.values.data()), answer.values.size_bytes()};
  const std::span<std::uint8_t> out = transmit.buffer;
  if (out.size() < wire::packet_bytes(sizeof(wire::Values), answer.odd.size(), payload.size()))
    return false;
  wire::Values body{.chunk = answer.chunk,
                    .clock = answer.clock,
                    .own = answer.own,
                    .at_clock = answer.at_clock,
                    .waiting = answer.waiting,
                    .elem_count = static_cast<std::uint16_t>(answer.values.size()),
                    .version = answer.version,
                    .mask_words = static_cast<std::uint8_t>(answer.odd.size())};
  body.feedback.priority = answer.priority;
  body.feedback.flags = flags;
  fill_feedback(job, flow_to(job, answer.rank), body.feedback, now);
  transmit = {.buffer = out, .job = job.spec.id, .rank = answer.rank, .priority = answer.priority};
  transmit.bytes = wire::encode(out, sender_of(job, answer.rank), body, answer.odd, payload);
  CHECK(transmit.bytes != 0);
  transmit.sum = wire::sum_bytes(transmit.datagram());
  return true;
}

// Writes the chunk that a probe asked for again, if it can still be read.
bool Shard::write_pulled_values(Job& job, Rank rank, ChunkIndex chunk, Transmit& transmit,
                                TimeNs now) noexcept {
  StoreAnswer answer;
  DCHECK(job.slices[id_.value].store->owns(chunk / kChunksPerBlock));
  return job.slices[id_.value].store->read(chunk, rank, answer) &&
         write_values(job, answer, wire::kFlagPulled, transmit, now);
}

// Cold: recovery only. Fills in what the store knows of the block that the probe asks about.
void Shard::fill_store_answer(const Job& job, Rank rank, Reply& reply, wire::Answer& body,
                              MissingRanks& missing) const noexcept {
  const StoreShard& store = *job.slices[id_.value].store;
  if (reply.stream == StreamId::kPushes && reply.step == wire::kCopiesStep) {
    using Stated = StoreShard::Awaited::Stated;
    const auto [stated, chunks] = store.awaited(reply.block, rank);
    body.status = stated == Stated::kNothing        ? wire::AnswerStatus::kNotOpen
                  : stated == Stated::kByThisMember ? wire::AnswerStatus::kGone
                                                    : wire::AnswerStatus::kOpen;
    if (stated == Stated::kByAll) body.counted = ~chunks;
  } else if (reply.stream == StreamId::kPushes) {
    body.counted = store.counted(reply.block, rank, reply.step);
  } else {
    const StoreShard::PullState state = store.pull_state(reply.block, rank, reply.step - 1);
    body.counted = state.taken;
    body.complete = state.ready;
    DCHECK((body.complete & ~body.counted) == 0 && (body.complete == 0 || !state.waits));
    reply.priority = std::max(reply.priority, state.priority);
    if (state.waits) {
      body.first_incomplete = reply.block * kChunksPerBlock;
      store.find_missing(reply.block, rank, missing);
    }
  }
  reply.want &= body.complete;
}

// ---- members ----

void Shard::leave_store(Job& job, Rank rank) noexcept {
  JobSlice& slice = job.slices[id_.value];
  slice.store->remove(rank);
  CHECK(slice.store->state(rank) == StoreShard::MemberState::kGone ||
        slice.store->state(rank) == StoreShard::MemberState::kLeaving);
  slice.joiners[rank.value].held.store(0, std::memory_order_relaxed);
  sweep_pending_ = true;
}

// Answered in joiners[rank].held, which the control thread reads, once every clock of this shard is
// held.
void Shard::join_store(Job& job, Rank rank, std::uint32_t admission) noexcept {
  using State = StoreShard::MemberState;
  JobSlice& slice = job.slices[id_.value];
  Member& member = job.members[rank.value];
  std::atomic<Step>& collectives = member.joined_from[index_of(StreamId::kCollectives)];
  if (id_.value == 0 && collectives.load(std::memory_order_relaxed) == kNoStep &&
      !admit_to_collectives(job, rank))
    return;  // in the middle of a call: the control side asks again
  const State state = slice.store->state(rank);
  if (state == State::kStarting || state == State::kLive) return;  // asked twice
  if (state == State::kGone || state == State::kLeaving) slice.store->hold(rank);
  CHECK(slice.store->state(rank) == State::kHolding || slice.store->state(rank) == State::kHeld);
  slice.joiners[rank.value].admission = admission;
  slice.joiners[rank.value].held.store(0, std::memory_order_relaxed);
  sweep_pending_ = true;
}

void Shard::start_in_store(Job& job, Rank rank, std::uint32_t admission, Step first) noexcept {
  JobSlice& slice = job.slices[id_.value];
  if (slice.store->state(rank) != StoreShard::MemberState::kHeld ||
      slice.joiners[rank.value].admission != admission)
    return;  // it has died since
  slice.store->start(rank, first);
  sweep_pending_ = true;
}

// True while some work is left.
bool Shard::work_on_store(Job& job) noexcept {
  JobSlice& slice = job.slices[id_.value];
  const bool more = slice.store->poll_work();
  for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) {
    StoreJoiner& joiner = slice.joiners[rank];
    if (slice.store->state(Rank{rank}) != StoreShard::MemberState::kHeld ||
        joiner.held.load(std::memory_order_relaxed) != 0)
      continue;
    const Step first = slice.store->greatest_clock() + 1;
    CHECK(first != 0);
    joiner.held.store(std::uint64_t{joiner.admission} << 32 | first, std::memory_order_release);
  }
  queue_values(job);
  return more;
}

}  // namespace sluice::agg
