#include "aggregator/wire/inet.h"

#include <algorithm>
#include <cstring>

namespace sluice::wire {
namespace {

constexpr std::uint8_t kProtoIpv6Fragment = 44;
constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kFragmentBits = 0x3fff;  // more-fragments and the offset
constexpr std::uint8_t kHopLimit = 64;

template <class T>
void load_array(T& out, const std::uint8_t* from) noexcept {
  std::memcpy(out.bytes.data(), from, out.bytes.size());
}

IpAddress load_address(Family family, const std::uint8_t* from) noexcept {
  IpAddress address;
  address.family = family;
  std::memcpy(address.bytes.data(), from, address.size());
  return address;
}

bool checksum_is_good(PartialSum sum) noexcept { return finish_checksum(sum) == 0; }

Verdict parse_l4(UdpChecksums checksums, std::uint8_t protocol, Bytes l4, Frame& frame) noexcept {
  frame.payload = l4;
  const bool icmp4 = protocol == kProtoIcmp && frame.src.family == Family::kIpv4;
  const bool icmp6 = protocol == kProtoIcmp6 && frame.src.family == Family::kIpv6;
  if (icmp4 || icmp6) {
    if (l4.size() < kIcmpBytes) return Verdict::kTruncated;
    PartialSum sum = sum_bytes(l4);
    if (icmp6) sum = sum + sum_pseudo_header(frame.src, frame.dst, l4.size(), protocol);
    if (!checksum_is_good(sum)) return Verdict::kBadChecksum;
    frame.kind = icmp4 ? FrameKind::kIcmp4 : FrameKind::kIcmp6;
    return Verdict::kAccepted;
  }
  if (protocol != kProtoUdp) {
    frame.kind = FrameKind::kOtherIp;
    return Verdict::kAccepted;
  }
  if (l4.size() < kUdpBytes) return Verdict::kTruncated;
  if (load_be16(&l4[4]) != l4.size()) return Verdict::kBadLength;
  if (checksums != UdpChecksums::kTrust && load_be16(&l4[6]) == 0) return Verdict::kBadChecksum;
  if (checksums == UdpChecksums::kVerify) {
    const PartialSum sum =
        sum_bytes(l4) + sum_pseudo_header(frame.src, frame.dst, l4.size(), protocol);
    if (!checksum_is_good(sum)) return Verdict::kBadChecksum;
  }
  frame.kind = FrameKind::kUdp;
  frame.src_port = load_be16(&l4[0]);
  frame.dst_port = load_be16(&l4[2]);
  frame.payload = l4.subspan(kUdpBytes);
  return Verdict::kAccepted;
}

Verdict parse_ipv4(UdpChecksums checksums, Frame& frame) noexcept {
  const Bytes bytes = frame.ethernet.content;
  if (bytes.size() < kIpv4Bytes) return Verdict::kTruncated;
  if (bytes[0] >> 4 != 4) return Verdict::kBadField;
  const std::size_t header_bytes = (bytes[0] & 15u) * 4;
  const std::size_t total_bytes = load_be16(&bytes[2]);
  if (header_bytes < kIpv4Bytes || total_bytes < header_bytes) return Verdict::kBadLength;
  if (bytes.size() < total_bytes) return Verdict::kTruncated;
  if (!checksum_is_good(sum_bytes(bytes.first(header_bytes)))) return Verdict::kBadChecksum;
  frame.traffic_class = bytes[1];
  frame.hop_limit = bytes[8];
  frame.src = load_address(Family::kIpv4, &bytes[12]);
  frame.dst = load_address(Family::kIpv4, &bytes[16]);
  if ((load_be16(&bytes[6]) & kFragmentBits) != 0) return Verdict::kFragment;
  return parse_l4(checksums, bytes[9], bytes.subspan(header_bytes, total_bytes - header_bytes),
                  frame);
}

Verdict parse_ipv6(UdpChecksums checksums, Frame& frame) noexcept {
  const Bytes bytes = frame.ethernet.content;
  if (bytes.size() < kIpv6Bytes) return Verdict::kTruncated;
  if (bytes[0] >> 4 != 6) return Verdict::kBadField;
  const std::size_t payload_bytes = load_be16(&bytes[4]);
  if (bytes.size() < kIpv6Bytes + payload_bytes) return Verdict::kTruncated;
  frame.traffic_class = static_cast<std::uint8_t>(load_be16(&bytes[0]) >> 4);
  frame.hop_limit = bytes[7];
  frame.src = load_address(Family::kIpv6, &bytes[8]);
  frame.dst = load_address(Family::kIpv6, &bytes[24]);
  if (bytes[6] == kProtoIpv6Fragment) return Verdict::kFragment;
  return parse_l4(checksums, bytes[6], bytes.subspan(kIpv6Bytes, payload_bytes), frame);
}

// Both write an IP header without its length and its checksum.
void write_ipv4(std::uint8_t* at, const UdpPath& path) noexcept {
  at[0] = 0x45;
  at[1] = path.traffic_class;
  store_be16(at + 6, kDontFragment);
  at[8] = kHopLimit;
  at[9] = kProtoUdp;
  std::memcpy(at + 12, path.src.bytes.data(), 4);
  std::memcpy(at + 16, path.dst.bytes.data(), 4);
}

void write_ipv6(std::uint8_t* at, const UdpPath& path) noexcept {
  store_be16(at, static_cast<std::uint16_t>(0x6000 | path.traffic_class << 4));
  at[6] = kProtoUdp;
  at[7] = kHopLimit;
  std::memcpy(at + 8, path.src.bytes.data(), 16);
  std::memcpy(at + 24, path.dst.bytes.data(), 16);
}

// The share in a sum of a number that is stored at an even offset in network order.
PartialSum sum_of_be16(std::size_t value) noexcept {
  std::array<std::uint8_t, 2> bytes;
  store_be16(bytes.data(), static_cast<std::uint16_t>(value));
  return sum_short(bytes);
}

}  // namespace

bool IpAddress::is_bad_source() const noexcept {
  if (family == Family::kIpv4) return bytes[0] == 0 || bytes[0] == 127 || bytes[0] >= 224;
  if (family != Family::kIpv6) return true;
  const bool zero_prefix =
      std::all_of(bytes.begin(), bytes.begin() + 15, [](std::uint8_t byte) { return byte == 0; });
  return bytes[0] == 0xff || (zero_prefix && bytes[15] <= 1);
}

PartialSum sum_pseudo_header(const IpAddress& src, const IpAddress& dst, std::size_t l4_bytes,
                             std::uint8_t protocol) noexcept {
  std::array<std::uint8_t, 4> tail{};
  store_be16(tail.data(), static_cast<std::uint16_t>(l4_bytes));
  tail[3] = protocol;
  return sum_bytes({src.bytes.data(), src.size()}) + sum_bytes({dst.bytes.data(), dst.size()}) +
         sum_bytes(tail);
}

Verdict parse_ethernet(Bytes bytes, EthernetView& view) noexcept {
  if (bytes.size() < kEthernetBytes) return Verdict::kTruncated;
  load_array(view.dst, &bytes[0]);
  load_array(view.src, &bytes[6]);
  view.ethertype = load_be16(&bytes[12]);
  view.vlan_tci = kNoVlan;
  view.content = bytes.subspan(kEthernetBytes);
  if (view.src.is_group() || view.src.is_zero()) return Verdict::kBadField;
  if (view.ethertype == kEtherVlan) {
    if (view.content.size() < kVlanTagBytes) return Verdict::kTruncated;
    view.vlan_tci = load_be16(&view.content[0]);
    if ((view.vlan_tci & 0x0fff) == 0x0fff) return Verdict::kBadField;  // reserved by 802.1Q
    view.ethertype = load_be16(&view.content[2]);
    view.content = view.content.subspan(kVlanTagBytes);
  }
  return Verdict::kAccepted;
}

Verdict parse_content(UdpChecksums checksums, Frame& frame) noexcept {
  frame.kind = FrameKind::kOther;
  frame.src = frame.dst = IpAddress{};
  frame.payload = frame.ethernet.content;
  switch (frame.ethernet.ethertype) {
    case kEtherArp: frame.kind = FrameKind::kArp; return Verdict::kAccepted;
    case kEtherIpv4: return parse_ipv4(checksums, frame);
    case kEtherIpv6: return parse_ipv6(checksums, frame);
    default: return Verdict::kAccepted;
  }
}

Verdict parse_frame(Bytes bytes, UdpChecksums checksums, Frame& frame) noexcept {
  const Verdict ethernet = parse_ethernet(bytes, frame.ethernet);
  return ok(ethernet) ? parse_content(checksums, frame) : ethernet;
}

std::optional<ArpPacket> parse_arp(Bytes bytes) noexcept {
  if (bytes.size() < kArpBytes) return std::nullopt;
  // Ethernet hardware, IPv4 protocol, address sizes 6 and 4.
  constexpr std::array<std::uint8_t, 6> kExpected{0, 1, 8, 0, 6, 4};
  if (!std::equal(kExpected.begin(), kExpected.end(), bytes.begin())) return std::nullopt;
  ArpPacket packet;
  packet.operation = load_be16(&bytes[6]);
  load_array(packet.sender_mac, &bytes[8]);
  packet.sender = load_address(Family::kIpv4, &bytes[14]);
  load_array(packet.target_mac, &bytes[18]);
  packet.target = load_address(Family::kIpv4, &bytes[24]);
  return packet;
}

UdpPath reply_path(const Frame& frame, const Mac& own_mac) noexcept {
  return UdpPath{.src_mac = own_mac,
                 .dst_mac = frame.ethernet.src,
                 .vlan_tci = frame.ethernet.vlan_tci,
                 .src = frame.dst,
                 .dst = frame.src,
                 .src_port = frame.dst_port,
                 .dst_port = frame.src_port,
                 .traffic_class = kEcnCapable};
}

std::size_t encode_ethernet(MutableBytes out, const Mac& dst, const Mac& src,
                            std::uint16_t vlan_tci, std::uint16_t ethertype) noexcept {
  const std::size_t size = kEthernetBytes + (vlan_tci == kNoVlan ? 0 : kVlanTagBytes);
  if (out.size() < size) return 0;
  std::memcpy(&out[0], dst.bytes.data(), 6);
  std::memcpy(&out[6], src.bytes.data(), 6);
  if (vlan_tci != kNoVlan) {
    store_be16(&out[12], kEtherVlan);
    store_be16(&out[14], vlan_tci);
  }
  store_be16(&out[size - 2], ethertype);
  return size;
}

std::size_t encode_arp_frame(MutableBytes out, const Mac& dst, std::uint16_t vlan_tci,
                             const ArpPacket& packet) noexcept {
  const std::size_t start = encode_ethernet(out, dst, packet.sender_mac, vlan_tci, kEtherArp);
  if (start == 0 || out.size() < start + kArpBytes) return 0;
  std::uint8_t* at = out.data() + start;
  constexpr std::array<std::uint8_t, 6> kFixed{0, 1, 8, 0, 6, 4};
  std::memcpy(at, kFixed.data(), kFixed.size());
  store_be16(at + 6, packet.operation);
  std::memcpy(at + 8, packet.sender_mac.bytes.data(), 6);
  std::memcpy(at + 14, packet.sender.bytes.data(), 4);
  std::memcpy(at + 18, packet.target_mac.bytes.data(), 6);
  std::memcpy(at + 24, packet.target.bytes.data(), 4);
  return start + kArpBytes;
}

UdpHeaders::UdpHeaders(const UdpPath& path) noexcept {
  if (path.src.family != path.dst.family || path.src.family == Family::kNone) return;
  ipv4_ = path.src.family == Family::kIpv4;
  size_ = static_cast<std::uint8_t>(udp_header_bytes(path));
  ip_at_ = static_cast<std::uint8_t>(encode_ethernet(
      bytes_, path.dst_mac, path.src_mac, path.vlan_tci, ipv4_ ? kEtherIpv4 : kEtherIpv6));
  std::uint8_t* ip = bytes_.data() + ip_at_;
  ipv4_ ? write_ipv4(ip, path) : write_ipv6(ip, path);
  if (ipv4_) ip_fixed_sum_ = sum_bytes({ip, kIpv4Bytes});
  std::uint8_t* udp = bytes_.data() + size_ - kUdpBytes;
  store_be16(udp, path.src_port);
  store_be16(udp + 2, path.dst_port);
  addresses_sum_ = sum_pseudo_header(path.src, path.dst, 0, kProtoUdp);
}

bool UdpHeaders::set_length(std::size_t payload_bytes) noexcept {
  const std::size_t l4_bytes = kUdpBytes + payload_bytes;
  if (size_ == 0 || l4_bytes + kIpv4Bytes > 0xffff) return false;
  std::uint8_t* ip = bytes_.data() + ip_at_;
  if (ipv4_) {
    store_be16(ip + 2, static_cast<std::uint16_t>(kIpv4Bytes + l4_bytes));
    const std::uint16_t checksum =
        finish_checksum(ip_fixed_sum_ + sum_of_be16(kIpv4Bytes + l4_bytes));
    std::memcpy(ip + 10, &checksum, sizeof checksum);
  } else {
    store_be16(ip + 4, static_cast<std::uint16_t>(l4_bytes));
  }
  std::uint8_t* udp = bytes_.data() + size_ - kUdpBytes;
  store_be16(udp + 4, static_cast<std::uint16_t>(l4_bytes));
  const PartialSum pseudo_header = addresses_sum_ + sum_of_be16(l4_bytes);
  pseudo_header_sum_ = static_cast<std::uint16_t>(~finish_checksum(pseudo_header));
  sum_ = pseudo_header + sum_bytes({udp, kUdpBytes});
  payload_bytes_ = static_cast<std::uint32_t>(payload_bytes);
  return true;
}

std::size_t encode_udp_headers(MutableBytes out, const UdpPath& path, std::size_t payload_bytes,
                               PartialSum payload_sum) noexcept {
  UdpHeaders headers(path);
  return headers.encode(out, payload_bytes, payload_sum) ? headers.size() : 0;
}

std::size_t encode_udp_frame(MutableBytes out, const UdpPath& path, Bytes payload) noexcept {
  const std::size_t header_bytes = udp_header_bytes(path);
  if (out.size() < header_bytes + payload.size()) return 0;
  if (encode_udp_headers(out, path, payload.size(), sum_bytes(payload)) == 0) return 0;
  if (!payload.empty()) std::memcpy(&out[header_bytes], payload.data(), payload.size());
  return header_bytes + payload.size();
}

}  // namespace sluice::wire
