// A result's payload into the caller's tensor: the average that the job asked for.
//
// float32 travels as a sum, narrower types as the mean over the total weight (their sums overflow).
// Every division is an IEEE division by (float)divisor. Pure; the session's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/policy_options.h"
#include "aggregator/base/types.h"
#include "client/core/types.h"

namespace sluice::client {

// What a job makes of its sums once its policy is known: never kDefault. Today the default is
// kWeight with every policy.
constexpr AveragingChoice resolved(AveragingChoice choice, const PolicyOptions&) noexcept {
  return choice == AveragingChoice::kDefault ? AveragingChoice::kWeight : choice;
}

struct AveragePlan {
  AveragingChoice averaging = AveragingChoice::kWeight;  // resolved
  std::uint16_t world_size = 1;
};

// Writes elem_count elements to `output`. `is_mean`: the payload is sum / weight already.
// `scratch`: 64-byte aligned, elem_count floats. False: the divisor was 0 (all weights were), and
// the output holds no finite average.
bool write_average(std::uint8_t* output, std::span<const std::uint8_t> payload,
                   std::size_t elem_count, Dtype dtype, std::uint64_t weight, bool is_mean,
                   const AveragePlan& plan, float* scratch) noexcept;

// Whether `elem_count` elements of a gradient hold neither NaN nor infinity. `scratch` as above.
bool all_finite(const std::uint8_t* elems, std::size_t elem_count, Dtype dtype,
                float* scratch) noexcept;

}  // namespace sluice::client
