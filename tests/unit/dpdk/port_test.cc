// A port on DPDK's net_ring, in the place of a PCI device: rings stand for the wire.
#include "dataplane/dpdk/port.h"

#include <gmock/gmock.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "dataplane/dpdk/eal.h"

namespace sluice::dataplane {
namespace {

using testing::HasSubstr;

config::Config config_of_jumbo_port() {
  config::Config config;
  config.appliance.memory_mib = 64;
  config.appliance.polling = config::Polling::kBusy;
  config.ports.emplace_back();
  config.ports[0].name = "uplink";
  config.ports[0].type = config::PortType::kPci;
  config.ports[0].mtu = 9000;
  return config;
}

class RingPort : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const config::Config config = config_of_jumbo_port();
    config::Config without_bus = config;
    without_bus.ports.clear();
    ASSERT_TRUE(start_eal(without_bus).ok());
    auto made = make_pool(config, 1);
    ASSERT_TRUE(made.ok()) << made.status().message();
    pool = std::move(made).value();
  }
  static void TearDownTestSuite() {
    pool.reset();
    stop_eal();
  }

  void SetUp() override {
    auto wire = make_ring("wire", 64, sizeof(void*));
    ASSERT_TRUE(wire.ok());
    wire_ = std::move(wire).value();
    rte_ring* ring = wire_.get();
    device_ = rte_eth_from_rings("uplink", &ring, 1, &ring, 1, 0);
    ASSERT_GE(device_, 0) << rte_strerror(rte_errno);
    std::array<char, RTE_ETH_NAME_MAX_LEN> name;
    rte_eth_dev_get_name_by_port(static_cast<std::uint16_t>(device_), name.data());
    config_.ports[0].pci = name.data();
    before_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
  }
  void TearDown() override {
    port_.reset();
    rte_eal_hotplug_remove("vdev", config_.ports[0].pci.c_str());
    spdlog::set_default_logger(before_);
  }

  Status open(rte_mempool* buffers) {
    auto opened = Port::open(config_.ports[0], 0, config_);
    if (!opened.ok()) return opened.status();
    port_ = std::move(opened).value();
    return port_->start(buffers, 0, config_);
  }
  std::size_t lines_with(const std::string& text) {
    std::size_t count = 0;
    const std::string log = log_.str();
    for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1))
      ++count;
    return count;
  }

  static PoolPtr pool;
  config::Config config_ = config_of_jumbo_port();
  RingPtr wire_;
  int device_ = -1;
  std::unique_ptr<Port> port_;
  std::ostringstream log_;
  std::shared_ptr<spdlog::logger> before_;
};
PoolPtr RingPort::pool;

// Drivers of NICs round the room down to whole KB, and compare it with a frame of two tags.
TEST_F(RingPort, ABufferHoldsAWholeFrameWhereADriverRoundsItsRoomDown) {
  const std::size_t room = rte_pktmbuf_data_room_size(pool.get()) - RTE_PKTMBUF_HEADROOM;
  EXPECT_GE(room / 1024 * 1024, std::size_t{9000} + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 8);
}

TEST_F(RingPort, ALinkThatChangesWithoutAnInterruptIsNoticedAtTheNextLook) {
  ASSERT_TRUE(open(pool.get()).ok());
  EXPECT_TRUE(port_->up());
  TimeNs now = kSecond;
  for (const bool up : {false, true}) {
    const auto device = static_cast<std::uint16_t>(device_);
    (up ? rte_eth_dev_set_link_up : rte_eth_dev_set_link_down)(device);
    port_->refresh(now += kSecond);
    EXPECT_EQ(port_->up(), up);
  }
  EXPECT_EQ(lines_with("\"uplink\" (PCI device"), 3u) << log_.str();
}

TEST_F(RingPort, ALinkThatFlapsIsCountedAndDoesNotFillTheLog) {
  ASSERT_TRUE(open(pool.get()).ok());
  const auto device = static_cast<std::uint16_t>(device_);
  constexpr int kFlaps = 500;
  for (int flap = 0; flap < kFlaps; ++flap) {
    for (const bool up : {false, true}) {
      (up ? rte_eth_dev_set_link_up : rte_eth_dev_set_link_down)(device);
      port_->refresh(kSecond + flap * kMillisecond);
    }
  }
  EXPECT_EQ(port_->link_changes(), 1u + 2 * kFlaps);
  EXPECT_EQ(lines_with("\"uplink\" (PCI device"), LinkLog::kMostLines) << log_.str();
  port_->refresh(kSecond + LogRate::kWindow);
  EXPECT_THAT(log_.str(), HasSubstr(" is up; its link changed 997 times besides"));
}

TEST_F(RingPort, AFrameInSeveralBuffersIsReceivedInOnePiece) {
  ASSERT_TRUE(open(pool.get()).ok());
  const unsigned in_use = rte_mempool_in_use_count(pool.get());
  constexpr std::uint16_t kFirst = 700, kRest = 500;
  rte_mbuf* frame = rte_pktmbuf_alloc(pool.get());
  rte_mbuf* rest = rte_pktmbuf_alloc(pool.get());
  std::memset(rte_pktmbuf_append(frame, kFirst), 1, kFirst);
  std::memset(rte_pktmbuf_append(rest, kRest), 2, kRest);
  ASSERT_EQ(rte_pktmbuf_chain(frame, rest), 0);
  ASSERT_EQ(rte_ring_enqueue(wire_.get(), frame), 0);
  Lane::Burst burst;
  Lane& lane = *port_->lane_of(0);
  ASSERT_EQ(lane.receive(burst, 0), 1u);
  const wire::Bytes bytes = bytes_of(burst[0]);
  ASSERT_EQ(bytes.size(), std::size_t{kFirst} + kRest);
  EXPECT_TRUE(std::ranges::all_of(bytes.first(kFirst), [](auto byte) { return byte == 1; }));
  EXPECT_TRUE(std::ranges::all_of(bytes.subspan(kFirst), [](auto byte) { return byte == 2; }));
  EXPECT_EQ(lane.counters().drops.read(DropReason::kTooLong), 0u);
  rte_pktmbuf_free(burst[0]);
  EXPECT_EQ(rte_mempool_in_use_count(pool.get()), in_use);
}

TEST_F(RingPort, AFrameThatNoBufferHoldsIsDropped) {
  ASSERT_TRUE(open(pool.get()).ok());
  const unsigned in_use = rte_mempool_in_use_count(pool.get());
  rte_mbuf* frame = rte_pktmbuf_alloc(pool.get());
  rte_mbuf* rest = rte_pktmbuf_alloc(pool.get());
  rte_pktmbuf_append(frame, rte_pktmbuf_tailroom(frame));
  rte_pktmbuf_append(rest, 1);
  ASSERT_EQ(rte_pktmbuf_chain(frame, rest), 0);
  ASSERT_EQ(rte_ring_enqueue(wire_.get(), frame), 0);
  Lane::Burst burst;
  Lane& lane = *port_->lane_of(0);
  EXPECT_EQ(lane.receive(burst, 0), 0u);
  EXPECT_EQ(lane.counters().drops.read(DropReason::kTooLong), 1u);
  EXPECT_EQ(rte_mempool_in_use_count(pool.get()), in_use);
}

TEST_F(RingPort, ARefusedSetUpDoesNotBlameTheMtuUnasked) {
  const Status status = open(nullptr);  // refused for the want of a pool
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("port \"uplink\" (PCI device"));
  EXPECT_THAT(status.message(), testing::Not(HasSubstr("mtu")));
}

}  // namespace
}  // namespace sluice::dataplane
