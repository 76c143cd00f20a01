// Values made safe to print, for the texts of refusals and notices.
#pragma once

#include <string>
#include <string_view>

#include "aggregator/base/rank_list.h"
#include "aggregator/base/text.h"
#include "aggregator/base/time.h"

namespace sluice::agg {

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
// Rounded up, so that a text never names less than a job needs.
inline std::size_t mebibytes(std::size_t bytes) noexcept {
  return (bytes + (std::size_t{1} << 20) - 1) >> 20;
}

}  // namespace sluice::agg
