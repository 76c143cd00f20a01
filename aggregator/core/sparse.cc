// The kernels of pruned gradients. This file includes itself once per instruction set (Highway's
// foreach_target.h); the part under HWY_ONCE at the end is compiled once and dispatches. Functions
// that touch only a few values are plain code there.
#include "aggregator/core/sparse.h"

#include <bit>
#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/base/limits.h"
#include "aggregator/core/fold.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/core/sparse.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "aggregator/core/fold_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void prune_all(const float* gradient, const float* residual, std::size_t elem_count,
               float threshold, float* out) {
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto value = hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i));
    const auto small = hn::Lt(hn::Abs(value), hn::Set(d, threshold));
    hn::StoreU(hn::IfThenZeroElse(small, value), d, out + i);
  });
}

void keep_rest_all(const float* gradient, float* residual, std::size_t elem_count,
                   const float* left) {
  over_lanes(elem_count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto value = hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual + i));
    keep_if_finite(d, hn::Sub(value, hn::LoadU(d, left + i)), residual + i);
  });
}

// The elements of a chunk that have a value: a bit for each, and their number.
struct Filled {
  std::uint64_t words[(kMaxChunkBytes + 63) / 64];  // an element has a byte at least
  std::size_t count = 0;
};

// `kernel(d, at)` returns it for the elements from `at` on, in lanes of T.
template <class T, class Kernel>
HWY_INLINE void find_filled(std::size_t elem_count, const Kernel& kernel, Filled& filled) {
  const hn::CappedTag<T, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto bits_at = [&](auto tag, std::size_t at) HWY_ATTR {
    std::uint64_t bits = 0;
    hn::StoreMaskBits(tag, kernel(tag, at), reinterpret_cast<std::uint8_t*>(&bits));
    return bits;
  };
  std::size_t first = 0;
  const auto close = [&](std::uint64_t word) HWY_ATTR {
    filled.words[first / 64] = word;
    filled.count += static_cast<std::size_t>(std::popcount(word));
  };
  for (; first + 64 <= elem_count; first += 64) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < 64; i += lanes) word |= bits_at(d, first + i) << i;
    close(word);
  }
  DCHECK(filled.count <= first);
  if (first == elem_count) return;
  std::uint64_t word = 0;
  std::size_t at = first;
  for (; at + lanes <= elem_count; at += lanes) word |= bits_at(d, at) << (at - first);
  for (; at < elem_count; ++at) word |= bits_at(hn::CappedTag<T, 1>(), at) << (at - first);
  close(word);
}

// Writes the entry: the places of the values, as a bitmap or as indices, and the values, each by
// `copy(place, to)`. One loop does both, because its trip count, the number of values of a word, is
// mispredicted. Returns its bytes, as compress().
template <std::size_t elem_bytes, class Copy>
HWY_INLINE std::size_t write_entry(const Filled& filled, std::size_t elem_count, Dtype dtype,
                                   std::span<std::uint8_t> out, const Copy& copy) {
  const std::size_t bytes = wire::entry_bytes(elem_count, filled.count, dtype);
  if (bytes > out.size()) return kNotCompressed;
  if (filled.count == 0) return 0;
  const auto count = static_cast<std::uint16_t>(filled.count);
  std::memcpy(out.data(), &count, sizeof count);
  std::uint8_t* places = out.data() + sizeof count;
  std::uint8_t* values = places + wire::places_bytes(elem_count, count);
  const bool as_bitmap = wire::uses_bitmap(elem_count, count);
  if (as_bitmap) std::memcpy(places, filled.words, wire::bitmap_bytes(elem_count));
  for (std::size_t first = 0; first < elem_count; first += 64)
    for (std::uint64_t word = filled.words[first / 64]; word != 0; word &= word - 1) {
      const std::size_t place = first + static_cast<std::size_t>(std::countr_zero(word));
      const auto index = static_cast<std::uint16_t>(place);
      if (!as_bitmap) {
        std::memcpy(places, &index, sizeof index);
        places += sizeof index;
      }
      copy(place, values);
      values += elem_bytes;
    }
  DCHECK(values + (dtype == Dtype::kInt8 ? kScaleBytes : 0) == out.data() + bytes);
  return bytes;
}

template <class T>
std::size_t compress_as(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype,
                        std::span<std::uint8_t> out) {
  Filled filled;
  find_filled<T>(
      elem_count,
      [&](auto d, std::size_t at)
          HWY_ATTR { return hn::Ne(load_bits(d, payload + at * sizeof(T)), hn::Zero(d)); },
      filled);
  return write_entry<sizeof(T)>(filled, elem_count, dtype, out,
                                [&](std::size_t place, std::uint8_t* to) HWY_ATTR {
                                  std::memcpy(to, payload + place * sizeof(T), sizeof(T));
                                });
}

std::size_t compress_any(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype,
                         std::span<std::uint8_t> out) {
  if (dtype_bytes(dtype) == 4) return compress_as<std::uint32_t>(payload, elem_count, dtype, out);
  if (dtype_bytes(dtype) == 2) return compress_as<std::uint16_t>(payload, elem_count, dtype, out);
  return compress_as<std::uint8_t>(payload, elem_count, dtype, out);
}

// The elements that prune_all() does not make zero.
std::size_t compress_pruned_all(const float* gradient, const float* residual,
                                std::size_t elem_count, float threshold,
                                std::span<std::uint8_t> out) {
  Filled filled;
  find_filled<float>(
      elem_count,
      [&](auto d, std::size_t at) HWY_ATTR {
        const auto value = hn::Add(hn::LoadU(d, gradient + at), hn::LoadU(d, residual + at));
        const auto small = hn::Lt(hn::Abs(value), hn::Set(d, threshold));
        const hn::RebindToUnsigned<decltype(d)> bits;
        return hn::AndNot(small,
                          hn::RebindMask(d, hn::Ne(hn::BitCast(bits, value), hn::Zero(bits))));
      },
      filled);
  return write_entry<sizeof(float)>(filled, elem_count, Dtype::kFloat32, out,
                                    [&](std::size_t place, std::uint8_t* to) HWY_ATTR {
                                      const float value = gradient[place] + residual[place];
                                      std::memcpy(to, &value, sizeof value);
                                    });
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::agg {
namespace {

HWY_EXPORT(prune_all);
HWY_EXPORT(keep_rest_all);
HWY_EXPORT(compress_any);
HWY_EXPORT(compress_pruned_all);

template <std::size_t elem_bytes>
void read_values(const wire::SparseEntry& entry, std::size_t elem_count, std::uint8_t* payload) {
  const std::uint8_t* from = entry.values;
  wire::for_each_place(entry, elem_count, [&](std::size_t place) {
    std::memcpy(payload + place * elem_bytes, from, elem_bytes);
    from += elem_bytes;
  });
  DCHECK(from == entry.values + entry.value_count * elem_bytes);
}

bool has_finite_scale(const std::uint8_t* payload, std::size_t elem_count) {
  float scale;
  std::memcpy(&scale, payload + elem_count, sizeof scale);
  return scale - scale == 0;
}

}  // namespace

void prune(const float* gradient, const float* residual, std::size_t elem_count, float threshold,
           float* out) noexcept {
  DCHECK(threshold >= 0);
  HWY_DYNAMIC_DISPATCH(prune_all)(gradient, residual, elem_count, threshold, out);
}

void keep_rest(const float* gradient, float* residual, std::size_t elem_count,
               const float* left) noexcept {
  HWY_DYNAMIC_DISPATCH(keep_rest_all)(gradient, residual, elem_count, left);
}

std::size_t compress(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype,
                     std::span<std::uint8_t> out) noexcept {
  CHECK(is_summed(dtype) && elem_count * dtype_bytes(dtype) <= kMaxChunkBytes);
  if (dtype == Dtype::kInt8 && !has_finite_scale(payload, elem_count)) return kNotCompressed;
  const std::size_t bytes = HWY_DYNAMIC_DISPATCH(compress_any)(payload, elem_count, dtype, out);
  if (dtype == Dtype::kInt8 && bytes != 0 && bytes != kNotCompressed)
    std::memcpy(&out[bytes - kScaleBytes], payload + elem_count, kScaleBytes);
  DCHECK(bytes <= out.size() || bytes == kNotCompressed);
  return bytes;
}

std::size_t compress_pruned(const float* gradient, const float* residual, std::size_t elem_count,
                            float threshold, std::span<std::uint8_t> out) noexcept {
  DCHECK(threshold >= 0);
  CHECK(elem_count * sizeof(float) <= kMaxChunkBytes);
  return HWY_DYNAMIC_DISPATCH(compress_pruned_all)(gradient, residual, elem_count, threshold, out);
}

void expand(const wire::SparseEntry& entry, std::size_t elem_count, Dtype dtype,
            std::uint8_t* payload) noexcept {
  DCHECK(entry.value_count <= elem_count && payload_bytes(dtype, elem_count) <= kMaxChunkBytes);
  std::memset(payload, 0, payload_bytes(dtype, elem_count));
  if (entry.value_count == 0) return;
  if (dtype_bytes(dtype) == 4) return read_values<4>(entry, elem_count, payload);
  if (dtype_bytes(dtype) == 2) return read_values<2>(entry, elem_count, payload);
  read_values<1>(entry, elem_count, payload);
  std::memcpy(payload + elem_count, entry.values + entry.value_count, kScaleBytes);
}

void add_sparse(float* acc, const wire::SparseEntry& entry, std::size_t elem_count,
                Dtype dtype) noexcept {
  DCHECK(entry.value_count <= elem_count && elem_count <= kMaxChunkBytes);
  if (entry.value_count == 0) return;
  alignas(64) float values[kMaxChunkBytes];
  fold_store(values, entry.values, entry.value_count, dtype);
  const float* next = values;
  wire::for_each_place(entry, elem_count, [&](std::size_t place) { acc[place] += *next++; });
  DCHECK(next == values + entry.value_count);
}

}  // namespace sluice::agg
#endif  // HWY_ONCE
