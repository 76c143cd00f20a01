// A result's payload into the caller's tensor: the average that the job asked for.
//
// float32 travels as a sum, narrower types as the mean over the total weight (their sums overflow).
// Every division is one IEEE division by (float)divisor, worked out from the result alone, so all
// ranks have the same bits whenever they apply it. Pure; the session's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/base/policy_options.h"
#include "aggregator/base/types.h"
#include "client/core/calls/types.h"

namespace sluice::client {

// What a job makes of its sums once its policy is known: never kDefault. Where late gradients go
// into later steps, steps are as many more as their k are fewer: then a step of k counts k/n.
constexpr AveragingChoice resolved(AveragingChoice choice, const PolicyOptions& policy) noexcept {
  if (choice != AveragingChoice::kDefault) return choice;
  const bool shares = policy.tolerates_stragglers() && policy.late == LateMode::kRequeue;
  return shares ? AveragingChoice::kWorld : AveragingChoice::kWeight;
}

// What a result says of its payload.
struct Summed {
  std::uint64_t weight = 0;
  std::uint16_t members = 0;    // in the mask
  std::uint16_t may_count = 0;  // that it could have had: see wire::ResultHeader
  bool is_mean = false;         // the payload is sum / weight already
};

// What makes an average of a sum: sum * factor / divisor.
struct Scaling {
  float factor = 1;
  float divisor = 1;
  bool defined = true;  // all weights were not 0
};
Scaling scaling_of(const Summed& summed, AveragingChoice averaging) noexcept;

// Writes elem_count elements of `dtype` to `output`: sum / weight, that x members / may_count, or
// the sum. They came as `wire`, which is another type only where float32 travels at a loss.
// `averaging` is a resolved() one. `scratch`: 64-byte aligned, elem_count floats. False: the output
// holds no finite average, because all weights were 0 or a narrow type overflows.
bool write_average(std::uint8_t* output, std::span<const std::uint8_t> payload,
                   std::size_t elem_count, Dtype dtype, Dtype wire, const Summed& summed,
                   AveragingChoice averaging, float* scratch) noexcept;

// Whether `elem_count` elements of a gradient hold neither NaN nor infinity. `scratch` as above.
bool all_finite(const std::uint8_t* elems, std::size_t elem_count, Dtype dtype,
                float* scratch) noexcept;

}  // namespace sluice::client
