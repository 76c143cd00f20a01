// What a polling thread does when a loop found no work: spin, then yield, then sleep.
//
// Pure: it counts empty loops and names the action; the worker carries it out. Busy polling always
// spins. Adaptive polling is for machines with fewer cores than threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregator/base/time.h"

namespace sluice::dataplane {

class IdlePolicy {
 public:
  static constexpr std::uint32_t kSpinLoops = 64;
  static constexpr std::uint32_t kYieldLoops = 64;
  static constexpr DurationNs kFirstNap = 10 * kMicrosecond;
  static constexpr DurationNs kLongestNap = 100 * kMicrosecond;
  // Workers that compute between steps come back within this; a machine at rest is left alone.
  static constexpr std::uint32_t kShallowNaps = 1000;
  static constexpr DurationNs kDeepNap = 500 * kMicrosecond;

  enum class Action : std::uint8_t { kSpin, kYield, kSleep };
  struct Decision {
    Action action = Action::kSpin;
    DurationNs nap_ns = 0;
  };

  explicit constexpr IdlePolicy(bool busy) noexcept : busy_(busy) {}

  // After each loop; `worked`: it moved at least one packet or command.
  constexpr Decision after_loop(bool worked) noexcept {
    if (worked || busy_) {
      empty_loops_ = 0;
      naps_ = 0;
      nap_ns_ = kFirstNap;
      return {};
    }
    if (empty_loops_ < kSpinLoops + kYieldLoops) {
      ++empty_loops_;
      return {empty_loops_ <= kSpinLoops ? Action::kSpin : Action::kYield};
    }
    if (naps_ == kShallowNaps) return {Action::kSleep, kDeepNap};
    ++naps_;
    const DurationNs nap_ns = nap_ns_;
    nap_ns_ = std::min(nap_ns_ * 2, kLongestNap);
    return {Action::kSleep, nap_ns};
  }

 private:
  bool busy_;
  std::uint32_t empty_loops_ = 0;
  std::uint32_t naps_ = 0;
  DurationNs nap_ns_ = kFirstNap;
};

}  // namespace sluice::dataplane
