// Kernels that turn chunks into payloads and back, one a format where elements change theirs.
// Layouts are those of aggregator/wire/sparse.h; what leaves, what stays and how it is rounded is
// what client/core/residuals.h does on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/wire/sparse.h"
#include "client/device/cuda/chunks.h"
#include "client/device/cuda/formats.h"
#include "client/device/cuda/lanes.h"
#include "client/device/kernels.h"

namespace sluice::cuda {

// What leaves of a chunk as an entry, or dense where that is no longer, into its slot.
template <Dtype kWire>
struct PackChunks : FormatKernel<kWire, PackChunks<kWire>, 5> {
  using Base = FormatKernel<kWire, PackChunks<kWire>, 5>;
  using Base::kElemBytes, Base::tensor, Base::whole;

  Sieve sieve;
  std::uint8_t* slots = nullptr;  // of dense_bytes() each
  std::uint64_t* sizes = nullptr;

  SLUICE_LANE void step(int phase, const Share& share) const {
    switch (phase) {
      case 0: return share.clear();
      case 1: return Base::find_greatest(share, sieve);
      case 2: return find_filled(share);
      case 3: return share.count();
      default: return write(share);
    }
  }

  SLUICE_LANE void find_filled(const Share& share) const {
    const Format format = Base::format(share);
    const float limit = sieve.limit();
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      const Quad quad = whole(share, at, count);
      std::uint32_t filled = 0;
      for (std::uint32_t i = 0; i < kQuad; ++i) {
        const float value = sieve(quad.values[i], limit, kWire);
        filled |= std::uint32_t{format.encode(value) != 0} << i;
      }
      if (filled != 0) share.places.set(at, filled);
    });
  }

  SLUICE_LANE void write(const Share& share) const {
    const Format format = Base::format(share);
    const std::uint32_t count = share.value_count();
    const std::size_t dense = payload_bytes(kWire, share.elem_count);
    const std::size_t entry = wire::entry_bytes(share.elem_count, count, kWire);
    const bool is_dense = entry >= dense || (kWire == Dtype::kInt8 && !is_finite(format.scale));
    std::uint8_t* const slot = slots + std::size_t{share.chunk} * dense_bytes(tensor);
    std::uint8_t* const places = slot + sizeof(std::uint16_t);
    std::uint8_t* const values =
        is_dense ? slot : places + wire::places_bytes(share.elem_count, count);
    const bool is_bitmap = wire::uses_bitmap(share.elem_count, count);
    if (is_dense || count != 0)
      write_values(share, format, is_dense, is_dense || is_bitmap ? nullptr : places, values);
    if (!is_dense && is_bitmap) write_bitmap(share, places);
    if (share.first != 0) return;
    sizes[share.chunk] = is_dense ? dense : entry;
    if (share.first_elem + share.elem_count == tensor.elem_count) sizes[share.chunk + 1] = 0;
    if (!is_dense && entry == 0) return;
    if (!is_dense) store_bits(slot, count, 2);
    const std::uint32_t value_count = is_dense ? share.elem_count : count;
    if (kWire == Dtype::kInt8) store_bits(values + value_count, bits_of(format.scale), 4);
  }
  SLUICE_LANE void write_values(const Share& share, const Format& format, bool is_dense,
                                std::uint8_t* places, std::uint8_t* values) const {
    const float limit = sieve.limit();
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      const std::uint32_t filled = is_dense ? (1u << count) - 1 : share.places.quad_at(at);
      if (filled == 0) return;
      const Quad quad = whole(share, at, count);
      std::uint32_t rank = is_dense ? at : share.places.rank_of(at);
      for (std::uint32_t i = 0; i < kQuad; ++i) {
        if ((filled >> i & 1) == 0) continue;
        store_bits(values + rank * kElemBytes, format.encode(sieve(quad.values[i], limit, kWire)),
                   kElemBytes);
        if (places != nullptr) store_bits(places + 2 * rank, at + i, 2);
        ++rank;
      }
    });
  }
  SLUICE_LANE void write_bitmap(const Share& share, std::uint8_t* to) const {
    const auto bytes = static_cast<std::uint32_t>(wire::bitmap_bytes(share.elem_count));
    for (std::uint32_t at = share.first; at < bytes; at += kGroupLanes)
      to[at] = static_cast<std::uint8_t>(share.places.words[at / 4] >> 8 * (at % 4));
  }
};

// What is in the slots, one behind the other: each group has several, so that the reads of one are
// under way while another's are waited for.
struct GatherChunks {
  static constexpr std::uint32_t kThreads = kChunkThreads;
  static constexpr std::uint32_t kTogether = kGroupLanes;
  static constexpr int kPhases = 1;
  static constexpr std::uint32_t kEach = 4;  // slots of a group
  struct Shared {
    std::uint32_t unused;
  };

  sluice_device_tensor tensor;
  const std::uint8_t* slots = nullptr;
  const std::uint64_t* offsets = nullptr;
  std::uint8_t* packed = nullptr;

  SLUICE_LANE void run(int, Lane lane, Shared&) const {
    const std::uint32_t count = chunk_count(tensor);
    const std::uint32_t begin = (lane.block * kGroups + lane.thread / kGroupLanes) * kEach;
    const std::uint32_t first = lane.thread % kGroupLanes;
    std::uint64_t from[kEach] = {}, bytes[kEach] = {};
    for (std::uint32_t i = 0; i < kEach; ++i) {
      if (begin + i >= count) continue;
      from[i] = offsets[begin + i];
      bytes[i] = offsets[begin + i + 1] - from[i];
    }
    std::uint8_t heads[kEach] = {};
    for (std::uint32_t i = 0; i < kEach; ++i)
      if (first < bytes[i]) heads[i] = slot(begin + i)[first];
    for (std::uint32_t i = 0; i < kEach; ++i) {
      if (first < bytes[i]) packed[from[i] + first] = heads[i];
      for (std::uint64_t at = first + kGroupLanes; at < bytes[i]; at += kGroupLanes)
        packed[from[i] + at] = slot(begin + i)[at];
    }
  }
  SLUICE_LANE const std::uint8_t* slot(std::uint32_t chunk) const {
    return slots + std::size_t{chunk} * dense_bytes(tensor);
  }
};

// Residuals once it is known what became of what PackChunks or ConvertChunks made of them.
template <Dtype kWire>
struct UpdateResiduals : FormatKernel<kWire, UpdateResiduals<kWire>, 3> {
  using Base = FormatKernel<kWire, UpdateResiduals<kWire>, 3>;
  using Base::tensor, Base::whole;

  Sieve sieve;
  const std::uint8_t* fates = nullptr;  // by chunk; null: all was delivered

  SLUICE_LANE void step(int phase, const Share& share) const {
    if (phase == 0) return share.clear();
    if (phase == 1) return Base::find_greatest(share, sieve);
    const std::uint32_t fate =
        fates == nullptr ? std::uint32_t{SLUICE_DEVICE_DELIVERED} : fates[share.chunk];
    if (fate == SLUICE_DEVICE_OPEN) return;
    const Format format = Base::format(share);
    const float limit = sieve.limit();
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      const Quad quad = fate == SLUICE_DEVICE_UNKNOWN ? Quad{} : whole(share, at, count);
      Quad rests{};
      bool finite = true;
      for (std::uint32_t i = 0; i < kQuad; ++i) {
        float rest = quad.values[i];
        if (fate == SLUICE_DEVICE_DELIVERED)
          rest -= format.decode(format.encode(sieve(rest, limit, kWire)));
        finite = finite && is_finite(rest);
        rests.values[i] = rest;
      }
      if (finite) return Base::store(tensor.residual, share, at, count, rests);
      for (std::uint32_t i = 0; i < count; ++i)
        if (is_finite(rests.values[i]))
          tensor.residual[share.first_elem + at + i] = rests.values[i];
    });
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
    const auto wire = static_cast<Dtype>(tensor.wire);
    const auto elem_bytes = static_cast<std::uint32_t>(dtype_bytes(wire));
    const std::uint8_t* const payload = payloads + std::size_t{share.place} * dense_bytes(tensor);
    Format format{.wire = wire};
    if (wire == Dtype::kInt8) format.scale = float_of(load_bits(payload + share.elem_count, 4));
    for (std::uint32_t at = share.first; at < share.elem_count; at += kGroupLanes) {
      const float value = format.decode(load_bits(payload + at * elem_bytes, elem_bytes));
      const float sum = value + tensor.residual[share.first_elem + at];
      if (is_finite(sum)) tensor.residual[share.first_elem + at] = sum;
    }
  }
};

struct ScaleValues {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kTogether = kThreads;
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
template <Dtype kWire>
struct ConvertChunks : FormatKernel<kWire, ConvertChunks<kWire>, 3> {
  using Base = FormatKernel<kWire, ConvertChunks<kWire>, 3>;
  using Base::kElemBytes, Base::tensor, Base::whole;

  std::uint8_t* payloads = nullptr;

  SLUICE_LANE void step(int phase, const Share& share) const {
    if (phase == 0) return share.clear();
    if (phase == 1) return Base::find_greatest(share, Sieve{});
    const Format format = Base::format(share);
    std::uint8_t* const payload = payloads + std::size_t{share.chunk} * dense_bytes(tensor);
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      const Quad quad = whole(share, at, count);
      std::uint32_t bits[kQuad];
      for (std::uint32_t i = 0; i < kQuad; ++i) bits[i] = format.encode(quad.values[i]);
      std::uint8_t* const to = payload + at * kElemBytes;
      if (count == kQuad) return store_four<kElemBytes>(to, bits);
      for (std::uint32_t i = 0; i < count; ++i)
        store_bits(to + i * kElemBytes, bits[i], kElemBytes);
    });
    if (share.first == 0 && kWire == Dtype::kInt8)
      store_bits(payload + share.elem_count, bits_of(format.scale), 4);
  }
};

// A sum into an average, rounded as the host's multiplication and division are. A division by a
// power of two is a multiplication, exactly.
struct Average {
  float factor = 1;
  float divisor = 1;
  float inverse = 0;  // of the divisor, where that is a power of two

  SLUICE_LANE explicit Average(const sluice_device_result& result)
      : factor(result.factor), divisor(result.divisor) {
    if ((bits_of(divisor) & 0x7fffffu) == 0 && divisor >= 1 && divisor < 0x1p100f)
      inverse = 1 / divisor;
  }
  SLUICE_LANE float operator()(float sum) const {
    const float product = sum * factor;
    return inverse != 0 ? product * inverse : product / divisor;
  }
};

// Results, packed as PackChunks packs, into averages.
template <Dtype kWire>
struct UnpackChunks : FormatKernel<kWire, UnpackChunks<kWire>, 4> {
  using Base = FormatKernel<kWire, UnpackChunks<kWire>, 4>;
  using Base::kElemBytes, Base::tensor;

  const std::uint8_t* packed = nullptr;
  const sluice_device_result* results = nullptr;
  float* output = nullptr;

  SLUICE_LANE void step(int phase, const Share& share) const {
    const sluice_device_result& result = results[share.chunk];
    const std::uint8_t* const from = packed + result.first_byte;
    const std::uint64_t bytes = result.bytes;
    const bool is_dense = bytes == payload_bytes(kWire, share.elem_count);
    const std::uint32_t count = is_dense ? share.elem_count : bytes == 0 ? 0 : load_bits(from, 2);
    if (phase == 0) return share.clear();
    if (phase == 1) return is_dense ? void() : find_places(share, from + 2, count);
    if (phase == 2) return is_dense ? void() : share.count();
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
                         std::uint32_t value_count) const {
    Format format{.wire = kWire};
    if (kWire == Dtype::kInt8 && value_count != 0)
      format.scale = float_of(load_bits(values + value_count, 4));
    const Average average(results[share.chunk]);
    const float nothing = average(format.decode(0));
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      Quad quad{{nothing, nothing, nothing, nothing}};
      const std::uint32_t filled = is_dense ? (1u << count) - 1 : share.places.quad_at(at);
      if (filled != 0) {
        std::uint32_t rank = is_dense ? at : share.places.rank_of(at);
        std::uint32_t bits[kQuad] = {};
        if (filled == 0xfu) {
          load_four<kElemBytes>(values + rank * kElemBytes, bits);
        } else {
          for (std::uint32_t i = 0; i < kQuad; ++i) {
            const std::uint32_t is_there = filled >> i & 1;
            if (is_there != 0) bits[i] = load_bits(values + rank * kElemBytes, kElemBytes);
            rank += is_there;
          }
        }
        for (std::uint32_t i = 0; i < kQuad; ++i)
          if ((filled >> i & 1) != 0) quad.values[i] = average(format.decode(bits[i]));
      }
      Base::store(output, share, at, count, quad);
    });
  }
};

}  // namespace sluice::cuda
