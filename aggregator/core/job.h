// The state of one job that the control thread and every shard share.
//
// The control side creates a Job with all its memory at the first join, and destroys it when every
// shard has released it. The control thread writes `ended`, `transfer` and the members, except the
// fields of Member that shards write. Each shard writes its slice (slice.h) and, when it closes its
// part of a gradient step, its summary. The shard that closes a step last reads the summaries,
// writes the next record and then `open_step` (release).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/divisor.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/prefault.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/core/record.h"
#include "aggregator/core/slice.h"
#include "aggregator/core/step_clock.h"
#include "aggregator/policy/policy.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {

inline constexpr Step kNoStep = UINT32_MAX;  // "never", of a member that has not left

// The specification of a job; every rank's join must agree on it.
struct JobSpec {
  JobId id;
  std::string name;
  std::uint16_t world_size = 0;
  std::uint16_t chunk_bytes = 0;  // payload of a full chunk, as the workers send it
  std::uint16_t shard_count = 1;
  bool allow_nil = true;
  bool reproducible = false;  // sums in the order of ranks; of a synchronous job
  PolicyOptions policy;
  std::optional<StoreSpec> store;            // of kind store: no sums
  std::optional<OperationsSpec> operations;  // of kind operations: no sums either
  // Of streams with steps, by index_of(). chunk_counts 0: the job has no such stream.
  std::array<std::uint32_t, kStreamsOfJob> chunk_counts{};
  std::array<std::uint32_t, kStreamsOfJob> max_elems{};  // of a chunk; ignored for kCollectives
  std::array<std::uint32_t, kStreamsOfJob> windows{};    // steps retained, 2 .. kMaxWindow

  JobKind kind() const noexcept {
    if (operations) return JobKind::kOperations;
    return store ? JobKind::kStore : JobKind::kSums;
  }
};

// One rank. The control thread writes it and shards read it, except the fields that say otherwise.
// Fields that shards write at each step have a cache line of their own.
struct alignas(kCacheLineBytes) Member {
  std::atomic<Cookie> cookie{0};        // 0: nobody holds the rank
  std::atomic<Cookie> stale_cookie{0};  // of the process whose rank was taken over last
  // The steps of each stream that it contributes to: joined_from <= step < left_from. left_from is
  // kNoStep while it stays, 0 when dead; joined_from grows when a process returns to a running job.
  // From there on joined_from is kNoStep, so the rank is in no step, until shard 0 writes it. Of
  // kPushes joined_from is the rank's first iteration.
  std::array<std::atomic<Step>, kStreamsOfJob> joined_from{0, 0, 0};
  std::array<std::atomic<Step>, kStreamsOfJob> left_from{kNoStep, kNoStep, kNoStep};
  // While it fetches another rank's state: the first gradient step that must not complete without
  // it, so that the window waits. kNoStep: there is none.
  std::atomic<Step> hold_from{kNoStep};
  std::atomic<bool> reachable{false};    // joined and not gone: results are sent to it
  std::atomic<TimeNs> last_heard_ns{0};  // on the control port; shards keep their own in Flow
  // Its newest finished gradient: the base step in the upper half, the duration in microseconds in
  // the lower. 0: none yet. Written by shard 0, read by the shard that publishes and by metrics.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> finished{0};
  // The newest gradient step at which a packet of it was seen; it has the results of all steps
  // before. 0: none yet. All shards write it, each from the packets that it sees, so it may be a
  // little too old.
  std::atomic<Step> reached{0};

  bool takes_part(std::size_t stream, Step step) const noexcept {
    // Read in this order: a member that returns stores joined_from first.
    return step < left_from[stream].load(std::memory_order_acquire) &&
           joined_from[stream].load(std::memory_order_acquire) <= step;
  }
};

// A stream's window, shared by all shards.
struct alignas(kCacheLineBytes) StreamWindow {
  std::atomic<Step> open_step{0};              // 0: the job has not started
  std::array<StepRecord, kMaxWindow> records;  // of step s at s % window; written before open_step
  // Shards that have not closed all their chunks of open_step.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> shards_left{0};
};

// The policy's last decision and observations, for metrics. Written by the shard that publishes.
struct PolicyGauges {
  std::atomic<std::uint32_t> k{0};  // of the open gradient step
  std::atomic<double> noise_scale{0};
  std::atomic<bool> noise_scale_valid{false};
  std::atomic<double> signs_flipped{-1};  // fraction in the last detection round; -1: none yet
};

// The ranks of the transfer on stream kState. Written by the control thread, read by shard 0.
struct Transfer {
  std::atomic<std::uint32_t> source_and_target{0};  // source << 16 | target

  Rank source() const noexcept { return Rank{static_cast<std::uint16_t>(ranks() >> 16)}; }
  Rank target() const noexcept { return Rank{static_cast<std::uint16_t>(ranks())}; }
  bool between(Rank rank) const noexcept { return rank == source() || rank == target(); }
  std::uint32_t ranks() const noexcept { return source_and_target.load(std::memory_order_acquire); }
};

// With what a job goes on from an appliance that is lost.
struct Resumed {
  Step step = 0;  // of the gradients, which is opened; 0: the job is new
  // With k < n: its k, as members know it, and the members that give the results that they have
  // before anybody contributes. Of a store: the members that give the values that they have.
  std::uint16_t k = 0;
  MemberMask givers;
};

class Job {
 public:
  // Bytes that the job will take, by the same arithmetic as the constructor; for limits.
  static std::size_t memory_bytes(const JobSpec& spec) noexcept;
  // The part of these bytes that sums in the order of ranks need.
  static std::size_t reproducible_bytes(const JobSpec& spec) noexcept;

  // Allocates and pre-faults everything, which takes about 1 s a GiB. Throws std::bad_alloc when
  // the system has less, or when `progress` says that the job is unwanted.
  explicit Job(const JobSpec& spec, BuildProgress* progress = nullptr);

  const JobSpec spec;
  const StreamList streams;  // that its kind has
  const std::size_t mask_word_count;
  std::vector<Member> members;
  std::array<StreamWindow, kStreamsOfJob> windows;
  std::vector<JobSlice> slices;  // one a shard
  // One for each shard, of the gradient step that it closed last. Read by the shard that closes the
  // step last, which StreamWindow::shards_left tells.
  std::vector<StepSummary> summaries;
  std::atomic<bool> ended{false};  // failed or replaced: contributions are refused from now on
  PolicyGauges gauges;
  Transfer transfer;
  // The newest collective that some rank has begun. Written by shard 0, read by the control thread.
  std::atomic<Step> collective_begun{0};

  // Chunks of a stream that a shard owns, and their dense index there.
  std::uint32_t owned_chunks(StreamId stream, ShardId shard) const noexcept;
  std::uint32_t local_chunk(ChunkIndex chunk) const noexcept {
    return by_shard_count_.quotient(chunk / kChunksPerBlock) * kChunksPerBlock +
           chunk % kChunksPerBlock;
  }
  ShardId owner_of(ChunkIndex chunk) const noexcept {
    return ShardId{static_cast<std::uint16_t>(by_shard_count_.remainder(chunk / kChunksPerBlock))};
  }
  ChunkIndex global_chunk(std::uint32_t local, ShardId shard) const noexcept {
    DCHECK(shard.value < spec.shard_count);
    return (local / kChunksPerBlock * spec.shard_count + shard.value) * kChunksPerBlock +
           local % kChunksPerBlock;
  }

  // The index of the slot of a chunk and step in the slice of the shard that owns the chunk.
  std::uint32_t slot_index(StreamId stream, const StreamSlice& slice, Step step,
                           ChunkIndex chunk) const noexcept {
    DCHECK(local_chunk(chunk) < slice.chunk_count);
    return by_window_[index_of(stream)].remainder(step) * slice.chunk_count + local_chunk(chunk);
  }

  // Opens step 1 of every stream: all ranks have joined, or all that a job with k < n waits for.
  // Control thread, once.
  void start(TimeNs now, const Resumed& resumed = {}) noexcept;
  // That step; 0: the job is new. In it a rank may have nothing to add, see wire::Status.
  Step resumed_step() const noexcept { return resumed_.step; }
  const MemberMask& givers() const noexcept { return resumed_.givers; }
  // Some shard has not got all results that members have of the lost appliance.
  bool gathers() const noexcept { return gathering_shards_.load(std::memory_order_acquire) != 0; }
  // A shard has. True: it is the last.
  bool shard_has_gathered() noexcept {
    return gathering_shards_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  // As members are told: no gradient step before all results are gathered. Of a store 1 says so.
  Step told_open_step() const noexcept {
    if (spec.store) return gathers() || !started() ? 0 : 1;
    const Step open = open_step(StreamId::kGradients);  // first: it is opened after gathers() holds
    return gathers() ? 0 : open;
  }
  // A piece of a state is sent to the two ranks that its step was opened for. The published record
  // names them as long as the step is retained, even when another transfer is under way.
  bool is_for(StreamId stream, Step step, Rank rank) const noexcept {
    if (stream != StreamId::kState) return true;
    const std::size_t index = index_of(stream);
    const StepRecord& record = windows[index].records[step % spec.windows[index]];
    return record.step == step && record.eligible.test(rank);
  }
  bool started() const noexcept {
    return std::ranges::any_of(windows, [](const StreamWindow& window) {
      return window.open_step.load(std::memory_order_acquire) != 0;
    });
  }
  bool has(StreamId stream) const noexcept { return streams[index_of(stream)] == stream; }
  // Blocks of a stream, as probes name them; 0: the job has no such stream.
  std::uint32_t block_count(StreamId stream) const noexcept {
    return has(stream) ? block_counts_[index_of(stream)] : 0;
  }
  // The chunks of a block, as bits. The chunks of a store's blocks are known to its shards alone:
  // all bits.
  std::uint64_t chunks_in_block(StreamId stream, std::uint32_t block) const noexcept {
    DCHECK(block < block_count(stream));
    if (!has_steps(stream)) return ~std::uint64_t{0};
    const std::uint32_t left = spec.chunk_counts[index_of(stream)] - block * kChunksPerBlock;
    return ~std::uint64_t{0} >> (kChunksPerBlock - std::min(kChunksPerBlock, left));
  }
  Step open_step(StreamId stream) const noexcept {
    return windows[index_of(stream)].open_step.load(std::memory_order_acquire);
  }
  // Publishes the record of `step` and then opens the step. Called by the shard that was the last
  // to close the step before, or by start(). The gradients' k is the policy's answer to the closed
  // step.
  void publish(StreamId stream, Step step, TimeNs now) noexcept;
  // Notes that `rank` is at `step` of the gradients, which is open or was.
  void note_reached(Rank rank, Step step) noexcept {
    DCHECK(rank.value < members.size());
    std::atomic<Step>& reached = members[rank.value].reached;
    if (step > reached.load(std::memory_order_relaxed))
      reached.store(step, std::memory_order_relaxed);
  }
  const Policy& policy() const noexcept { return policy_; }
  StepClock& clock() noexcept { return clock_; }

 private:
  std::uint16_t decide_k(Step closed, TimeNs now) noexcept;
  bool two_keep_up(Step step) const noexcept;
  void make_store(JobSlice& slice, ShardId shard, BuildProgress* progress);
  void make_gradients(GradientSlice& slice, std::size_t slot_count, BuildProgress* progress);

  const std::array<std::uint32_t, kStreamsOfJob> block_counts_;
  const Divisor by_shard_count_;
  const std::array<Divisor, kStreamsOfJob> by_window_;  // by 1 where there is no such stream
  Policy policy_;
  StepClock clock_;
  std::vector<double> durations_s_;
  Resumed resumed_;  // written before the first step is opened
  std::atomic<std::uint32_t> gathering_shards_{0};
};

}  // namespace sluice::agg
