// Building blocks of kernels that have one source for the device and for the host, where the lanes
// run one after the other. A lane is a thread of the device, a warp 32 of them.
//
// A kernel is a struct: its arguments, kThreads, kPhases, kAllWait, a type Shared, and run(phase,
// lane, shared). Every lane of a warp ends a phase before any of them begins the next one; from
// phase kAllWait on that holds for all lanes of a block. Lanes tell each other things through
// Shared, whose first content is undefined, or through memory that is written once. In a phase
// kSummed, if a kernel has one, run() returns a number, and each lane of a warp gets the sum of the
// numbers of the lanes before it (Lane::before) and of all (Lane::total). No block waits for
// another. nvcc compiles run() for the device (kernels.cu), any other compiler for host_lanes.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define SLUICE_LANE __device__ inline
#define SLUICE_UNROLLED _Pragma("unroll")  // what a loop indexes stays in registers
#define SLUICE_ROLLED _Pragma("unroll 1")  // a loop of few rounds
#else
#define SLUICE_LANE inline
#define SLUICE_UNROLLED
#define SLUICE_ROLLED
#endif

namespace sluice::cuda {

inline constexpr std::uint32_t kWarpLanes = 32;  // a barrier among them costs hardly anything

struct Lane {
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t thread = 0;
  std::uint32_t before = 0;  // once kSummed is over
  std::uint32_t total = 0;
};

#ifdef __CUDACC__
SLUICE_LANE void atomic_add(std::uint32_t& to, std::uint32_t value) { ::atomicAdd(&to, value); }
SLUICE_LANE std::uint64_t atomic_add(std::uint64_t& to, std::uint64_t value) {
  return ::atomicAdd(reinterpret_cast<unsigned long long*>(&to), value);
}
SLUICE_LANE void atomic_max(std::uint32_t& to, std::uint32_t value) { ::atomicMax(&to, value); }
SLUICE_LANE std::uint32_t bits_set(std::uint32_t word) { return ::__popc(word); }
SLUICE_LANE std::uint32_t lowest_bit(std::uint32_t word) { return ::__ffs(word) - 1; }
SLUICE_LANE std::uint32_t bits_of(float value) { return ::__float_as_uint(value); }
SLUICE_LANE float float_of(std::uint32_t bits) { return ::__uint_as_float(bits); }
#else
SLUICE_LANE void atomic_add(std::uint32_t& to, std::uint32_t value) { to += value; }
SLUICE_LANE std::uint64_t atomic_add(std::uint64_t& to, std::uint64_t value) {
  const std::uint64_t before = to;
  to += value;
  return before;
}
SLUICE_LANE void atomic_max(std::uint32_t& to, std::uint32_t value) {
  if (to < value) to = value;
}
SLUICE_LANE std::uint32_t bits_set(std::uint32_t word) {
  return static_cast<std::uint32_t>(std::popcount(word));
}
SLUICE_LANE std::uint32_t lowest_bit(std::uint32_t word) {
  return static_cast<std::uint32_t>(std::countr_zero(word));
}
SLUICE_LANE std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
SLUICE_LANE float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
#endif

SLUICE_LANE std::uint32_t magnitude_of(float value) { return bits_of(value) & 0x7fffffffu; }

// Elements of 1, 2 or 4 bytes at any address, in as few accesses as their alignment permits. No
// function here calls itself: it would not be inlined.
template <std::size_t bytes>
SLUICE_LANE bool is_aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}
template <class T>
SLUICE_LANE T load_aligned(const std::uint8_t* from) {
  T found;
  std::memcpy(&found, __builtin_assume_aligned(from, sizeof(T)), sizeof(T));
  return found;
}
template <class T>
SLUICE_LANE void store_aligned(std::uint8_t* to, const T& value) {
  std::memcpy(__builtin_assume_aligned(to, sizeof(T)), &value, sizeof(T));
}
SLUICE_LANE std::uint32_t load_bits(const std::uint8_t* from, std::uint32_t bytes) {
  if (bytes == 4 && is_aligned<4>(from)) return load_aligned<std::uint32_t>(from);
  if (bytes == 4 && is_aligned<2>(from)) {
    const std::uint32_t low = load_aligned<std::uint16_t>(from);
    return low | std::uint32_t{load_aligned<std::uint16_t>(from + 2)} << 16;
  }
  if (bytes == 2 && is_aligned<2>(from)) return load_aligned<std::uint16_t>(from);
  std::uint32_t bits = 0;
  for (std::uint32_t at = 0; at < bytes; ++at) bits |= std::uint32_t{from[at]} << 8 * at;
  return bits;
}
SLUICE_LANE void store_bits(std::uint8_t* to, std::uint32_t bits, std::uint32_t bytes) {
  if (bytes == 4 && is_aligned<4>(to)) return store_aligned(to, bits);
  if (bytes >= 2 && is_aligned<2>(to)) {
    store_aligned(to, static_cast<std::uint16_t>(bits));
    if (bytes == 4) store_aligned(to + 2, static_cast<std::uint16_t>(bits >> 16));
    return;
  }
  for (std::uint32_t at = 0; at < bytes; ++at) to[at] = static_cast<std::uint8_t>(bits >> 8 * at);
}

// Four elements side by side, in one access where they are aligned for that.
struct Quad {
  float values[4];
};
SLUICE_LANE Quad load_aligned_quad(const float* from) {
#ifdef __CUDACC__
  const float4 found = *reinterpret_cast<const float4*>(from);
  return {{found.x, found.y, found.z, found.w}};
#else
  return load_aligned<Quad>(reinterpret_cast<const std::uint8_t*>(from));
#endif
}
SLUICE_LANE Quad load_quad(const float* from) {
  if (is_aligned<sizeof(Quad)>(from)) return load_aligned_quad(from);
  return {{from[0], from[1], from[2], from[3]}};
}
SLUICE_LANE void store_quad(float* to, const Quad& quad) {
  if (is_aligned<16>(to)) {
#ifdef __CUDACC__
    *reinterpret_cast<float4*>(to) =
        make_float4(quad.values[0], quad.values[1], quad.values[2], quad.values[3]);
#else
    std::memcpy(to, &quad, sizeof quad);
#endif
  } else {
    for (std::uint32_t i = 0; i < 4; ++i) to[i] = quad.values[i];
  }
}

// Four elements of 1, 2 or 4 bytes side by side, in one access where they are aligned for that.
template <std::uint32_t elem_bytes>
SLUICE_LANE void load_four(const std::uint8_t* from, std::uint32_t (&bits)[4]) {
  if constexpr (elem_bytes == 4) {
    if (is_aligned<16>(from)) {
      const Quad quad = load_quad(reinterpret_cast<const float*>(from));
      for (std::uint32_t i = 0; i < 4; ++i) bits[i] = bits_of(quad.values[i]);
      return;
    }
  } else if (is_aligned<4 * elem_bytes>(from)) {
    using Four = std::conditional_t<elem_bytes == 2, std::uint64_t, std::uint32_t>;
    const auto found = load_aligned<Four>(from);
    constexpr auto kMask = static_cast<std::uint32_t>((std::uint64_t{1} << 8 * elem_bytes) - 1);
    for (std::uint32_t i = 0; i < 4; ++i)
      bits[i] = static_cast<std::uint32_t>(found >> 8 * elem_bytes * i) & kMask;
    return;
  }
  for (std::uint32_t i = 0; i < 4; ++i) bits[i] = load_bits(from + i * elem_bytes, elem_bytes);
}
template <std::uint32_t elem_bytes>
SLUICE_LANE void store_four(std::uint8_t* to, const std::uint32_t (&bits)[4]) {
  if constexpr (elem_bytes == 4) {
    if (is_aligned<16>(to)) {
      Quad quad;
      for (std::uint32_t i = 0; i < 4; ++i) quad.values[i] = float_of(bits[i]);
      return store_quad(reinterpret_cast<float*>(to), quad);
    }
  } else if (is_aligned<4 * elem_bytes>(to)) {
    using Four = std::conditional_t<elem_bytes == 2, std::uint64_t, std::uint32_t>;
    Four four = 0;
    for (std::uint32_t i = 0; i < 4; ++i)
      four |= static_cast<Four>(Four{bits[i]} << 8 * elem_bytes * i);
    return store_aligned(to, four);
  }
  for (std::uint32_t i = 0; i < 4; ++i) store_bits(to + i * elem_bytes, bits[i], elem_bytes);
}
// Stores the first `count` of four elements.
template <std::uint32_t elem_bytes>
SLUICE_LANE void store_some(std::uint8_t* to, const std::uint32_t (&bits)[4], std::uint32_t count) {
  if (count == 4) return store_four<elem_bytes>(to, bits);
  for (std::uint32_t i = 0; i < count; ++i) store_bits(to + i * elem_bytes, bits[i], elem_bytes);
}

}  // namespace sluice::cuda
