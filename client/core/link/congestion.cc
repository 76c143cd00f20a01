#include "client/core/link/congestion.h"

#include <algorithm>
#include <cstdlib>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr double kMarkGain = 1.0 / 16;  // RFC 8257 section 3.3, g

}  // namespace

void RttEstimator::sample(DurationNs rtt_ns) noexcept {
  rtt_ns = std::max<DurationNs>(rtt_ns, 1);
  last_ns_ = rtt_ns;
  shortest_ns_ = valid() ? std::min(shortest_ns_, rtt_ns) : rtt_ns;
  if (!valid()) {
    smoothed_ns_ = rtt_ns;
    deviation_ns_ = rtt_ns / 2;
    return;
  }
  deviation_ns_ = (3 * deviation_ns_ + std::abs(smoothed_ns_ - rtt_ns)) / 4;
  smoothed_ns_ = std::max<DurationNs>((7 * smoothed_ns_ + rtt_ns) / 8, 1);
  DCHECK(valid() && deviation_ns_ >= 0);
  DCHECK(0 < shortest_ns_ && shortest_ns_ <= last_ns_ && shortest_ns_ <= smoothed_ns_);
}

DurationNs RttEstimator::timeout_ns() const noexcept {
  if (!valid()) return kFirstTimeout;
  return std::clamp(smoothed_ns_ + 4 * deviation_ns_, kMinTimeout, kMaxTimeout);
}

DurationNs RttEstimator::confirm_ns() const noexcept {
  if (!valid()) return kFirstTimeout;
  return std::clamp(smoothed_ns_ + 4 * deviation_ns_, kNoise, kMaxTimeout);
}

// What holds between any two calls.
void Congestion::check() const noexcept {
  DCHECK(cap_ >= kFloor);
  DCHECK(kFloor <= window_ && window_ <= cap_);
  DCHECK(round_marked_ <= round_arrived_);
  DCHECK(0 <= marked_fraction_ && marked_fraction_ <= 1);
}

void Congestion::on_arrived(std::uint32_t arrived, std::uint32_t marked, bool limited) noexcept {
  if (marked != 0 && round_marked_ == 0)
    window_ = std::max<double>(window_ * (1 - marked_fraction_ / 2), kFloor);
  slow_start_ &= marked == 0;
  if (slow_start_ && limited) window_ = std::min<double>(window_ + arrived, cap_);
  round_arrived_ += arrived;
  round_marked_ += std::min(marked, arrived);
  check();
  if (round_arrived_ < window_) return;

  const double fraction = static_cast<double>(round_marked_) / round_arrived_;
  marked_fraction_ += kMarkGain * (fraction - marked_fraction_);
  if (!lost_this_round_ && !slow_start_) window_ = std::min<double>(window_ + 1, cap_);
  round_arrived_ = 0;
  round_marked_ = 0;
  lost_this_round_ = false;
  check();
}

void Congestion::on_loss(TimeNs now, DurationNs rtt_ns) noexcept {
  slow_start_ = false;
  if (now < next_halving_ns_) return;
  next_halving_ns_ = now + rtt_ns;
  window_ = std::max<double>(window_ / 2, kFloor);
  lost_this_round_ = true;
  check();
}

}  // namespace sluice::client
