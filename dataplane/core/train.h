// A train: datagrams of ours of one flow and one length, one behind the other, that leave as one
// long datagram and are cut on their way (UDP segmentation).
//
// Pure, over headers whose UDP checksum is left to whoever cuts: then those of two datagrams of one
// flow and length do not differ in any byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aggregator/wire/inet.h"

namespace sluice::dataplane {

inline constexpr std::size_t kMostInTrain = 64;  // what every kernel takes
inline constexpr std::size_t kMostTrainBytes = 65'400;

// How many datagrams a train may have; at least 1.
constexpr std::size_t most_in_train(std::size_t header_bytes, std::size_t payload_bytes) noexcept {
  if (payload_bytes == 0) return 1;
  return std::clamp<std::size_t>((kMostTrainBytes - header_bytes) / payload_bytes, 1, kMostInTrain);
}

// Whether a frame, not shorter than these headers, begins with them.
inline bool same_headers(wire::Bytes headers, wire::Bytes next) noexcept {
  return std::memcmp(headers.data(), next.data(), headers.size()) == 0;
}

// Makes the headers of a datagram those of one that is so many bytes longer, with the
// pseudo-header's sum in the place of the UDP checksum. `ip_at`: where the IP header begins, of
// `ip_bytes`.
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
