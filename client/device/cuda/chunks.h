// What kernels over chunks are made of: a group of lanes a chunk, four elements of a lane at once.
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
inline constexpr std::uint32_t kGroups = 8;  // of a block, each with a chunk
inline constexpr std::uint32_t kChunkThreads = kGroupLanes * kGroups;
inline constexpr std::uint32_t kWordBits = 32;
inline constexpr std::uint32_t kQuad = 4;
inline constexpr std::uint32_t kMaxWords = (kMaxChunkBytes + kWordBits - 1) / kWordBits;

// Which elements of a chunk have a value, and how many have in front of each word.
struct Places {
  std::uint32_t words[kMaxWords];
  std::uint16_t before[kMaxWords];
  std::uint32_t most;  // the greatest magnitude, for int8

  SLUICE_LANE bool has(std::uint32_t at) const {
    return (words[at / kWordBits] >> at % kWordBits & 1) != 0;
  }
  SLUICE_LANE std::uint32_t rank_of(std::uint32_t at) const {
    const std::uint32_t lower = (1u << at % kWordBits) - 1;
    return before[at / kWordBits] + bits_set(words[at / kWordBits] & lower);
  }
  SLUICE_LANE void set(std::uint32_t at, std::uint32_t bits = 1) {
    atomic_or(words[at / kWordBits], bits << at % kWordBits);
  }
  SLUICE_LANE std::uint32_t quad_at(
      std::uint32_t at) const {  // bits of four elements from a fourth
    return words[at / kWordBits] >> at % kWordBits & 0xfu;
  }
};

// A lane's share of a chunk: elements, words or bytes first, first + kGroupLanes, ...
struct Share {
  Places& places;
  std::uint32_t chunk = 0;
  std::uint32_t place = 0;       // of its group among all
  std::uint32_t first = 0;       // this lane's
  std::uint32_t elem_count = 0;  // of the chunk
  std::uint64_t first_elem = 0;  // of the chunk
  std::uint32_t words = 0;

  // each(at, count) for this lane's elements, by fours; the last of a chunk may be fewer.
  template <class Each>
  SLUICE_LANE void for_each_quad(const Each& each) const {
    for (std::uint32_t at = first * kQuad; at < elem_count; at += kGroupLanes * kQuad)
      each(at, elem_count - at < kQuad ? elem_count - at : kQuad);
  }
  SLUICE_LANE void clear() const {
    for (std::uint32_t word = first; word < words; word += kGroupLanes) places.words[word] = 0;
    if (first == 0) places.most = 0;
  }
  SLUICE_LANE void count() const {
    for (std::uint32_t word = first; word < words; word += kGroupLanes) {
      std::uint32_t sum = 0;
      for (std::uint32_t at = 0; at < word; ++at) sum += bits_set(places.words[at]);
      places.before[word] = static_cast<std::uint16_t>(sum);
    }
  }
  SLUICE_LANE std::uint32_t value_count() const {
    return places.before[words - 1] + bits_set(places.words[words - 1]);
  }
};

constexpr std::uint32_t chunk_count(const sluice_device_tensor& tensor) {
  return static_cast<std::uint32_t>((tensor.elem_count + tensor.chunk_elems - 1) /
                                    tensor.chunk_elems);
}
constexpr std::size_t dense_bytes(const sluice_device_tensor& tensor) {  // of a whole chunk
  return payload_bytes(static_cast<Dtype>(tensor.wire), tensor.chunk_elems);
}

// What all of them are made of: run() finds the lane's chunk, and leaves to Kernel what to do.
template <class Kernel, int phases>
struct ChunkKernel {
  static constexpr std::uint32_t kThreads = kChunkThreads;
  static constexpr std::uint32_t kTogether = kGroupLanes;
  static constexpr int kPhases = phases;
  struct Shared {
    Places places[kGroups];
  };

  sluice_device_tensor tensor;

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    run_chunk(phase, lane, shared, std::uint64_t{lane.block} * kGroups + lane.thread / kGroupLanes);
  }
  SLUICE_LANE void run_chunk(int phase, Lane lane, Shared& shared, std::uint64_t chunk) const {
    const std::uint32_t group = lane.thread / kGroupLanes;
    const std::uint64_t first_elem = chunk * tensor.chunk_elems;
    if (first_elem >= tensor.elem_count) return;
    const std::uint64_t rest = tensor.elem_count - first_elem;
    const auto elem_count = static_cast<std::uint32_t>(
        rest < tensor.chunk_elems ? rest : std::uint64_t{tensor.chunk_elems});
    const Share share{.places = shared.places[group],
                      .chunk = static_cast<std::uint32_t>(chunk),
                      .place = lane.block * kGroups + group,
                      .first = lane.thread % kGroupLanes,
                      .elem_count = elem_count,
                      .first_elem = first_elem,
                      .words = (elem_count + kWordBits - 1) / kWordBits};
    static_cast<const Kernel&>(*this).step(phase, share);
  }

  // Gradient + residual of `count` elements of a quad.
  SLUICE_LANE Quad whole(const Share& share, std::uint32_t at, std::uint32_t count) const {
    const float* const gradient = tensor.gradient + share.first_elem + at;
    const float* const residual = tensor.residual + share.first_elem + at;
    Quad quad{};
    if (count == kQuad) {
      const Quad left = load_quad(gradient), right = load_quad(residual);
      for (std::uint32_t i = 0; i < kQuad; ++i) quad.values[i] = left.values[i] + right.values[i];
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

// What leaves of an element; all of it where there is no threshold.
struct Sieve {
  const float* threshold = nullptr;

  // The host packs what it pruned as gradient + residual again, with a residual of nothing.
  SLUICE_LANE float operator()(float value, float limit, Dtype wire) const {
    if (threshold == nullptr) return value;
    if (float_of(magnitude_of(value)) < limit) value = 0;
    return wire == Dtype::kFloat32 ? value : value + 0.0f;
  }
  SLUICE_LANE float limit() const { return threshold == nullptr ? 0 : *threshold; }
};

// Of one that changes formats.
template <Dtype kWire, class Kernel, int phases>
struct FormatKernel : ChunkKernel<Kernel, phases> {
  using ChunkKernel<Kernel, phases>::tensor;
  using ChunkKernel<Kernel, phases>::whole;
  static constexpr std::uint32_t kElemBytes = dtype_bytes(kWire);

  SLUICE_LANE static Format format(const Share& share) {
    if (kWire != Dtype::kInt8) return {.wire = kWire};
    return {.wire = kWire, .scale = scale_for(share.places.most)};
  }
  // Notes the greatest magnitude of what leaves.
  SLUICE_LANE void find_greatest(const Share& share, const Sieve& sieve) const {
    if (kWire != Dtype::kInt8) return;
    const float limit = sieve.limit();
    std::uint32_t most = 0;
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      const Quad quad = whole(share, at, count);
      for (std::uint32_t i = 0; i < kQuad; ++i) {
        const std::uint32_t magnitude = magnitude_of(sieve(quad.values[i], limit, kWire));
        most = most < magnitude ? magnitude : most;
      }
    });
    atomic_max(share.places.most, most);
  }
};

}  // namespace sluice::cuda
