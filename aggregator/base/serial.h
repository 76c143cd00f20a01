// Serial numbers (RFC 1982): u32 that wrap and are compared within half the circle. Packets, credit
// and times on the wire have them; steps never wrap.
#pragma once

#include <cstdint>

namespace sluice {

// How far `left` is ahead of `right`, negative when behind.
constexpr std::int32_t ahead(std::uint32_t left, std::uint32_t right) noexcept {
  return static_cast<std::int32_t>(left - right);
}
constexpr bool newer(std::uint32_t left, std::uint32_t right) noexcept {
  return ahead(left, right) > 0;
}

}  // namespace sluice
