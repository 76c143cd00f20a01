#include "client/core/link/congestion.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr double kGrowth = 1.25;  // of the rate, in each round of slow start
constexpr std::uint32_t kFlatRounds = 3;
constexpr double kHarmlessLoss = 0.02;
constexpr std::uint32_t kJudgedPackets = 1000;  // of which a loss of 2 % is no accident
constexpr double kRecovery = 1.1;
constexpr double kLeastShare = 1.0 / 16;
constexpr double kQueue = 64;       // packets of a queue that a flow keeps,
constexpr double kQueueOfRoot = 6;  // or so many times the root of what the path holds,
constexpr DurationNs kQueueTime = 200 * kMicrosecond;  // or of so long, as hosts' threads sleep
constexpr double kHaste = 0.25;  // by how much packets leave faster than they arrive
constexpr double kLeastHaste = 0.05;
constexpr double kCapped = 0.9;  // of the cap: as near as a path comes that holds more
constexpr DurationNs kFloorLifetime = 10 * kSecond;
constexpr DurationNs kNoise = 100 * kMicrosecond;  // wake-ups of hosts

}  // namespace

void RttEstimator::sample(DurationNs rtt_ns) noexcept {
  rtt_ns = std::max<DurationNs>(rtt_ns, 1);
  shortest_ns_ = valid() ? std::min(shortest_ns_, rtt_ns) : rtt_ns;
  if (!valid()) {
    smoothed_ns_ = rtt_ns;
    deviation_ns_ = rtt_ns / 2;
    return;
  }
  deviation_ns_ = (3 * deviation_ns_ + std::abs(smoothed_ns_ - rtt_ns)) / 4;
  smoothed_ns_ = std::max<DurationNs>((7 * smoothed_ns_ + rtt_ns) / 8, 1);
  DCHECK(valid() && deviation_ns_ >= 0);
  DCHECK(0 < shortest_ns_ && shortest_ns_ <= rtt_ns && shortest_ns_ <= smoothed_ns_);
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
  DCHECK(kFloor <= window_ && window_ <= cap_);
  DCHECK(kLeastShare <= share_ && share_ <= 1);
  DCHECK(floor_ns_ > 0 && pace_ >= 0);
  DCHECK(flat_rounds_ < kFlatRounds || !slow_start_);
}

void Congestion::on_arrived(const Arrivals& arrivals) noexcept {
  // What is heard much later is no part of the round.
  if (in_round_ && left_ == 0 && arrivals.now - passed_ns_ > kNoise) end_round();
  note_floor(arrivals);
  there_.advanced += arrivals.advanced;
  there_.arrived += arrivals.arrived;
  marked_ += std::min(arrivals.marked, arrivals.arrived);
  back_.advanced += arrivals.back_advanced;
  back_.arrived += arrivals.back_arrived;
  if (arrivals.arrived != 0) heard_ns_ = arrivals.now;
  if (in_round_) {
    arrived_ += arrivals.arrived;
    if (arrivals.rtt_ns > 0) shortest_ns_ = std::min(shortest_ns_, arrivals.rtt_ns);
    if (left_ != 0) {
      limited_ &= arrivals.limited;
      left_ -= std::min(left_, arrivals.advanced);
      if (left_ == 0) passed_ns_ = arrivals.now;
    }
  }
  if (arrivals.sent_ns != 0) {
    heard_sent_ns_ = arrivals.sent_ns;
    heard_rtt_ns_ = arrivals.rtt_ns;
  }
  check();
}

// The floor is forgotten after a while, as a route may have become longer: the next round keeps
// less in flight than the path holds, so that a queue of this flow's own does not pass for it.
void Congestion::note_floor(const Arrivals& arrivals) noexcept {
  if (arrivals.rtt_ns <= 0) return;
  if (arrivals.rtt_ns <= floor_ns_) {
    floor_ns_ = arrivals.rtt_ns;
    floor_at_ns_ = arrivals.now;
  } else if (!draining_ && arrivals.now - floor_at_ns_ > kFloorLifetime) {
    draining_ = true;
    in_round_ = false;
    resize();
  }
}

void Congestion::begin_round(std::uint32_t in_flight, TimeNs now) noexcept {
  in_round_ = true;
  idle_before_ = in_flight == 0;
  began_ns_ = heard_ns_;
  first_sent_ns_ = idle_before_ ? now : heard_sent_ns_;
  left_ = in_flight + 1;
  arrived_ = 0;
  shortest_ns_ = kNever;
  limited_ = true;
}

void Congestion::end_round() noexcept {
  in_round_ = false;
  // What the appliance held is no time of the path's, where it answers a pause's first packet.
  const DurationNs left_ns = std::max<DurationNs>(heard_sent_ns_ - first_sent_ns_, 0);
  const DurationNs took_ns = std::max<DurationNs>(
      idle_before_ ? left_ns + heard_rtt_ns_ : std::max(left_ns, heard_ns_ - began_ns_), 1);
  const double found = arrived_ * static_cast<double>(kSecond) / static_cast<double>(took_ns);
  // The first answers after a pause may tell of a few packets alone.
  const bool whole = !idle_before_ || 2 * arrived_ >= window_;
  if ((limited_ && whole) || found > rate()) {
    rates_[next_rate_] = found;
    next_rate_ = (next_rate_ + 1) % kRounds;
  }
  if (draining_ && shortest_ns_ != kNever) {
    draining_ = false;
    floor_ns_ = shortest_ns_;
    floor_at_ns_ = heard_ns_;
  }
  if (slow_start_ && limited_) {
    if (found >= kGrowth * fastest_) {
      fastest_ = found;
      flat_rounds_ = 0;
    } else {
      ++flat_rounds_;
    }
    slow_start_ = flat_rounds_ < kFlatRounds && !queue_stands();
  }
  judge();
  resize();
}

bool Congestion::queue_stands() const noexcept {
  return shortest_ns_ != kNever && shortest_ns_ - floor_ns_ > std::max(floor_ns_ / 8, kNoise);
}

bool Congestion::Tally::may_be_judged() const noexcept { return advanced >= kJudgedPackets; }

bool Congestion::Tally::much_is_lost() const noexcept {
  return may_be_judged() && advanced - std::min(advanced, arrived) > kHarmlessLoss * advanced;
}

void Congestion::judge() noexcept {
  const bool lost = there_.much_is_lost() || back_.much_is_lost();
  if (back_.may_be_judged()) back_ = {};
  if (!lost && marked_ == 0 && !there_.may_be_judged()) return;
  if (lost) {
    share_ /= 2;
    slow_start_ = false;
  } else if (marked_ > 0) {
    share_ *= 1 - marked_ / (2.0 * there_.arrived);
    slow_start_ = false;
  } else {
    share_ *= kRecovery;
  }
  share_ = std::clamp(share_, kLeastShare, 1.0);
  there_ = {};
  marked_ = 0;
}

void Congestion::resize() noexcept {
  const double path_seconds = static_cast<double>(floor_ns_ + kNoise) / kSecond;
  if (slow_start_) {
    if (limited_) window_ = std::min(2 * window_, cap_);
    pace_ = 2 * window_ / path_seconds;
    return;
  }
  const double path = rate() * path_seconds;
  const double longest = rate() * static_cast<double>(kQueueTime) / kSecond;
  const double queue = share_ * std::max({kQueue, kQueueOfRoot * std::sqrt(path), longest});
  const double wanted = draining_ ? path / 2 : path + queue;
  window_ = static_cast<std::uint32_t>(std::clamp<double>(wanted, kFloor, cap_));
  capped_ = path >= kCapped * cap_;
  pace_ = rate() * (1 + std::max(kLeastHaste, kHaste * share_));
}

}  // namespace sluice::client
