// The values that a store's worker has of an appliance that is lost, on their way to the next one.
//
// Of each block it states which versions it has and how far its pushes are in them. When all
// members have, an answer asks it for the chunks of which it is the first that has the newest
// version. Pure; the session's thread only.
#pragma once

#include <cstdint>

#include "client/core/link/giver.h"
#include "client/core/store/kept.h"
#include "client/core/store/layers.h"

namespace sluice::client {

class GivenLayers final : public Giver {
 public:
  // All outlive it. `gathers`: the store's bound is 0.
  GivenLayers(const KeptLayers& kept, const Layers& layers, const Layout& layout, bool gathers,
              Link& link, TimeNs now);

  Step current_step() const noexcept override { return 0; }

 private:
  std::size_t write_block(Block& block, const wire::FlowHeader& flow,
                          std::span<std::uint8_t> out) noexcept override;
  std::size_t write_word(const wire::FlowHeader& flow,
                         std::span<std::uint8_t> out) noexcept override;
  Next judge(const wire::Answer& answer, Block& block) noexcept override;
  std::size_t write_statement(const Block& block, const wire::FlowHeader& flow,
                              std::span<std::uint8_t> out) const noexcept;

  const KeptLayers& kept_;
  const Layers& layers_;
  const Layout& layout_;
  const bool gathers_;
};

}  // namespace sluice::client
