// Samples of the jobs for the metrics thread: values that are copied on the control thread.
//
// The control thread may free a Job at any moment, so the metrics thread never holds one: it asks
// for a sample.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/jobs/jobs.h"

namespace sluice::dataplane {

// The sum of the values of Histograms; it has a Histogram's members.
class HistogramSample {
 public:
  static constexpr std::size_t kBuckets = Histogram::kBuckets;
  static constexpr DurationNs bound_ns(std::size_t bucket) noexcept {
    return Histogram::bound_ns(bucket);
  }

  void add(const Histogram& histogram) noexcept;
  std::uint64_t bucket(std::size_t index) const noexcept { return buckets_[index]; }
  std::uint64_t sum_ns() const noexcept { return sum_ns_; }

 private:
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t sum_ns_ = 0;
};

// The sample of a store, over all shards; it has a StalenessHistogram's members.
struct StoreSample {
  static constexpr std::size_t kBuckets = agg::StalenessHistogram::kBuckets;
  static constexpr double bound(std::size_t bucket) noexcept {
    return agg::StalenessHistogram::kBounds[bucket];
  }
  std::uint64_t bucket(std::size_t index) const noexcept { return staleness[index]; }
  double sum() const noexcept { return static_cast<double>(staleness_sum); }

  struct Layer {
    std::uint32_t index = 0;
    std::uint64_t parked = 0;
    std::uint64_t ever = 0;
  };
  std::vector<Layer> layers;  // layers whose pulls have waited
  DurationNs oldest_parked_ns = 0;
  HistogramSample waits;
  std::array<std::uint64_t, kBuckets> staleness{};
  std::uint64_t staleness_sum = 0;
  // The least and greatest clock of live members; nothing while there are none.
  std::optional<Step> least, greatest;
};

struct MemberSample {
  std::uint16_t rank = 0;
  bool joined = false;
  DurationNs silent_ns = 0;
  bool awaited =
      false;  // its part of the oldest open slot of the open step is missing, and others wait
  Step gradient_step = 0;         // of its newest finished gradient; 0: none known
  std::uint32_t gradient_us = 0;  // D_i of that gradient; 0: none known
  std::uint64_t included = 0;     // over all shards, as the counts below
  std::uint64_t late = 0;
  std::uint64_t requeued = 0;
  // A store's worker: its complete iterations, and the values that it reports itself.
  std::optional<Step> clock;
  std::optional<std::uint64_t> suspended_ns;
  std::optional<std::uint32_t> oldest_request_iterations;
  HistogramSample lag;  // behind the step's first finisher
};

struct JobSample {
  std::string label;  // the name, with "/ordinal" if it has one
  wire::JobState state{};
  std::uint16_t joined_count = 0;
  std::uint16_t world_size = 0;
  PolicyOptions policy;
  std::uint64_t open_gradient_step = 0;  // 0 before the start; of a store the next iteration
  std::uint64_t gradient_chunks = 0;     // of one step
  std::uint64_t k = 0;                   // of the open step
  double noise_scale = 0;
  bool noise_scale_valid = false;
  double signs_flipped = -1;  // of the last detection round; negative: none yet
  std::uint64_t memory_bytes = 0;
  std::uint64_t contributions = 0;
  std::uint64_t steps_closed = 0;
  std::uint64_t results_sent = 0;
  std::uint64_t results_deferred = 0;
  std::uint64_t results_pulled = 0;
  std::uint64_t slots_in_use = 0;
  HistogramSample step_duration;
  std::vector<MemberSample> members;
  std::optional<StoreSample> store;
};

struct ControlSample {
  std::vector<JobSample> jobs;  // labels are distinct
  std::uint64_t memory_bytes = 0;
  std::array<std::uint64_t, kVerdictCount> verdicts{};  // of control packets
};

// The job's name, with "/ordinal" where it has one: no two live jobs have the same.
std::string job_label(const agg::JobView& view);

// Control thread. Precondition of sample_job(): the job holds its memory.
JobSample sample_job(const agg::Jobs& jobs, const agg::JobView& view, TimeNs now);
ControlSample sample_jobs(const agg::Jobs& jobs, TimeNs now);

}  // namespace sluice::dataplane
