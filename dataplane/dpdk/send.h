// Writes a datagram of the appliance into a buffer: first the payload, then the headers in front of
// it.
//
// The payload leaves room for the longest headers in front of it. So it can be written before its
// receiver is known, and never has to be moved.
#pragma once

#include <cstring>

#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

// The bytes of a fresh buffer for the UDP payload.
inline wire::MutableBytes datagram_room(rte_mbuf* packet) noexcept {
  return room_of(packet).subspan(wire::kMaxUdpHeaderBytes);
}

// A buffer with these bytes, in which `frames` frames are to end; each of them frees it once. Null:
// the pool is empty.
inline rte_mbuf* share(rte_mempool* pool, wire::Bytes bytes, std::uint16_t frames) noexcept {
  rte_mbuf* shared = rte_pktmbuf_alloc(pool);
  if (shared == nullptr) return nullptr;
  std::memcpy(room_of(shared).data(), bytes.data(), bytes.size());
  set_frame_bytes(shared, bytes.size());
  rte_mbuf_refcnt_set(shared, frames);  // not atomic: no other thread knows the buffer
  return shared;
}

// Writes the headers in front of the `room_bytes` in datagram_room(), so that the buffer becomes
// the frame. If `shared` is given, the frame ends in it and owns one of its references. `by` says
// who makes the UDP checksum at the port of departure. False: the path is unusable, and both
// buffers are unchanged.
inline bool put_headers(rte_mbuf* packet, wire::UdpHeaders& headers, std::size_t room_bytes,
                        wire::PartialSum payload_sum, ChecksumsBy by,
                        rte_mbuf* shared = nullptr) noexcept {
  const std::size_t shared_bytes = shared == nullptr ? 0 : shared->data_len;
  const std::size_t payload_bytes = room_bytes + shared_bytes;
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
  set_frame_bytes(packet, headers.size() + room_bytes);
  if (shared != nullptr) {
    packet->pkt_len += static_cast<std::uint32_t>(shared_bytes);
    packet->nb_segs = 2;
    packet->next = shared;
  }
  return true;
}

}  // namespace sluice::dataplane
