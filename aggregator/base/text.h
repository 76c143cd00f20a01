// printf into a string, for messages to people. Cold.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace sluice {

// Truncated to 1023 bytes.
[[gnu::format(printf, 1, 2)]] inline std::string text(const char* format, ...) {
  char buffer[1024];
  std::va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  if (length < 0) return {};
  return {buffer, std::min(static_cast<std::size_t>(length), sizeof(buffer) - 1)};
}

}  // namespace sluice
