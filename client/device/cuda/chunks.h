// Building blocks of kernels over chunks: a group of lanes handles a chunk, each lane four elements
// at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "client/device/cuda/formats.h"
#include "client/device/cuda/lanes.h"
#include "client/device/kernels.h"

namespace sluice::cuda {

inline constexpr std::uint32_t kGroupLanes = kWarpLanes;
inline constexpr std::uint32_t kGroups = 4;  // of a block, each with a chunk
inline constexpr std::uint32_t kChunkThreads = kGroupLanes * kGroups;
inline constexpr std::uint32_t kQuad = 4;
inline constexpr std::uint32_t kQuadsAtOnce = 3;  // of a lane: their reads are in flight together

// The notes of the groups of a block about their chunks, in shared memory.
template <std::uint32_t max_elems>
struct Notes {
  static constexpr std::uint32_t kFours = (max_elems + 4 * kQuad - 1) / (4 * kQuad);
  // Which elements have a value: a byte for four of them, of which a lane reads four at once.
  alignas(std::uint32_t) std::uint8_t quads[kGroups][4 * kFours];
  std::uint32_t most[kGroups];   // the greatest magnitude, for int8
  std::uint32_t bytes[kGroups];  // of what is packed
  std::uint64_t first_byte;      // of the packed bytes of all groups
};

// A lane's share of a chunk: quads, words or bytes first, first + kGroupLanes, ...
struct Share {
  std::uint8_t* quads = nullptr;  // its chunk's; see Notes
  std::uint32_t* most = nullptr;
  std::uint32_t chunk = 0;
  std::uint32_t group = 0;       // of the block
  std::uint32_t place = 0;       // of the group among all
  std::uint32_t first = 0;       // this lane's
  std::uint32_t elem_count = 0;  // of the chunk
  std::uint64_t first_elem = 0;  // of the chunk
  std::uint32_t before = 0;      // see Lane
  std::uint32_t total = 0;

  // each(at, count) for this lane's elements, by fours; the last of a chunk may be fewer.
  template <class Each>
  SLUICE_LANE void for_each_quad(const Each& each) const {
    for (std::uint32_t at = first * kQuad; at < elem_count; at += kGroupLanes * kQuad)
      each(at, elem_count - at < kQuad ? elem_count - at : kQuad);
  }
  // each(i) for this lane's run of `count` items: runs have one length, in the order of lanes.
  template <class Each>
  SLUICE_LANE void for_each_in_run(std::uint32_t count, const Each& each) const {
    const std::uint32_t length = (count + kGroupLanes - 1) / kGroupLanes;
    const std::uint32_t end = (first + 1) * length;
    SLUICE_ROLLED
    for (std::uint32_t i = first * length; i < count && i < end; ++i) each(i);
  }
};

SLUICE_LANE Quad sum_of(const Quad& left, const Quad& right) {
  Quad sums;
  for (std::uint32_t i = 0; i < kQuad; ++i) sums.values[i] = left.values[i] + right.values[i];
  return sums;
}

constexpr std::uint32_t chunk_count(const sluice_device_tensor& tensor) {
  return static_cast<std::uint32_t>((tensor.elem_count + tensor.chunk_elems - 1) /
                                    tensor.chunk_elems);
}
constexpr std::size_t dense_bytes(const sluice_device_tensor& tensor) {  // of a whole chunk
  return payload_bytes(static_cast<Dtype>(tensor.wire), tensor.chunk_elems);
}

// The base of kernels over chunks: run() finds the lane's chunk and calls Kernel's step(phase,
// share, shared).
template <class Kernel, int phases, std::uint32_t max_elems = 1>
struct ChunkKernel {
  static constexpr std::uint32_t kThreads = kChunkThreads;
  static constexpr int kPhases = phases;
  static constexpr int kAllWait = phases;
  static constexpr int kLeastBlocks = 10;  // on a multiprocessor: so a lane has 48 registers
  using Shared = Notes<max_elems>;

  sluice_device_tensor tensor;

  SLUICE_LANE std::uint32_t run(int phase, const Lane& lane, Shared& shared) const {
    return run_chunk(phase, lane, shared,
                     std::uint64_t{lane.block} * kGroups + lane.thread / kGroupLanes);
  }
  SLUICE_LANE std::uint32_t run_chunk(int phase, const Lane& lane, Shared& shared,
                                      std::uint64_t chunk) const {
    const std::uint32_t group = lane.thread / kGroupLanes;
    const std::uint64_t first_elem = chunk * tensor.chunk_elems;
    if (first_elem >= tensor.elem_count) return 0;
    const std::uint64_t rest = tensor.elem_count - first_elem;
    const auto elem_count = static_cast<std::uint32_t>(
        rest < tensor.chunk_elems ? rest : std::uint64_t{tensor.chunk_elems});
    const Share share{.quads = shared.quads[group],
                      .most = &shared.most[group],
                      .chunk = static_cast<std::uint32_t>(chunk),
                      .group = group,
                      .place = lane.block * kGroups + group,
                      .first = lane.thread % kGroupLanes,
                      .elem_count = elem_count,
                      .first_elem = first_elem,
                      .before = lane.before,
                      .total = lane.total};
    return static_cast<const Kernel&>(*this).step(phase, share, shared);
  }

  // each(at, count, gradient + residual) for this lane's elements, by fours.
  template <class Each>
  SLUICE_LANE void for_each_whole(const Share& share, const Each& each) const {
    const float* const gradient = tensor.gradient + share.first_elem;
    const float* const residual = tensor.residual + share.first_elem;
    if (share.elem_count % kQuad != 0 || !is_aligned<sizeof(Quad)>(gradient) ||
        !is_aligned<sizeof(Quad)>(residual))
      return share.for_each_quad(
          [&](std::uint32_t at, std::uint32_t count) { each(at, count, whole(share, at, count)); });
    constexpr std::uint32_t kStride = kGroupLanes * kQuad;
    for (std::uint32_t begin = share.first * kQuad; begin < share.elem_count;
         begin += kQuadsAtOnce * kStride) {
      Quad left[kQuadsAtOnce], right[kQuadsAtOnce];
      const float* const from_left = gradient + begin;
      const float* const from_right = residual + begin;
      SLUICE_UNROLLED
      for (std::uint32_t i = 0; i < kQuadsAtOnce; ++i) {
        if (begin + i * kStride < share.elem_count) {
          left[i] = load_aligned_quad(from_left + i * kStride);
          right[i] = load_aligned_quad(from_right + i * kStride);
        }
      }
      SLUICE_UNROLLED
      for (std::uint32_t i = 0; i < kQuadsAtOnce; ++i) {
        const std::uint32_t at = begin + i * kStride;
        if (at < share.elem_count) each(at, kQuad, sum_of(left[i], right[i]));
      }
    }
  }

  // Gradient + residual of `count` elements of a quad.
  SLUICE_LANE Quad whole(const Share& share, std::uint32_t at, std::uint32_t count) const {
    const float* const gradient = tensor.gradient + share.first_elem + at;
    const float* const residual = tensor.residual + share.first_elem + at;
    Quad quad{};
    if (count == kQuad) {
      quad = sum_of(load_quad(gradient), load_quad(residual));
    } else {
      for (std::uint32_t i = 0; i < count; ++i) quad.values[i] = gradient[i] + residual[i];
    }
    return quad;
  }
  SLUICE_LANE void store(float* to, const Share& share, std::uint32_t at, std::uint32_t count,
                         const Quad& quad) const {
    if (count == kQuad) return store_quad(to + share.first_elem + at, quad);
    for (std::uint32_t i = 0; i < count; ++i) to[share.first_elem + at + i] = quad.values[i];
  }
};

// Prunes an element: returns what leaves, the whole value where there is no threshold.
struct Sieve {
  const float* threshold = nullptr;

  // As the host, which packs the pruned value as gradient + residual with a residual of zero.
  SLUICE_LANE float operator()(float value, float limit, Dtype wire) const {
    if (threshold == nullptr) return value;
    if (__builtin_fabsf(value) < limit) value = 0;
    return wire == Dtype::kFloat32 ? value : value + 0.0f;
  }
  SLUICE_LANE float limit() const { return threshold == nullptr ? 0 : *threshold; }
};

// The base of kernels that change the format of elements.
template <Dtype kWire, class Kernel, int phases>
struct FormatKernel : ChunkKernel<Kernel, phases, kMaxChunkBytes / dtype_bytes(kWire)> {
  using Base = ChunkKernel<Kernel, phases, kMaxChunkBytes / dtype_bytes(kWire)>;
  using Base::for_each_whole, Base::tensor;
  static constexpr std::uint32_t kElemBytes = dtype_bytes(kWire);

  SLUICE_LANE static Format format(const Share& share) {
    if (kWire != Dtype::kInt8) return {.wire = kWire};
    return {.wire = kWire, .scale = scale_for(*share.most)};
  }
  // Two phases: notes the greatest magnitude of what leaves.
  SLUICE_LANE static void clear(const Share& share) {
    if (kWire == Dtype::kInt8 && share.first == 0) *share.most = 0;
  }
  SLUICE_LANE void find_greatest(const Share& share, const Sieve& sieve) const {
    if (kWire != Dtype::kInt8) return;
    const float limit = sieve.limit();
    std::uint32_t most = 0;
    for_each_whole(share, [&](std::uint32_t, std::uint32_t, const Quad& quad) {
      for (const float value : quad.values) {
        const std::uint32_t magnitude = magnitude_of(sieve(value, limit, kWire));
        most = most < magnitude ? magnitude : most;
      }
    });
    atomic_max(*share.most, most);
  }
};

}  // namespace sluice::cuda
