// Kernels that turn chunks into payloads and back: a group of lanes a chunk. Layouts are those of
// aggregator/wire/sparse.h; what leaves, what stays and how it is rounded is what
// client/core/residuals.h does on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/sparse.h"
#include "client/device/cuda/formats.h"
#include "client/device/cuda/lanes.h"
#include "client/device/kernels.h"

namespace sluice::cuda {

inline constexpr std::uint32_t kGroupLanes = 32;
inline constexpr std::uint32_t kGroups = 8;  // of a block, each with a chunk
inline constexpr std::uint32_t kChunkThreads = kGroupLanes * kGroups;
inline constexpr std::uint32_t kWordBits = 32;
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
  SLUICE_LANE void set(std::uint32_t at) { atomic_or(words[at / kWordBits], 1u << at % kWordBits); }
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

  SLUICE_LANE Dtype wire() const { return static_cast<Dtype>(tensor.wire); }
  SLUICE_LANE float whole(const Share& share, std::uint32_t at) const {
    return tensor.gradient[share.first_elem + at] + tensor.residual[share.first_elem + at];
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

// Notes the greatest magnitude of what leaves.
template <class Kernel>
SLUICE_LANE void find_greatest(const Kernel& kernel, const Share& share, const Sieve& sieve) {
  if (kernel.wire() != Dtype::kInt8) return;
  const float limit = sieve.limit();
  std::uint32_t most = 0;
  for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes) {
    const std::uint32_t magnitude =
        magnitude_of(sieve(kernel.whole(share, at), limit, kernel.wire()));
    most = most < magnitude ? magnitude : most;
  }
  atomic_max(share.places.most, most);
}
template <class Kernel>
SLUICE_LANE Format format_of(const Kernel& kernel, const Share& share) {
  if (kernel.wire() != Dtype::kInt8) return {.wire = kernel.wire()};
  return {.wire = Dtype::kInt8, .scale = scale_for(share.places.most)};
}

// What leaves of a chunk as an entry, or dense where that is no longer, into its slot.
struct PackChunks : ChunkKernel<PackChunks, 5> {
  Sieve sieve;
  std::uint8_t* slots = nullptr;  // of dense_bytes() each
  std::uint64_t* sizes = nullptr;

  SLUICE_LANE void step(int phase, const Share& share) const {
    switch (phase) {
      case 0: return share.clear();
      case 1: return find_greatest(*this, share, sieve);
      case 2: return find_filled(share);
      case 3: return share.count();
      default: return write(share);
    }
  }

  SLUICE_LANE std::uint32_t element(const Share& share, std::uint32_t at, const Format& format,
                                    float limit) const {
    return format.encode(sieve(whole(share, at), limit, wire()));
  }
  SLUICE_LANE void find_filled(const Share& share) const {
    const Format format = format_of(*this, share);
    const float limit = sieve.limit();
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes)
      if (element(share, at, format, limit) != 0) share.places.set(at);
  }

  SLUICE_LANE void write(const Share& share) const {
    const Format format = format_of(*this, share);
    const auto elem_bytes = static_cast<std::uint32_t>(dtype_bytes(wire()));
    const std::uint32_t count = share.value_count();
    const std::size_t dense = payload_bytes(wire(), share.elem_count);
    const std::size_t entry = wire::entry_bytes(share.elem_count, count, wire());
    const bool is_dense = entry >= dense || (wire() == Dtype::kInt8 && !is_finite(format.scale));
    const float limit = sieve.limit();
    std::uint8_t* const slot = slots + std::size_t{share.chunk} * dense_bytes(tensor);
    std::uint8_t* const places = slot + sizeof(std::uint16_t);
    std::uint8_t* const values =
        is_dense ? slot : places + wire::places_bytes(share.elem_count, count);
    const bool is_bitmap = wire::uses_bitmap(share.elem_count, count);
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes) {
      if (!is_dense && !share.places.has(at)) continue;
      const std::uint32_t rank = is_dense ? at : share.places.rank_of(at);
      store_bits(values + rank * elem_bytes, element(share, at, format, limit), elem_bytes);
      if (!is_dense && !is_bitmap) store_bits(places + 2 * rank, at, 2);
    }
    if (!is_dense && is_bitmap) write_bitmap(share, places);
    if (share.first != 0) return;
    sizes[share.chunk] = is_dense ? dense : entry;
    if (!is_dense && entry == 0) return;
    if (!is_dense) store_bits(slot, count, 2);
    const std::uint32_t value_count = is_dense ? share.elem_count : count;
    if (wire() == Dtype::kInt8) store_bits(values + value_count, bits_of(format.scale), 4);
  }
  SLUICE_LANE void write_bitmap(const Share& share, std::uint8_t* to) const {
    const auto bytes = static_cast<std::uint32_t>(wire::bitmap_bytes(share.elem_count));
    for (std::uint32_t at = share.first; at < bytes; at += kGroupLanes)
      to[at] = static_cast<std::uint8_t>(share.places.words[at / 4] >> 8 * (at % 4));
  }
};

// What is in the slots, one behind the other.
struct GatherChunks : ChunkKernel<GatherChunks, 1> {
  const std::uint8_t* slots = nullptr;
  const std::uint64_t* offsets = nullptr;
  std::uint8_t* packed = nullptr;

  SLUICE_LANE void step(int, const Share& share) const {
    const std::uint64_t begin = offsets[share.chunk];
    const auto bytes = static_cast<std::uint32_t>(offsets[share.chunk + 1] - begin);
    const std::uint8_t* const slot = slots + std::size_t{share.chunk} * dense_bytes(tensor);
    for (std::uint32_t at = share.first; at < bytes; at += kGroupLanes)
      packed[begin + at] = slot[at];
  }
};

// Residuals once it is known what became of what PackChunks or ConvertChunks made of them.
struct SettleChunks : ChunkKernel<SettleChunks, 3> {
  Sieve sieve;
  const std::uint8_t* fates = nullptr;  // by chunk; null: all was delivered

  SLUICE_LANE void step(int phase, const Share& share) const {
    if (phase == 0) return share.clear();
    if (phase == 1) return find_greatest(*this, share, sieve);
    const std::uint8_t fate = fates == nullptr ? SLUICE_DEVICE_DELIVERED : fates[share.chunk];
    if (fate == SLUICE_DEVICE_OPEN) return;
    const Format format = format_of(*this, share);
    const float limit = sieve.limit();
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes) {
      float rest = fate == SLUICE_DEVICE_UNKNOWN ? 0 : whole(share, at);
      if (fate == SLUICE_DEVICE_DELIVERED)
        rest -= format.decode(format.encode(sieve(rest, limit, wire())));
      if (is_finite(rest)) tensor.residual[share.first_elem + at] = rest;
    }
  }
};

// Payloads of some chunks, of ConvertChunks' places, back into the residual.
struct GiveBackChunks : ChunkKernel<GiveBackChunks, 1> {
  const std::uint32_t* chunks = nullptr;
  const std::uint8_t* payloads = nullptr;
  std::uint32_t count = 0;

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    const std::uint32_t place = lane.block * kGroups + lane.thread / kGroupLanes;
    if (place < count) run_chunk(phase, lane, shared, chunks[place]);
  }
  SLUICE_LANE void step(int, const Share& share) const {
    const auto elem_bytes = static_cast<std::uint32_t>(dtype_bytes(wire()));
    const std::uint8_t* const payload = payloads + std::size_t{share.place} * dense_bytes(tensor);
    Format format{.wire = wire()};
    if (wire() == Dtype::kInt8) format.scale = float_of(load_bits(payload + share.elem_count, 4));
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes) {
      const float value = format.decode(load_bits(payload + at * elem_bytes, elem_bytes));
      const float sum = value + tensor.residual[share.first_elem + at];
      if (is_finite(sum)) tensor.residual[share.first_elem + at] = sum;
    }
  }
};

struct ScaleValues {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr int kPhases = 1;
  struct Shared {
    std::uint32_t unused;
  };

  float* values = nullptr;
  std::uint64_t count = 0;
  float factor = 1;

  SLUICE_LANE void run(int, Lane lane, Shared&) const {
    const std::uint64_t stride = std::uint64_t{lane.blocks} * kThreads;
    for (std::uint64_t at = std::uint64_t{lane.block} * kThreads + lane.thread; at < count;
         at += stride)
      values[at] *= factor;
  }
};

// All of it as dense payloads.
struct ConvertChunks : ChunkKernel<ConvertChunks, 3> {
  std::uint8_t* payloads = nullptr;

  SLUICE_LANE void step(int phase, const Share& share) const {
    if (phase == 0) return share.clear();
    if (phase == 1) return find_greatest(*this, share, {});
    const Format format = format_of(*this, share);
    const auto elem_bytes = static_cast<std::uint32_t>(dtype_bytes(wire()));
    std::uint8_t* const payload = payloads + std::size_t{share.chunk} * dense_bytes(tensor);
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes)
      store_bits(payload + at * elem_bytes, format.encode(whole(share, at)), elem_bytes);
    if (share.first == 0 && wire() == Dtype::kInt8)
      store_bits(payload + share.elem_count, bits_of(format.scale), 4);
  }
};

// Results, packed as PackChunks packs, into averages.
struct UnpackChunks : ChunkKernel<UnpackChunks, 4> {
  const std::uint8_t* packed = nullptr;
  const sluice_device_result* results = nullptr;
  float* output = nullptr;

  SLUICE_LANE void step(int phase, const Share& share) const {
    const sluice_device_result& result = results[share.chunk];
    const std::uint8_t* const from = packed + result.first_byte;
    const std::uint64_t bytes = result.bytes;
    const bool is_dense = bytes == payload_bytes(wire(), share.elem_count);
    const std::uint32_t count = is_dense ? share.elem_count : bytes == 0 ? 0 : load_bits(from, 2);
    if (phase == 0) return share.clear();
    if (phase == 1) return is_dense ? void() : find_places(share, from + 2, count);
    if (phase == 2) return share.count();
    const std::uint8_t* const values =
        is_dense ? from : from + 2 + wire::places_bytes(share.elem_count, count);
    write(share, is_dense, values, count);
  }

  SLUICE_LANE void find_places(const Share& share, const std::uint8_t* from,
                               std::uint32_t count) const {
    if (wire::uses_bitmap(share.elem_count, count)) {
      const auto bytes = static_cast<std::uint32_t>(wire::bitmap_bytes(share.elem_count));
      for (std::uint32_t at = share.first; at < bytes; at += kGroupLanes)
        atomic_or(share.places.words[at / 4], std::uint32_t{from[at]} << 8 * (at % 4));
    } else {
      for (std::uint32_t at = share.first; at < count; at += kGroupLanes)
        share.places.set(load_bits(from + 2 * at, 2));
    }
  }

  SLUICE_LANE void write(const Share& share, bool is_dense, const std::uint8_t* values,
                         std::uint32_t count) const {
    const auto elem_bytes = static_cast<std::uint32_t>(dtype_bytes(wire()));
    Format format{.wire = wire()};
    if (wire() == Dtype::kInt8 && count != 0) format.scale = float_of(load_bits(values + count, 4));
    const sluice_device_result& result = results[share.chunk];
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes) {
      std::uint32_t bits = 0;
      if (is_dense || share.places.has(at)) {
        const std::uint32_t rank = is_dense ? at : share.places.rank_of(at);
        bits = load_bits(values + rank * elem_bytes, elem_bytes);
      }
      output[share.first_elem + at] = format.decode(bits) * result.factor / result.divisor;
    }
  }
};

}  // namespace sluice::cuda
