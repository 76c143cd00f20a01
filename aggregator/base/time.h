// Time as the pure parts see it: nanoseconds of some monotonic clock, always passed in by the
// caller.
#pragma once

#include <cstdint>

namespace sluice {

using TimeNs = std::int64_t;      // a point on the caller's monotonic clock
using DurationNs = std::int64_t;  // a difference of two such points

inline constexpr DurationNs kMicrosecond = 1'000;
inline constexpr DurationNs kMillisecond = 1'000'000;
inline constexpr DurationNs kSecond = 1'000'000'000;
inline constexpr TimeNs kNever = INT64_MAX;

// Times on the wire are u32 microseconds, opaque to the other end.
constexpr std::uint32_t wire_time_us(TimeNs now) noexcept {
  return static_cast<std::uint32_t>(now / kMicrosecond);
}

}  // namespace sluice
