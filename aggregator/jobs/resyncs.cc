#include "aggregator/jobs/resyncs.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"

namespace sluice::agg {

void Resyncs::change_to(State next) noexcept {
  CHECK(next == State::kOpening || active());
  state_ = next;
}

bool Resyncs::in_line(Rank rank) const noexcept {
  return std::any_of(line_.begin(), line_.end(),
                     [&](const Request& request) { return request.target == rank; });
}

Rank Resyncs::next() const noexcept {
  CHECK(has_line());
  return line_.front().target;
}

Rank Resyncs::target() const noexcept {
  CHECK(active());
  return current_.target;
}

Rank Resyncs::source() const noexcept {
  CHECK(active());
  return source_;
}

std::uint32_t Resyncs::number() const noexcept {
  CHECK(active());
  return current_.number;
}

DurationNs Resyncs::held_ns(TimeNs now) const noexcept {
  CHECK(active() && now >= started_ns_);
  return now - started_ns_;
}

Step Resyncs::first_step() const noexcept {
  CHECK(state_ == State::kOpen);
  return first_step_;
}

Resyncs::Asked Resyncs::ask(Rank target, std::uint32_t number) {
  if (is_target(target)) {
    if (current_.number == number) return Asked::kKnown;
    current_.number = number;  // the window has waited since the first request all the same
    return Asked::kRestarted;
  }
  for (Request& request : line_) {
    if (request.target != target) continue;
    request.number = number;
    return Asked::kKnown;
  }
  CHECK(line_.size() < kMaxWorkers);
  line_.push_back({.target = target, .number = number});
  return Asked::kInLine;
}

void Resyncs::start(TimeNs now) {
  CHECK(!active() && has_line());
  current_ = line_.front();
  line_.pop_front();
  started_ns_ = now;
  change_to(State::kOpening);
}

void Resyncs::open(Rank source, TimeNs now) noexcept {
  CHECK(active() && source != current_.target);
  if (is_overdue(now)) openings_due_ = 0;  // its answer was lost
  change_to(State::kOpening);
  source_ = source;
  opened_ns_ = now;
  next_loss_ns_ = 0;
  ++openings_due_;
}

bool Resyncs::is_overdue(TimeNs now) const noexcept {
  return state_ == State::kOpening && now - opened_ns_ >= kShardAnswer;
}

bool Resyncs::opened(Step first_step) noexcept {
  CHECK(first_step != 0);
  if (openings_due_ != 0) --openings_due_;
  if (!active() || openings_due_ != 0) return false;
  change_to(State::kOpen);  // again, where an answer that was thought lost came after all
  CHECK(source_ != current_.target);
  first_step_ = first_step;
  return true;
}

bool Resyncs::ask_for_loss(TimeNs now) noexcept {
  CHECK(active());
  if (now < next_loss_ns_) return false;
  next_loss_ns_ = now + kShardAnswer;
  return true;
}

void Resyncs::end() noexcept { change_to(State::kIdle); }

bool Resyncs::forget(Rank target) {
  std::erase_if(line_, [&](const Request& request) { return request.target == target; });
  CHECK(!in_line(target));
  return is_target(target);
}

}  // namespace sluice::agg
