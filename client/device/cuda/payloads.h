// Kernels that pack chunks into payloads and unpack results, one for each wire format. Layouts are
// those of aggregator/wire/sparse.h. Pruning, rounding and residuals equal those of
// client/core/calls/residuals.h on the host.
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

// Packs the elements of a chunk that leave as an entry, or as a dense payload where an entry is not
// shorter. A block reserves the bytes of all its chunks at once, behind those of other blocks: a
// counter that every chunk increments is slower than the memory.
template <Dtype kWire>
struct PackChunks : FormatKernel<kWire, PackChunks<kWire>, 7> {
  using Base = FormatKernel<kWire, PackChunks<kWire>, 7>;
  using Base::kElemBytes, Base::tensor, Base::for_each_whole;
  using typename Base::Shared;
  static constexpr int kSummed = 3;
  static constexpr int kAllWait = 5;

  Sieve sieve;
  std::uint8_t* packed = nullptr;
  std::uint64_t* extents = nullptr;
  std::uint64_t* total = nullptr;  // of bytes
  std::uint32_t chunks = 0;

  SLUICE_LANE std::uint32_t step(int phase, const Share& share, Shared& shared) const {
    if (phase == 0) Base::clear(share);
    if (phase == 1) Base::find_greatest(share, sieve);
    if (phase == 2) find_filled(share);
    if (phase == 3) return count_filled(share);
    if (phase == 4 && share.first == 0) shared.bytes[share.group] = bytes_of(share);
    if (phase == 5 && share.first == 0 && share.group == 0) take_place(share.chunk, shared);
    if (phase == 6) write(share, shared);
    return 0;
  }

  SLUICE_LANE static std::uint32_t fours(const Share& share) {
    return (share.elem_count + 4 * kQuad - 1) / (4 * kQuad);
  }
  // The filled elements of four quads: bits 0 to 3 of each byte.
  SLUICE_LANE static std::uint32_t filled(const Share& share, std::uint32_t four) {
    return load_aligned<std::uint32_t>(share.quads + 4 * four);
  }
  SLUICE_LANE void find_filled(const Share& share) const {
    const Format format = Base::format(share);
    const float limit = sieve.limit();
    for_each_whole(share, [&](std::uint32_t at, std::uint32_t, const Quad& quad) {
      std::uint32_t filled = 0;
      for (std::uint32_t i = 0; i < kQuad; ++i)
        filled |= std::uint32_t{!format.vanishes(sieve(quad.values[i], limit, kWire))} << i;
      share.quads[at / kQuad] = static_cast<std::uint8_t>(filled);
    });
    // Clears the quads behind the chunk, up to the end of the last four.
    const std::uint32_t behind = (share.elem_count + kQuad - 1) / kQuad + share.first;
    if (behind < 4 * fours(share)) share.quads[behind] = 0;
  }
  SLUICE_LANE static std::uint32_t count_filled(const Share& share) {
    std::uint32_t count = 0;
    share.for_each_in_run(fours(share),
                          [&](std::uint32_t four) { count += bits_set(filled(share, four)); });
    return count;
  }

  SLUICE_LANE static bool is_dense(const Share& share) {
    return wire::entry_bytes(share.elem_count, share.total, kWire) >=
               payload_bytes(kWire, share.elem_count) ||
           (kWire == Dtype::kInt8 && !is_finite(Base::format(share).scale));
  }
  SLUICE_LANE static std::uint32_t bytes_of(const Share& share) {
    return static_cast<std::uint32_t>(
        is_dense(share) ? payload_bytes(kWire, share.elem_count)
                        : wire::entry_bytes(share.elem_count, share.total, kWire));
  }
  SLUICE_LANE void take_place(std::uint32_t first, Shared& shared) const {
    const std::uint32_t groups = chunks - first < kGroups ? chunks - first : kGroups;
    std::uint64_t bytes = 0;
    for (std::uint32_t group = 0; group < groups; ++group) bytes += shared.bytes[group];
    shared.first_byte = atomic_add(*total, bytes);
  }
  SLUICE_LANE void write(const Share& share, const Shared& shared) const {
    std::uint64_t first = shared.first_byte;
    for (std::uint32_t group = 0; group < share.group; ++group) first += shared.bytes[group];
    const std::uint32_t bytes = shared.bytes[share.group];
    if (share.first == 0) extents[share.chunk] = first << SLUICE_DEVICE_EXTENT_BITS | bytes;
    if (bytes == 0) return;
    const Format format = Base::format(share);
    std::uint8_t* const to = packed + first;
    if (is_dense(share))
      write_dense(share, format, to);
    else
      write_entry(share, format, to);
    if (kWire == Dtype::kInt8 && share.first == 0)
      store_bits(to + bytes - sizeof(float), bits_of(format.scale), sizeof(float));
  }
  SLUICE_LANE void write_dense(const Share& share, const Format& format, std::uint8_t* to) const {
    const float limit = sieve.limit();
    for_each_whole(share, [&](std::uint32_t at, std::uint32_t count, const Quad& quad) {
      std::uint32_t bits[kQuad];
      for (std::uint32_t i = 0; i < kQuad; ++i)
        bits[i] = format.encode(sieve(quad.values[i], limit, kWire));
      store_some<kElemBytes>(to + at * kElemBytes, bits, count);
    });
  }
  // Each lane writes the filled elements of its run of fours.
  SLUICE_LANE void write_entry(const Share& share, const Format& format, std::uint8_t* to) const {
    const float limit = sieve.limit();
    const bool is_bitmap = wire::uses_bitmap(share.elem_count, share.total);
    std::uint8_t* const places = to + sizeof(std::uint16_t);
    std::uint8_t* const values = places + wire::places_bytes(share.elem_count, share.total);
    std::uint32_t rank = share.before;
    share.for_each_in_run(fours(share), [&](std::uint32_t four) {
      for (std::uint32_t bits = filled(share, four); bits != 0; bits &= bits - 1, ++rank) {
        const std::uint32_t bit = lowest_bit(bits);
        const std::uint32_t at = (4 * four + bit / 8) * kQuad + bit % 8;
        const std::uint64_t elem = share.first_elem + at;
        const float value = sieve(tensor.gradient[elem] + tensor.residual[elem], limit, kWire);
        store_bits(values + rank * kElemBytes, format.encode(value), kElemBytes);
        if (!is_bitmap) store_bits(places + 2 * rank, at, 2);
      }
    });
    if (is_bitmap) write_bitmap(share, places);
    if (share.first == 0) store_bits(to, share.total, 2);
  }
  SLUICE_LANE void write_bitmap(const Share& share, std::uint8_t* to) const {
    const auto bytes = static_cast<std::uint32_t>(wire::bitmap_bytes(share.elem_count));
    for (std::uint32_t at = share.first; at < bytes; at += kGroupLanes)
      to[at] = static_cast<std::uint8_t>(share.quads[2 * at] | share.quads[2 * at + 1] << 4);
  }
};

// Updates residuals once the fate of each chunk that PackChunks or ConvertChunks packed is known.
template <Dtype kWire>
struct UpdateResiduals : FormatKernel<kWire, UpdateResiduals<kWire>, 3> {
  using Base = FormatKernel<kWire, UpdateResiduals<kWire>, 3>;
  using Base::tensor, Base::for_each_whole;

  Sieve sieve;
  const std::uint8_t* fates = nullptr;  // by chunk; null: all was delivered

  SLUICE_LANE std::uint32_t step(int phase, const Share& share, const auto& /*shared*/) const {
    if (phase == 0) Base::clear(share);
    if (phase == 1) Base::find_greatest(share, sieve);
    if (phase == 2) update(share);
    return 0;
  }
  SLUICE_LANE void update(const Share& share) const {
    const std::uint32_t fate =
        fates == nullptr ? std::uint32_t{SLUICE_DEVICE_DELIVERED} : fates[share.chunk];
    if (fate == SLUICE_DEVICE_OPEN) return;
    if (fate == SLUICE_DEVICE_UNKNOWN)
      return share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
        Base::store(tensor.residual, share, at, count, Quad{});
      });
    const Format format = Base::format(share);
    const float limit = sieve.limit();
    for_each_whole(share, [&](std::uint32_t at, std::uint32_t count, Quad rests) {
      bool finite = true;
      for (float& rest : rests.values) {
        if (fate == SLUICE_DEVICE_DELIVERED)
          rest -= format.decode(format.encode(sieve(rest, limit, kWire)));
        finite = finite && is_finite(rest);
      }
      if (finite) return Base::store(tensor.residual, share, at, count, rests);
      for (std::uint32_t i = 0; i < count; ++i)
        if (is_finite(rests.values[i]))
          tensor.residual[share.first_elem + at + i] = rests.values[i];
    });
  }
};

// Adds payloads of some chunks, as far apart as ConvertChunks has them, to the residual.
struct GiveBackChunks : ChunkKernel<GiveBackChunks, 1> {
  const std::uint32_t* chunks = nullptr;
  const std::uint8_t* payloads = nullptr;
  std::uint32_t count = 0;

  SLUICE_LANE void run(int phase, Lane lane, Shared& shared) const {
    const std::uint32_t place = lane.block * kGroups + lane.thread / kGroupLanes;
    if (place < count) (void)run_chunk(phase, lane, shared, chunks[place]);
  }
  SLUICE_LANE std::uint32_t step(int, const Share& share, const auto& /*shared*/) const {
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
    return 0;
  }
};

struct ScaleValues {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr int kPhases = 1;
  static constexpr int kAllWait = 1;
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

// Packs all elements as dense payloads.
template <Dtype kWire>
struct ConvertChunks : FormatKernel<kWire, ConvertChunks<kWire>, 3> {
  using Base = FormatKernel<kWire, ConvertChunks<kWire>, 3>;
  using Base::kElemBytes, Base::tensor, Base::for_each_whole;

  std::uint8_t* payloads = nullptr;

  SLUICE_LANE std::uint32_t step(int phase, const Share& share, const auto& /*shared*/) const {
    if (phase == 0) Base::clear(share);
    if (phase == 1) Base::find_greatest(share, Sieve{});
    if (phase == 2) write(share);
    return 0;
  }
  SLUICE_LANE void write(const Share& share) const {
    const Format format = Base::format(share);
    std::uint8_t* const payload = payloads + std::size_t{share.chunk} * dense_bytes(tensor);
    for_each_whole(share, [&](std::uint32_t at, std::uint32_t count, const Quad& quad) {
      std::uint32_t bits[kQuad];
      for (std::uint32_t i = 0; i < kQuad; ++i) bits[i] = format.encode(quad.values[i]);
      store_some<kElemBytes>(payload + at * kElemBytes, bits, count);
    });
    if (share.first == 0 && kWire == Dtype::kInt8)
      store_bits(payload + share.elem_count, bits_of(format.scale), 4);
  }
};

// Turns a sum into an average, rounded as the host's multiplication and division are. A division by
// a power of two equals a multiplication, exactly.
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

// Unpacks results, packed as PackChunks packs, into averages. A sparse chunk is first filled with
// the average of zero, then its values are written.
template <Dtype kWire>
struct UnpackChunks : FormatKernel<kWire, UnpackChunks<kWire>, 2> {
  using Base = FormatKernel<kWire, UnpackChunks<kWire>, 2>;
  using Base::kElemBytes, Base::tensor;
  static constexpr int kSummed = 0;

  const std::uint8_t* packed = nullptr;
  const sluice_device_result* results = nullptr;
  float* output = nullptr;

  SLUICE_LANE std::uint32_t step(int phase, const Share& share, const auto& /*shared*/) const {
    const sluice_device_result& result = results[share.chunk];
    const std::uint8_t* const from = packed + result.first_byte;
    const Average average(result);
    const bool is_dense = result.bytes == payload_bytes(kWire, share.elem_count);
    const std::uint32_t count = is_dense || result.bytes == 0 ? 0 : load_bits(from, 2);
    const std::uint8_t* const places = from + sizeof(std::uint16_t);
    if (phase == 0) {
      if (is_dense)
        write_dense(share, average, from);
      else
        clear(share, average);
      return wire::uses_bitmap(share.elem_count, count) ? count_filled(share, places) : 0;
    }
    if (count != 0) write_entry(share, average, count, places);
    return 0;
  }

  SLUICE_LANE static std::uint32_t count_filled(const Share& share, const std::uint8_t* bitmap) {
    const auto bytes = static_cast<std::uint32_t>(wire::bitmap_bytes(share.elem_count));
    std::uint32_t count = 0;
    share.for_each_in_run(bytes, [&](std::uint32_t at) { count += bits_set(bitmap[at]); });
    return count;
  }
  SLUICE_LANE void write_entry(const Share& share, const Average& average, std::uint32_t count,
                               const std::uint8_t* places) const {
    const std::uint8_t* const values = places + wire::places_bytes(share.elem_count, count);
    const Format format = format_of(values, count);
    const auto write = [&](std::uint32_t at, std::uint32_t rank) {
      const std::uint32_t bits = load_bits(values + rank * kElemBytes, kElemBytes);
      output[share.first_elem + at] = average(format.decode(bits));
    };
    if (!wire::uses_bitmap(share.elem_count, count)) {
      for (std::uint32_t rank = share.first; rank < count; rank += kGroupLanes)
        write(load_bits(places + 2 * rank, 2), rank);
      return;
    }
    const auto bytes = static_cast<std::uint32_t>(wire::bitmap_bytes(share.elem_count));
    std::uint32_t rank = share.before;
    share.for_each_in_run(bytes, [&](std::uint32_t byte) {
      for (std::uint32_t bits = places[byte]; bits != 0; bits &= bits - 1)
        write(8 * byte + lowest_bit(bits), rank++);
    });
  }

  SLUICE_LANE static Format format_of(const std::uint8_t* values, std::uint32_t count) {
    if (kWire != Dtype::kInt8) return {.wire = kWire};
    return {.wire = kWire, .scale = float_of(load_bits(values + count, sizeof(float)))};
  }
  SLUICE_LANE void clear(const Share& share, const Average& average) const {
    const float nothing = average(0);
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      Base::store(output, share, at, count, {{nothing, nothing, nothing, nothing}});
    });
  }
  SLUICE_LANE void write_dense(const Share& share, const Average& average,
                               const std::uint8_t* from) const {
    const Format format = format_of(from, share.elem_count);
    share.for_each_quad([&](std::uint32_t at, std::uint32_t count) {
      std::uint32_t bits[kQuad] = {};
      if (count == kQuad)
        load_four<kElemBytes>(from + at * kElemBytes, bits);
      else
        for (std::uint32_t i = 0; i < count; ++i)
          bits[i] = load_bits(from + (at + i) * kElemBytes, kElemBytes);
      Quad quad;
      for (std::uint32_t i = 0; i < kQuad; ++i) quad.values[i] = average(format.decode(bits[i]));
      Base::store(output, share, at, count, quad);
    });
  }
};

}  // namespace sluice::cuda
