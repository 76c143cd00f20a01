// Durations in error texts; includes the lists of ranks. Cold.
#pragma once

#include <string>

#include "aggregator/base/rank_list.h"
#include "aggregator/base/time.h"

namespace sluice::client {

// "4.0 s"
inline std::string seconds_text(DurationNs duration_ns) {
  const auto tenths = duration_ns / (100 * kMillisecond);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace sluice::client
