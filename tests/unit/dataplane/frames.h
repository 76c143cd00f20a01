// Frames for the tests of this folder.
#pragma once

#include <cstring>
#include <vector>

#include "aggregator/wire/inet.h"

namespace sluice::wire {

inline constexpr Mac kAlice{{0x02, 0, 0, 0, 0, 0xa1}};
inline constexpr Mac kBob{{0x02, 0, 0, 0, 0, 0xb0}};
inline constexpr IpAddress kAliceIp = ipv4_address(10, 77, 0, 11);
inline constexpr IpAddress kBobIp = ipv4_address(10, 77, 0, 1);

inline IpAddress ipv6_of(std::uint8_t last) {
  return IpAddress{Family::kIpv6, {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}};
}

inline UdpPath alice_to_bob() {
  return UdpPath{.src_mac = kAlice,
                 .dst_mac = kBob,
                 .src = kAliceIp,
                 .dst = kBobIp,
                 .src_port = 40000,
                 .dst_port = 7700};
}

inline std::vector<std::uint8_t> udp_frame(const UdpPath& path,
                                           const std::vector<std::uint8_t>& payload) {
  std::vector<std::uint8_t> bytes(kMaxUdpHeaderBytes + payload.size());
  bytes.resize(encode_udp_frame(bytes, path, payload));
  return bytes;
}

// An ICMP message inside IPv4 or IPv6, checksums right.
inline std::vector<std::uint8_t> icmp_frame(const UdpPath& path, std::vector<std::uint8_t> icmp) {
  const bool ipv4 = path.src.family == Family::kIpv4;
  const std::uint8_t protocol = ipv4 ? kProtoIcmp : kProtoIcmp6;
  // Borrow the IP header of a UDP frame whose UDP length equals the message's.
  std::vector<std::uint8_t> bytes =
      udp_frame(path, std::vector<std::uint8_t>(icmp.size() - kUdpBytes));
  const std::size_t l4 = bytes.size() - icmp.size();
  icmp[2] = icmp[3] = 0;
  PartialSum sum = sum_bytes(icmp);
  if (!ipv4) sum = sum + sum_pseudo_header(path.src, path.dst, icmp.size(), protocol);
  const std::uint16_t checksum = finish_checksum(sum);
  std::memcpy(&icmp[2], &checksum, 2);
  std::memcpy(&bytes[l4], icmp.data(), icmp.size());
  const std::size_t ip = l4 - (ipv4 ? kIpv4Bytes : kIpv6Bytes);
  bytes[ip + (ipv4 ? 9 : 6)] = protocol;
  if (ipv4) {
    std::memset(&bytes[ip + 10], 0, 2);
    const std::uint16_t ip_checksum = finish_checksum(sum_bytes({&bytes[ip], kIpv4Bytes}));
    std::memcpy(&bytes[ip + 10], &ip_checksum, 2);
  }
  return bytes;
}

}  // namespace sluice::wire
