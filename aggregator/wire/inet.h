// Ethernet, 802.1Q, ARP, IPv4, IPv6, ICMP and UDP: reading frames and writing them.
//
// Used by the appliance, the client's vhost transport and the simulator, on the thread that owns
// the frame. The functions keep no state, answer nothing (dataplane/host does), do not reassemble
// fragments and know nothing of Sluice's own packets (packet.h). Numbers in the structs are in host
// order; addresses are bytes in wire order.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "aggregator/base/verdict.h"
#include "aggregator/wire/checksum.h"

namespace sluice::wire {

using Bytes = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;

// Prefetches bytes that will be read soon.
inline void prefetch(Bytes bytes) noexcept {
  constexpr std::size_t kCacheLine = 64;
  constexpr std::size_t kTurn = 4 * kCacheLine;
  const std::uint8_t* at = bytes.data();
  const std::uint8_t* const end = at + bytes.size();
  for (std::size_t turns = bytes.size() / kTurn; turns != 0; --turns, at += kTurn)
    for (std::size_t line = 0; line < kTurn; line += kCacheLine) __builtin_prefetch(at + line);
  for (; at < end; at += kCacheLine) __builtin_prefetch(at);
}

struct Mac {
  std::array<std::uint8_t, 6> bytes{};
  // As integers: comparing the arrays would call memcmp for every frame.
  friend constexpr bool operator==(const Mac& a, const Mac& b) noexcept {
    const auto x = std::bit_cast<std::array<std::uint16_t, 3>>(a.bytes);
    const auto y = std::bit_cast<std::array<std::uint16_t, 3>>(b.bytes);
    return ((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2])) == 0;
  }
  constexpr bool is_group() const noexcept { return (bytes[0] & 1) != 0; }
  constexpr bool is_zero() const noexcept { return *this == Mac{}; }
};

inline constexpr Mac kBroadcastMac{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};

enum class Family : std::uint8_t { kNone = 0, kIpv4 = 4, kIpv6 = 6 };

// An IPv4 address uses the first four bytes; the rest stay zero so that == compares.
struct IpAddress {
  Family family = Family::kNone;
  std::array<std::uint8_t, 16> bytes{};
  friend constexpr bool operator==(const IpAddress& a, const IpAddress& b) noexcept {
    const auto x = std::bit_cast<std::array<std::uint64_t, 2>>(a.bytes);
    const auto y = std::bit_cast<std::array<std::uint64_t, 2>>(b.bytes);
    return a.family == b.family && ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
  }
  constexpr std::size_t size() const noexcept { return family == Family::kIpv4 ? 4 : 16; }
  // Unspecified, multicast, loopback or IPv4 broadcast: never the source of a valid request.
  bool is_bad_source() const noexcept;
};

constexpr IpAddress ipv4_address(std::uint8_t a, std::uint8_t b, std::uint8_t c,
                                 std::uint8_t d) noexcept {
  return IpAddress{Family::kIpv4, {a, b, c, d}};
}

inline constexpr std::uint16_t kEtherArp = 0x0806;
inline constexpr std::uint16_t kEtherVlan = 0x8100;
inline constexpr std::uint16_t kEtherIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherIpv6 = 0x86dd;
inline constexpr std::uint8_t kProtoIcmp = 1;
inline constexpr std::uint8_t kProtoTcp = 6;
inline constexpr std::uint8_t kProtoUdp = 17;
inline constexpr std::uint8_t kProtoIcmp6 = 58;

inline constexpr std::size_t kEthernetBytes = 14;
inline constexpr std::size_t kVlanTagBytes = 4;
inline constexpr std::size_t kIpv4Bytes = 20;
inline constexpr std::size_t kIpv6Bytes = 40;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kIcmpBytes = 8;
inline constexpr std::size_t kArpBytes = 28;
// The most bytes that encode_udp_headers() writes.
inline constexpr std::size_t kMaxUdpHeaderBytes =
    kEthernetBytes + kVlanTagBytes + kIpv6Bytes + kUdpBytes;

// ECN is the low two bits of the traffic class.
inline constexpr std::uint8_t kEcnMask = 3;
inline constexpr std::uint8_t kEcnCapable = 2;    // ECT(0)
inline constexpr std::uint8_t kEcnCongested = 3;  // CE

// --- Checksums (checksum.h) ---

// The pseudo-header of UDP and ICMPv6: both addresses, the length and the protocol.
PartialSum sum_pseudo_header(const IpAddress& src, const IpAddress& dst, std::size_t l4_bytes,
                             std::uint8_t protocol) noexcept;

// --- Reading ---

inline constexpr std::uint16_t kNoVlan = 0xffff;

// The Ethernet part of a frame, enough to forward it.
struct EthernetView {
  Mac dst;
  Mac src;
  std::uint16_t ethertype = 0;       // of the content, behind the VLAN tag if there is one
  std::uint16_t vlan_tci = kNoVlan;  // priority and VLAN id, as in the tag
  Bytes content;
  constexpr std::uint16_t vlan_id() const noexcept {
    return vlan_tci == kNoVlan ? 0 : static_cast<std::uint16_t>(vlan_tci & 0x0fff);
  }
};

enum class FrameKind : std::uint8_t { kOther, kArp, kIcmp4, kIcmp6, kUdp, kOtherIp };

struct Frame {
  EthernetView ethernet;
  FrameKind kind = FrameKind::kOther;
  IpAddress src;  // unset for kOther and kArp
  IpAddress dst;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;  // IPv4's time to live
  std::uint16_t src_port = 0;  // kUdp
  std::uint16_t dst_port = 0;
  // kArp: the ARP packet. ICMP: from its header on. kUdp: the datagram's data. kOtherIp: behind the
  // IP header. Link-layer padding is cut off.
  Bytes payload;
};

// The datagram of a UDP frame for its receiver.
struct Datagram {
  Bytes payload;
  bool marked = false;  // congestion experienced
};
inline Datagram datagram_of(const Frame& frame) noexcept {
  return {frame.payload, (frame.traffic_class & kEcnMask) == kEcnCongested};
}

enum class UdpChecksums : std::uint8_t {
  kVerify,
  kVerified,  // verified by the device: only its presence is left to check
  kTrust,     // not verified: for links that are shared memory
};

// kAccepted if the frame can be forwarded, or the reason why not, as parse() (packet.h).
[[nodiscard]] Verdict parse_ethernet(Bytes bytes, EthernetView& view) noexcept;

// For frames addressed to this host: checks lengths, checksums and fragments as well. If the frame
// is valid, `frame` refers into `bytes`. A UDP checksum of zero (none) is refused.
[[nodiscard]] Verdict parse_frame(Bytes bytes, UdpChecksums checksums, Frame& frame) noexcept;
// As parse_frame(), for a frame whose Ethernet header is already parsed into frame.ethernet.
[[nodiscard]] Verdict parse_content(UdpChecksums checksums, Frame& frame) noexcept;

inline constexpr std::uint16_t kArpRequest = 1;
inline constexpr std::uint16_t kArpReply = 2;

struct ArpPacket {
  std::uint16_t operation = 0;
  Mac sender_mac;
  IpAddress sender;  // IPv4
  Mac target_mac;
  IpAddress target;
};

// Nothing if the bytes are no ARP packet of Ethernet and IPv4.
std::optional<ArpPacket> parse_arp(Bytes bytes) noexcept;

// --- Writing ---

// The addresses that the frames of one direction of a UDP flow have in common.
struct UdpPath {
  Mac src_mac;
  Mac dst_mac;
  std::uint16_t vlan_tci = kNoVlan;
  IpAddress src;
  IpAddress dst;
  std::uint16_t src_port = 0;
  std::uint16_t dst_port = 0;
  std::uint8_t traffic_class = 0;
  friend constexpr bool operator==(const UdpPath&, const UdpPath&) = default;
};

// The path back to the sender of this UDP frame, from `own_mac`, for ECN-capable datagrams.
UdpPath reply_path(const Frame& frame, const Mac& own_mac) noexcept;

// Bytes in front of the UDP payload on this path.
constexpr std::size_t udp_header_bytes(const UdpPath& path) noexcept {
  return kEthernetBytes + (path.vlan_tci == kNoVlan ? 0 : kVlanTagBytes) +
         (path.src.family == Family::kIpv4 ? kIpv4Bytes : kIpv6Bytes) + kUdpBytes;
}

// The headers of the datagrams on a path, prepared for one length: only the UDP checksum of
// datagrams of that length differs. IPv4 has "don't fragment" set.
class UdpHeaders {
 public:
  UdpHeaders() = default;
  // size() is 0 if the families differ or the path has no addresses.
  explicit UdpHeaders(const UdpPath& path) noexcept;

  std::size_t size() const noexcept { return size_; }
  std::size_t ip_at() const noexcept { return ip_at_; }  // where the IP header begins
  bool is_ipv4() const noexcept { return ipv4_; }
  // Writes the headers of a payload with this partial sum to the first size() bytes of `out`.
  // False: there is no path, `out` is too small, or the payload is too long.
  bool encode(MutableBytes out, std::size_t payload_bytes, PartialSum payload_sum) noexcept {
    if (!prepare(out, payload_bytes)) return false;
    const std::uint16_t checksum = finish_checksum(sum_ + payload_sum);
    write(out, checksum == 0 ? 0xffff : checksum);  // zero would mean "no checksum" (RFC 768)
    return true;
  }
  // As encode(), for a device that completes the UDP checksum: its field has the pseudo-header's
  // sum.
  bool encode_for_device(MutableBytes out, std::size_t payload_bytes) noexcept {
    if (!prepare(out, payload_bytes)) return false;
    write(out, pseudo_header_sum_);
    return true;
  }

 private:
  static constexpr std::uint32_t kNoLength = ~0u;

  bool prepare(MutableBytes out, std::size_t payload_bytes) noexcept {
    if (payload_bytes != payload_bytes_ && !set_length(payload_bytes)) [[unlikely]]
      return false;
    return out.size() >= size_;
  }
  // False: there is no path, or the payload is too long.
  bool set_length(std::size_t payload_bytes) noexcept;
  void write(MutableBytes out, std::uint16_t checksum) const noexcept {
    // Two moves that overlap: a size known only at run time would be a call.
    constexpr std::size_t kHead = 32;
    constexpr std::size_t kTail = kMaxUdpHeaderBytes - kHead;
    static_assert(kEthernetBytes + kIpv4Bytes + kUdpBytes >= kTail);
    std::memcpy(out.data(), bytes_.data(), kHead);
    std::memcpy(out.data() + size_ - kTail, bytes_.data() + size_ - kTail, kTail);
    std::memcpy(out.data() + size_ - sizeof checksum, &checksum, sizeof checksum);
  }

  std::array<std::uint8_t, kMaxUdpHeaderBytes> bytes_{};  // the UDP checksum is zero
  std::uint8_t size_ = 0;
  std::uint8_t ip_at_ = 0;
  bool ipv4_ = false;
  std::uint16_t pseudo_header_sum_ = 0;      // for that length, folded
  std::uint32_t payload_bytes_ = kNoLength;  // the length for which the headers are prepared
  PartialSum sum_;            // of the UDP header and the pseudo-header, for that length
  PartialSum ip_fixed_sum_;   // of the IPv4 header without its length
  PartialSum addresses_sum_;  // of the pseudo-header without its length
};

// Writes the headers of a path that is used once; returns their size, or 0 where encode() would
// fail.
std::size_t encode_udp_headers(MutableBytes out, const UdpPath& path, std::size_t payload_bytes,
                               PartialSum payload_sum) noexcept;
// Writes headers and a copy of the payload; returns the frame's size or 0.
std::size_t encode_udp_frame(MutableBytes out, const UdpPath& path, Bytes payload) noexcept;

// Writes an Ethernet header, tagged unless vlan_tci is kNoVlan; returns its size or 0.
std::size_t encode_ethernet(MutableBytes out, const Mac& dst, const Mac& src,
                            std::uint16_t vlan_tci, std::uint16_t ethertype) noexcept;
// A whole ARP frame; returns its size or 0.
std::size_t encode_arp_frame(MutableBytes out, const Mac& dst, std::uint16_t vlan_tci,
                             const ArpPacket& packet) noexcept;

// --- Big-endian fields ---

constexpr std::uint16_t load_be16(const std::uint8_t* at) noexcept {
  return static_cast<std::uint16_t>(at[0] << 8 | at[1]);
}
constexpr void store_be16(std::uint8_t* at, std::uint16_t value) noexcept {
  at[0] = static_cast<std::uint8_t>(value >> 8);
  at[1] = static_cast<std::uint8_t>(value);
}

}  // namespace sluice::wire
