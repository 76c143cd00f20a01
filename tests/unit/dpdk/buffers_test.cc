// Packet buffers on a real pool: DPDK's environment without hugepages, devices or privileges.
#include "dataplane/dpdk/buffers.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "dataplane/dpdk/eal.h"

namespace sluice::dataplane {
namespace {

class Buffers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    config::Config config;
    config.appliance.memory_mib = 64;
    ASSERT_TRUE(start_eal(config).ok());
    auto made = make_pool(config);
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

}  // namespace
}  // namespace sluice::dataplane
