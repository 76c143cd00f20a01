// A job's memory on its way: made for a new job, given back when the shards have let go of it.
//
// Touching or unmapping gigabytes takes seconds, in which the control thread would hear nobody. So
// Jobs only orders it (poll_memory), the caller has the order carried out wherever seconds do not
// matter, and hands it back (handle_memory). Meanwhile the memory counts against the limits.
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
  std::size_t bytes = 0;     // how big it is: what it costs
  JobSpec spec;              // kMake: of the job; its id names the entry
  // kMake: null until it is carried out, and afterwards if there was no memory or it was not wanted
  // any more. kGiveBack: the job, until it is carried out.
  std::unique_ptr<Job> job;
  std::shared_ptr<BuildProgress> progress;  // kMake
};

// Makes the job or destroys it. Any thread; takes as long as the memory is big, but ends soon after
// `progress->unwanted` was set.
void carry_out(MemoryOrder& order) noexcept;

// For callers that may be away for so long: carries out all that is ordered, here and now. True: a
// job was made, so that a join that was answered with "preparing" can be handled again.
bool carry_out_all(Jobs& jobs, TimeNs now);

}  // namespace sluice::agg
