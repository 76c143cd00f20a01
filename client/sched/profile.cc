#include "client/sched/profile.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace sluice::client {
namespace {

// A wake-up of a busy host is off by this much without meaning anything.
constexpr DurationNs kLeastTolerance = 100 * kMicrosecond;

}  // namespace

ReadinessProfile::ReadinessProfile(std::uint32_t tensor_count)
    : tensors_(tensor_count), order_(tensor_count) {
  std::iota(order_.begin(), order_.end(), 0u);
}

void ReadinessProfile::begin_step(TimeNs now) noexcept {
  end_step();
  for (Tensor& tensor : tensors_) tensor.offset_ns = kNotReady;
  began_ns_ = now;
  ready_count_ = 0;
  most_urgent_came_ = false;
}

void ReadinessProfile::ready(std::uint32_t index, Priority priority, TimeNs now) noexcept {
  Tensor& tensor = tensors_[index];
  if (tensor.offset_ns != kNotReady) return;
  if (tensor.priority != priority && learnt_steps_ != 0) restart();
  tensor.priority = priority;
  tensor.offset_ns = std::max<DurationNs>(now - began_ns_, 0);
  ++ready_count_;
  if (priority <= most_urgent_) most_urgent_came_ = true;
}

void ReadinessProfile::restart() noexcept {
  if (learnt_steps_ != 0) ++restarts_;
  learnt_steps_ = 0;
  drifted_steps_ = 0;
}

void ReadinessProfile::end_step() noexcept {
  if (ready_count_ != tensors_.size()) return;
  if (warm_up_left_ != 0) {
    --warm_up_left_;
    return;
  }
  if (known()) {
    drifted_steps_ = drifted() ? drifted_steps_ + 1 : 0;
    if (drifted_steps_ < kDriftSteps) return;
    restart();  // and the step that has shown it is the first of the new profile
  }
  for (Tensor& tensor : tensors_) tensor.learnt_ns[learnt_steps_] = tensor.offset_ns;
  if (++learnt_steps_ == kLearntSteps) learn();
}

bool ReadinessProfile::drifted() const noexcept {
  DurationNs error_ns = 0;
  for (const Tensor& tensor : tensors_) error_ns += std::abs(tensor.offset_ns - tensor.expected_ns);
  return error_ns > tolerance_ns_ * static_cast<DurationNs>(tensors_.size());
}

void ReadinessProfile::learn() noexcept {
  DurationNs noise_ns = 0;
  DurationNs span_ns = 0;
  most_urgent_ = kLeastUrgent;
  for (Tensor& tensor : tensors_) {
    std::sort(tensor.learnt_ns.begin(), tensor.learnt_ns.end());
    tensor.expected_ns = tensor.learnt_ns[kLearntSteps / 2];
    for (const DurationNs offset_ns : tensor.learnt_ns)
      noise_ns += std::abs(offset_ns - tensor.expected_ns);
    span_ns = std::max(span_ns, tensor.expected_ns);
    most_urgent_ = std::min(most_urgent_, tensor.priority);
  }
  noise_ns /= static_cast<DurationNs>(kLearntSteps * tensors_.size());
  tolerance_ns_ = std::max({span_ns / 8, 4 * noise_ns, kLeastTolerance});
  std::sort(order_.begin(), order_.end(), [this](std::uint32_t left, std::uint32_t right) {
    const Tensor& a = tensors_[left];
    const Tensor& b = tensors_[right];
    return a.expected_ns != b.expected_ns ? a.expected_ns < b.expected_ns : left < right;
  });
  find_bursts(0);
}

void ReadinessProfile::find_bursts(DurationNs gap_ns) noexcept {
  DurationNs start_ns = 0;
  DurationNs last_ns = 0;
  for (const std::uint32_t index : order_) {
    Tensor& tensor = tensors_[index];
    if (tensor.expected_ns - last_ns > gap_ns) start_ns = tensor.expected_ns;
    last_ns = tensor.expected_ns;
    tensor.burst_start_ns = start_ns;
  }
}

DurationNs ReadinessProfile::until_more_urgent(Priority than, TimeNs now) const noexcept {
  const DurationNs elapsed_ns = now - began_ns_;
  for (const std::uint32_t index : order_) {
    const Tensor& tensor = tensors_[index];
    if (tensor.offset_ns != kNotReady || tensor.priority >= than) continue;
    if (elapsed_ns - tensor.expected_ns > tolerance_ns_) continue;
    const DurationNs due_ns =
        elapsed_ns < tensor.burst_start_ns ? tensor.burst_start_ns : tensor.expected_ns;
    return std::max<DurationNs>(due_ns - elapsed_ns, 0);
  }
  return kNever;
}

ReadinessProfile::Prediction ReadinessProfile::prediction(std::uint32_t place) const noexcept {
  const Tensor& tensor = tensors_[order_[place]];
  return {.tensor = order_[place],
          .priority = tensor.priority,
          .offset_ns = tensor.expected_ns,
          .burst_start_ns = tensor.burst_start_ns};
}

}  // namespace sluice::client
