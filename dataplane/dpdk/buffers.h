// Packet buffers: the pool of the appliance, its rings, and the data that a buffer carries between
// threads.
//
// Only for dataplane/dpdk. Every thread may allocate and free; the pool is sized once at start.
#pragma once

#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include <cstdint>
#include <memory>
#include <span>

#include "aggregator/base/status.h"
#include "aggregator/wire/inet.h"
#include "config/config.h"
#include "dataplane/core/port_plan.h"

namespace sluice::dataplane {

inline constexpr std::uint16_t kBurst = 32;
inline constexpr std::uint32_t kEgressPackets = 4096;  // per lane
inline constexpr std::uint32_t kInboxPackets = 4096;   // per lcore, from all other threads
inline constexpr std::uint32_t kMemberPackets = 4096;  // to the control thread
inline constexpr std::uint32_t kUnauthenticatedPackets =
    1024;  // to the control thread, in each of two rings

// Why a buffer is handed to another thread. Lies in the buffer's private area.
struct PacketMeta {
  enum class Kind : std::uint8_t {
    kEgress,       // to a worker: to be sent out of `port` in class `egress_class`
    kShard,        // to a worker: a data packet for its shard, at payload_offset
    kControl,      // to the control thread: a control packet from `port`
    kUnreachable,  // to the control thread: an ICMP error from `port`
    kConflict,     // to the control thread: an ARP packet from `port` that claims the appliance's
                   // address
  };
  Kind kind{};
  std::uint8_t port = 0;
  std::uint8_t egress_class = 0;
  bool marked = false;  // kShard: congestion experienced
  std::uint16_t payload_offset = 0;
  std::uint16_t payload_bytes = 0;
};
static_assert(sizeof(PacketMeta) == RTE_MBUF_PRIV_ALIGN);

inline PacketMeta& meta_of(rte_mbuf* packet) noexcept {
  return *static_cast<PacketMeta*>(rte_mbuf_to_priv(packet));
}
inline wire::Bytes bytes_of(const rte_mbuf* packet) noexcept {
  return {rte_pktmbuf_mtod(packet, const std::uint8_t*), rte_pktmbuf_data_len(packet)};
}
// The bytes behind the headroom, for writing a new frame.
inline wire::MutableBytes room_of(rte_mbuf* packet) noexcept {
  return {rte_pktmbuf_mtod(packet, std::uint8_t*),
          static_cast<std::size_t>(packet->buf_len - packet->data_off)};
}
// Clears the device's offload flags of a received frame. The checksum flags stay, because no device
// reads them when the frame is sent on. The flags of external and indirect memory stay too: without
// them a buffer that a driver attached would be freed as the pool's own.
inline void clear_offloads(rte_mbuf* packet) noexcept {
  packet->ol_flags &= RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT | RTE_MBUF_F_RX_L4_CKSUM_MASK;
}
// How a received frame's UDP checksum is still to be checked. The software verifies the checksum of
// a frame that the device calls bad or says nothing about.
inline wire::UdpChecksums udp_checksums_of(ChecksumsBy by, const rte_mbuf* packet) noexcept {
  if (by == ChecksumsBy::kNobody) return wire::UdpChecksums::kTrust;
  const bool good = (packet->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD;
  return by == ChecksumsBy::kDevice && good ? wire::UdpChecksums::kVerified
                                            : wire::UdpChecksums::kVerify;
}
// Whether the UDP checksum of a frame of the appliance is left to the device.
inline bool leaves_checksum(const rte_mbuf* packet) noexcept {
  return (packet->ol_flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_UDP_CKSUM;
}
inline void set_frame_bytes(rte_mbuf* packet, std::size_t bytes) noexcept {
  packet->data_len = static_cast<std::uint16_t>(bytes);
  packet->pkt_len = static_cast<std::uint32_t>(bytes);
}

struct RingDeleter {
  void operator()(rte_ring* ring) const noexcept { rte_ring_free(ring); }
};
using RingPtr = std::unique_ptr<rte_ring, RingDeleter>;

enum class Producers : std::uint8_t { kMany, kOne };
// A ring with one consumer; `element_bytes` is a multiple of 4.
Result<RingPtr> make_ring(const std::string& name, std::uint32_t capacity,
                          std::size_t element_bytes, Producers producers = Producers::kMany);

struct PoolDeleter {
  void operator()(rte_mempool* pool) const noexcept { rte_mempool_free(pool); }
};
using PoolPtr = std::unique_ptr<rte_mempool, PoolDeleter>;

// The longest frame of any port: its MTU, the Ethernet header and one VLAN tag.
std::size_t max_frame_bytes(const config::Config& config);
// The size of such a frame and the kernel's header in the ring of an af_packet port, a multiple of
// a quarter page. A buffer must be as big, though the header stays in the ring.
constexpr std::size_t af_packet_frame_bytes(std::size_t frame_bytes) noexcept {
  return (frame_bytes + 128 + 1023) / 1024 * 1024;
}
// Makes as many buffers as the queues of `lanes` lanes can hold at once, or as many as
// appliance.memory_mib allows.
Result<PoolPtr> make_pool(const config::Config& config, std::size_t lanes);

}  // namespace sluice::dataplane
