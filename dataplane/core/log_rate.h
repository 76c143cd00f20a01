// Limits the log lines about events that a peer can repeat at will: the first lines, then counts.
//
// Pure: dataplane/dpdk writes the lines.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "aggregator/base/time.h"

namespace sluice::dataplane {

class LogRate {
 public:
  static constexpr DurationNs kWindow = 10 * kSecond;

  // Allows `most_lines` in a window, and one in each further window while events go on.
  explicit constexpr LogRate(std::uint32_t most_lines) noexcept : most_lines_(most_lines) {}

  // Called after each event, and at any time without one (`event` false). A value: a line is due
  // now, and this many earlier events had no line.
  constexpr std::optional<std::uint64_t> line(bool event, TimeNs now) noexcept {
    if (now - window_began_ >= kWindow) {
      window_began_ = now;
      lines_ = untold_ == 0 ? 0 : most_lines_ - 1;
    }
    if (!event && untold_ == 0) return {};
    if (lines_ == most_lines_) {
      untold_ += event;
      return {};
    }
    ++lines_;
    return std::exchange(untold_, 0);
  }

 private:
  std::uint32_t most_lines_;
  std::uint32_t lines_ = 0;
  TimeNs window_began_ = 0;
  std::uint64_t untold_ = 0;
};

// Limits the log lines about a port's link: its state once after the start, then its changes.
class LinkLog {
 public:
  static constexpr DurationNs kSettle = 3 * kSecond;  // links negotiate after the start
  static constexpr std::uint32_t kMostLines = 4;      // a window

  // Called after each look at the link, the first of them after the start. As LogRate::line().
  constexpr std::optional<std::uint64_t> line(bool changed, TimeNs now) noexcept {
    if (!tell_by_) tell_by_ = now + kSettle;
    const auto told = rate_.line(changed || now >= *tell_by_, now);
    if (told) tell_by_ = kNever;
    return told;
  }

 private:
  std::optional<TimeNs> tell_by_;  // the state is told by then, even if it has not changed
  LogRate rate_{kMostLines};
};

}  // namespace sluice::dataplane
