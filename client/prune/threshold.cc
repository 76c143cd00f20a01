#include "client/prune/threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "aggregator/base/check.h"
#include "client/prune/magnitudes.h"

namespace sluice::client {
namespace {

constexpr std::uint64_t kSampleEvery = 100;  // a hundredth of the elements
constexpr double kLeastInSample =
    16;  // elements of the sample that are to leave; with fewer a sample is of no use
constexpr int kDynamicRounds = 3;
constexpr double kFirstDensity = 0.25, kDensityStep = 0.25;

bool takes_share(PruneRule rule) noexcept {
  return rule == PruneRule::kStatic || rule == PruneRule::kSampled;
}

// Makes a threshold positive and finite: at least the least normal number, since no gradient is
// smaller and an application may flush such numbers to zero.
float usable(double threshold) noexcept {
  using Limits = std::numeric_limits<float>;
  if (!(threshold <= Limits::max())) return Limits::max();
  return std::max(static_cast<float>(threshold), Limits::min());
}

// Takes one magnitude of every kSampleEvery, at places that do not line up with the rows of a
// matrix.
void take_sample(const Values& values, std::uint32_t seed,
                 std::span<std::uint32_t> sample) noexcept {
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const std::uint64_t dice = (seed + static_cast<std::uint32_t>(i)) * 0x9e3779b1u;
    sample[i] = values.magnitude(i * kSampleEvery + (dice * kSampleEvery >> 32));
  }
}

std::uint32_t at_rank(std::span<std::uint32_t> sample, double rank) noexcept {
  const auto place = sample.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::nth_element(sample.begin(), place, sample.end(), std::greater<>());
  return *place;
}

// A range that very likely has the `rank`th greatest magnitude, by the sample.
std::uint32_t select_near(const Values& values, std::uint64_t rank, double rank_in_sample,
                          std::span<std::uint32_t> sample) noexcept {
  const double margin = 4 * std::sqrt(rank_in_sample) + 2;
  const double last = std::min(rank_in_sample + margin, static_cast<double>(sample.size()));
  const std::uint32_t low = at_rank(sample, last);
  const std::uint32_t high =
      rank_in_sample - margin < 1 ? kMagnitudes : at_rank(sample, rank_in_sample - margin) + 1;
  return select(values, rank, low, high);
}

// The threshold above which the greatest `rank` elements lie, or about as many.
std::uint32_t greatest(const Values& values, std::uint64_t rank, bool exact, std::uint32_t seed,
                       std::span<std::uint32_t> sample) noexcept {
  const double rank_in_sample = static_cast<double>(rank) * static_cast<double>(sample.size()) /
                                static_cast<double>(values.elem_count);
  if (sample.empty()) return select(values, rank);
  take_sample(values, seed, sample);
  if (exact || rank_in_sample < kLeastInSample)
    return select_near(values, rank, rank_in_sample, sample);
  const std::uint32_t guess = at_rank(sample, rank_in_sample);
  const auto leave = static_cast<double>(above(values, guess).elem_count);
  const auto wanted = static_cast<double>(rank);
  if (leave * 3 <= wanted * 4 && leave * 3 >= wanted * 2) return guess;
  return select_near(values, rank, rank_in_sample, sample);
}

double deviation(const Values& values) noexcept {
  const auto count = static_cast<double>(values.elem_count);
  const Moments total = moments(values);
  const double mean = total.sum / count;
  return std::sqrt(std::max(0.0, total.squares / count - mean * mean));
}

// No magnitude is above the threshold, so it stays; this is why the literal rule never recovers.
float mean_above(const Values& values, float threshold) noexcept {
  const Above part = above(values, std::bit_cast<std::uint32_t>(threshold));
  return part.elem_count == 0 ? threshold : usable(part.sum / static_cast<double>(part.elem_count));
}

}  // namespace

Thresholds::Thresholds(const PruneOptions& options, std::span<const PruneTensor> tensors)
    : options_(options) {
  CHECK(!takes_share(options.rule) || (options.fraction > 0 && options.fraction <= 1));
  CHECK(options.rule != PruneRule::kSigma || options.sigmas > 0);
  std::uint64_t rooms = 0;
  for (const PruneTensor& tensor : tensors) {
    const bool dense = tensor.dense || options.rule == PruneRule::kOff ||
                       tensor.elem_count < std::max<std::uint64_t>(options.min_elems, 1);
    tensors_.push_back({.dense = dense, .elem_count = tensor.elem_count, .first_room = rooms});
    if (!dense && takes_share(options.rule)) rooms += tensor.elem_count / kSampleEvery;
  }
  rooms_.resize(rooms);
}

double Thresholds::density(std::uint32_t tensor) const noexcept {
  if (options_.warmup_steps == 0) return options_.fraction;
  const std::uint32_t stage = tensors_[tensor].position.steps / options_.warmup_steps;
  return std::max(options_.fraction, kFirstDensity * std::pow(kDensityStep, stage));
}

std::uint64_t Thresholds::take_rank(std::uint32_t tensor) noexcept {
  State& state = tensors_[tensor];
  const double wanted = density(tensor) * static_cast<double>(state.elem_count);
  ++state.position.steps;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted + 0.5));
}

float Thresholds::next(std::uint32_t tensor, std::span<const float> gradient,
                       std::span<const float> residual) noexcept {
  CHECK(tensor < tensors_.size());
  State& state = tensors_[tensor];
  if (state.dense) return kPruneNothing;
  CHECK(gradient.size() == state.elem_count && residual.size() == state.elem_count);
  const Values values{gradient.data(), residual.data(), gradient.size()};
  const auto share = density(tensor);
  const std::uint32_t seed = tensor * 0x85ebca6bu + state.position.steps++ * 0xc2b2ae35u;
  switch (options_.rule) {
    case PruneRule::kOff: break;
    case PruneRule::kStatic:
    case PruneRule::kSampled: {
      const double wanted = share * static_cast<double>(values.elem_count);
      const auto rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted + 0.5));
      const std::span room(rooms_.data() + state.first_room, values.elem_count / kSampleEvery);
      const bool exact = options_.rule == PruneRule::kStatic;
      return usable(std::bit_cast<float>(greatest(values, rank, exact, seed, room)));
    }
    case PruneRule::kSigma: return usable(options_.sigmas * deviation(values));
    case PruneRule::kDynamic: {
      float threshold = 0;
      for (int round = 0; round < kDynamicRounds; ++round)
        threshold = mean_above(values, threshold);
      return threshold;
    }
    case PruneRule::kDynamicRaw:
      return state.position.last = mean_above(values, state.position.last);
  }
  return kPruneNothing;
}

}  // namespace sluice::client
