// When the log tells of a port's link: its state once after the start, then its changes.
//
// Pure: dataplane/dpdk looks at the link and writes. Of a link that flaps the first changes are
// told, and the others counted in a line a window.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "aggregator/base/time.h"

namespace sluice::dataplane {

class LinkLog {
 public:
  static constexpr DurationNs kSettle = 3 * kSecond;  // links negotiate after the start
  static constexpr DurationNs kWindow = 10 * kSecond;
  static constexpr std::uint32_t kMostLines = 4;  // a window

  // After each look at the link, of which the first follows the start: nothing, or what the line of
  // its state adds, the number of changes that no line told of.
  constexpr std::optional<std::uint64_t> line(bool changed, TimeNs now) noexcept {
    if (!tell_by_) tell_by_ = now + kSettle;
    if (now - window_began_ >= kWindow) {
      window_began_ = now;
      lines_ = untold_ == 0 ? 0 : kMostLines - 1;
    }
    if (!changed && untold_ == 0 && now < *tell_by_) return {};
    if (lines_ == kMostLines) {
      untold_ += changed;
      return {};
    }
    ++lines_;
    tell_by_ = kNever;
    return std::exchange(untold_, 0);
  }

 private:
  std::optional<TimeNs> tell_by_;  // though nothing changes
  TimeNs window_began_ = 0;
  std::uint32_t lines_ = 0;
  std::uint64_t untold_ = 0;
};

}  // namespace sluice::dataplane
