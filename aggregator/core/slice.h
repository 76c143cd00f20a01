// One shard's part of a job: its slots and its flows with the members.
//
// A slot holds one chunk of one step. Slot has what all streams need to fill, complete and send it;
// a Sum, or an Operation, beside it has the rest. All of it belongs to the shard's lcore alone,
// except the relaxed atomics that the control and metrics threads read, and the summary of a step,
// which is handed over when the shard closes its part of the step.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/counters.h"
#include "aggregator/base/divisor.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/prefault.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "aggregator/core/early.h"
#include "aggregator/core/flow.h"
#include "aggregator/core/mask.h"
#include "aggregator/core/record.h"
#include "aggregator/operations/operations.h"
#include "aggregator/store/store.h"
#include "aggregator/wire/packet.h"
#include "aggregator/wire/sparse.h"

namespace sluice::agg {

// Those with slots: a slice has a StreamSlice for each, without chunks where its job has no such
// stream.
inline constexpr StreamList kStepStreams = streams_of(JobKind::kSums);
inline constexpr std::uint32_t kNoSlot = UINT32_MAX;

// Alignment of objects that one thread writes and others read, and of objects of different shards
// that lie side by side. A write would else take the line of the neighbouring object away from its
// lcore.
inline constexpr std::size_t kCacheLineBytes = 64;

enum class SlotState : std::uint8_t {
  kEmpty,     // of no step yet
  kOpen,      // takes parts of its step
  kComplete,  // its bytes and its mask do not change until it is opened for a later step
};

// The state of one (job, stream, step, chunk), without its data.
struct Slot {
  Step step = 0;                  // whose parts it holds; 0: none yet
  std::uint32_t next_queued = 0;  // the next in its slice's result queue, while `queued`
  std::uint64_t payload_sum = 0;  // internet checksum's partial sum of the result's payload
  std::uint16_t count = 0;        // ranks in the mask, those without data too
  std::uint16_t payload_bytes = 0;
  SlotState state{};
  bool queued = false;               // waits in the slice's result queue
  Priority priority = kLeastUrgent;  // the most urgent of its parts; of a sum's, with data

  bool open_for(Step of) const noexcept { return step == of && state == SlotState::kOpen; }
  bool complete_for(Step of) const noexcept { return step == of && state == SlotState::kComplete; }
  // Whether a slot of a step that is over never was complete.
  bool abandoned() const noexcept { return state == SlotState::kOpen; }

  // The only changes of a slot. A queued slot keeps its place in the queue for the new result.
  void open(Step next) noexcept {
    CHECK(next > step);
    *this =
        Slot{.step = next, .next_queued = next_queued, .state = SlotState::kOpen, .queued = queued};
  }
  void complete() noexcept {
    CHECK(state == SlotState::kOpen);
    state = SlotState::kComplete;
  }
};
static_assert(sizeof(Slot) == 24);

// The shape of a sum. The first contribution with data fixes it, and all others must agree.
struct Shape {
  std::uint16_t elem_count = 0;
  Dtype dtype{};
  Dtype result{};         // of the result's elements
  bool rounded = false;   // see wire::kFlagRounded
  bool averaged = false;  // its elements are means already: see wire::kFlagMean

  static Shape of(const wire::Contribution& body) noexcept {
    return {.elem_count = body.elem_count,
            .dtype = body.dtype,
            .result = body.result_dtype(),
            .rounded = (body.flow.flags & wire::kFlagRounded) != 0,
            .averaged = (body.flow.flags & wire::kFlagMean) != 0};
  }
  friend bool operator==(const Shape&, const Shape&) = default;
};

// The state of a slot of the gradients besides Slot.
struct Sum : Shape {
  std::uint64_t weight = 0;
  double square_sum = 0;          // of |contribution / weight|^2, for policies that ask for norms
  std::uint32_t first_us = 0;     // when its first part came, wire_time_us()
  std::uint32_t complete_us = 0;  // when it was completed, wire_time_us()
  std::uint16_t data_count = 0;   // contributions with data
  std::uint16_t abstained_count = 0;  // ranks that abstain: they send no data for this chunk
  std::uint16_t k = 0;                // k with which it was completed
  std::uint16_t eligible_count = 0;   // ranks that it could have had then
  bool finite = true;
  bool sparse = false;    // some contribution is: the result may be too
  bool is_entry = false;  // the result's bytes are an entry of a sparse packet (wire/sparse.h)

  bool begun = false;     // the accumulator holds data; false while all data waits for its turn
  bool unwanted = false;  // by some rank, see GradientSlice::unwanted

  bool has_data() const noexcept { return data_count != 0; }
  bool is_mean() const noexcept { return averaged || result != Dtype::kFloat32; }
  // The result is rounded, and no residual keeps what rounding loses.
  bool is_unbiased() const noexcept {
    return result != Dtype::kFloat32 && (rounded || result != dtype);
  }
};

// One shard's part of a stream: what all streams have in common.
struct StreamSlice {
  std::uint32_t chunk_count = 0;  // owned by this shard
  Divisor by_chunk_count{1};
  std::size_t stride_floats = 0;  // of one slot's memory
  std::size_t mask_word_count = 0;
  StepRecord record;               // adopted copy of the open step's record
  std::uint32_t step_chunks = 0;   // chunks that the open step has here
  std::uint32_t closed_count = 0;  // of them, those that are complete
  std::uint32_t sweep_cursor = 0;  // the next open slot to check again after a member has gone
  bool sweeping = false;
  // The results to send, linked by Slot::next_queued, and how far the first of them has been sent.
  std::uint32_t queue_head = kNoSlot;
  std::uint32_t queue_tail = kNoSlot;
  Step head_step = 0;
  std::uint32_t head_rank = 0;
  std::vector<Slot> slots;              // index (step % window) * chunk_count + local chunk
  std::vector<std::uint64_t> masks;     // mask_word_count a slot
  FloatArray data{nullptr, std::free};  // stride_floats a slot, 64-byte aligned

  std::uint32_t local_chunk(std::size_t slot_index) const noexcept {
    DCHECK(slot_index < slots.size());
    return by_chunk_count.remainder(static_cast<std::uint32_t>(slot_index));
  }
  std::uint64_t* mask_of(std::size_t slot_index) noexcept {
    DCHECK(slot_index < slots.size());
    return &masks[slot_index * mask_word_count];
  }
  std::span<const std::uint64_t> mask_of(std::size_t slot_index) const noexcept {
    DCHECK(slot_index < slots.size());
    return {&masks[slot_index * mask_word_count], mask_word_count};
  }
  // kAccepted if a slot of the window waits for a part of `rank`; else why it does not.
  Verdict check(std::size_t slot_index, Step step, Rank rank) const noexcept {
    DCHECK(slot_index < slots.size() && rank.value < 64 * mask_word_count);
    const Slot& slot = slots[slot_index];
    DCHECK(slot.step <= record.step);
    if (slot.step == step && test_bit(mask_of(slot_index).data(), rank)) return Verdict::kDuplicate;
    // The step is closed or the slot complete: the result is out, without this rank.
    return step < record.step || slot.complete_for(step) ? Verdict::kLate : Verdict::kAccepted;
  }
  // Counts the part of `rank` in the slot.
  void count_in(std::size_t slot_index, Rank rank, Priority priority) noexcept {
    Slot& slot = slots[slot_index];
    DCHECK(slot.open_for(record.step) && record.eligible.test(rank));
    DCHECK(!test_bit(mask_of(slot_index), rank));
    set_bit(mask_of(slot_index), rank);
    ++slot.count;
    slot.priority = std::min(slot.priority, priority);
  }
  float* data_of(std::size_t slot_index) const noexcept {
    DCHECK(slot_index < slots.size());
    return data.get() + slot_index * stride_floats;
  }
  // The payload of a complete slot's result.
  std::span<const std::uint8_t> payload_of(std::size_t slot_index) const noexcept {
    DCHECK(slots[slot_index].payload_bytes <= stride_floats * sizeof(float));
    return {reinterpret_cast<const std::uint8_t*>(data_of(slot_index)),
            slots[slot_index].payload_bytes};
  }
};

// The summary of one shard's part of a gradient step, for the policy. The shard fills it while the
// step is open and hands it over when it closes its part (Job::summaries).
struct alignas(kCacheLineBytes) StepSummary {
  std::uint16_t k = 0;        // of the record when the step was closed
  bool conclusive = true;     // all sums are finite, and no member went during the step
  double mean_square = 0;     // summed over chunks: mean of |g_i|^2
  double square_of_mean = 0;  // summed over chunks: |mean of g_i|^2
  std::uint64_t signs_flipped = 0;
  std::uint64_t signs_compared = 0;
};

struct GradientSlice : StreamSlice {
  StepSummary summary;
  TimeNs first_arrival_ns = 0;    // of the open step; 0: no contribution yet
  std::uint64_t head_chunks = 0;  // of its block, that leave in the packet of the queue's head
  std::vector<Sum> sums;          // one a slot
  std::vector<std::uint64_t>
      abstained;  // as masks, of ranks that abstain; empty unless late = requeue
  // As masks, of ranks that want no result; valid where Sum::unwanted is set.
  std::vector<std::uint64_t> unwanted;
  // Signs of each chunk's sum at the end of the last detection round: sign_words a local chunk.
  std::size_t sign_words = 0;
  std::vector<std::uint64_t> signs;
  std::vector<std::uint8_t> signs_known;  // one a local chunk

  // In a reproducible job, for the open step: payloads that arrived before those of lower ranks,
  // and the lowest rank of each chunk whose turn has not gone by. (Sums that are exact in any order
  // would take 80 bytes an element and several times as long.)
  EarlyPayloads early;
  std::vector<std::uint16_t> next_ranks;

  // Of a job with k < n that goes on from a lost appliance: the ranks that have not given all
  // results that they have. While there is one, no contribution counts.
  MemberMask unheard;
  bool gathers = false;

  void begin_step() noexcept {
    DCHECK(closed_count == 0 && chunk_count != 0);
    step_chunks = chunk_count;
    summary = {};
    first_arrival_ns = 0;
  }
  void open_sum(std::size_t slot_index, TimeNs now) noexcept {
    DCHECK(slots[slot_index].open_for(record.step) && slots[slot_index].count == 0);
    sums[slot_index] = {};
    sums[slot_index].first_us = wire_time_us(now);
    if (in_rank_order()) next_ranks[local_chunk(slot_index)] = 0;
    if (!abstained.empty())
      std::fill_n(abstained_of(slot_index), mask_word_count, std::uint64_t{0});
  }
  bool in_rank_order() const noexcept { return !next_ranks.empty(); }
  void note_unwanted(std::size_t slot_index, Rank rank) noexcept {
    DCHECK(slots[slot_index].open_for(record.step) && record.eligible.test(rank));
    std::uint64_t* const mask = &unwanted[slot_index * mask_word_count];
    if (!sums[slot_index].unwanted) std::fill_n(mask, mask_word_count, std::uint64_t{0});
    sums[slot_index].unwanted = true;
    set_bit(mask, rank);
  }
  bool is_unwanted(std::size_t slot_index, Rank rank) const noexcept {
    DCHECK(slot_index < sums.size() && rank.value < 64 * mask_word_count);
    return sums[slot_index].unwanted && test_bit(&unwanted[slot_index * mask_word_count], rank);
  }
  bool has_abstained(std::size_t slot_index, Rank rank) noexcept {
    DCHECK(rank.value < 64 * mask_word_count);
    return !abstained.empty() && test_bit(abstained_of(slot_index), rank);
  }
  // Whether the result of a complete slot can share a packet (slice.cc): it has no data, or an
  // entry.
  bool can_share(std::size_t slot_index) const noexcept {
    return !sums[slot_index].has_data() || sums[slot_index].is_entry;
  }
  // Returns the chunks among `chunks`, all of one block, whose results can leave in one packet with
  // that of the first of them, which has `first_slot`. The payload has at most `most_bytes`.
  std::uint64_t alike_to(std::size_t first_slot, std::uint64_t chunks,
                         std::size_t most_bytes) const noexcept;
  // The chunks that leave in the packet of the queue's head: its own, and chunks of its block
  // behind it that can share. None where the head can't share.
  std::uint64_t chunks_at_head(std::size_t most_bytes) const noexcept;
  // Returns the chunks among `chunks`, which were to leave with this slot's chunk, whose slots have
  // not been reopened since.
  std::uint64_t still_complete(std::size_t slot_index, std::uint64_t chunks) const noexcept;
  // The invariant of the sum of an open slot, between any two contributions.
  bool consistent(std::size_t slot_index) const noexcept;
  // Null where no rank may abstain.
  std::uint64_t* abstained_of(std::size_t slot_index) noexcept {
    DCHECK(slot_index < slots.size());
    return abstained.empty() ? nullptr : &abstained[slot_index * mask_word_count];
  }

 private:
  bool alike(std::size_t left, std::size_t right) const noexcept;
};

// The operation of a step, which its first piece fixes for all ranks.
struct Collective {
  Step step = 0;  // 0: not fixed yet
  wire::Operation operation;
  // A call of several steps: the steps of its broadcast since the last barrier, and whether the
  // next step belongs to the call.
  std::uint32_t broadcasts = 0;
  bool continues = false;

  // Whether the open step is the last one of its call.
  bool ends_call() const noexcept {
    return operation.kind == CollectiveKind::kBarrier && broadcasts < kBroadcastsPerBarrier;
  }
  bool is_broadcast() const noexcept { return operation.kind == CollectiveKind::kBroadcast; }
  void next_step() noexcept {
    if (step != 0) {
      continues = !ends_call();
      broadcasts = is_broadcast() ? broadcasts + 1 : 0;
    }
    step = 0;
    operation = {};
  }
};

struct PieceSlice : StreamSlice {
  Collective collective;                    // of the open step
  std::vector<wire::Operation> operations;  // one for each slot: the operation of its piece

  void begin_step() noexcept {
    DCHECK(collective.step < record.step);
    step_chunks = 1;  // until its operation is fixed
    collective.next_step();
  }
  void open_piece(std::size_t slot_index) noexcept {
    DCHECK(collective.step == record.step && slots[slot_index].open_for(record.step));
    operations[slot_index] = collective.operation;
  }
};

// The ranks whose contributions the oldest open chunk of the open gradient step still lacks, as the
// last probe for it found. Renewed at least every 25 ms while a worker waits; without meaning once
// `step` is closed. For metrics.
struct Awaited {
  std::atomic<Step> step{0};  // 0: no worker has asked yet
  std::atomic<ChunkIndex> chunk{0};
  std::array<std::atomic<std::uint64_t>, kMaskWords> ranks{};
};

// The admission of a rank that joins a running store.
struct StoreJoiner {
  std::uint32_t admission = 0;  // the last one that the control side asked for
  // Once every clock of the shard is held for the rank: the admission in the upper half, and in the
  // lower the first iteration that the rank may have in this shard. Read by the control thread.
  std::atomic<std::uint64_t> held{0};
};

// One shard's part of a job. Belongs to that shard's lcore.
struct alignas(kCacheLineBytes) JobSlice {
  GradientSlice gradients;
  std::array<PieceSlice, 2> pieces;  // of kCollectives and kState
  std::vector<Flow> flows;           // one a rank
  // kRepliesPerMember replies for each rank, and the ranks that have a reply to send, in the order
  // of their turns.
  std::vector<Reply> replies;
  std::vector<Rank> turns;  // ring of world_size
  std::size_t turn_head = 0;
  std::size_t turn_count = 0;
  // The groups of this shard; null: a job of another kind.
  std::unique_ptr<OperationShard> operations;
  bool operations_active = false;  // stands in the shard's ring of those with results to send
  // The store of this shard; null: a job of another kind.
  std::unique_ptr<StoreShard> store;
  std::vector<StoreJoiner> joiners;  // one a rank
  bool store_active = false;         // stands in the shard's ring of those with results to send
  Awaited awaited;
  Histogram step_duration;  // first contribution to last result of a step in this shard
  Counter steps_closed;
  Counter results_sent;
  Counter results_deferred;
  Counter results_pulled;
  Counter contributions;
  Counter slots_in_use;

  PieceSlice& pieces_of(StreamId stream) noexcept {
    DCHECK(stream != StreamId::kGradients && has_steps(stream));
    return pieces[stream == StreamId::kCollectives ? 0 : 1];
  }
  StreamSlice& of(StreamId stream) noexcept {
    if (stream == StreamId::kGradients) return gradients;
    return pieces_of(stream);
  }
};

}  // namespace sluice::agg
