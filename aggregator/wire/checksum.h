// The internet checksum (RFC 1071), computed in parts that are added up.
//
// Pure, on any thread. Long runs of bytes are summed with the best vectors that the machine has
// (Highway, chosen at run time), so that reading a frame once costs little more than fetching it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice::wire {

// A one's-complement sum of bytes in memory order, not yet complemented. Sums of parts may be added
// if every part but the last has an even length, so a payload for n members is summed once. A
// number that is stored little-endian at an even offset may be added as it is.
struct PartialSum {
  std::uint64_t value = 0;
  constexpr PartialSum operator+(PartialSum other) const noexcept {
    return PartialSum{value + other.value};
  }
};

// Sums whole words, then the rest, each with a load of its size: bytes that are assembled in memory
// and read back as one word would wait for the store.
inline PartialSum sum_short(std::span<const std::uint8_t> bytes) noexcept {
  std::uint64_t sum = 0;
  const std::uint8_t* at = bytes.data();
  const auto add = [&](auto word) {
    std::memcpy(&word, at, sizeof word);
    at += sizeof word;
    sum += word;
  };
  for (std::size_t words = bytes.size() / 4; words != 0; --words) add(std::uint32_t{});
  if ((bytes.size() & 2) != 0) add(std::uint16_t{});
  if ((bytes.size() & 1) != 0) add(std::uint8_t{});
  return PartialSum{sum};
}

// Any number of bytes.
PartialSum sum_long(std::span<const std::uint8_t> bytes) noexcept;

inline PartialSum sum_bytes(std::span<const std::uint8_t> bytes) noexcept {
  constexpr std::size_t kShortBytes = 64;  // headers: no call is worth it
  return bytes.size() <= kShortBytes ? sum_short(bytes) : sum_long(bytes);
}

// The folded complement, ready to be stored with memcpy.
constexpr std::uint16_t finish_checksum(PartialSum sum) noexcept {
  // The upper half of (number + number with its halves exchanged) is the sum of the halves, carry
  // included.
  const auto words = static_cast<std::uint32_t>((sum.value + std::rotl(sum.value, 32)) >> 32);
  return static_cast<std::uint16_t>(~((words + std::rotl(words, 16)) >> 16));
}

}  // namespace sluice::wire
