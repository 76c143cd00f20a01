// Prefetching for both ends. Gradients, sums and averages are as big as the model, so a packet's
// bytes are in no cache when they are needed. Prefetched early, they arrive while the protocol
// works on something else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {

enum class Use : std::uint8_t { kRead, kWrite };

template <Use use>
inline void prefetch(const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kLineBytes = 64;
  constexpr std::size_t kLines = 4;  // for each turn of the loop
  const auto line = [at = static_cast<const std::uint8_t*>(from)](std::size_t offset) {
    // Bytes for the kernel to read are needed a burst later, bytes to be written with the next
    // packet.
    if constexpr (use == Use::kWrite)
      __builtin_prefetch(at + offset, 1, 3);
    else
      __builtin_prefetch(at + offset, 0, 2);
  };
  std::size_t offset = 0;
  for (; offset + kLines * kLineBytes <= bytes; offset += kLines * kLineBytes)
    for (std::size_t i = 0; i < kLines; ++i) line(offset + i * kLineBytes);
  for (; offset < bytes; offset += kLineBytes) line(offset);
}

// Prefetches the first lines, after which the processor fetches the rest by itself.
template <Use use>
inline void prefetch_front(const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kFrontBytes = 256;
  prefetch<use>(from, std::min(bytes, kFrontBytes));
}

}  // namespace sluice
