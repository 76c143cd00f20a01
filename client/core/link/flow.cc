#include "client/core/link/flow.h"

#include <algorithm>

namespace sluice::client {

// What holds between any two calls: the other end has seen no more than was sent.
void Flow::check() const noexcept {
  DCHECK(ahead(highest_, sent_) <= 0);
  DCHECK(ahead(confirmed_, highest_) <= 0);
  DCHECK(highest_in_ == 0 || recent_in_.came(highest_in_));
  DCHECK(free_pulls() <= credit_packets_);
  DCHECK(ahead(advertised_, highest_in_ + credit_packets_) <= 0);
}

Flow::LossSignals Flow::on_feedback(const wire::FeedbackHeader& feedback, TimeNs now) noexcept {
  if (ahead(feedback.highest_number, sent_) > 0) return {};
  LossSignals signals{.valid = true};
  heard_ns_ = now;
  const std::int32_t step = ahead(feedback.number, highest_in_);
  if (step <= 0) {  // overtaken or repeated: the newer one has said more
    if (-step < static_cast<std::int32_t>(RecentNumbers::kRemembered))
      recent_in_.note(feedback.number);
    return signals;
  }
  const std::uint32_t lost = static_cast<std::uint32_t>(step) - 1;
  if (lost != 0) newest_gap_ = highest_in_ + 1;
  recent_in_.advance(feedback.number, lost);
  highest_in_ = feedback.number;
  const std::int32_t deferred = ahead(feedback.deferred_count, deferred_);
  deferred_ = feedback.deferred_count;
  signals.lost = lost != 0;
  signals.withheld = deferred > 0;

  const std::int32_t arrived = ahead(feedback.received_count, received_);
  const bool limited = 2 * in_flight() >= congestion_.window();
  if (ahead(feedback.highest_number, highest_) > 0) {
    const std::uint32_t held_us = feedback.hold_us + feedback.echo_timestamp_us;
    rtt_.sample(std::max(0, ahead(wire_time_us(now), held_us)) * kMicrosecond);
    if (rtt_.queueing()) congestion_.end_slow_start();
    highest_ = feedback.highest_number;
  }
  if (arrived > 0) {
    const std::int32_t marked = std::max(0, ahead(feedback.marked_count, marked_));
    congestion_.on_arrived(static_cast<std::uint32_t>(arrived), static_cast<std::uint32_t>(marked),
                           limited);
    received_ = feedback.received_count;
    marked_ = feedback.marked_count;
  }
  const std::int32_t unexplained = ahead(highest_ - received_, accepted_);
  if (unexplained == 0) confirmed_ = highest_;
  if (unexplained < 0) duplicates_seen_ = true;
  signals.gap = unexplained > 0;
  check();
  return signals;
}

bool Flow::all_came_from(std::uint32_t number) const noexcept {
  const std::int32_t back = ahead(highest_in_, number);
  if (back >= static_cast<std::int32_t>(RecentNumbers::kRemembered)) return false;
  for (std::int32_t i = 0; i <= back; ++i)
    if (!recent_in_.came(number + static_cast<std::uint32_t>(i))) return false;
  return true;
}

void Flow::accept_gap() noexcept {
  accepted_ = highest_ - received_;
  DCHECK(!has_gap());
}

std::uint32_t Flow::free_pulls() const noexcept {
  const std::uint32_t taken = pulls_ + std::min(in_flight(), credit_packets_ / 2);
  return credit_packets_ - std::min(credit_packets_, taken);
}

bool Flow::credit_due() const noexcept {
  const std::int32_t gain = ahead(credit_to_advertise(), advertised_);
  return gain > 0 && 2 * static_cast<std::uint32_t>(gain) >= credit_packets_;
}

}  // namespace sluice::client
