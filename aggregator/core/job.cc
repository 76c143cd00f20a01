#include "aggregator/core/job.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/core/signs.h"

namespace sluice::agg {
namespace {

// The bytes of one member in one shard's slice.
constexpr std::size_t kFlowBytes = sizeof(Flow) + kRepliesPerMember * sizeof(Reply) + sizeof(Rank);
constexpr std::uint16_t kTwo = 2;
constexpr std::size_t kLineFloats = 64 / sizeof(float);

std::size_t stride_floats(const JobSpec& spec, std::size_t stream) noexcept {
  // Collectives and state are opaque bytes; sums need one float an element, however narrow it
  // travels.
  const std::size_t floats = stream != index_of(StreamId::kGradients)
                                 ? (spec.chunk_bytes + sizeof(float) - 1) / sizeof(float)
                                 : spec.max_elems[stream];
  return (floats + kLineFloats - 1) / kLineFloats * kLineFloats;
}

std::uint32_t owned_chunks_of(std::uint32_t chunk_count, std::uint16_t shard_count,
                              std::uint16_t shard) noexcept {
  const std::uint32_t full_blocks = chunk_count / kChunksPerBlock;
  const std::uint32_t tail_chunks = chunk_count % kChunksPerBlock;
  std::uint32_t owned =
      (full_blocks / shard_count + (shard < full_blocks % shard_count ? 1 : 0)) * kChunksPerBlock;
  if (tail_chunks != 0 && full_blocks % shard_count == shard) owned += tail_chunks;
  CHECK(shard < shard_count && owned <= chunk_count);
  return owned;
}

// By index_of(). A store's pushes and pulls are of the same blocks.
std::array<std::uint32_t, kStreamsOfJob> block_counts_of(const JobSpec& spec) noexcept {
  std::array<std::uint32_t, kStreamsOfJob> counts{};
  for (const StreamId stream : streams_of(spec.kind())) {
    std::uint32_t& count = counts[index_of(stream)];
    if (has_steps(stream))
      count = (spec.chunk_counts[index_of(stream)] + kChunksPerBlock - 1) / kChunksPerBlock;
    else if (stream != StreamId::kOperations)  // whose blocks have no end
      count = spec.store->block_count;
  }
  return counts;
}

// The words of remembered signs for a gradient chunk; 0 when the policy asks for none.
std::size_t sign_words_of(const JobSpec& spec) noexcept {
  if (spec.policy.kind != PolicyKind::kSaina) return 0;
  return sign_words(spec.max_elems[index_of(StreamId::kGradients)], spec.policy.sign_stride);
}

// Floats that hold one early contribution of a reproducible job.
std::size_t early_floats_of(const JobSpec& spec) noexcept {
  return (spec.chunk_bytes + sizeof(float) - 1) / sizeof(float);
}

template <class T>
void resize_noted(std::vector<T>& vector, std::size_t size, BuildProgress* progress) {
  vector.resize(size);
  note_made(progress, size * sizeof(T));
}

}  // namespace

std::size_t Job::reproducible_bytes(const JobSpec& spec) noexcept {
  if (!spec.reproducible) return 0;
  const std::size_t chunk_count = spec.chunk_counts[index_of(StreamId::kGradients)];
  return EarlyPayloads::place_count(chunk_count, spec.world_size) *
             (sizeof(float) * early_floats_of(spec) + EarlyPayloads::kTableBytes) +
         chunk_count * sizeof(std::uint16_t);
}

std::size_t Job::memory_bytes(const JobSpec& spec) noexcept {
  std::size_t total_bytes =
      sizeof(Job) + spec.world_size * sizeof(Member) +
      spec.shard_count * (sizeof(JobSlice) + sizeof(StepSummary) + spec.world_size * kFlowBytes);
  for (std::size_t stream = 0; stream < kStepStreams.size(); ++stream) {
    const std::size_t content_bytes =
        stream == index_of(StreamId::kGradients) ? sizeof(Sum) : sizeof(wire::Operation);
    const std::size_t slot_bytes = sizeof(Slot) + content_bytes +
                                   8 * sluice::mask_words(spec.world_size) +
                                   sizeof(float) * stride_floats(spec, stream);
    total_bytes += std::size_t{spec.windows[stream]} * spec.chunk_counts[stream] * slot_bytes;
  }
  const std::uint32_t gradient_chunks = spec.chunk_counts[index_of(StreamId::kGradients)];
  const bool may_abstain = spec.policy.late == LateMode::kRequeue;
  for (std::uint16_t shard = 0; spec.store && shard < spec.shard_count; ++shard)
    total_bytes += StoreShard::memory_bytes(*spec.store, ShardId{shard}, spec.shard_count) +
                   spec.world_size * sizeof(StoreJoiner);
  if (spec.operations)
    total_bytes += spec.shard_count * OperationShard::memory_bytes(*spec.operations) +
                   spec.operations->group_bytes;
  total_bytes += gradient_chunks * (8 * sign_words_of(spec) + 1);
  total_bytes += reproducible_bytes(spec);
  const std::size_t masks = may_abstain ? 2 : 1;  // beside each slot's own
  total_bytes += masks * spec.windows[index_of(StreamId::kGradients)] * gradient_chunks * 8 *
                 sluice::mask_words(spec.world_size);
  return total_bytes;
}

Job::Job(const JobSpec& job_spec, BuildProgress* progress)
    : spec(job_spec),
      streams(streams_of(job_spec.kind())),
      mask_word_count(sluice::mask_words(job_spec.world_size)),
      members(job_spec.world_size),
      slices(job_spec.shard_count),
      summaries(job_spec.shard_count),
      block_counts_(block_counts_of(job_spec)),
      by_shard_count_(job_spec.shard_count),
      by_window_{Divisor(std::max(job_spec.windows[0], 1u)),
                 Divisor(std::max(job_spec.windows[1], 1u)),
                 Divisor(std::max(job_spec.windows[2], 1u))},
      policy_(job_spec.policy, job_spec.world_size),
      clock_(job_spec.policy.late),
      durations_s_(job_spec.world_size) {
  CHECK(spec.world_size >= 1 && spec.world_size <= kMaxWorkers);
  CHECK(spec.shard_count >= 1 && spec.shard_count <= kMaxShards);
  for (std::uint16_t shard = 0; shard < spec.shard_count; ++shard) {
    JobSlice& job_slice = slices[shard];
    job_slice.flows = std::vector<Flow>(spec.world_size);
    job_slice.replies.resize(std::size_t{spec.world_size} * kRepliesPerMember);
    job_slice.turns.resize(spec.world_size);
    if (spec.store) make_store(job_slice, ShardId{shard}, progress);
    if (spec.operations)
      job_slice.operations =
          std::make_unique<OperationShard>(*spec.operations, ShardId{shard}, progress);
    for (const StreamId id : kStepStreams) {
      const std::size_t stream = index_of(id);
      StreamSlice& slice = job_slice.of(id);
      slice.chunk_count = owned_chunks(id, ShardId{shard});
      slice.by_chunk_count = Divisor(std::max(1u, slice.chunk_count));
      slice.stride_floats = stride_floats(spec, stream);
      slice.mask_word_count = mask_word_count;
      const std::size_t slot_count = std::size_t{spec.windows[stream]} * slice.chunk_count;
      CHECK(slice.chunk_count == 0 ||
            (spec.windows[stream] >= 2 && spec.windows[stream] <= kMaxWindow));
      resize_noted(slice.slots, slot_count, progress);
      resize_noted(slice.masks, slot_count * mask_word_count, progress);
      if (id == StreamId::kGradients)
        make_gradients(job_slice.gradients, slot_count, progress);
      else
        job_slice.pieces_of(id).operations.resize(slot_count);
      slice.data = allocate_prefaulted(slot_count * slice.stride_floats, progress);
    }
  }
  for (const StreamId stream : kStepStreams) {
    std::uint64_t owned = 0;
    for (JobSlice& job_slice : slices) owned += job_slice.of(stream).chunk_count;
    CHECK(owned == spec.chunk_counts[index_of(stream)]);
  }
  DCHECK(progress == nullptr || progress->bytes.load() <= memory_bytes(spec));
}

void Job::make_store(JobSlice& slice, ShardId shard, BuildProgress* progress) {
  CHECK(spec.chunk_counts[index_of(StreamId::kGradients)] == 0 &&
        !spec.policy.tolerates_stragglers());
  slice.store = std::make_unique<StoreShard>(*spec.store, shard, spec.shard_count, progress);
  slice.joiners = std::vector<StoreJoiner>(spec.world_size);
}

void Job::make_gradients(GradientSlice& slice, std::size_t slot_count, BuildProgress* progress) {
  resize_noted(slice.sums, slot_count, progress);
  resize_noted(slice.unwanted, slot_count * mask_word_count, progress);
  if (spec.policy.late == LateMode::kRequeue)
    resize_noted(slice.abstained, slot_count * mask_word_count, progress);
  if (spec.reproducible) {
    CHECK(!spec.policy.tolerates_stragglers());
    const std::size_t floats = early_floats_of(spec);
    const std::size_t places = EarlyPayloads::place_count(slice.chunk_count, spec.world_size);
    slice.early = {slice.chunk_count, spec.world_size, floats,
                   allocate_prefaulted(places * floats, progress)};
    note_made(progress, places * EarlyPayloads::kTableBytes);
    resize_noted(slice.next_ranks, slice.chunk_count, progress);
  }
  slice.sign_words = sign_words_of(spec);
  resize_noted(slice.signs, slice.chunk_count * slice.sign_words, progress);
  resize_noted(slice.signs_known, slice.chunk_count, progress);
  CHECK(slice.sums.size() == slice.slots.size());
}

std::uint32_t Job::owned_chunks(StreamId stream, ShardId shard) const noexcept {
  return owned_chunks_of(spec.chunk_counts[index_of(stream)], spec.shard_count, shard.value);
}

void Job::start(TimeNs now, const Resumed& resumed) noexcept {
  CHECK(!started() && (resumed.step == 0 || !spec.store || !resumed.givers.empty()));
  resumed_ = resumed;
  if (spec.store && !resumed.givers.empty()) {
    for (JobSlice& slice : slices) slice.store->resume({resumed.givers.words(), mask_word_count});
    gathering_shards_.store(std::min<std::uint32_t>(spec.shard_count, spec.store->block_count),
                            std::memory_order_release);
  } else if (!resumed.givers.empty()) {
    CHECK(resumed.step != 0 && spec.policy.tolerates_stragglers());
    policy_.resume(resumed.k);
    for (Step step = resumed.step; step != 0 && resumed.step - step < StepClock::kReleaseRing;
         --step)
      clock_.release(step, now);
    gathering_shards_.store(
        std::min<std::uint32_t>(spec.shard_count, block_count(StreamId::kGradients)),
        std::memory_order_release);
  }
  for (const StreamId stream : kStepStreams)
    if (spec.chunk_counts[index_of(stream)] != 0)
      publish(stream, stream == StreamId::kGradients ? std::max<Step>(resumed.step, 1) : 1, now);
  CHECK(started());
}

void Job::publish(StreamId stream, Step step, TimeNs now) noexcept {
  const std::size_t index = index_of(stream);
  const bool gradients = stream == StreamId::kGradients;
  const bool waits_for_all = !gradients || !spec.policy.tolerates_stragglers();
  StepRecord record{.step = step, .eligible = {}, .required = {}};
  for (std::uint16_t rank = 0; rank < spec.world_size; ++rank) {
    const Member& member = members[rank];
    if (!member.takes_part(index, step)) continue;
    if (stream == StreamId::kState && !transfer.between(Rank{rank})) continue;
    record.eligible.set(Rank{rank});
    if (waits_for_all || member.hold_from.load(std::memory_order_acquire) <= step)
      record.required.set(Rank{rank});
  }
  record.k = static_cast<std::uint16_t>(record.eligible.count());
  if (!waits_for_all) {
    const bool first = step == 1 || step == resumed_.step;
    const std::uint16_t k = !first ? decide_k(step - 1, now) : step > 1 ? policy_.k() : record.k;
    if (step > kFullSteps) {
      record.by_the_living = !two_keep_up(step);
      record.k = std::min(record.k, record.by_the_living ? std::max(k, kTwo) : k);
    }
  }

  CHECK(step >= 1 && step <= kLastStep && record.consistent());
  StreamWindow& window = windows[index];
  // A transfer that is given up has not closed its step.
  CHECK(stream == StreamId::kState || window.shards_left.load(std::memory_order_relaxed) == 0);
  window.records[step % spec.windows[index]] = record;
  if (gradients) {
    gauges.k.store(record.k, std::memory_order_relaxed);
    clock_.release(step, now);
  }
  const std::uint32_t participating_shards =
      std::min<std::uint32_t>(spec.shard_count, block_count(stream));
  CHECK(participating_shards != 0);
  CHECK(open_step(stream) == step - 1 || (open_step(stream) == 0 && step == resumed_.step));
  window.shards_left.store(participating_shards, std::memory_order_relaxed);
  window.open_step.store(step, std::memory_order_release);
}

// Whether two ranks are known to be inside the window even when the step after `step` opens: they
// have the results of all steps that are not retained any more. Otherwise `step` waits for two
// contributions, whose ranks are inside. So if one rank dies, another one can go on and give its
// state to the others.
bool Job::two_keep_up(Step step) const noexcept {
  const std::size_t gradients = index_of(StreamId::kGradients);
  DCHECK(spec.policy.tolerates_stragglers() && step > kFullSteps);
  std::size_t count = 0;
  for (std::uint16_t rank = 0; rank < spec.world_size && count < kTwo; ++rank) {
    const Member& member = members[rank];
    const Step kept_from = member.reached.load(std::memory_order_relaxed);
    count += kept_from + spec.windows[gradients] >= step + 2 && member.takes_part(gradients, step);
  }
  return count == kTwo;
}

// Gives the policy the observations of the step `closed`, from the summaries of all shards, and
// returns its k. The shards hand over their next summaries only when they close the step that this
// one opens.
std::uint16_t Job::decide_k(Step closed, TimeNs now) noexcept {
  StepObservation seen{.step = closed, .durations_s = durations_s_};
  for (std::uint16_t rank = 0; rank < spec.world_size; ++rank)
    durations_s_[rank] = members[rank].takes_part(index_of(StreamId::kGradients), closed)
                             ? clock_.duration_s(members[rank].finished, closed, now)
                             : kUnknown;
  std::uint64_t flipped = 0;
  std::uint64_t compared = 0;
  for (const StepSummary& summary : summaries) {
    seen.workers = std::max(seen.workers, summary.k);
    seen.mean_square += summary.mean_square;
    seen.square_of_mean += summary.square_of_mean;
    seen.conclusive &= summary.conclusive;
    flipped += summary.signs_flipped;
    compared += summary.signs_compared;
  }
  seen.signs_flipped = flipped;
  seen.signs_compared = compared;
  const std::uint16_t k = policy_.next_k(seen);
  CHECK(1 <= k && k <= spec.world_size && flipped <= compared);

  if (compared != 0)
    gauges.signs_flipped.store(static_cast<double>(flipped) / static_cast<double>(compared),
                               std::memory_order_relaxed);
  gauges.noise_scale.store(policy_.noise().phi(), std::memory_order_relaxed);
  gauges.noise_scale_valid.store(policy_.noise().valid(), std::memory_order_relaxed);
  return k;
}

}  // namespace sluice::agg
