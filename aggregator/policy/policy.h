// The policies that choose k for the next step: `sync`, `fixed`, `saina`, `ramp`, `goodput`.
//
// The gradient stream of a job has one Policy object. The shard that closes a step last uses it, so
// one thread at a time. The policy gets the observations of the closed step (durations, norms, sign
// flips) and answers with the next k. It knows nothing of slots, masks or time: the caller
// measures. Pure, no allocation after construction.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "aggregator/base/policy_options.h"
#include "aggregator/base/types.h"

namespace sluice::agg {

inline constexpr double kUnknown = std::numeric_limits<double>::infinity();

// The observations of a closed step.
struct StepObservation {
  Step step = 0;
  // D_i of each rank: the time from the release of the step on which its gradient was computed to
  // the arrival of its finished gradient, also of a late one. kUnknown if the rank has reported
  // none.
  std::span<const double> durations_s;
  // The mean of |g_i|^2, and |mean of g_i|^2, over the same W workers in each chunk.
  std::uint16_t workers = 0;  // W
  double mean_square = 0;
  double square_of_mean = 0;
  // The step's sums have no NaN or infinity, and no member has gone; else norms and signs are
  // skipped.
  bool conclusive = true;
  // The counts of the detection round that this step ended; signs_compared is 0 if it ended none.
  std::uint64_t signs_flipped = 0;
  std::uint64_t signs_compared = 0;
};

// The gradient noise scale phi = S / G2 in units of one worker's batch (McCandlish et al., 2018,
// "An Empirical Model of Large-Batch Training", appendix A.1), from norms that the fold takes
// anyway.
class NoiseScale {
 public:
  // Values that are not finite are skipped; a spike is scaled down to a bound, with the same ratio.
  void observe(std::uint16_t workers, double mean_square, double square_of_mean) noexcept;
  bool valid() const noexcept { return weight_ > 0 && phi() > 0; }
  double phi() const noexcept;

 private:
  double noise_ = 0;   // S, weighted exponential sum
  double signal_ = 0;  // G2, weighted exponential sum
  double weight_ = 0;
};

// Sorted arrival times T_1 <= ... <= T_n, each an exponential mean.
class ArrivalOrder {
 public:
  explicit ArrivalOrder(std::size_t worker_count);
  void observe(std::span<const double> durations_s) noexcept;
  bool valid() const noexcept { return updates_ > 0; }
  double at(std::size_t j) const noexcept { return means_s_[j - 1]; }  // T_j, j from 1
  std::size_t size() const noexcept { return means_s_.size(); }

 private:
  std::vector<double> means_s_;
  std::vector<double> sorted_s_;
  std::uint64_t updates_ = 0;
};

class Policy {
 public:
  Policy(PolicyOptions options, std::uint16_t worker_count);

  // The k of the step after `observation.step`, 1 .. worker_count. The first two steps of a job
  // have k = n whatever the policy answers, but it observes them.
  std::uint16_t next_k(const StepObservation& observation) noexcept;
  std::uint16_t k() const noexcept { return k_; }
  // Goes on with the k that another appliance had chosen last; 0: with the first one. What it had
  // observed is lost.
  void resume(std::uint16_t k) noexcept;

  const PolicyOptions& options() const noexcept { return options_; }
  // Whether the rule needs norms of contributions and results, or signs of results; no rule needs
  // both.
  bool needs_norms() const noexcept {  // called for every contribution
    return options_.kind == PolicyKind::kGoodput ||
           (options_.kind == PolicyKind::kRamp && options_.late == LateMode::kDrop);
  }
  bool needs_signs() const noexcept { return options_.kind == PolicyKind::kSaina; }
  const NoiseScale& noise() const noexcept { return noise_; }
  // The least k that the rule may choose.
  std::uint16_t floor() const noexcept;

 private:
  std::uint16_t saina(const StepObservation& observation) noexcept;
  std::uint16_t ramp(Step step) const noexcept;
  std::uint16_t goodput() const noexcept;

  const PolicyOptions options_;
  const std::uint16_t worker_count_;
  std::uint16_t k_;
  std::uint32_t sign_count_ = 0;  // saina's counter
  std::uint64_t observed_ = 0;
  NoiseScale noise_;
  ArrivalOrder arrivals_;
};

}  // namespace sluice::agg
