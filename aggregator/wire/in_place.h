// Builds a packet's body in the outgoing buffer, instead of encoding a body that was filled
// elsewhere: the wide reads of that copy would wait for the narrow stores that have just filled it.
// For senders for which this delay matters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "aggregator/wire/packet.h"

namespace sluice::wire {

// Writes the common header and returns where the body goes. Precondition: `out` has room for both.
inline void* begin(std::span<std::uint8_t> out, PacketType type, const Sender& sender) noexcept {
  const CommonHeader common{
      .type = type, .job = sender.job, .rank = sender.rank, .cookie = sender.cookie};
  std::memcpy(out.data(), &common, sizeof common);
  return out.data() + sizeof common;
}

// Writes what follows the body and returns the packet's size, or 0 when it does not fit.
inline std::size_t finish(std::span<std::uint8_t> out, std::size_t body_bytes,
                          std::span<const std::uint64_t> mask,
                          std::span<const std::uint8_t> payload) noexcept {
  const std::size_t total_bytes = packet_bytes(body_bytes, mask.size(), payload.size());
  if (out.size() < total_bytes) return 0;
  std::uint8_t* const at = out.data() + sizeof(CommonHeader) + body_bytes;
  if (!mask.empty()) std::memcpy(at, mask.data(), mask.size_bytes());
  if (!payload.empty()) std::memcpy(at + mask.size_bytes(), payload.data(), payload.size());
  return total_bytes;
}

}  // namespace sluice::wire
