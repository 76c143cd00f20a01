// The machine's monotonic clock. The pure core gets its time passed in.
#pragma once

#include <chrono>

#include "aggregator/base/time.h"

namespace sluice {

// CLOCK_MONOTONIC, which counts from the machine's start: on Linux it is the steady clock.
inline TimeNs monotonic_now() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace sluice
