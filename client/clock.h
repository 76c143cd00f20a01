// The machine's monotonic clock. The pure core gets its time passed in.
#pragma once

#include <time.h>

#include "aggregator/base/time.h"

namespace sluice {

// CLOCK_MONOTONIC: counts from the machine's start.
inline TimeNs monotonic_now() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

}  // namespace sluice
