#include "dataplane/core/flow_cache.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"

namespace sluice::dataplane {
namespace {

using wire::kIpv4Bytes;
using wire::kIpv6Bytes;
using wire::kUdpBytes;

// The offset of the IP header in remembered frames, which have one tag at most.
std::size_t ip_offset(wire::Bytes bytes) noexcept {
  return wire::load_be16(&bytes[12]) == wire::kEtherVlan
             ? wire::kEthernetBytes + wire::kVlanTagBytes
             : wire::kEthernetBytes;
}

}  // namespace

// Chosen by the ports and the end of the source address: behind one router nothing else differs.
std::size_t FlowCache::place_of(wire::Bytes bytes) noexcept {
  const std::uint8_t* ip = &bytes[ip_offset(bytes)];
  const bool ipv4 = *ip >> 4 == 4;
  std::uint32_t ports;
  std::uint32_t source;
  std::memcpy(&ports, ip + (ipv4 ? kIpv4Bytes : kIpv6Bytes), sizeof ports);
  std::memcpy(&source, ip + (ipv4 ? 12 : 20), sizeof source);
  const std::uint64_t mixed = (std::uint64_t{source} << 32 | ports) * 0x9e3779b97f4a7c15ULL;
  return mixed >> 56;
}

bool FlowCache::matches(const Place& place, wire::Bytes bytes) noexcept {
  Pattern words;
  std::memcpy(words.data(), bytes.data(), sizeof words);
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < words.size(); ++i)
    different |= (words[i] & place.mask[i]) ^ place.bytes[i];
  return different == 0;
}

bool FlowCache::find(wire::Bytes bytes, PortIndex port, wire::UdpChecksums checksums,
                     const MacTable& macs, TimeNs now, wire::Datagram& datagram,
                     ShardId& shard) noexcept {
  static_assert(kPlaces == 256);
  if (bytes.size() < kPatternBytes) return false;
  if (!matches(places_[last_], bytes)) {
    last_ = place_of(bytes);
    if (!matches(places_[last_], bytes)) return false;
  }
  const Place& place = places_[last_];
  if (now >= place.until || place.port != port || place.macs_version != macs.version())
    return false;

  // The fields that may differ: lengths, identification, checksums and the congestion mark.
  const std::uint8_t* ip = bytes.data() + place.ip_at;
  const std::size_t room = bytes.size() - place.ip_at;
  const std::size_t header_bytes = place.ipv4 ? kIpv4Bytes : kIpv6Bytes;
  const std::size_t ip_bytes =
      place.ipv4 ? wire::load_be16(ip + 2) : kIpv6Bytes + wire::load_be16(ip + 4);
  if (ip_bytes < header_bytes + kUdpBytes || room < ip_bytes) return false;
  const std::uint8_t ecn = place.ipv4 ? ip[1] : static_cast<std::uint8_t>(ip[1] >> 4);
  if (place.ipv4) {
    std::array<std::uint16_t, 3> words;  // length, identification; checksum
    std::memcpy(words.data(), ip + 2, 4);
    std::memcpy(&words[2], ip + 10, 2);
    const wire::PartialSum sum{std::uint64_t{words[0]} + words[1] + words[2] +
                               ((ecn & wire::kEcnMask) << 8)};
    if (wire::finish_checksum(place.ip_sum + sum) != 0) return false;
  }
  const wire::Bytes udp{ip + header_bytes, ip_bytes - header_bytes};
  if (wire::load_be16(&udp[4]) != udp.size()) return false;
  if (checksums != wire::UdpChecksums::kTrust && wire::load_be16(&udp[6]) == 0) return false;
  if (checksums == wire::UdpChecksums::kVerify) {
    std::uint16_t length;  // as it stands in the pseudo-header too
    std::memcpy(&length, &udp[4], sizeof length);
    if (wire::finish_checksum(wire::sum_bytes(udp) + place.addresses_sum +
                              wire::PartialSum{length}) != 0)
      return false;
  }
  datagram.payload = udp.subspan(kUdpBytes);
  datagram.marked = (ecn & wire::kEcnMask) == wire::kEcnCongested;
  shard = place.shard;
  return true;
}

void FlowCache::remember(wire::Bytes bytes, const wire::Frame& frame, PortIndex port, ShardId shard,
                         MacTable::Learned learned, const MacTable& macs, TimeNs now) noexcept {
  DCHECK(frame.kind == wire::FrameKind::kUdp);
  if (learned == MacTable::Learned::kMovedAgain || bytes.size() < kPatternBytes) return;
  const std::size_t ip_at = ip_offset(bytes);
  const bool ipv4 = frame.src.family == wire::Family::kIpv4;
  const std::size_t udp_at = ip_at + (ipv4 ? kIpv4Bytes : kIpv6Bytes);
  if (frame.payload.data() != bytes.data() + udp_at + kUdpBytes) return;  // options, two tags

  std::array<std::uint8_t, kPatternBytes> mask{};
  std::fill_n(mask.begin(), udp_at + 4, std::uint8_t{0xff});  // to the end of the UDP ports
  if (ipv4) {
    mask[ip_at + 1] = static_cast<std::uint8_t>(~wire::kEcnMask);
    std::fill_n(&mask[ip_at + 2], 4, std::uint8_t{0});   // length, identification
    std::fill_n(&mask[ip_at + 10], 2, std::uint8_t{0});  // checksum
  } else {
    mask[ip_at + 1] = static_cast<std::uint8_t>(~(wire::kEcnMask << 4));
    std::fill_n(&mask[ip_at + 4], 2, std::uint8_t{0});  // length
  }
  Place& place = places_[place_of(bytes)];
  place = {.addresses_sum = wire::sum_pseudo_header(frame.src, frame.dst, 0, wire::kProtoUdp),
           .macs_version = macs.version(),
           .until = now + macs.refresh_interval(),
           .ip_at = static_cast<std::uint8_t>(ip_at),
           .ipv4 = ipv4,
           .port = port,
           .shard = shard};
  std::memcpy(place.bytes.data(), bytes.data(), kPatternBytes);
  std::memcpy(place.mask.data(), mask.data(), kPatternBytes);
  for (std::size_t i = 0; i < place.bytes.size(); ++i) place.bytes[i] &= place.mask[i];
  if (ipv4)
    place.ip_sum = wire::sum_bytes(
        {reinterpret_cast<const std::uint8_t*>(place.bytes.data()) + ip_at, kIpv4Bytes});
}

}  // namespace sluice::dataplane
