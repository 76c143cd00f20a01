// The text of a stall: the tensors and the ranks that a step waits for, and when each rank was last
// heard.
#include <algorithm>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"
#include "client/core/session.h"

namespace sluice::client {
namespace {

constexpr DurationNs kStallRepeat = 10 * kSecond;

}  // namespace

Stall Session::stall(TimeNs now) const {
  if (state_ == SessionState::kJoining) return {.text = join_.describe()};
  if (asking_.has_value())
    return {.stalled_ns = now - membership_.heard_ns(), .text = describe_silence(now)};
  if (state_ == SessionState::kForming)
    return {.text = error_prefix(options_) + membership_.describe_forming()};
  if (state_ == SessionState::kClosed) return {.text = last_stall_};
  if (state_ != SessionState::kRunning) return {};
  Stall found{.stalled_ns = stalled_ns(now)};
  std::string& text = found.text;
  for (const Stream* const one : probe_order_) {
    const std::string waits = one->describe(now);
    if (waits.empty()) continue;
    text += (text.empty() ? "" : "; ") + waits;
    append_missing(found, one->id(), one->current_step(), now);
  }
  if (!text.empty()) text.insert(0, error_prefix(options_));
  return found;
}

void Session::append_missing(Stall& stall, StreamId stream, Step step, TimeNs now) const {
  if (missing_.stream != stream || missing_.step != step) return;
  CHECK(missing_.age_count <= missing_.ages.size());
  for (std::size_t word = 0; word < missing_.ranks.size(); ++word)
    stall.missing[word] |= missing_.ranks[word];
  std::string& text = stall.text;
  text += "; missing: " + list_ranks(missing_.ranks.data(), missing_.ranks.size());
  for (std::size_t i = 0; i < std::min(missing_.age_count, kListedRanks); ++i) {
    const DurationNs age_ns =
        missing_.ages[i].last_heard_ms * kMillisecond + (now - missing_.arrived_ns);
    text += (i == 0 ? " (" : ", ") + std::string("rank ") + std::to_string(missing_.ages[i].rank) +
            " last heard " + seconds_text(age_ns) + " ago";
  }
  if (missing_.age_count != 0) text += ")";
}

DurationNs Session::stalled_ns(TimeNs now) const noexcept {
  if (asking_.has_value()) return now - membership_.heard_ns();
  if (state_ != SessionState::kRunning) return 0;
  TimeNs since_ns = now;
  for (const Stream* const stream : streams_)
    if (stream->in_progress()) since_ns = std::min(since_ns, stream->last_progress_ns());
  return now - since_ns;
}

// kNever while nothing waits.
TimeNs Session::stall_report_due() const noexcept {
  TimeNs progress_ns = kNever;
  if (state_ == SessionState::kJoining && join_.preparing()) progress_ns = join_.preparing_since();
  if (state_ == SessionState::kForming) progress_ns = membership_.grown_ns();
  if (asking_.has_value()) progress_ns = std::min(progress_ns, membership_.heard_ns());
  for (const Stream* const one : streams_)
    if (one->in_progress() && one->id() != StreamId::kState)  // which its caller's timeout ends
      progress_ns = std::min(progress_ns, one->last_progress_ns());
  if (progress_ns == kNever) return kNever;
  if (stall_reported_ns_ > progress_ns) return stall_reported_ns_ + kStallRepeat;
  return progress_ns + options_.stall_report_ns;
}

void Session::report_stall(TimeNs now) {
  stall_reported_ns_ = now;
  link_.events.push({.kind = Event::Kind::kStalled,
                     .step = current_step(),
                     .status = Status(StatusCode::kTimedOut, describe_stall(now))});
}

}  // namespace sluice::client
