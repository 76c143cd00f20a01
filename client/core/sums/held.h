// The results that this worker has of an appliance that is lost, on their way to the next one, in a
// job with k < n.
//
// Every member gives all that it has of the step with which the job goes on, and of the step before
// if a member lacks some of that: equal results count once there. No contribution counts before all
// members have given all, so no new sum contradicts a result that somebody has. Pure; the session's
// thread only.
#pragma once

#include <cstdint>

#include "client/core/calls/layout.h"
#include "client/core/link/giver.h"
#include "client/core/sums/arena.h"

namespace sluice::client {

class HeldResults final : public Giver {
 public:
  // `kept` and `layout` outlive it. It gives what is of the steps from `from` to `step`.
  HeldResults(const ReceiveArena& kept, const Layout& layout, Link& link, Step from, Step step,
              TimeNs now);

  // Of the newest step of which the worker has a result, if a policy has chosen it; else 0.
  static std::uint16_t newest_k(const ReceiveArena& kept, ChunkIndex chunk_count) noexcept;

  Step current_step() const noexcept override { return step_; }

 private:
  std::size_t write_block(Block& block, const wire::FlowHeader& flow,
                          std::span<std::uint8_t> out) noexcept override;
  std::size_t write_word(const wire::FlowHeader& flow,
                         std::span<std::uint8_t> out) noexcept override;
  Next judge(const wire::Answer& answer, Block& block) noexcept override;

  const ReceiveArena& kept_;
  const Layout& layout_;
  const Step step_;
  std::uint8_t dense_[kMaxChunkBytes];
};

}  // namespace sluice::client
