// The state of one job that the control thread and every shard share.
//
// Created by the control side at the first join with all its memory, destroyed when every shard has
// let go of it. Who writes what: the control thread writes members and `ended`; the shard that
// closes a step last writes the next record and then `open_step` (release); each JobSlice belongs
// to its shard alone, but for the relaxed atomics that the control and metrics threads read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/counters.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/core/record.h"
#include "aggregator/policy/policy.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {

inline constexpr Step kNoStep = UINT32_MAX;  // "never": of a member that has not left
inline constexpr std::uint32_t kNoSlot = UINT32_MAX;
inline constexpr std::uint32_t kReleaseRing = 64;  // steps whose release time is remembered

// What one thread writes and others read, or what two shards write each for itself, starts a cache
// line: else each write takes the line of the neighbours away from their lcores.
inline constexpr std::size_t kCacheLineBytes = 64;

// Streams as array indices.
constexpr std::size_t index_of(StreamId stream) noexcept {
  return static_cast<std::size_t>(stream);
}

// What a job needs to be built; every rank's join must agree on it.
struct JobSpec {
  JobId id;
  std::string name;
  std::uint16_t world_size = 0;
  std::uint16_t chunk_bytes = 0;  // payload of a full chunk, as the workers send it
  std::uint16_t shard_count = 1;
  bool allow_nil = true;
  PolicyOptions policy;
  std::array<std::uint32_t, kStreamCount> chunk_counts{};  // 0: no such stream
  std::array<std::uint32_t, kStreamCount> max_elems{};     // of a chunk; ignored for kCollectives
  std::array<std::uint32_t, kStreamCount> windows{};       // steps retained, 2 .. kMaxWindow
};

// One rank. Written by the control thread, read by shards.
struct alignas(kCacheLineBytes) Member {
  std::atomic<Cookie> cookie{0};        // 0: nobody holds the rank
  std::atomic<Cookie> stale_cookie{0};  // of the process that was taken over last
  // The steps of each stream that it contributes to: joined_from <= step < left_from. left_from is
  // kNoStep while it stays, 0 when dead; joined_from grows when a process returns to a running job.
  // From there to shard 0's answer, which fixes it, joined_from is kNoStep: it is in none.
  std::array<std::atomic<Step>, kStreamCount> joined_from{0, 0, 0};
  std::array<std::atomic<Step>, kStreamCount> left_from{kNoStep, kNoStep, kNoStep};
  // While it fetches another rank's state: the first gradient step that must not complete without
  // it, so that the window waits. kNoStep: no such step.
  std::atomic<Step> hold_from{kNoStep};
  std::atomic<bool> reachable{false};    // joined and not gone: results are sent to it
  std::atomic<TimeNs> last_heard_ns{0};  // on the control port; shards keep their own in Flow
  // Its newest finished gradient: base step in the upper half, duration in microseconds below. 0:
  // none yet. Written by shard 0, read by the shard that publishes and by metrics.
  std::atomic<std::uint64_t> finished{0};
  // The newest gradient step that it has been heard of at: it has the results of all before. 0: of
  // none yet. Written by all shards, each with what it hears, so it may be a little too old.
  std::atomic<Step> reached{0};

  bool takes_part(std::size_t stream, Step step) const noexcept {
    // In this order: a member returns by storing joined_from first.
    return step < left_from[stream].load(std::memory_order_acquire) &&
           joined_from[stream].load(std::memory_order_acquire) <= step;
  }
};

// A stream's window as all shards see it.
struct alignas(kCacheLineBytes) StreamWindow {
  std::atomic<Step> open_step{0};              // 0: the job has not started
  std::array<StepRecord, kMaxWindow> records;  // of step s at s % window; written before open_step
  std::atomic<std::uint32_t> shards_left{0};   // that have not closed all their chunks of open_step
};

// The state of one (job, stream, step, chunk), without its data.
struct Slot {
  Step step = 0;                  // whose contributions it holds; 0: none yet
  std::uint32_t next_queued = 0;  // link of its slice's result queue, valid while `queued`
  std::uint64_t weight = 0;
  wire::Operation operation;       // of a piece
  std::uint64_t payload_sum = 0;   // internet checksum's partial sum of the result's payload
  std::uint32_t first_us = 0;      // when its first contribution came, wire_time_us()
  std::uint32_t complete_us = 0;   // when it was completed, likewise
  std::uint16_t count = 0;         // contributions in the mask, NILs too
  std::uint16_t data_count = 0;    // those with data
  std::uint16_t passed_count = 0;  // ranks that pass: they have nothing for this chunk
  std::uint16_t elem_count = 0;    // fixed by the first contribution that carries data
  std::uint16_t payload_bytes = 0;
  std::uint16_t k = 0;  // that it completed with
  Dtype dtype{};
  double square_sum = 0;    // of |contribution / weight|^2, for policies that ask for norms
  Priority priority = 255;  // the most urgent of its contributions
  bool complete = false;
  bool finite = true;
  bool queued = false;  // waits in the slice's result queue

  bool has_data() const noexcept { return data_count != 0; }
};

// A probe to answer, and which of the results that it asked for are still to be sent.
struct Reply {
  std::uint64_t want = 0;
  Step step = 0;
  std::uint32_t block = 0;
  std::uint32_t probe_number = 0;
  StreamId stream{};
  Priority priority = 0;  // of the answer: the least urgent of the results that it speaks of
};

// Blocks that one member may ask a shard about at once. An honest one that asks about more is
// answered when it asks again.
inline constexpr std::uint32_t kRepliesPerMember = 32;

// One direction pair of (worker, shard): numbers for loss and congestion, credit for results.
struct Flow {
  Cookie cookie = 0;              // of the process it counts for; another one starts afresh
  std::uint32_t next_number = 1;  // of the next packet to this worker
  std::uint32_t received_count = 0;
  std::uint32_t highest_number = 0;
  std::uint32_t marked_count = 0;
  std::uint32_t echo_timestamp_us = 0;
  TimeNs echo_arrival_ns = 0;
  std::uint32_t credit = 0;
  std::uint32_t deferred_count = 0;
  // What waits to be sent to it besides results. Bit i: its Reply i.
  std::uint32_t unanswered = 0;
  std::uint32_t pulling = 0;                        // answered, with results still wanted; not both
  std::uint8_t last_reply = kRepliesPerMember - 1;  // served last
  bool feedback_queued = false;
  bool has_turn = false;                        // stands in its slice's ring of turns
  bool deferral_told = false;                   // since the last credit update
  TimeNs last_contribution_ns = 0;              // of the open gradient step
  std::atomic<Step> last_contribution_step{0};  // likewise; read by the control thread
  std::atomic<TimeNs> last_heard_ns{0};         // read by the control thread
  Counter included;                             // chunks that this rank has a part in
  Counter late;      // contributions that came after their slot was complete
  Counter requeued;  // of `included`, those computed on an earlier step
  Histogram lag;     // behind the step's first finisher; read by metrics

  // Another process holds the rank: both directions count from the start.
  void restart(Cookie new_cookie) noexcept {
    cookie = new_cookie;
    next_number = 1;
    received_count = 0;
    highest_number = 0;
    marked_count = 0;
    echo_timestamp_us = 0;
    credit = 0;
    deferred_count = 0;
    unanswered = pulling = 0;
    last_reply = kRepliesPerMember - 1;
    feedback_queued = false;
    deferral_told = false;
  }
};

// What the first piece of a step fixed for all.
struct Collective {
  Step step = 0;  // 0: not fixed yet
  wire::Operation operation;
  std::uint32_t chunk_count = 1;
  // Of a call of several steps: those of a broadcast since its last barrier, and whether the next
  // step belongs to it.
  std::uint32_t broadcasts = 0;
  bool continues = false;

  // The step under way is the last one of its call.
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
    chunk_count = 1;
  }
};

// One shard's part of a stream.
struct StreamSlice {
  std::uint32_t chunk_count = 0;   // owned by this shard
  std::size_t stride_floats = 0;   // of one slot's accumulator
  StepRecord record;               // adopted copy of the open step's record
  std::uint32_t closed_count = 0;  // chunks of the open step that are complete
  std::uint32_t sweep_cursor = 0;  // next open slot to re-examine after a member went
  bool sweeping = false;
  TimeNs first_arrival_ns = 0;
  Collective collective;
  // What the open step has shown so far, for the policy.
  double mean_square = 0;     // summed over chunks: mean of |g_i|^2
  double square_of_mean = 0;  // likewise: |mean of g_i|^2
  bool conclusive = true;     // all sums finite, and the same members from first to last
  std::uint64_t signs_flipped = 0;
  std::uint64_t signs_compared = 0;
  // Results to send: a list through Slot::next_queued, and how far its head has been sent.
  std::uint32_t queue_head = kNoSlot;
  std::uint32_t queue_tail = kNoSlot;
  Step head_step = 0;
  std::uint32_t head_rank = 0;
  std::vector<Slot> slots;            // index (step % window) * chunk_count + local chunk
  std::vector<std::uint64_t> masks;   // mask_words a slot
  std::vector<std::uint64_t> passes;  // likewise, of ranks that pass; empty unless late = requeue
  // Signs of each chunk's sum at the end of the last detection round: sign_words a local chunk.
  std::size_t sign_words = 0;
  std::vector<std::uint64_t> signs;
  std::vector<std::uint8_t> signs_known;  // one a local chunk
  std::unique_ptr<float[], void (*)(void*)> data{nullptr,
                                                 nullptr};  // stride_floats a slot, 64-byte aligned

  std::span<const std::uint64_t> mask_of(std::size_t slot_index,
                                         std::size_t word_count) const noexcept {
    return {&masks[slot_index * word_count], word_count};
  }
  // What a complete slot's result carries.
  std::span<const std::uint8_t> payload_of(std::size_t slot_index) const noexcept {
    return {reinterpret_cast<const std::uint8_t*>(data.get() + slot_index * stride_floats),
            slots[slot_index].payload_bytes};
  }
};

// Whose contributions the oldest open chunk of the open gradient step still lacks, as the last
// probe for it found. Renewed at least every 25 ms while anybody waits; of no use once `step` is
// closed. For metrics.
struct Awaited {
  std::atomic<Step> step{0};  // 0: nobody has asked yet
  std::atomic<ChunkIndex> chunk{0};
  std::array<std::atomic<std::uint64_t>, kMaskWords> ranks{};
};

// One shard's part of a job. Belongs to that shard's lcore.
struct alignas(kCacheLineBytes) JobSlice {
  std::array<StreamSlice, kStreamCount> streams;
  std::vector<Flow> flows;  // one a rank
  // Replies: kRepliesPerMember a rank, and the ranks that have any to send, in the order of their
  // turns.
  std::vector<Reply> replies;
  std::vector<Rank> turns;  // ring of world_size
  std::size_t turn_head = 0;
  std::size_t turn_count = 0;
  Awaited awaited;
  Histogram step_duration;  // first contribution to last result of a step in this shard
  Counter steps_closed;
  Counter results_sent;
  Counter results_deferred;
  Counter results_pulled;
  Counter contributions;
  Counter slots_in_use;
};

// What the policy last said and saw: for metrics. Written by the shard that publishes.
struct PolicyGauges {
  std::atomic<std::uint32_t> k{0};  // of the open gradient step
  std::atomic<double> noise_scale{0};
  std::atomic<bool> noise_scale_valid{false};
  std::atomic<double> signs_flipped{-1};  // fraction in the last detection round; -1: none yet
};

// Who gives its state to whom on stream kState. Control thread writes, shard 0 reads.
struct Transfer {
  std::atomic<std::uint32_t> source_and_target{0};  // source << 16 | target

  Rank source() const noexcept { return Rank{static_cast<std::uint16_t>(ranks() >> 16)}; }
  Rank target() const noexcept { return Rank{static_cast<std::uint16_t>(ranks())}; }
  bool between(Rank rank) const noexcept { return rank == source() || rank == target(); }
  std::uint32_t ranks() const noexcept { return source_and_target.load(std::memory_order_acquire); }
};

// How far the making of a job's memory is. Shared by the thread that makes it and the one that
// answers for it.
struct BuildProgress {
  std::atomic<std::size_t> bytes{0};  // made; of Job::memory_bytes(), but for rounding. The maker
  std::atomic<bool> unwanted{false};  // the maker may stop; anybody

  void add(std::size_t made_bytes) noexcept {
    bytes.store(bytes.load(std::memory_order_relaxed) + made_bytes, std::memory_order_relaxed);
  }
};

class Job {
 public:
  // Bytes that the job will take, by the same arithmetic as the constructor; for limits.
  static std::size_t memory_bytes(const JobSpec& spec) noexcept;

  // Allocates and pre-faults everything, which takes about 1 s a GiB. Throws std::bad_alloc when
  // the system has less, or when `progress` says that the job is unwanted.
  explicit Job(const JobSpec& spec, BuildProgress* progress = nullptr);

  const JobSpec spec;
  const std::size_t mask_word_count;
  std::vector<Member> members;
  std::array<StreamWindow, kStreamCount> windows;
  std::vector<JobSlice> slices;    // one a shard
  std::atomic<bool> ended{false};  // failed or replaced: contributions are refused from now on
  PolicyGauges gauges;
  Transfer transfer;
  // The newest collective that somebody has begun. Written by shard 0, read by the control thread.
  std::atomic<Step> collective_begun{0};

  // Chunks of a stream that a shard owns, and their dense index there.
  std::uint32_t owned_chunks(StreamId stream, ShardId shard) const noexcept;
  std::uint32_t local_chunk(ChunkIndex chunk) const noexcept {
    return chunk / kChunksPerBlock / spec.shard_count * kChunksPerBlock + chunk % kChunksPerBlock;
  }
  ChunkIndex global_chunk(std::uint32_t local, ShardId shard) const noexcept {
    return (local / kChunksPerBlock * spec.shard_count + shard.value) * kChunksPerBlock +
           local % kChunksPerBlock;
  }

  // Where a chunk of a step has its slot in the slice of the shard that owns it.
  std::uint32_t slot_index(StreamId stream, const StreamSlice& slice, Step step,
                           ChunkIndex chunk) const noexcept {
    return step % spec.windows[index_of(stream)] * slice.chunk_count + local_chunk(chunk);
  }

  // Opens step 1 of every stream: all ranks have joined. Control thread, once.
  void start(TimeNs now) noexcept;
  bool started() const noexcept {
    return windows[0].open_step.load(std::memory_order_acquire) != 0;
  }
  // Publishes the record of `step` and then opens it. The shard that closed the step before it
  // last, or start(). The gradients' k is the policy's answer to what the closed step showed.
  void publish(StreamId stream, Step step, TimeNs now) noexcept;
  // Shard 0: `rank` reports that its gradient of `base` is finished. False: known already.
  bool report_finished(Rank rank, Step base, TimeNs now) noexcept;
  // `rank` is at `step` of the gradients, which is open or has been.
  void note_reached(Rank rank, Step step) noexcept {
    std::atomic<Step>& reached = members[rank.value].reached;
    if (step > reached.load(std::memory_order_relaxed))
      reached.store(step, std::memory_order_relaxed);
  }
  // When `step` of the gradients was opened; of the oldest known one when it is older.
  TimeNs released_ns(Step step) const noexcept;
  const Policy& policy() const noexcept { return policy_; }

 private:
  std::uint16_t decide_k(Step closed, TimeNs now) noexcept;
  bool two_keep_up(Step step) const noexcept;
  double duration_s(Rank rank, Step closed, TimeNs now) const noexcept;
  static Step oldest_release(Step open) noexcept;
  TimeNs began_ns(Step base, DurationNs taken_ns, Step closed, TimeNs now) const noexcept;

  Policy policy_;
  std::vector<double> durations_s_;
  std::array<std::atomic<TimeNs>, kReleaseRing> released_ns_{};
};

}  // namespace sluice::agg
