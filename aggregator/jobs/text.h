// The words of refusals and notices: printf into a string, and values made safe to print.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

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

// "rank 2", "ranks 2, 5", "ranks 0, 1, ... and 40 more"
inline std::string list_ranks(const std::uint64_t* words, std::size_t word_count) {
  constexpr std::size_t kListed = 8;  // more are only counted
  std::string list;
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < 64 * word_count; ++rank) {
    if (!(words[rank / 64] >> (rank % 64) & 1)) continue;
    if (++count <= kListed) list += (count == 1 ? "" : ", ") + std::to_string(rank);
  }
  if (count > kListed) list += " and " + std::to_string(count - kListed) + " more";
  return (count == 1 ? "rank " : "ranks ") + list;
}

inline double seconds(DurationNs duration) noexcept {
  return static_cast<double>(duration) / static_cast<double>(kSecond);
}
// Rounded up, so that "needs" is never below what is needed.
inline std::size_t mebibytes(std::size_t bytes) noexcept {
  return (bytes + (std::size_t{1} << 20) - 1) >> 20;
}

}  // namespace sluice::agg
