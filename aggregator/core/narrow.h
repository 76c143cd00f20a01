// float32 gradients in fewer bytes: the kernels of the wire formats float16, bfloat16 and int8, for
// both ends. One SIMD source (narrow.cc, Highway), dispatched at run time as fold.h's.
//
// A worker rounds to nearest and keeps what rounding loses as a residual: an element's value is
// gradient + residual. The appliance rounds a mean without bias: up or down at random, with the
// odds that make the expectation the mean. The random bits are a function of the sums and the
// element's index, so every instruction set, and a repeated call, gives the same bytes. (Residuals
// at the appliance would cost memory and two more streams through the cache, would not know of a
// changed scale of the loss, and would be lost with the appliance. The sum of 200 results would be
// 36 to 38 times nearer, and training no better: `./run bench wire --rounding`.)
//
// int8 is q = round(value / scale), with one scale for each chunk: elem_count bytes, then the scale
// as float32 (behind them, so that a result can be made in place). The scale is the smallest power
// of two that brings all values to at most 127. It is half a bit coarser than max |value| / 127 on
// average, but then decoded values and residuals are exact, and sums of few ranks too, in any
// order. A chunk with a NaN or an infinity has a scale of NaN, and all its elements decode to NaN.
//
// Pure; any thread. Float pointers need a float's alignment, payloads none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/types.h"
#include "aggregator/core/fold.h"

namespace sluice::agg {

// Writes gradient + residual in the format, payload_bytes(wire, elem_count) bytes. The format is
// neither kFloat32 nor kBytes.
void pack(const float* gradient, const float* residual, std::size_t elem_count, Dtype wire,
          std::uint8_t* out) noexcept;

// Sets the residual to what pack() lost, or to the whole value if it was not `delivered`. A value
// that is not finite, or that the format cannot hold, leaves its element's residual as it is.
void update_residual(const float* gradient, float* residual, std::size_t elem_count, Dtype wire,
                     bool delivered) noexcept;

// Adds a payload of any summed type to the residual: it was packed and will not be delivered after
// all. Elements that are not finite are left out.
void give_back(float* residual, const std::uint8_t* payload, std::size_t elem_count,
               Dtype wire) noexcept;

// As finish() (fold.h), but the means acc / (float)weight are rounded without bias. `out` may be
// `acc`.
[[nodiscard]] Finished finish_unbiased(const float* acc, std::size_t elem_count,
                                       std::uint64_t weight, Dtype wire, std::uint32_t seed,
                                       std::uint8_t* out, const Wanted& wanted = {}) noexcept;

// fold_store() and fold_add() (fold.h) for int8.
void store_int8(float* acc, const std::uint8_t* payload, std::size_t elem_count) noexcept;
void add_int8(float* acc, const std::uint8_t* payload, std::size_t elem_count) noexcept;
// The sum of the squares of int8 elements.
double squared_norm_int8(const std::uint8_t* payload, std::size_t elem_count) noexcept;

// The seed of a chunk's random bits. It depends on the sums and not on the step: a run that goes on
// from a checkpoint counts steps from 1 again, and rounds as the uninterrupted run. A different sum
// in any element changes the whole seed; zeros of either sign count as equal.
std::uint32_t rounding_seed(const float* acc, std::size_t elem_count, ChunkIndex chunk) noexcept;

}  // namespace sluice::agg
