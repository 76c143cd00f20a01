// Packet buffers on a real pool: DPDK's environment without hugepages, devices or privileges.
#include "dataplane/dpdk/buffers.h"

#include <gtest/gtest.h>
#include <rte_ip.h>
#include <rte_udp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "dataplane/dpdk/eal.h"
#include "dataplane/dpdk/send.h"

namespace sluice::dataplane {
namespace {

class Buffers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    config::Config config;
    config.appliance.memory_mib = 64;
    ASSERT_TRUE(start_eal(config).ok());
    auto made = make_pool(config, 1);
    ASSERT_TRUE(made.ok()) << made.status().message();
    pool = std::move(made).value();
  }
  static void TearDownTestSuite() {
    pool.reset();
    stop_eal();
  }
  static PoolPtr pool;
};
PoolPtr Buffers::pool;

struct Attached {  // memory that a driver lends to a buffer
  alignas(8) std::uint8_t bytes[512];
  rte_mbuf_ext_shared_info info{};
  int freed = 0;
  static void on_free(void*, void* self) { ++static_cast<Attached*>(self)->freed; }
};

TEST_F(Buffers, AReceivedFrameInTheDriversOwnMemoryGivesItBack) {
  const unsigned in_use = rte_mempool_in_use_count(pool.get());
  Attached memory;
  memory.info.free_cb = Attached::on_free;
  memory.info.fcb_opaque = &memory;
  rte_mbuf_ext_refcnt_set(&memory.info, 1);
  rte_mbuf* packet = rte_pktmbuf_alloc(pool.get());
  ASSERT_NE(packet, nullptr);
  void* const own_memory = packet->buf_addr;
  rte_pktmbuf_attach_extbuf(packet, memory.bytes, RTE_BAD_IOVA, sizeof memory.bytes, &memory.info);
  packet->ol_flags |= RTE_MBUF_F_RX_RSS_HASH | RTE_MBUF_F_RX_VLAN;
  clear_offloads(packet);
  EXPECT_EQ(packet->ol_flags & ~(RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT), 0u);
  EXPECT_EQ(packet->buf_addr, memory.bytes);
  rte_pktmbuf_free(packet);
  EXPECT_EQ(memory.freed, 1) << "or the driver's memory is lost";
  EXPECT_EQ(packet->buf_addr, own_memory) << "or the next frame is written into freed memory";
  EXPECT_EQ(rte_mempool_in_use_count(pool.get()), in_use);
}

TEST_F(Buffers, AFrameThatSharesAnotherOnesMemoryLetsGoOfIt) {
  const unsigned in_use = rte_mempool_in_use_count(pool.get());
  rte_mbuf* first = rte_pktmbuf_alloc(pool.get());
  rte_mbuf* second = rte_pktmbuf_alloc(pool.get());
  ASSERT_TRUE(first != nullptr && second != nullptr);
  rte_pktmbuf_attach(second, first);
  clear_offloads(second);
  rte_pktmbuf_free(first);
  rte_pktmbuf_free(second);
  EXPECT_EQ(rte_mempool_in_use_count(pool.get()), in_use);
}

// What a device may say of a frame's checksum, by who is to check it.
TEST_F(Buffers, OnlyAFrameThatItsDeviceCallsGoodIsNotSummedAgain) {
  using wire::UdpChecksums;
  struct Row {
    std::uint64_t flags;
    UdpChecksums by_device;
  };
  const Row rows[] = {{0, UdpChecksums::kVerify},
                      {RTE_MBUF_F_RX_L4_CKSUM_BAD, UdpChecksums::kVerify},
                      {RTE_MBUF_F_RX_L4_CKSUM_NONE, UdpChecksums::kVerify},
                      {RTE_MBUF_F_RX_L4_CKSUM_GOOD, UdpChecksums::kVerified}};
  rte_mbuf* packet = rte_pktmbuf_alloc(pool.get());
  ASSERT_NE(packet, nullptr);
  for (const Row& row : rows) {
    packet->ol_flags = row.flags | RTE_MBUF_F_RX_RSS_HASH | RTE_MBUF_F_RX_IP_CKSUM_GOOD;
    clear_offloads(packet);
    EXPECT_EQ(packet->ol_flags, row.flags);
    EXPECT_EQ(udp_checksums_of(ChecksumsBy::kDevice, packet), row.by_device) << row.flags;
    EXPECT_EQ(udp_checksums_of(ChecksumsBy::kSoftware, packet), UdpChecksums::kVerify)
        << "a driver may say so unasked";
    EXPECT_EQ(udp_checksums_of(ChecksumsBy::kNobody, packet), UdpChecksums::kTrust);
  }
  rte_pktmbuf_free(packet);
}

wire::UdpPath path_of(bool ipv6, std::uint16_t vlan) {
  wire::UdpPath path{.src_mac = {{2, 0, 0, 0, 0, 1}},
                     .dst_mac = {{2, 0, 0, 0, 0, 2}},
                     .vlan_tci = vlan,
                     .src = wire::ipv4_address(10, 77, 0, 1),
                     .dst = wire::ipv4_address(10, 77, 0, 2),
                     .src_port = 7701,
                     .dst_port = 50000};
  if (ipv6)
    path.src = {wire::Family::kIpv6, {0xfd, 1}}, path.dst = {wire::Family::kIpv6, {0xfd, 2}};
  return path;
}

// As results of a sum leave: a head of each one's own, the same payload behind all.
TEST_F(Buffers, FramesThatShareAPayloadGiveItBackWithTheLastOfThem) {
  const unsigned in_use = rte_mempool_in_use_count(pool.get());
  constexpr std::uint16_t kFrames = 3;
  constexpr std::size_t kHeadBytes = 40;
  constexpr std::size_t kSharedBytes = 1001;
  std::array<std::uint8_t, kSharedBytes> payload;
  for (std::size_t at = 0; at < kSharedBytes; ++at) payload[at] = static_cast<std::uint8_t>(at * 7);
  rte_mbuf* shared = share(pool.get(), payload, kFrames);
  ASSERT_NE(shared, nullptr);
  wire::UdpHeaders headers(path_of(false, wire::kNoVlan));
  std::array<rte_mbuf*, kFrames> frames;
  for (std::uint16_t at = 0; at < kFrames; ++at) {
    frames[at] = rte_pktmbuf_alloc(pool.get());
    ASSERT_NE(frames[at], nullptr);
    const wire::MutableBytes head = datagram_room(frames[at]).first(kHeadBytes);
    std::memset(head.data(), at, head.size());
    ASSERT_TRUE(put_headers(frames[at], headers, kHeadBytes,
                            wire::sum_bytes(head) + wire::sum_bytes(payload),
                            ChecksumsBy::kSoftware, shared));
  }
  for (std::uint16_t at = 0; at < kFrames; ++at) {
    const char* why = nullptr;
    EXPECT_EQ(rte_mbuf_check(frames[at], 1, &why), 0) << why;
    EXPECT_EQ(frames[at]->pkt_len, headers.size() + kHeadBytes + kSharedBytes);
    // What a device sends.
    std::array<std::uint8_t, 2048> room;
    const auto* sent = static_cast<const std::uint8_t*>(
        rte_pktmbuf_read(frames[at], 0, frames[at]->pkt_len, room.data()));
    ASSERT_EQ(sent, room.data()) << "in one piece already";
    wire::Frame frame;
    ASSERT_EQ(wire::parse_frame(wire::Bytes(room).first(frames[at]->pkt_len),
                                wire::UdpChecksums::kVerify, frame),
              Verdict::kAccepted);
    ASSERT_EQ(frame.payload.size(), kHeadBytes + kSharedBytes);
    EXPECT_EQ(frame.payload[0], at);
    EXPECT_TRUE(std::ranges::equal(frame.payload.subspan(kHeadBytes), payload));
    rte_pktmbuf_free(frames[at]);
    EXPECT_EQ(rte_mempool_in_use_count(pool.get()),
              at + 1 == kFrames ? in_use : in_use + kFrames - at)
        << "the frames that are left, and the payload";
  }
}

// DPDK's own software stands in for the device, and reads what a device reads.
TEST_F(Buffers, ADeviceFindsInTheBufferWhatItNeedsForTheChecksum) {
  for (const bool ipv6 : {false, true}) {
    for (const std::uint16_t vlan : {wire::kNoVlan, std::uint16_t{7}}) {
      wire::UdpHeaders headers(path_of(ipv6, vlan));
      rte_mbuf* packet = rte_pktmbuf_alloc(pool.get());
      ASSERT_NE(packet, nullptr);
      constexpr std::size_t kBytes = 1001;
      std::memset(datagram_room(packet).data(), 0xa5, kBytes);
      ASSERT_TRUE(put_headers(packet, headers, kBytes, {}, ChecksumsBy::kDevice));
      EXPECT_EQ(packet->ol_flags,
                RTE_MBUF_F_TX_UDP_CKSUM | (ipv6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4));
      const auto* ip = rte_pktmbuf_mtod_offset(packet, const std::uint8_t*, packet->l2_len);
      auto* udp = rte_pktmbuf_mtod_offset(packet, rte_udp_hdr*, packet->l2_len + packet->l3_len);
      const auto pseudo_header =
          ipv6 ? rte_ipv6_phdr_cksum(reinterpret_cast<const rte_ipv6_hdr*>(ip), packet->ol_flags)
               : rte_ipv4_phdr_cksum(reinterpret_cast<const rte_ipv4_hdr*>(ip), packet->ol_flags);
      EXPECT_EQ(udp->dgram_cksum, pseudo_header);
      EXPECT_EQ(packet->l4_len, sizeof *udp);
      udp->dgram_cksum = 0;
      udp->dgram_cksum =
          ipv6 ? rte_ipv6_udptcp_cksum(reinterpret_cast<const rte_ipv6_hdr*>(ip), udp)
               : rte_ipv4_udptcp_cksum(reinterpret_cast<const rte_ipv4_hdr*>(ip), udp);
      wire::Frame frame;
      EXPECT_EQ(wire::parse_frame(bytes_of(packet), wire::UdpChecksums::kVerify, frame),
                Verdict::kAccepted);
      EXPECT_EQ(frame.payload.size(), kBytes);
      rte_pktmbuf_free(packet);
    }
  }
}

}  // namespace
}  // namespace sluice::dataplane
