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
inline bool put_headers(rte_mbuf* packet, const wire::UdpHeaders& headers,
                        std::size_t payload_bytes, wire::PartialSum payload_sum) noexcept {
  const std::size_t start = wire::kMaxUdpHeaderBytes - headers.size();
  if (!headers.encode(room_of(packet).subspan(start), payload_bytes, payload_sum)) return false;
  packet->data_off = static_cast<std::uint16_t>(packet->data_off + start);
  set_frame_bytes(packet, headers.size() + payload_bytes);
  return true;
}

}  // namespace sluice::dataplane
