#include "client/core/sums/average.h"

#include <cstring>

#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"

namespace sluice::client {

Scaling scaling_of(const Summed& summed, AveragingChoice averaging) noexcept {
  DCHECK(averaging != AveragingChoice::kDefault && summed.members <= summed.may_count);
  const bool wants_sum = averaging == AveragingChoice::kSum;
  const auto weight = static_cast<double>(summed.weight);
  double divisor = wants_sum || summed.is_mean ? 1 : weight;
  if (averaging == AveragingChoice::kWorld && summed.members != summed.may_count)
    divisor = divisor * summed.may_count / summed.members;
  return {.factor = static_cast<float>(wants_sum && summed.is_mean ? weight : 1),
          .divisor = static_cast<float>(divisor),
          .defined = wants_sum || summed.weight != 0};
}

bool write_average(std::uint8_t* output, std::span<const std::uint8_t> payload,
                   std::size_t elem_count, Dtype dtype, Dtype wire, const Summed& summed,
                   AveragingChoice averaging, float* scratch) noexcept {
  DCHECK(output != nullptr && payload.size() == payload_bytes(wire, elem_count));
  DCHECK(wire == dtype || dtype == Dtype::kFloat32);
  const auto [factor, divisor, defined] = scaling_of(summed, averaging);

  const auto rescale = [&, factor = factor, divisor = divisor](float* values) {
    for (std::size_t i = 0; i < elem_count; ++i) values[i] = values[i] * factor / divisor;
  };

  if (wire != dtype) {
    auto* const values = reinterpret_cast<float*>(output);
    agg::fold_store(values, payload.data(), elem_count, wire);
    if (divisor != 1 || factor != 1) rescale(values);
    return defined;
  }
  if (divisor == 1 && factor == 1) {
    std::memcpy(output, payload.data(), payload.size());
    return defined;
  }
  if (dtype == Dtype::kFloat32 && factor == 1) {
    agg::mean(reinterpret_cast<float*>(output), payload.data(), elem_count, divisor);
    return defined;
  }
  agg::fold_store(scratch, payload.data(), elem_count, dtype);
  rescale(scratch);
  return agg::finish(scratch, elem_count, 1, dtype, output).finite && defined;
}

bool all_finite(const std::uint8_t* elems, std::size_t elem_count, Dtype dtype,
                float* scratch) noexcept {
  agg::fold_store(scratch, elems, elem_count, dtype);
  return agg::finish(scratch, elem_count, 1, dtype, reinterpret_cast<std::uint8_t*>(scratch))
      .finite;
}

}  // namespace sluice::client
