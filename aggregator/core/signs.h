// Measurements for the policies: how many signs of a sum have changed since the last detection
// round (SAINA's convergence detection: XOR and popcount), and the squared norm of a contribution
// (for the gradient noise scale). SIMD kernels, dispatched as the fold kernels.
//
// The functions keep no state. The caller keeps the old signs and knows when a round ends; policy.h
// decides what follows from the counts.
//
// Called by: slots, on the lcore that owns them. Pure: no allocation, no clock, no shared state but
// Highway's chosen target (force_fold_target() in fold.h sets it for this file too).
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/types.h"

namespace sluice::agg {

// Elements sampled of elem_count: 0, stride, 2 * stride, ...
constexpr std::size_t sign_count(std::size_t elem_count, std::uint16_t stride) noexcept {
  return (elem_count + stride - 1) / stride;
}

// Words that hold their signs, one bit each.
constexpr std::size_t sign_words(std::size_t elem_count, std::uint16_t stride) noexcept {
  return (sign_count(elem_count, stride) + 63) / 64;
}

// Takes the sign of every stride-th element, returns how many differ from those in `stored`, and
// stores the new ones. Bit j % 64 of stored[j / 64] is the sign of element j * stride; bits beyond
// sign_count() are neither compared nor changed. `stride` is 1 or 32. `acc` is 64-byte aligned;
// only its first elem_count elements are read.
//
// A sign is the float's highest bit, so -0.0 is negative. A NaN has the sign that the addition
// left, which differs between instruction sets: a sum that is not finite says nothing about
// convergence, and the caller must drop the answer of such a step. All else is the same on every
// target.
std::uint64_t exchange_signs(const float* acc, std::size_t elem_count, std::uint16_t stride,
                             std::uint64_t* stored) noexcept;

// Sum of the squares of a contribution's elements, as it came off the wire: little-endian, at any
// alignment, float32, float16 or bfloat16 (bytes have no norm: a bug in the caller, which stops the
// process).
//
// Squares are added in float32 lanes, the lanes in double: relative error below 1e-5 for a chunk.
// Targets differ in the last bits, as lanes and fused multiplications do, so the figure may steer a
// policy and must never reach a result. Elements beyond about 1.8e19 may give infinity; an infinity
// or a NaN among them is never finite.
[[nodiscard]] double squared_norm(const std::uint8_t* payload, std::size_t elem_count,
                                  Dtype dtype) noexcept;

// In one pass: fold_store() of the payload or, where the sum has `begun`, fold_add() (fold.h);
// returns its squared_norm().
[[nodiscard]] double fold_with_norm(float* acc, bool begun, const std::uint8_t* payload,
                                    std::size_t elem_count, Dtype dtype) noexcept;

}  // namespace sluice::agg
