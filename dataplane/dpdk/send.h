// Putting a datagram of ours into a buffer: payload first, headers in front of it afterwards.
//
// The payload goes behind room for the longest headers, so that it can be written before it is
// known to whom it goes and never has to move.
#pragma once

#include <cstring>

#include "dataplane/dpdk/buffers.h"

namespace sluice::dataplane {

// Where a fresh buffer takes the UDP payload.
inline wire::MutableBytes datagram_room(rte_mbuf* packet) noexcept {
  return room_of(packet).subspan(wire::kMaxUdpHeaderBytes);
}

// A buffer with these bytes for so many frames to end in, each of which is to free it once. Null:
// the pool has none.
inline rte_mbuf* share(rte_mempool* pool, wire::Bytes bytes, std::uint16_t frames) noexcept {
  rte_mbuf* shared = rte_pktmbuf_alloc(pool);
  if (shared == nullptr) return nullptr;
  std::memcpy(room_of(shared).data(), bytes.data(), bytes.size());
  set_frame_bytes(shared, bytes.size());
  rte_mbuf_refcnt_set(shared, frames);  // at once: nobody else has seen it
  return shared;
}

// Writes the headers in front of `room_bytes` in datagram_room() and makes the buffer the frame,
// which ends in `shared` if there is one, and then owns one of its references. `by` says who makes
// the UDP checksum where the frame leaves. False: the path is unusable; both buffers are untouched.
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
