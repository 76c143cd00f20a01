// The words of refusals and notices: printf into a string, and values made safe to print.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <string_view>

#include "aggregator/base/rank_list.h"
#include "aggregator/base/time.h"

namespace sluice::agg {

[[gnu::format(printf, 1, 2)]] inline std::string text(const char* format, ...) {
  char buffer[1024];
  std::va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  if (length < 0) return {};
  return {buffer, std::min(static_cast<std::size_t>(length), sizeof(buffer) - 1)};
}

// Bytes of a stranger, for a message: everything but printable ASCII becomes a question mark.
inline std::string printable(std::string_view bytes) {
  std::string safe(bytes);
  for (char& byte : safe)
    if (byte < 0x20 || byte > 0x7e) byte = '?';
  return safe;
}

inline double seconds(DurationNs duration) noexcept {
  return static_cast<double>(duration) / static_cast<double>(kSecond);
}
// Rounded up, so that "needs" is never below what is needed.
inline std::size_t mebibytes(std::size_t bytes) noexcept {
  return (bytes + (std::size_t{1} << 20) - 1) >> 20;
}

}  // namespace sluice::agg
