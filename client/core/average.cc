#include "client/core/average.h"

#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"

namespace sluice::client {

bool write_average(std::uint8_t* output, std::span<const std::uint8_t> payload,
                   std::size_t elem_count, Dtype dtype, std::uint64_t weight, bool is_mean,
                   const AveragePlan& plan, float* scratch) noexcept {
  DCHECK(output != nullptr && plan.world_size != 0);
  DCHECK(payload.size() == elem_count * dtype_bytes(dtype));
  DCHECK(plan.averaging != AveragingChoice::kDefault);
  const bool by_weight = plan.averaging == AveragingChoice::kWeight;
  std::uint64_t divisor = 1;
  if (by_weight) divisor = weight;
  if (plan.averaging == AveragingChoice::kWorld) divisor = plan.world_size;

  if (is_mean && by_weight) {
    std::memcpy(output, payload.data(), payload.size());
    return weight != 0;
  }
  if (dtype == Dtype::kFloat32 && !is_mean) {
    if (divisor == 1) {
      std::memcpy(output, payload.data(), payload.size());
    } else {
      agg::mean(reinterpret_cast<float*>(output), payload.data(), elem_count,
                static_cast<float>(divisor));
    }
    return divisor != 0;
  }

  agg::fold_store(scratch, payload.data(), elem_count, dtype);
  if (is_mean)
    for (std::size_t i = 0; i < elem_count; ++i) scratch[i] *= static_cast<float>(weight);
  if (dtype == Dtype::kFloat32) {
    for (std::size_t i = 0; i < elem_count; ++i) scratch[i] /= static_cast<float>(divisor);
    std::memcpy(output, scratch, payload.size());
    return divisor != 0;
  }
  return agg::finish(scratch, elem_count, divisor, dtype, output) && divisor != 0;
}

bool all_finite(const std::uint8_t* elems, std::size_t elem_count, Dtype dtype,
                float* scratch) noexcept {
  agg::fold_store(scratch, elems, elem_count, dtype);
  return agg::finish(scratch, elem_count, 1, dtype, reinterpret_cast<std::uint8_t*>(scratch));
}

}  // namespace sluice::client
