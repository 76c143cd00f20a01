// A device that holds a worker's far tensors (client/core/calls/far.h), played by the kernels of
// the host. It packs a tensor when it is submitted. When the submission is over, it updates the
// residual by what the session says of each chunk, and unpacks the averages.
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

  // Packs the tensor for a submission with this gradient, which stays as it is. Null: no gradient.
  client::FarTensor* submit(std::uint32_t tensor, const float* gradient, bool whole);
  // The submission is over. `output`: memory for the average, null if none has come.
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
