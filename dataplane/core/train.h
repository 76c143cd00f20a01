// Trains: consecutive datagrams of the appliance, of one flow and one length, that are sent as one
// long datagram and cut later (UDP segmentation).
//
// Pure. The UDP checksum of these headers is left to the kernel or device that cuts the train, so
// the headers of two datagrams of one flow and length do not differ in any byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aggregator/wire/inet.h"

namespace sluice::dataplane {

inline constexpr std::size_t kMostInTrain = 64;  // the limit of every kernel
inline constexpr std::size_t kMostTrainBytes = 65'400;

// The most datagrams that a train may have; at least 1.
constexpr std::size_t most_in_train(std::size_t header_bytes, std::size_t payload_bytes) noexcept {
  if (payload_bytes == 0) return 1;
  return std::clamp<std::size_t>((kMostTrainBytes - header_bytes) / payload_bytes, 1, kMostInTrain);
}

// Whether `next`, a frame that is not shorter than `headers`, begins with them.
inline bool same_headers(wire::Bytes headers, wire::Bytes next) noexcept {
  return std::memcmp(headers.data(), next.data(), headers.size()) == 0;
}

// Changes the headers of a datagram to those of one that is `more_bytes` longer. The UDP checksum
// field holds the pseudo-header's sum. The IP header begins at `ip_at` and has `ip_bytes`.
inline void lengthen(wire::MutableBytes headers, std::size_t ip_at, std::size_t ip_bytes,
                     std::size_t more_bytes) noexcept {
  const auto grow = [more_bytes](std::uint8_t* at) {
    wire::store_be16(at, static_cast<std::uint16_t>(wire::load_be16(at) + more_bytes));
  };
  std::uint8_t* const ip = headers.data() + ip_at;
  std::uint8_t* const udp = ip + ip_bytes;
  if (ip_bytes == wire::kIpv4Bytes) {
    grow(ip + 2);
    wire::store_be16(ip + 10, 0);
    const std::uint16_t checksum = wire::finish_checksum(wire::sum_bytes({ip, ip_bytes}));
    std::memcpy(ip + 10, &checksum, sizeof checksum);
  } else {
    grow(ip + 4);
  }
  grow(udp + 4);
  const std::uint32_t sum = wire::load_be16(udp + 6) + static_cast<std::uint32_t>(more_bytes);
  wire::store_be16(udp + 6, static_cast<std::uint16_t>((sum & 0xffff) + (sum >> 16)));
}

}  // namespace sluice::dataplane
