// What a device does with a worker's far tensors (client/core/calls/far.h), here by the kernels of
// the host: packs them when they are submitted, and when they are over updates residuals by what
// the session has said of each chunk, and unpacks the averages that it has left.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/core/calls/far.h"
#include "client/core/calls/layout.h"
#include "client/prune/threshold.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

class FarSide {
 public:
  FarSide(const JobPlan& plan, const client::Layout& layout);

  // For a submission of the tensor with this gradient, which stays as it is; null: there is none.
  client::FarTensor* submit(std::uint32_t tensor, const float* gradient, bool whole);
  // The submission is over; `output`: where its average goes, null if none has come.
  void over(std::uint32_t tensor, float* output);
  std::span<const float> residual(std::uint32_t tensor);

 private:
  struct Place {
    client::FarTensor far;
    std::vector<float> residual;
    const float* gradient = nullptr;
    float limit = 0;
    std::vector<std::uint8_t> packed;
    std::vector<client::FarExtent> extents;
    std::vector<client::Fate> fates;
    std::vector<client::FarResult> results;
    std::vector<std::uint8_t> values;
  };

  std::vector<std::uint8_t> payload_of(const Place& place, const client::ChunkSpan& span) const;
  void update_residual(Place& place, const client::ChunkSpan& span, client::Fate fate) const;
  void take_back(Place& place, std::uint32_t tensor) const;

  const JobPlan& plan_;
  const client::Layout& layout_;
  client::Thresholds thresholds_;
  std::vector<Place> places_;  // by tensor
};

}  // namespace sluice::sim
