// float32 gradients in fewer bytes: the kernels of the wire formats float16, bfloat16 and int8, for
// both ends. One SIMD source (narrow.cc, Highway), chosen at run time as fold.h's are.
//
// A worker rounds to nearest, and what that loses stays with it as a residual: an element's value
// is gradient + residual. The appliance rounds a mean without bias: up or down at random, with the
// odds that make the expectation the mean. The dice are a function of the sums and the element's
// place, so every instruction set, and who repeats a call, gets the same bytes. (A residual a chunk
// at the appliance would cost it memory and two more streams through the cache, would not know of a
// changed scale of the loss, and would be lost with it. The sum of 200 results would be 36 to 38
// times nearer, and training no better: `./run bench wire --rounding`.)
//
// int8 is q = round(value / scale), one scale a chunk: elem_count bytes, then the scale as float32
// (behind, so that a result can be made in place). The scale is the smallest power of two that
// brings all to at most 127: half a bit coarser than max |value| / 127 on average, but what is read
// and what is left are then exact, and sums of few ranks too, in any order. A chunk with a NaN or
// an infinity has a scale of NaN: all of it reads as NaN.
//
// Pure; any thread. Float pointers need a float's alignment, payloads none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/core/fold.h"

namespace sluice::agg {

// Writes payload_bytes(wire, elem_count) bytes: gradient + residual in the format, which is none of
// kFloat32 and kBytes.
void pack(const float* gradient, const float* residual, std::size_t elem_count, Dtype wire,
          std::uint8_t* out) noexcept;

// What pack() lost becomes the residual; where nothing was delivered, all of the value. A value
// that is not finite, or that the format cannot hold, leaves its element's residual as it is.
void update_residual(const float* gradient, float* residual, std::size_t elem_count, Dtype wire,
                     bool delivered) noexcept;

// residual += what a payload holds, of any summed type: it was packed and will not be delivered
// after all. Elements that are not finite are left out.
void give_back(float* residual, const std::uint8_t* payload, std::size_t elem_count,
               Dtype wire) noexcept;

// As finish() (fold.h), the means acc / (float)weight rounded without bias. `out` may be `acc`.
[[nodiscard]] Finished finish_unbiased(const float* acc, std::size_t elem_count,
                                       std::uint64_t weight, Dtype wire, std::uint32_t seed,
                                       std::uint8_t* out, const Wanted& wanted = {}) noexcept;

// Of int8, what fold_store() and fold_add() (fold.h) do of other types.
void store_int8(float* acc, const std::uint8_t* payload, std::size_t elem_count) noexcept;
void add_int8(float* acc, const std::uint8_t* payload, std::size_t elem_count) noexcept;
// The sum of the squares, of int8.
double squared_norm_int8(const std::uint8_t* payload, std::size_t elem_count) noexcept;

// Dice for a chunk, of its sums and not of the step: a run that goes on from a checkpoint counts
// steps from 1 again, and rounds as the run without the stop. Another sum in any element makes all
// bits others; zeros of either sign are one.
std::uint32_t rounding_seed(const float* acc, std::size_t elem_count, ChunkIndex chunk) noexcept;

}  // namespace sluice::agg
