// Memory for a burst of datagrams, for callers that pass a burst on before they ask for the next
// one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "aggregator/base/limits.h"
#include "aggregator/core/shard.h"

namespace sluice::agg {

class TxBuffers {
 public:
  TxBuffers() noexcept {
    for (std::size_t at = 0; at < burst_.size(); ++at)
      burst_[at].buffer = std::span(memory_).subspan(at * kMaxDatagramBytes, kMaxDatagramBytes);
  }
  TxBuffers(const TxBuffers&) = delete;
  TxBuffers& operator=(const TxBuffers&) = delete;

  std::span<Transmit> all() noexcept { return burst_; }
  std::span<std::uint8_t> first() noexcept { return burst_.front().buffer; }

 private:
  static constexpr std::size_t kCount = 4;  // more than one, so that tests run bursts
  std::array<Transmit, kCount> burst_;
  std::array<std::uint8_t, kCount * kMaxDatagramBytes> memory_;
};

}  // namespace sluice::agg
