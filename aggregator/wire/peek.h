// What a switch may read of a frame that it only forwards: enough to class it, judging nothing.
//
// Safe on any bytes, and cheap: no checksum, no length check beyond its own reads. For frames
// addressed to this host use parse_content() (inet.h) and parse() (packet.h) instead. Called by
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
  // From the header of `protocol` on, link-layer padding included. Empty for every fragment, the
  // first one too: all frames of a datagram shall get one class and stay in order.
  Bytes l4;

  constexpr bool has_ports() const noexcept {
    return (protocol == kProtoUdp || protocol == kProtoTcp) && l4.size() >= kUdpBytes;
  }
  constexpr Bytes udp_payload() const noexcept {
    return protocol == kProtoUdp && l4.size() >= kUdpBytes ? l4.subspan(kUdpBytes) : Bytes{};
  }
};

// IPv4 options are skipped. Of IPv6, hop-by-hop, routing, destination and fragment headers are
// skipped, at most kMaxExtensionHeaders of them; behind others the protocol is not known.
FlowView peek_flow(const EthernetView& view) noexcept;
inline constexpr int kMaxExtensionHeaders = 8;

// The priority that a UDP payload carries if it is a packet of ours (magic, version and type are
// looked at, the cookie is not): what the headers of data packets say, the most urgent for control
// packets, which are short.
std::optional<Priority> peek_priority(Bytes udp_payload) noexcept;

}  // namespace sluice::wire
