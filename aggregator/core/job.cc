#include "aggregator/core/job.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "aggregator/base/check.h"
#include "aggregator/policy/sync.h"

namespace sluice::agg {
namespace {

constexpr std::size_t kLineFloats = 64 / sizeof(float);

std::size_t stride_floats(const JobSpec& spec, std::size_t stream) noexcept {
  // Collectives are opaque bytes; sums need one float an element, however narrow it travels.
  const std::size_t floats = stream == static_cast<std::size_t>(StreamId::kCollectives)
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
  return owned;
}

std::unique_ptr<float[], void (*)(void*)> allocate_prefaulted(std::size_t floats) {
  if (floats == 0) return {nullptr, std::free};
  void* memory = std::aligned_alloc(64, floats * sizeof(float));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, floats * sizeof(float));
  return {static_cast<float*>(memory), std::free};
}

}  // namespace

std::size_t Job::memory_bytes(const JobSpec& spec) noexcept {
  std::size_t total_bytes = sizeof(Job) + spec.world_size * sizeof(Member) +
                            spec.shard_count * (sizeof(JobSlice) + spec.world_size * sizeof(Flow));
  for (std::size_t stream = 0; stream < kStreamCount; ++stream) {
    const std::size_t slot_bytes = sizeof(Slot) + 8 * sluice::mask_words(spec.world_size) +
                                   sizeof(float) * stride_floats(spec, stream);
    total_bytes += std::size_t{spec.windows[stream]} * spec.chunk_counts[stream] * slot_bytes;
  }
  return total_bytes;
}

Job::Job(const JobSpec& job_spec)
    : spec(job_spec),
      mask_word_count(sluice::mask_words(job_spec.world_size)),
      members(job_spec.world_size),
      slices(job_spec.shard_count) {
  CHECK(spec.world_size >= 1 && spec.world_size <= kMaxWorkers);
  CHECK(spec.shard_count >= 1 && spec.shard_count <= kMaxShards);
  for (std::uint16_t shard = 0; shard < spec.shard_count; ++shard) {
    JobSlice& job_slice = slices[shard];
    job_slice.flows = std::vector<Flow>(spec.world_size);
    for (std::size_t stream = 0; stream < kStreamCount; ++stream) {
      StreamSlice& slice = job_slice.streams[stream];
      slice.chunk_count = owned_chunks(static_cast<StreamId>(stream), ShardId{shard});
      slice.stride_floats = stride_floats(spec, stream);
      const std::size_t slot_count = std::size_t{spec.windows[stream]} * slice.chunk_count;
      CHECK(slice.chunk_count == 0 ||
            (spec.windows[stream] >= 2 && spec.windows[stream] <= kMaxWindow));
      slice.slots.resize(slot_count);
      slice.masks.resize(slot_count * mask_word_count);
      slice.data = allocate_prefaulted(slot_count * slice.stride_floats);
    }
  }
}

std::uint32_t Job::owned_chunks(StreamId stream, ShardId shard) const noexcept {
  return owned_chunks_of(spec.chunk_counts[static_cast<std::size_t>(stream)], spec.shard_count,
                         shard.value);
}

void Job::start() noexcept {
  for (std::size_t stream = 0; stream < kStreamCount; ++stream)
    if (spec.chunk_counts[stream] != 0) publish(static_cast<StreamId>(stream), 1);
}

void Job::publish(StreamId stream, Step step) noexcept {
  const auto index = static_cast<std::size_t>(stream);
  MemberMask alive;
  for (std::uint16_t rank = 0; rank < spec.world_size; ++rank)
    if (members[rank].left_from[index].load(std::memory_order_acquire) > step)
      alive.set(Rank{rank});

  StreamWindow& window = windows[index];
  window.records[step % spec.windows[index]] = sync_record(step, alive);
  std::uint32_t participating_shards = 0;
  for (std::uint16_t shard = 0; shard < spec.shard_count; ++shard)
    participating_shards += slices[shard].streams[index].chunk_count != 0;
  window.shards_left.store(participating_shards, std::memory_order_relaxed);
  window.open_step.store(step, std::memory_order_release);
}

}  // namespace sluice::agg
