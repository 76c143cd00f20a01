// Learns from earlier steps when each tensor of a step becomes ready; `prophet` predicts with it
// (Prophet, ICPP 2021).
//
// Times are offsets from the step's first tensor. One warm-up step is ignored, five complete steps
// are learnt, and the median of the five is the prediction, so that one outlier does not change it.
// Gradients become ready in bursts (the paper calls them steps, a word that has another meaning
// here): tensors between which the network could not carry a unit belong to one burst. No property
// of a model is built in. The profile is learnt anew when three steps in a row contradict it, or
// when priorities change. A step that lacks tensors is ignored.
//
// prophet.h decides what is sent, and when. Pure; no allocation after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/time.h"
#include "aggregator/base/types.h"

namespace sluice::client {

class ReadinessProfile {
 public:
  static constexpr std::uint32_t kWarmUpSteps = 1;
  static constexpr std::uint32_t kLearntSteps = 5;
  static constexpr std::uint32_t kDriftSteps = 3;  // in a row, before the profile is given up

  explicit ReadinessProfile(std::uint32_t tensor_count);

  // The first tensor of a step is about to become ready: the step before is complete and is learnt
  // now.
  void begin_step(TimeNs now) noexcept;
  // Called once for each tensor and step.
  void ready(std::uint32_t tensor, Priority priority, TimeNs now) noexcept;
  // Forgets what was learnt, which does not hold any more.
  void restart() noexcept;

  // Whether predictions exist.
  bool known() const noexcept { return learnt_steps_ == kLearntSteps; }
  // Splits the predictions into bursts, at every gap longer than `gap_ns`. Precondition: known().
  void find_bursts(DurationNs gap_ns) noexcept;
  // The time until a tensor more urgent than `than` becomes ready in the current step, W(t) of the
  // paper. 0: it is overdue. kNever: none is expected. A tensor that is overdue by more than the
  // tolerance is not expected any more: it may have been cancelled.
  DurationNs until_more_urgent(Priority than, TimeNs now) const noexcept;
  // Whether the most urgent tensor of the step is ready.
  bool most_urgent_came() const noexcept { return most_urgent_came_; }

  struct Prediction {
    std::uint32_t tensor = 0;
    Priority priority = 0;
    DurationNs offset_ns = 0;       // from the step's first tensor
    DurationNs burst_start_ns = 0;  // of its burst, from the step's first tensor
  };
  // The tensor that is predicted to become ready as the `place`-th of a step, from 0. Precondition:
  // known().
  Prediction prediction(std::uint32_t place) const noexcept;
  std::uint32_t tensor_count() const noexcept { return static_cast<std::uint32_t>(order_.size()); }
  std::uint32_t learnt_steps() const noexcept { return learnt_steps_; }
  std::uint32_t restarts() const noexcept { return restarts_; }
  // The error of a step, on average over its tensors, beyond which it counts as drift.
  DurationNs tolerance_ns() const noexcept { return tolerance_ns_; }

 private:
  static constexpr DurationNs kNotReady = -1;
  struct Tensor {
    std::array<DurationNs, kLearntSteps> learnt_ns{};
    DurationNs expected_ns = 0;
    DurationNs burst_start_ns = 0;
    DurationNs offset_ns = kNotReady;  // in the current step
    Priority priority = 0;
  };

  void end_step() noexcept;
  void learn() noexcept;
  bool drifted() const noexcept;

  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> order_;  // tensors by expected_ns
  TimeNs began_ns_ = 0;
  std::uint32_t ready_count_ = 0;
  std::uint32_t warm_up_left_ = kWarmUpSteps;
  std::uint32_t learnt_steps_ = 0;
  std::uint32_t drifted_steps_ = 0;
  std::uint32_t restarts_ = 0;
  DurationNs tolerance_ns_ = 0;
  Priority most_urgent_ = 0;
  bool most_urgent_came_ = false;
};

}  // namespace sluice::client
