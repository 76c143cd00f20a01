// What a step waits for, in words: tensors, ranks, and when each rank was last heard.
#include <algorithm>

#include "client/core/session_impl.h"
#include "client/core/text.h"

namespace sluice::client {
namespace {

constexpr DurationNs kStallRepeat = 10 * kSecond;

}  // namespace

std::string Session::Impl::describe_stall(TimeNs now) const {
  if (state == SessionState::kJoining) return join.describe();
  if (state == SessionState::kForming)
    return place_of(options) +
           "waiting for the other ranks to join; missing: " + membership.missing_ranks();
  if (state != SessionState::kRunning) return {};
  std::string text;
  if (collectives.in_progress()) {
    text = collectives.describe() + " has made no progress for " +
           seconds_text(now - collectives.last_progress_ns());
    append_missing(text, StreamId::kCollectives, collectives.current_step(), now);
  }
  if (std::string transfer = transfers.describe(); !transfer.empty())
    text += (text.empty() ? "" : "; ") + transfer;
  if (gradients.in_progress()) {
    text += text.empty() ? "" : "; ";
    text += "step " + std::to_string(gradients.current_step()) + " has made no progress for " +
            seconds_text(now - gradients.last_progress_ns()) + ": " +
            gradients.describe_open_tensors();
    append_missing(text, StreamId::kGradients, gradients.current_step(), now);
  }
  return text.empty() ? text : place_of(options) + text;
}

void Session::Impl::append_missing(std::string& text, StreamId stream, Step step,
                                   TimeNs now) const {
  if (missing.stream != stream || missing.step != step) return;
  text += "; missing: " + list_ranks(missing.ranks.data(), missing.ranks.size());
  for (std::size_t i = 0; i < std::min(missing.age_count, kListedRanks); ++i) {
    const DurationNs age_ns =
        missing.ages[i].last_heard_ms * kMillisecond + (now - missing.arrived_ns);
    text += (i == 0 ? " (" : ", ") + std::string("rank ") + std::to_string(missing.ages[i].rank) +
            " last heard " + seconds_text(age_ns) + " ago";
  }
  if (missing.age_count != 0) text += ")";
}

// kNever while nothing waits.
TimeNs Session::Impl::stall_report_due() const noexcept {
  TimeNs progress_ns = kNever;
  if (state == SessionState::kJoining && join.preparing()) progress_ns = join.preparing_since();
  if (gradients.in_progress()) progress_ns = gradients.last_progress_ns();
  if (collectives.in_progress())
    progress_ns = std::min(progress_ns, collectives.last_progress_ns());
  if (progress_ns == kNever) return kNever;
  if (stall_reported_ns > progress_ns) return stall_reported_ns + kStallRepeat;
  return progress_ns + options.stall_report_ns;
}

void Session::Impl::report_stall(TimeNs now) {
  stall_reported_ns = now;
  link.events.push({.kind = Event::Kind::kStalled,
                    .step = gradients.current_step(),
                    .status = Status(StatusCode::kTimedOut, describe_stall(now))});
}

}  // namespace sluice::client
