#include "aggregator/policy/policy.h"

#include <algorithm>
#include <cmath>

#include "aggregator/base/check.h"

namespace sluice::agg {
namespace {

constexpr double kForget = 1.0 / 50;         // of the exponential means
constexpr double kMostNoisePerSignal = 256;  // G2 is at least S / 256
// A step's norms count as at most this many times their mean so far: the mean forgets a spike of
// 1e30, squared, only after thousands of steps.
constexpr double kMostJump = 1000;
constexpr std::uint64_t kUpdateSteps = 5;  // adaptive rules decide this often
constexpr double kRampEnd = 0.7;           // of the planned steps

std::uint16_t quarter(std::uint16_t worker_count) noexcept {
  return static_cast<std::uint16_t>((worker_count + 3) / 4);
}

// The j in 1 .. n that maximises value(j); the smallest of equals, 0 when none is above zero.
template <class Value>
std::uint16_t argmax(std::size_t worker_count, Value value) noexcept {
  std::uint16_t best = 0;
  double best_value = 0;
  for (std::size_t j = 1; j <= worker_count; ++j) {
    const double candidate = value(static_cast<double>(j), j);
    if (candidate > best_value) {
      best_value = candidate;
      best = static_cast<std::uint16_t>(j);
    }
  }
  return best;
}

}  // namespace

void NoiseScale::observe(std::uint16_t workers, double mean_square,
                         double square_of_mean) noexcept {
  // The square of a finite gradient above 1e19 is infinite: it would never leave the means.
  if (workers < 2 || !std::isfinite(mean_square) || !std::isfinite(square_of_mean)) return;
  const double limit = weight_ > 0 ? kMostJump * (noise_ + signal_) / weight_ : 0;
  if (limit > 0 && mean_square > limit) {
    square_of_mean *= limit / mean_square;
    mean_square = limit;
  }
  const double count = workers;
  const double noise = (mean_square - square_of_mean) / (1 - 1 / count);
  const double signal = square_of_mean - noise / count;
  const double weight = (count - 1) / count * std::min(count, 8.0) / 8;
  noise_ = (1 - kForget) * noise_ + weight * noise;
  signal_ = (1 - kForget) * signal_ + weight * signal;
  weight_ = (1 - kForget) * weight_ + weight;
}

double NoiseScale::phi() const noexcept {
  if (weight_ <= 0 || noise_ <= 0) return 0;
  return noise_ / std::max(signal_, noise_ / kMostNoisePerSignal);
}

ArrivalOrder::ArrivalOrder(std::size_t worker_count)
    : means_s_(worker_count, kUnknown), sorted_s_(worker_count, kUnknown) {}

void ArrivalOrder::observe(std::span<const double> durations_s) noexcept {
  CHECK(durations_s.size() == means_s_.size());
  std::copy(durations_s.begin(), durations_s.end(), sorted_s_.begin());
  std::sort(sorted_s_.begin(), sorted_s_.end());
  ++updates_;
  const double weight = std::max(1.0 / static_cast<double>(updates_), kForget);
  for (std::size_t j = 0; j < means_s_.size(); ++j) {
    // An unknown time has no mean: the place stays unknown until a rank fills it once more.
    const bool mean_exists = std::isfinite(means_s_[j]) && std::isfinite(sorted_s_[j]);
    means_s_[j] = mean_exists ? means_s_[j] + weight * (sorted_s_[j] - means_s_[j]) : sorted_s_[j];
  }
}

Policy::Policy(PolicyOptions options, std::uint16_t worker_count)
    : options_(options), worker_count_(worker_count), arrivals_(worker_count) {
  CHECK(worker_count >= 1);
  switch (options_.kind) {
    case PolicyKind::kSync: k_ = worker_count; break;
    case PolicyKind::kFixed:
    case PolicyKind::kSaina: k_ = std::clamp<std::uint16_t>(options_.k, 1, worker_count); break;
    case PolicyKind::kRamp:
    case PolicyKind::kGoodput: k_ = std::max(quarter(worker_count), floor()); break;
  }
}

std::uint16_t Policy::floor() const noexcept {
  if (options_.kind == PolicyKind::kSync) return worker_count_;
  if (options_.kind != PolicyKind::kRamp && options_.kind != PolicyKind::kGoodput) return 1;
  if (options_.late == LateMode::kRequeue) return quarter(worker_count_);
  return std::min<std::uint16_t>(2, worker_count_);
}

std::uint16_t Policy::next_k(const StepObservation& observation) noexcept {
  ++observed_;
  arrivals_.observe(observation.durations_s);
  if (observation.conclusive)
    noise_.observe(observation.workers, observation.mean_square, observation.square_of_mean);
  const bool decides = observed_ <= kUpdateSteps || observed_ % kUpdateSteps == 0;
  switch (options_.kind) {
    case PolicyKind::kSync:
    case PolicyKind::kFixed: break;
    case PolicyKind::kSaina: k_ = saina(observation); break;
    case PolicyKind::kRamp:
      if (decides) k_ = ramp(observation.step);
      break;
    case PolicyKind::kGoodput:
      if (decides) k_ = goodput();
      break;
  }
  return k_;
}

// A step's k may have been lowered by a rank that was lost.
void Policy::resume(std::uint16_t k) noexcept {
  CHECK(observed_ == 0);
  const bool chosen = options_.kind != PolicyKind::kSync && options_.kind != PolicyKind::kFixed;
  if (!chosen || k == 0) return;
  const std::uint16_t least = options_.kind == PolicyKind::kSaina ? k_ : floor();
  k_ = std::min(std::max(k, least), worker_count_);
}

// The published rule (SAINA, IEEE TSC 16(6), 2023): a round whose signs flipped by at least s_th
// counts up, any other counts down; c_th counts raise k by one. k never falls.
std::uint16_t Policy::saina(const StepObservation& observation) noexcept {
  if (observation.signs_compared == 0 || !observation.conclusive) return k_;
  const bool flipped = observation.signs_flipped * 1000 >=
                       std::uint64_t{options_.sign_threshold_permille} * observation.signs_compared;
  if (flipped)
    ++sign_count_;
  else if (sign_count_ > 0)
    --sign_count_;
  const std::uint32_t threshold = options_.count_threshold == 0 ? k_ : options_.count_threshold;
  if (sign_count_ < threshold) return k_;
  sign_count_ = 0;
  return std::min<std::uint16_t>(worker_count_, static_cast<std::uint16_t>(k_ + 1));
}

// Grows k over the planned training. With `drop` the exponent moves from speed alone (p = 0) to the
// square of the statistical efficiency (p = 1); with `requeue` no gradient is lost and k follows a
// straight line, capped where waiting longer costs more than the workers that it gains.
std::uint16_t Policy::ramp(Step step) const noexcept {
  const double planned = std::max<double>(1, options_.planned_steps);
  const double progress = std::min(1.0, step / (kRampEnd * planned));
  if (options_.late == LateMode::kRequeue) {
    const auto line = static_cast<std::uint16_t>(std::lround(1 + (worker_count_ - 1) * progress));
    std::uint16_t cap = argmax(worker_count_, [&](double count, std::size_t j) {
      return count * count / arrivals_.at(j);
    });
    cap = std::max(cap, floor());
    return std::clamp(line, floor(), cap);
  }
  const double phi = noise_.phi();
  const std::uint16_t best = argmax(worker_count_, [&](double count, std::size_t j) {
    return std::pow(count / (count + phi), 2 * progress) / arrivals_.at(j);
  });
  return std::max(floor(), best);
}

// Progress per second: a sum of j workers is worth j / (j + phi) of a noiseless step and takes T_j.
std::uint16_t Policy::goodput() const noexcept {
  if (!noise_.valid()) return k_;
  const double phi = noise_.phi();
  const std::uint16_t best = argmax(worker_count_, [&](double count, std::size_t j) {
    return count / (count + phi) / arrivals_.at(j);
  });
  return best == 0 ? k_ : std::max(floor(), best);
}

}  // namespace sluice::agg
