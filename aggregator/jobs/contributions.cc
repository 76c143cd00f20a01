#include "aggregator/jobs/contributions.h"

#include <algorithm>

#include "aggregator/base/check.h"

namespace sluice::agg {
namespace {

// The newest gradient step that the rank has contributed to, in any shard; 0: none.
Step newest_contribution(const Job& job, Rank rank) noexcept {
  CHECK(rank.value < job.spec.world_size);
  Step newest = 0;
  for (const JobSlice& slice : job.slices)
    newest = std::max(
        newest, slice.flows[rank.value].last_contribution_step.load(std::memory_order_relaxed));
  return newest;
}

}  // namespace

const Contributions::Furthest& Contributions::furthest(const Job& job) noexcept {
  CHECK(job.spec.world_size != 0);
  if (furthest_) return *furthest_;
  furthest_.emplace();
  ++searches_;
  for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) {
    const Step step = newest_contribution(job, Rank{rank});
    if (step > furthest_->step) furthest_ = {.rank = Rank{rank}, .step = step};
  }
  return *furthest_;
}

bool Contributions::is_awaited(const Job& job, Rank rank) noexcept {
  const auto open_step = [&](StreamId stream) {
    return job.windows[index_of(stream)].open_step.load(std::memory_order_acquire);
  };
  const Step open = open_step(StreamId::kGradients);
  const Step newest = newest_contribution(job, rank);
  if (newest == 0 || newest + 1 != open) return true;
  const Step collective = job.collective_begun.load(std::memory_order_relaxed);
  if (collective != 0 && collective >= open_step(StreamId::kCollectives)) return true;
  return furthest(job).step >= open;
}

}  // namespace sluice::agg
