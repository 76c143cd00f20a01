// The kernels of pruned gradients, for both ends: they choose the elements of a chunk that leave,
// turn a dense payload into an entry of a sparse packet (wire/sparse.h) and back, and add an entry
// into a sum.
//
// Pruning makes small values zero; the rest is packed as any chunk is; compression leaves the zeros
// of the payload out. So pruning, rounding and compression are decided in one place each, and an
// entry stands for exactly one dense payload, bit for bit. One SIMD source where it pays
// (sparse.cc, Highway), dispatched at run time as fold.h's. Pure; any thread. Float pointers need a
// float's alignment, payloads none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/types.h"
#include "aggregator/wire/sparse.h"

namespace sluice::agg {

// out = gradient + residual where that is at least the threshold in magnitude, or a NaN; else 0.
// Threshold 0 keeps all values, infinity only those that are not finite.
void prune(const float* gradient, const float* residual, std::size_t elem_count, float threshold,
           float* out) noexcept;

// residual = gradient + residual - left, the part of the value that did not leave. Where that is
// not finite, the residual stays as it was.
void keep_rest(const float* gradient, float* residual, std::size_t elem_count,
               const float* left) noexcept;

// The result of compress() if the entry would be longer than `out`, or the chunk can have none.
inline constexpr std::size_t kNotCompressed = SIZE_MAX;

// Writes the entry of a dense payload without the elements whose bits are all zero. Returns its
// bytes, 0 if all elements are zero; or kNotCompressed, with `out` unchanged, if the entry has more
// than out.size() bytes or the chunk is int8 and not finite.
std::size_t compress(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype,
                     std::span<std::uint8_t> out) noexcept;

// prune() and compress() of its output as float32, in one pass: the same entry.
std::size_t compress_pruned(const float* gradient, const float* residual, std::size_t elem_count,
                            float threshold, std::span<std::uint8_t> out) noexcept;

// Writes the dense payload of an entry, which may be empty.
void expand(const wire::SparseEntry& entry, std::size_t elem_count, Dtype dtype,
            std::uint8_t* payload) noexcept;

// Adds the entry's values to `acc`, each at its index. Equals fold_add() of the dense payload where
// no sum is a negative zero.
void add_sparse(float* acc, const wire::SparseEntry& entry, std::size_t elem_count,
                Dtype dtype) noexcept;

}  // namespace sluice::agg
