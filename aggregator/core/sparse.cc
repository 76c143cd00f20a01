// The kernels of pruned gradients. This file includes itself once per instruction set (Highway's
// foreach_target.h); the part under HWY_ONCE at the end is compiled once and dispatches. What
// touches a few values only is plain code there.
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

// Bit i of the result: element first + i of a payload has a bit. Of `count` elements, at most 64.
template <class T>
HWY_INLINE std::uint64_t filled_of(const std::uint8_t* from, std::size_t count) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t filled = 0;
  std::size_t i = 0;
  for (; lanes <= 64 && i + lanes <= count; i += lanes) {
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(d, hn::Ne(load_bits(d, from + i * sizeof(T)), hn::Zero(d)), bytes);
    std::uint64_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    filled |= bits << i;
  }
  for (; i < count; ++i) {
    T element;
    std::memcpy(&element, from + i * sizeof(T), sizeof element);
    filled |= std::uint64_t{element != 0} << i;
  }
  return filled;
}

// A bit an element into `words`; returns how many are set.
template <class T>
std::size_t find_filled(const std::uint8_t* payload, std::size_t elem_count, std::uint64_t* words) {
  std::size_t total = 0;
  for (std::size_t first = 0; first < elem_count; first += 64) {
    const std::size_t count = HWY_MIN(elem_count - first, std::size_t{64});
    const std::uint64_t filled = filled_of<T>(payload + first * sizeof(T), count);
    words[first / 64] = filled;
    total += static_cast<std::size_t>(std::popcount(filled));
  }
  return total;
}

std::size_t find_filled_any(const std::uint8_t* payload, std::size_t elem_count,
                            std::size_t elem_bytes, std::uint64_t* words) {
  if (elem_bytes == 4) return find_filled<std::uint32_t>(payload, elem_count, words);
  if (elem_bytes == 2) return find_filled<std::uint16_t>(payload, elem_count, words);
  return find_filled<std::uint8_t>(payload, elem_count, words);
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::agg {
namespace {

HWY_EXPORT(prune_all);
HWY_EXPORT(keep_rest_all);
HWY_EXPORT(find_filled_any);

constexpr std::size_t kMaxWords = (kMaxChunkBytes + 63) / 64;  // an element has a byte at least

// Calls `each` with the number of every set bit.
template <class Each>
void for_each_bit(const std::uint64_t* words, std::size_t elem_count, const Each& each) {
  for (std::size_t first = 0; first < elem_count; first += 64)
    for (std::uint64_t word = words[first / 64]; word != 0; word &= word - 1)
      each(first + static_cast<std::size_t>(std::countr_zero(word)));
}

// Where the values are, as a bitmap or as indices, and the values: in one go, since how many a word
// has is what a processor guesses wrong.
template <std::size_t elem_bytes>
void write_entry(const std::uint64_t* words, bool as_bitmap, const std::uint8_t* payload,
                 std::size_t elem_count, std::uint8_t* places, std::uint8_t* values) {
  if (as_bitmap) std::memcpy(places, words, wire::bitmap_bytes(elem_count));
  for_each_bit(words, elem_count, [&](std::size_t place) {
    const auto index = static_cast<std::uint16_t>(place);
    if (!as_bitmap) {
      std::memcpy(places, &index, sizeof index);
      places += sizeof index;
    }
    std::memcpy(values, payload + place * elem_bytes, elem_bytes);
    values += elem_bytes;
  });
}

template <std::size_t elem_bytes>
void read_values(const wire::SparseEntry& entry, std::size_t elem_count, std::uint8_t* payload) {
  const std::uint8_t* from = entry.values;
  wire::for_each_place(entry, elem_count, [&](std::size_t place) {
    std::memcpy(payload + place * elem_bytes, from, elem_bytes);
    from += elem_bytes;
  });
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
  const std::size_t elem_bytes = dtype_bytes(dtype);
  CHECK(is_summed(dtype) && elem_count * elem_bytes <= kMaxChunkBytes);
  if (dtype == Dtype::kInt8 && !has_finite_scale(payload, elem_count)) return kNotCompressed;
  std::uint64_t words[kMaxWords];
  const std::size_t count =
      HWY_DYNAMIC_DISPATCH(find_filled_any)(payload, elem_count, elem_bytes, words);
  const std::size_t bytes = wire::entry_bytes(elem_count, count, dtype);
  if (bytes > out.size()) return kNotCompressed;
  if (count == 0) return 0;
  const auto count16 = static_cast<std::uint16_t>(count);
  std::memcpy(out.data(), &count16, sizeof count16);
  std::uint8_t* places = out.data() + sizeof count16;
  std::uint8_t* values = places + wire::places_bytes(elem_count, count);
  const bool as_bitmap = wire::uses_bitmap(elem_count, count);
  if (elem_bytes == 4) write_entry<4>(words, as_bitmap, payload, elem_count, places, values);
  if (elem_bytes == 2) write_entry<2>(words, as_bitmap, payload, elem_count, places, values);
  if (elem_bytes == 1) {
    write_entry<1>(words, as_bitmap, payload, elem_count, places, values);
    std::memcpy(values + count, payload + elem_count, kScaleBytes);
  }
  return bytes;
}

void expand(const wire::SparseEntry& entry, std::size_t elem_count, Dtype dtype,
            std::uint8_t* payload) noexcept {
  DCHECK(entry.value_count <= elem_count);
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
}

}  // namespace sluice::agg
#endif  // HWY_ONCE
