// Gradients and averages are as big as the model, so a packet's bytes are in no cache when their
// turn comes. Asked for early, they arrive while the protocol works on something else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::client {

enum class Use : std::uint8_t { kRead, kWrite };

template <Use use>
inline void prefetch(const std::uint8_t* at, std::size_t bytes) noexcept {
  constexpr std::size_t kLineBytes = 64;
  for (std::size_t offset = 0; offset < bytes; offset += kLineBytes)
    __builtin_prefetch(at + offset, use == Use::kWrite ? 1 : 0, 2);
}

}  // namespace sluice::client
