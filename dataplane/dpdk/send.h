// Putting a datagram of ours into a buffer: payload first, headers in front of it afterwards.
//
// The payload goes behind room for the longest headers, so that it can be written before it is
// known to whom it goes and never has to move.
#pragma once

#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

// Where a fresh buffer takes the UDP payload.
inline wire::MutableBytes datagram_room(rte_mbuf* packet) noexcept {
  return room_of(packet).subspan(wire::kMaxUdpHeaderBytes);
}

// Writes the headers in front of `payload_bytes` in datagram_room() and makes the buffer the frame.
// False: the path is unusable; the buffer is untouched.
inline bool put_headers(rte_mbuf* packet, const wire::UdpPath& to, std::uint16_t source_port,
                        std::size_t payload_bytes, wire::PartialSum payload_sum) noexcept {
  wire::UdpPath path = to;
  path.src_port = source_port;
  const std::size_t header_bytes = wire::udp_header_bytes(path);
  const std::size_t start = wire::kMaxUdpHeaderBytes - header_bytes;
  if (wire::encode_udp_headers(room_of(packet).subspan(start, header_bytes), path, payload_bytes,
                               payload_sum) == 0)
    return false;
  packet->data_off = static_cast<std::uint16_t>(packet->data_off + start);
  set_frame_bytes(packet, header_bytes + payload_bytes);
  return true;
}

}  // namespace sluice::dataplane
