// Orders for a job's memory: it is made for a new job, and given back when the shards have released
// the job.
//
// Touching or unmapping gigabytes takes seconds, in which the control thread would hear nobody. So
// Jobs only writes orders (poll_memory). The caller has an order carried out wherever seconds do
// not matter, and hands it back (handle_memory). Meanwhile the memory counts against the limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "aggregator/core/job.h"

namespace sluice::agg {

class Jobs;

struct MemoryOrder {
  enum class Kind : std::uint8_t { kMake, kGiveBack };
  Kind kind{};
  std::uint64_t serial = 0;  // of the job's entry
  std::size_t bytes = 0;     // size of the memory
  JobSpec spec;              // kMake: of the job; its id names the entry
  // kMake: null until the order is carried out, and afterwards if there was no memory or the job
  // was not wanted any more. kGiveBack: the job, until the order is carried out.
  std::unique_ptr<Job> job;
  std::shared_ptr<BuildProgress> progress;  // kMake
};

// Makes the job or destroys it, about 1 s a GiB; ends soon after `progress->unwanted` was set. Any
// thread.
void carry_out(MemoryOrder& order) noexcept;

// Carries out all orders at once, for callers that may be away for so long. True: a job was made,
// so a join that was answered with "preparing" can be handled again.
bool carry_out_all(Jobs& jobs, TimeNs now);

}  // namespace sluice::agg
