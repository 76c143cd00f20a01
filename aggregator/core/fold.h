// The fold kernels: add a contribution's payload into a float32 accumulator, and turn a finished
// accumulator into a result's payload. One SIMD source (fold.cc, Highway), compiled for every
// instruction set the compiler knows and dispatched at run time.
//
// The kernels know no slots, ranks or packets. The caller has checked that the payload holds
// elem_count elements and that the accumulator has room for them.
//
// Called by: slots, on the lcore that owns them; `mean` by the client's progress thread. All
// functions are pure: no allocation, no clock, no shared state but Highway's chosen target, which
// is read only. `force_fold_target` is for tests and benches, before other threads start.
//
// Buffers: an accumulator is 64-byte aligned float32; payloads (in and out) are little-endian and
// may have any alignment. Buffers of one call do not overlap, but finish() may work in place.
//
// Exactness: every target gives the same bytes. Sums are float32 additions in the order of the
// calls, never fused or reassociated; denormals are kept, so the calling thread must not set
// flush-to-zero. One liberty is taken: which NaN an addition yields differs between instruction
// sets, so every NaN leaves finish() and mean() as the one canonical quiet NaN of its type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "aggregator/base/types.h"
#include "aggregator/wire/checksum.h"

namespace sluice::agg {

// First contribution: acc = payload, widened to float32. It overwrites, so a slot needs no zeroing.
// Here `acc` needs only a float's alignment.
// kBytes copies elem_count bytes as they are (broadcasts).
void fold_store(float* acc, const std::uint8_t* payload, std::size_t elem_count,
                Dtype dtype) noexcept;

// Every further contribution: acc += payload, widened to float32. kBytes is a bug in the caller
// (opaque bytes have no sum) and stops the process.
void fold_add(float* acc, const std::uint8_t* payload, std::size_t elem_count,
              Dtype dtype) noexcept;

// Adds several contributions in one pass, one after the other: to `acc` if it has `begun`, else to
// the first of them, of which there must be one. At most kAddendsPerPass.
inline constexpr std::size_t kAddendsPerPass = 16;
void fold_several(float* acc, bool begun, std::span<const std::uint8_t* const> payloads,
                  std::size_t elem_count, Dtype dtype) noexcept;

// The values that finish() is to compute besides the result; at most one of the two.
struct Wanted {
  std::uint64_t* signs = nullptr;  // exchanged for the signs of all sums: see signs.h
  bool norm = false;
};
struct Finished {
  bool finite = true;               // every value written
  wire::PartialSum sum;             // of the payload's bytes
  std::uint64_t signs_flipped = 0;  // as exchange_signs() returns
  double squared_norm = 0;          // of what is written, of a mean before it is rounded
};

// Writes the result's payload, at most 64 KiB, to `out` in one pass. `out` may be the accumulator
// itself: the result is never wider than the sum, and is written behind the read position.
//  kFloat32: the sums, unchanged but for NaNs; `weight` is not used.
//  kFloat16, kBfloat16: the means acc / (float)weight, an IEEE division, rounded to nearest even.
//    A mean beyond the type's range becomes an infinity and is reported. weight = 0 divides by
//    zero as IEEE says: infinities and NaNs, reported as not finite.
//  kBytes: elem_count bytes as stored; always finite, and nothing is wanted of them.
[[nodiscard]] Finished finish(const float* acc, std::size_t elem_count, std::uint64_t weight,
                              Dtype dtype, std::uint8_t* out, const Wanted& wanted = {}) noexcept;

// out[i] = sum[i] / divisor for a float32 sum as it came off the wire. A true division: the bytes
// differ from a multiplication by 1 / divisor, and every back end must agree on them. `out` needs
// only a float's alignment.
void mean(float* out, const std::uint8_t* sum_payload, std::size_t elem_count,
          float divisor) noexcept;

// The instruction set in use, in Highway's words ("AVX3", "AVX2", "SSE4", ...).
[[nodiscard]] std::string_view fold_target() noexcept;

// The names force_fold_target() accepts on this machine, the best one first.
[[nodiscard]] std::vector<std::string_view> fold_targets();

// Uses the named target from now on, in the whole process; false if this machine or this build
// does not have it (nothing changes). The empty name goes back to the best target.
bool force_fold_target(std::string_view name) noexcept;

}  // namespace sluice::agg
