// DPDK 24.11's headers declare this function outside of extern "C"; the first declaration decides.
extern "C" struct rte_ring* rte_ring_create_elem(const char* name, unsigned esize, unsigned count,
                                                 int socket_id, unsigned flags);

#include "dataplane/dpdk/buffers.h"

#include <rte_errno.h>
#include <rte_ring_elem.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

namespace sluice::dataplane {
namespace {

constexpr std::uint32_t kCachePackets = 256;           // per thread
constexpr std::uint32_t kDevicePacketsPerLane = 2048;  // descriptors of both directions
constexpr std::uint32_t kLeastPackets = 2048;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kDataRoomBytes = 2048;
constexpr std::size_t kXdpHeadroomBytes = 256;  // of the kernel, in front of a frame
// Drivers of NICs round a buffer's size down to a multiple of this, and deliver a longer frame in
// parts.
constexpr std::size_t kNicStepBytes = 1024;

std::size_t data_room_bytes(const config::Config& config) {
  const std::size_t frame_bytes = max_frame_bytes(config);
  // Results are written behind room for the longest headers, which is added.
  std::size_t room = std::max(kDataRoomBytes, frame_bytes + wire::kMaxUdpHeaderBytes);
  std::size_t step = 64;
  for (const config::PortConfig& port : config.ports) {
    if (port.type == config::PortType::kAfPacket)
      room = std::max(room, af_packet_frame_bytes(frame_bytes));
    if (port.type == config::PortType::kAfXdp)
      room = std::max(room, frame_bytes + kXdpHeadroomBytes);
    if (port.type == config::PortType::kPci) step = kNicStepBytes;
  }
  return (room + step - 1) / step * step;
}

}  // namespace

Result<RingPtr> make_ring(const std::string& name, std::uint32_t capacity,
                          std::size_t element_bytes, Producers producers) {
  const unsigned flags =
      RING_F_SC_DEQ | RING_F_EXACT_SZ | (producers == Producers::kOne ? RING_F_SP_ENQ : 0u);
  rte_ring* ring = rte_ring_create_elem(name.c_str(), static_cast<unsigned>(element_bytes),
                                        capacity, SOCKET_ID_ANY, flags);
  if (ring == nullptr)
    return Status(StatusCode::kExhausted, "no memory for the ring " + name + " (" +
                                              rte_strerror(rte_errno) +
                                              "); raise appliance.memory_mib");
  return RingPtr(ring);
}

std::size_t max_frame_bytes(const config::Config& config) {
  std::size_t mtu = 1500;
  for (const config::PortConfig& port : config.ports) mtu = std::max<std::size_t>(mtu, port.mtu);
  return mtu + wire::kEthernetBytes + wire::kVlanTagBytes;
}

Result<PoolPtr> make_pool(const config::Config& config, std::size_t lanes) {
  const std::size_t buffer_bytes = data_room_bytes(config) + RTE_PKTMBUF_HEADROOM;
  // Without hugepages DPDK lets no buffer cross a page, so each takes whole pages.
  std::size_t element_bytes = sizeof(rte_mbuf) + sizeof(PacketMeta) + buffer_bytes + 128;
  if (!config.appliance.hugepages)
    element_bytes = (element_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::uint64_t affordable =
      (std::uint64_t{config.appliance.memory_mib} << 20) * 3 / 4 / element_bytes;
  // A waiting frame may be the last that refers to its shared payload, so it counts as two buffers.
  const std::uint64_t wanted = lanes * (2 * kEgressPackets + kDevicePacketsPerLane + kBurst * 4) +
                               config.appliance.shards * (kInboxPackets + 2 * kCachePackets) +
                               kMemberPackets + 2 * kUnauthenticatedPackets + kLeastPackets;
  const std::uint64_t count = std::min(affordable, wanted);
  if (count < kLeastPackets)
    return Status(StatusCode::kExhausted,
                  "appliance.memory_mib = " + std::to_string(config.appliance.memory_mib) +
                      " holds only " + std::to_string(count) + " packet buffers of " +
                      std::to_string(element_bytes) + " bytes; at least " +
                      std::to_string(kLeastPackets) + " are needed");
  rte_mempool* pool = rte_pktmbuf_pool_create(
      "sluice_packets", static_cast<unsigned>(count), kCachePackets, sizeof(PacketMeta),
      static_cast<std::uint16_t>(buffer_bytes), SOCKET_ID_ANY);
  if (pool == nullptr)
    return Status(StatusCode::kExhausted,
                  "no memory for " + std::to_string(count) + " packet buffers of " +
                      std::to_string(element_bytes) + " bytes (" + rte_strerror(rte_errno) +
                      "); raise appliance.memory_mib or reserve more hugepages");
  if (count < wanted)
    spdlog::info(
        "appliance.memory_mib = {} holds {} of the {} packet buffers that full queues "
        "would take; frames that find none are dropped as no_buffer",
        config.appliance.memory_mib, count, wanted);
  return PoolPtr(pool);
}

}  // namespace sluice::dataplane
