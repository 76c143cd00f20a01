// How often the log tells of what a peer can repeat at will: the first times, then a count.
//
// Pure: dataplane/dpdk looks and writes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "aggregator/base/time.h"

namespace sluice::dataplane {

class LogRate {
 public:
  static constexpr DurationNs kWindow = 10 * kSecond;

  // While it goes on, a line a window.
  explicit constexpr LogRate(std::uint32_t most_lines) noexcept : most_lines_(most_lines) {}

  // After each event, and as often as one likes without: nothing, or that it is told now, with the
  // number of events that no line told of.
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

// Of a port's link: its state once after the start, then its changes.
class LinkLog {
 public:
  static constexpr DurationNs kSettle = 3 * kSecond;  // links negotiate after the start
  static constexpr std::uint32_t kMostLines = 4;      // a window

  // After each look at the link, of which the first follows the start; as LogRate::line().
  constexpr std::optional<std::uint64_t> line(bool changed, TimeNs now) noexcept {
    if (!tell_by_) tell_by_ = now + kSettle;
    const auto told = rate_.line(changed || now >= *tell_by_, now);
    if (told) tell_by_ = kNever;
    return told;
  }

 private:
  std::optional<TimeNs> tell_by_;  // though nothing changes
  LogRate rate_{kMostLines};
};

}  // namespace sluice::dataplane
