#include "client/core/link/flow.h"

#include <algorithm>

#include "aggregator/base/limits.h"

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
  // The round trip, without what the appliance held.
  const std::uint32_t held_us = feedback.hold_us + feedback.echo_timestamp_us;
  const DurationNs took_ns = ahead(wire_time_us(now), held_us) * kMicrosecond;
  const std::int32_t step = ahead(feedback.number, highest_in_);
  if (step <= 0) {  // overtaken or repeated: the newer one has said more
    if (-step < static_cast<std::int32_t>(RecentNumbers::kRemembered) &&
        !recent_in_.came(feedback.number)) {
      recent_in_.note(feedback.number);
      congestion_.on_late();
      const DurationNs late_ns = (took_ns - rtt_.shortest_ns()) * 5 / 4;
      lateness_ns_ = std::max(lateness_ns_, std::min(late_ns, kIdleProbeInterval));
    }
    return signals;
  }
  const std::uint32_t lost = static_cast<std::uint32_t>(step) - 1;
  if (lost != 0) {
    newest_gap_ = highest_in_ + 1;
    lateness_ns_ -= lateness_ns_ / kForgetting;
  }
  recent_in_.advance(feedback.number, lost);
  highest_in_ = feedback.number;
  const std::int32_t deferred = ahead(feedback.deferred_count, deferred_);
  deferred_ = feedback.deferred_count;
  signals.lost = lost != 0;
  signals.withheld = deferred > 0;

  Congestion::Arrivals arrivals{.now = now,
                                .back_advanced = static_cast<std::uint32_t>(step),
                                .back_arrived = 1,
                                .limited = 2 * in_flight() >= congestion_.window()};
  if (const std::int32_t advanced = ahead(feedback.highest_number, highest_); advanced > 0) {
    arrivals.advanced = static_cast<std::uint32_t>(advanced);
    arrivals.sent_ns =
        now - std::max(0, ahead(wire_time_us(now), feedback.echo_timestamp_us)) * kMicrosecond;
    arrivals.rtt_ns = std::max<DurationNs>(1, took_ns);
    rtt_.sample(arrivals.rtt_ns);
  }
  holes_.on_feedback({.highest = feedback.highest_number,
                      .fresh = arrivals.advanced == 0 ? 0 : arrivals.advanced - 1,
                      .arrived_before = feedback.arrived_before},
                     rtt_.smoothed_ns(), now);
  if (arrivals.advanced != 0) highest_ = feedback.highest_number;
  if (const std::int32_t arrived = ahead(feedback.received_count, received_); arrived > 0) {
    arrivals.arrived = static_cast<std::uint32_t>(arrived);
    arrivals.marked =
        static_cast<std::uint32_t>(std::max(0, ahead(feedback.marked_count, marked_)));
    received_ = feedback.received_count;
    marked_ = feedback.marked_count;
  }
  congestion_.on_arrived(arrivals);
  // Some came after all that were taken for lost, or whose holes no feedback shows any more.
  std::int32_t unexplained = ahead(highest_ - received_, accepted_);
  const auto holes = static_cast<std::int32_t>(holes_.count());
  if (unexplained < holes)
    holes_.fill_oldest(static_cast<std::uint32_t>(holes - std::max(unexplained, 0)));
  if (unexplained < 0) {
    accepted_ -= static_cast<std::uint32_t>(-unexplained);
    unexplained = 0;
  }
  if (unexplained == 0) confirmed_ = highest_;
  signals.gap = has_gap();
  check();
  return signals;
}

bool Flow::all_came(std::uint32_t first, std::uint32_t last) const noexcept {
  DCHECK(ahead(last, highest_in_) <= 0);
  if (ahead(highest_in_, first) >= static_cast<std::int32_t>(RecentNumbers::kRemembered))
    return false;
  for (std::uint32_t number = first; ahead(number, last) <= 0; ++number)
    if (!recent_in_.came(number)) return false;
  return true;
}

// Soon, and then after a timeout, as the question may be lost as well.
TimeNs Flow::tail_due() const noexcept {
  if (tail_.asks || tail_.questions == kTailQuestions || ahead(tail_.number, highest_) <= 0)
    return kNever;
  return tail_.sent_ns + (tail_.questions == 0 ? std::max(rtt_.smoothed_ns() / 4, kLeastTailWait)
                                               : rtt_.timeout_ns());
}

TimeNs Flow::next_timeout() const noexcept {
  const TimeNs paced_ns = pacer_.next_ns() == 0 ? kNever : pacer_.next_ns();
  return std::min({paced_ns, holes_.due_ns(), tail_due()});
}

void Flow::handle_timeout(TimeNs now) noexcept {
  if (now >= pacer_.next_ns()) pacer_.forget();
  if (now >= tail_due()) tail_.asks = true;
}

void Flow::accept_gap() noexcept {
  accepted_ = highest_ - received_ - holes_.count();
  DCHECK(!has_gap());
}

std::uint32_t Flow::free_pulls() const noexcept {
  const std::uint32_t taken = pulls_ + std::min(in_flight(), credit_packets_ / 2);
  return credit_packets_ - std::min(credit_packets_, taken);
}

// What is pulled is left out of the credit, and pulled results use it up too, but for a block: with
// much pulled little is advertised, and the rest would wait at the appliance until it is overdue.
bool Flow::credit_due() const noexcept {
  const std::int32_t gain = ahead(credit_to_advertise(), advertised_);
  const std::uint32_t whole = std::max(credit_packets_ - std::min(credit_packets_, pulls_),
                                       std::min(credit_packets_, kChunksPerBlock));
  return gain > 0 && 2 * static_cast<std::uint32_t>(gain) >= whole;
}

}  // namespace sluice::client
