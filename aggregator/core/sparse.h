// The kernels of pruned gradients, for both ends: what of a chunk leaves, its dense payload as an
// entry of a sparse packet (wire/sparse.h) and back, and its values added into a sum.
//
// Who prunes makes the small values zero and packs what is left as it packs any chunk; to compress
// a payload is to leave its zeros out. So what is pruned, rounded and sent is decided in one place
// each, and an entry stands for exactly one dense payload, bit for bit. One SIMD source where it
// pays (sparse.cc, Highway), chosen at run time as fold.h's are. Pure; any thread. Float pointers
// need a float's alignment, payloads none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/types.h"
#include "aggregator/wire/sparse.h"

namespace sluice::agg {

// out = gradient + residual where that is at least the threshold in magnitude, or a NaN; else 0.
// Threshold 0: all of it; infinity: only what is not finite.
void prune(const float* gradient, const float* residual, std::size_t elem_count, float threshold,
           float* out) noexcept;

// residual = gradient + residual - left: what of the value did not leave. Where that is not finite,
// the residual is as it was.
void keep_rest(const float* gradient, float* residual, std::size_t elem_count,
               const float* left) noexcept;

// compress(): the entry would be longer than the limit, or has no room.
inline constexpr std::size_t kNotCompressed = SIZE_MAX;

// Writes the entry of a dense payload, whose elements are left out where all their bits are zero.
// Returns its bytes, 0 if all are; or kNotCompressed, and then `out` is as it was: the entry has
// more than out.size() bytes, or the chunk is one of int8 that is not finite.
std::size_t compress(const std::uint8_t* payload, std::size_t elem_count, Dtype dtype,
                     std::span<std::uint8_t> out) noexcept;

// prune(), and compress() of what it leaves, as float32: the same entry, in one pass.
std::size_t compress_pruned(const float* gradient, const float* residual, std::size_t elem_count,
                            float threshold, std::span<std::uint8_t> out) noexcept;

// The dense payload of an entry, or of none.
void expand(const wire::SparseEntry& entry, std::size_t elem_count, Dtype dtype,
            std::uint8_t* payload) noexcept;

// acc += the entry's values, each at its place; what fold_add() of the dense payload does, where no
// sum is a negative zero.
void add_sparse(float* acc, const wire::SparseEntry& entry, std::size_t elem_count,
                Dtype dtype) noexcept;

}  // namespace sluice::agg
