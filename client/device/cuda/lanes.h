// A kernel as one source for the device and for the host, where its lanes run one after the other.
//
// A kernel is a struct: its arguments, kThreads, kPhases, a Shared, and run(phase, lane, shared),
// which every lane of a block does for one phase before any does the next. What lanes tell each
// other goes through Shared, which begins with anything in it, or through what is written once.
// Kernels know nothing of blocks beside theirs. nvcc compiles run() for the device (kernels.cu),
// any other compiler for host_lanes.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SLUICE_LANE __device__ inline
#else
#define SLUICE_LANE inline
#endif

namespace sluice::cuda {

struct Lane {
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t thread = 0;
};

#ifdef __CUDACC__
SLUICE_LANE void atomic_add(std::uint32_t& to, std::uint32_t value) { ::atomicAdd(&to, value); }
SLUICE_LANE void atomic_or(std::uint32_t& to, std::uint32_t bits) { ::atomicOr(&to, bits); }
SLUICE_LANE void atomic_max(std::uint32_t& to, std::uint32_t value) { ::atomicMax(&to, value); }
SLUICE_LANE std::uint32_t bits_set(std::uint32_t word) { return ::__popc(word); }
SLUICE_LANE std::uint32_t bits_of(float value) { return ::__float_as_uint(value); }
SLUICE_LANE float float_of(std::uint32_t bits) { return ::__uint_as_float(bits); }
#else
SLUICE_LANE void atomic_add(std::uint32_t& to, std::uint32_t value) { to += value; }
SLUICE_LANE void atomic_or(std::uint32_t& to, std::uint32_t bits) { to |= bits; }
SLUICE_LANE void atomic_max(std::uint32_t& to, std::uint32_t value) {
  if (to < value) to = value;
}
SLUICE_LANE std::uint32_t bits_set(std::uint32_t word) {
  return static_cast<std::uint32_t>(std::popcount(word));
}
SLUICE_LANE std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
SLUICE_LANE float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
#endif

SLUICE_LANE std::uint32_t magnitude_of(float value) { return bits_of(value) & 0x7fffffffu; }

// Elements of 1, 2 or 4 bytes at any address; in one access where that is aligned.
template <std::size_t bytes>
SLUICE_LANE bool is_aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}
SLUICE_LANE std::uint32_t load_bits(const std::uint8_t* from, std::uint32_t bytes) {
  std::uint32_t bits = 0;
  if (bytes == 4 && is_aligned<4>(from)) {
    std::memcpy(&bits, __builtin_assume_aligned(from, 4), 4);
    return bits;
  }
  if (bytes == 2 && is_aligned<2>(from)) {
    std::uint16_t narrow = 0;
    std::memcpy(&narrow, __builtin_assume_aligned(from, 2), 2);
    return narrow;
  }
  for (std::uint32_t at = 0; at < bytes; ++at) bits |= std::uint32_t{from[at]} << 8 * at;
  return bits;
}
SLUICE_LANE void store_bits(std::uint8_t* to, std::uint32_t bits, std::uint32_t bytes) {
  if (bytes == 4 && is_aligned<4>(to)) {
    std::memcpy(__builtin_assume_aligned(to, 4), &bits, 4);
  } else if (bytes == 2 && is_aligned<2>(to)) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    std::memcpy(__builtin_assume_aligned(to, 2), &narrow, 2);
  } else {
    for (std::uint32_t at = 0; at < bytes; ++at) to[at] = static_cast<std::uint8_t>(bits >> 8 * at);
  }
}

}  // namespace sluice::cuda
