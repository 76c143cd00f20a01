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
// `by` says who makes the UDP checksum where the frame leaves. False: the path is unusable; the
// buffer is untouched.
inline bool put_headers(rte_mbuf* packet, wire::UdpHeaders& headers, std::size_t payload_bytes,
                        wire::PartialSum payload_sum, ChecksumsBy by) noexcept {
  const std::size_t start = wire::kMaxUdpHeaderBytes - headers.size();
  const wire::MutableBytes room = room_of(packet).subspan(start);
  if (by == ChecksumsBy::kDevice) {
    if (!headers.encode_for_device(room, payload_bytes)) return false;
    packet->ol_flags |=
        RTE_MBUF_F_TX_UDP_CKSUM | (headers.is_ipv4() ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6);
    packet->l2_len = headers.ip_at();
    packet->l3_len = headers.size() - headers.ip_at() - wire::kUdpBytes;
    packet->l4_len = wire::kUdpBytes;
  } else if (!headers.encode(room, payload_bytes, payload_sum)) {
    return false;
  }
  packet->data_off = static_cast<std::uint16_t>(packet->data_off + start);
  set_frame_bytes(packet, headers.size() + payload_bytes);
  return true;
}

}  // namespace sluice::dataplane
