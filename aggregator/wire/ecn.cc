#include "aggregator/wire/ecn.h"

namespace sluice::wire {
namespace {

constexpr std::size_t kChecksumAt = 10;

// RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
void patch_checksum(std::uint8_t* checksum, std::uint16_t before, std::uint16_t after) noexcept {
  std::uint32_t sum = static_cast<std::uint16_t>(~load_be16(checksum));
  sum += static_cast<std::uint16_t>(~before);
  sum += after;
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  store_be16(checksum, static_cast<std::uint16_t>(~sum));
}

}  // namespace

bool mark_congestion(MutableBytes frame) noexcept {
  if (frame.size() < kEthernetBytes + kVlanTagBytes) return false;
  std::size_t ip_at = kEthernetBytes;
  std::uint16_t ethertype = load_be16(&frame[ip_at - 2]);
  if (ethertype == kEtherVlan) {
    ip_at += kVlanTagBytes;
    ethertype = load_be16(&frame[ip_at - 2]);
  }
  const bool ipv4 = ethertype == kEtherIpv4;
  if (!ipv4 && ethertype != kEtherIpv6) return false;
  if (frame.size() < ip_at + (ipv4 ? kIpv4Bytes : kIpv6Bytes)) return false;
  std::uint8_t* const ip = &frame[ip_at];
  // IPv4 has the traffic class in its second byte, IPv6 from its fifth bit on.
  const unsigned shift = ipv4 ? 0 : 4;
  if ((ip[1] >> shift & kEcnMask) == 0) return false;
  const std::uint16_t before = load_be16(ip);
  const auto after = static_cast<std::uint16_t>(before | kEcnCongested << shift);
  store_be16(ip, after);
  if (ipv4) patch_checksum(ip + kChecksumAt, before, after);
  return true;
}

}  // namespace sluice::wire
