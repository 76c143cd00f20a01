// What a relay's legs note for the trace, tensor by tensor: which way a gradient went, and where it
// was waited for. A tensor has slices in many legs, a leg many slices of a tensor: together they
// are one part.
//
// Pure; the relay's thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/bcube/detours.h"
#include "client/bcube/legs.h"
#include "client/core/calls/trace.h"

namespace sluice::client {

class PartTrace {
 public:
  // Writes each leg's parts. Without this call nothing is traced.
  void plan(const Bcube& bcube, BcubeMode mode, std::uint32_t tensor_count, Legs& legs);
  bool on() const noexcept { return trace_.on(); }
  std::span<const TracePart> parts() const noexcept { return parts_; }

  // What the leg has traced, in the relay's step. Before the leg's event is handled, as that may
  // end the step or submit to the leg again.
  void take(Leg& leg, const Legs& legs, const Detours& detours, Step step) noexcept;
  void close(std::uint32_t tensor, Step step) noexcept;
  bool poll(TensorTimes& times) noexcept { return trace_.poll(times); }

 private:
  TensorTrace trace_;                       // of parts
  std::vector<TracePart> parts_;            // by tensor, in the order of their ways
  std::vector<std::uint32_t> first_parts_;  // of each tensor, and their number
};

}  // namespace sluice::client
