// Reads the headers of a frame that the switch only forwards, as far as its egress class depends on
// them.
//
// Safe on any bytes, and cheap: it verifies no checksum, and no length beyond its own reads. Frames
// addressed to this host need parse_content() (inet.h) and parse() (packet.h) instead. Called by
// lcore workers for each forwarded frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "aggregator/base/types.h"
#include "aggregator/wire/inet.h"

namespace sluice::wire {

inline constexpr std::uint8_t kNoPcp = 8;            // untagged
inline constexpr std::uint8_t kNoProtocol = 255;     // not IP, or hidden; reserved by IANA
inline constexpr std::uint16_t kEtherQinQ = 0x88a8;  // IEEE 802.1ad's outer tag

struct FlowView {
  std::uint16_t ethertype = 0;  // behind up to two tags
  std::uint8_t pcp = kNoPcp;    // of the outermost tag
  Family family = Family::kNone;
  std::uint8_t traffic_class = 0;
  std::uint8_t protocol = kNoProtocol;  // behind IPv6's extension headers
  Bytes addresses;                      // the source, then the destination; empty unless IP
  // The bytes from the header of `protocol` on, link-layer padding included. Empty for every
  // fragment, also the first: all frames of a datagram get one class and stay in order.
  Bytes l4;

  constexpr bool has_ports() const noexcept {
    return (protocol == kProtoUdp || protocol == kProtoTcp) && l4.size() >= kUdpBytes;
  }
  constexpr Bytes udp_payload() const noexcept {
    return protocol == kProtoUdp && l4.size() >= kUdpBytes ? l4.subspan(kUdpBytes) : Bytes{};
  }
};

// Skips IPv4 options, and at most kMaxExtensionHeaders of IPv6's hop-by-hop, routing, destination
// and fragment headers. Behind other headers the protocol is not known.
FlowView peek_flow(const EthernetView& view) noexcept;
inline constexpr int kMaxExtensionHeaders = 8;

// The priority of a UDP payload that is a packet of Sluice (by its magic, version and type; the
// cookie is not checked): that of a data packet's header, or the most urgent for a control packet,
// which is short.
std::optional<Priority> peek_priority(Bytes udp_payload) noexcept;

}  // namespace sluice::wire
