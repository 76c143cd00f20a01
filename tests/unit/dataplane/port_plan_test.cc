// The whole table of decisions about a port: from a device's offers to the work that is left to us.
#include "dataplane/core/port_plan.h"

#include <gmock/gmock.h>

namespace sluice::dataplane {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr DeviceOffers kEverything{.rx_udp_checksum = true,
                                   .tx_udp_checksum = true,
                                   .multi_segment = true,
                                   .rss = true,
                                   .rx_queues = 16,
                                   .tx_queues = 16};

TEST(PortPlan, DecidesEachChecksumByItself) {
  struct Row {
    bool rx_offered, tx_offered, shared, partial;
    ChecksumsBy rx, tx;
  };
  using enum ChecksumsBy;
  const Row rows[] = {
      {false, false, false, false, kSoftware, kSoftware},
      {false, false, false, true, kSoftware, kSoftware},
      {false, false, true, false, kNobody, kSoftware},
      {false, false, true, true, kNobody, kSoftware},
      {false, true, false, false, kSoftware, kDevice},
      {false, true, false, true, kSoftware, kDevice},
      {false, true, true, false, kNobody, kSoftware},
      {false, true, true, true, kNobody, kSoftware},
      {true, false, false, false, kDevice, kSoftware},
      {true, false, false, true, kSoftware, kSoftware},
      {true, false, true, false, kNobody, kSoftware},
      {true, false, true, true, kNobody, kSoftware},
      {true, true, false, false, kDevice, kDevice},
      {true, true, false, true, kSoftware, kDevice},
      {true, true, true, false, kNobody, kSoftware},
      {true, true, true, true, kNobody, kSoftware},
  };
  for (const Row& row : rows) {
    const PortPlan plan =
        plan_port({.rx_udp_checksum = row.rx_offered, .tx_udp_checksum = row.tx_offered},
                  {.shared_memory = row.shared, .partial_checksums = row.partial});
    SCOPED_TRACE(testing::Message() << "offered " << row.rx_offered << row.tx_offered << ", shared "
                                    << row.shared << ", partial " << row.partial);
    EXPECT_EQ(plan.rx, row.rx);
    EXPECT_EQ(plan.tx, row.tx);
    EXPECT_EQ(*plan.rx_reason == '\0', plan.rx == kDevice) << "whoever does it, a reason is given";
    EXPECT_EQ(*plan.tx_reason == '\0', plan.tx == kDevice);
  }
}

TEST(PortPlan, APayloadIsSharedWhereTheDeviceSendsFramesInPartsButNotThroughSharedMemory) {
  for (const bool multi_segment : {false, true}) {
    const DeviceOffers offers{.multi_segment = multi_segment};
    EXPECT_EQ(plan_port(offers, {}).shares_payloads, multi_segment);
    EXPECT_FALSE(plan_port(offers, {.shared_memory = true}).shares_payloads);
  }
}

TEST(PortPlan, AnEmptyOfferIsDoneInSoftware) {
  const PortPlan plan = plan_port({}, {});
  EXPECT_EQ(plan.rx, ChecksumsBy::kSoftware);
  EXPECT_EQ(plan.tx, ChecksumsBy::kSoftware);
  EXPECT_STREQ(plan.rx_reason, "not offered");
  EXPECT_STREQ(plan.tx_reason, "not offered");
}

TEST(PortPlan, AllWorkersServeAnUnshapedPortWithAPairOfQueuesForEach) {
  struct Row {
    std::uint16_t rx, tx, workers;
    bool shaped;
    std::uint16_t queues;
  };
  for (const Row& row : {Row{16, 16, 1, false, 1}, Row{16, 16, 4, false, 4}, Row{4, 4, 4, false, 4},
                         Row{3, 16, 4, false, 1}, Row{16, 3, 4, false, 1}, Row{16, 16, 4, true, 1},
                         Row{1, 1, 2, false, 1}}) {
    for (const bool shared : {false, true}) {
      const PortPlan plan =
          plan_port({.rx_queues = row.rx, .tx_queues = row.tx},
                    {.shared_memory = shared, .shaped = row.shaped, .workers = row.workers});
      EXPECT_EQ(plan.queues, row.queues) << row.rx << " " << row.tx << " " << row.workers;
      EXPECT_EQ(*plan.queues_reason == '\0', plan.queues == row.workers);
    }
  }
}

TEST(PortPlan, TheTableSaysOfEachPortWhoDoesWhatAndWhy) {
  PortRow rows[] = {
      {"uplink", "net_mlx5: 0000:01:00.0", kEverything, plan_port(kEverything, {.workers = 2})},
      {"v", "net_vhost: v.sock", {}, plan_port({}, {.shared_memory = true, .workers = 2})},
  };
  rows[0].plan.steered_by_device = true;
  rows[0].plan.woken_by = WokenBy::kInterrupt;
  const std::string table = table_of(rows);
  EXPECT_THAT(
      table,
      StartsWith(
          "port    device                  checks rx checksums     "
          "makes tx checksums                     queues in use                   "
          "payloads of results         workers woken by                  the device offers\n"));
  EXPECT_THAT(table, HasSubstr("uplink  net_mlx5: 0000:01:00.0  device                  "
                               "device                                 2 (steered by the device)   "
                               "    one buffer for all members  receive interrupts, if they come  "
                               "16 rx and 16 tx queues, rx "
                               "UDP checksum, tx UDP checksum, multi-segment, RSS\n"));
  EXPECT_THAT(table,
              HasSubstr("v       net_vhost: v.sock       nobody (shared memory)  "
                        "software (one sum serves all members)  1 (not a pair for each "
                        "worker)  a copy a member             the clock (no interrupts)         1 "
                        "rx and 1 tx queues\n"));
}

}  // namespace
}  // namespace sluice::dataplane
