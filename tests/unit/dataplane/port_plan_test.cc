// From what a device offers to what is left to us: the whole table of decisions.
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

TEST(PortPlan, AnEmptyOfferIsDoneInSoftware) {
  const PortPlan plan = plan_port({}, {});
  EXPECT_EQ(plan.rx, ChecksumsBy::kSoftware);
  EXPECT_EQ(plan.tx, ChecksumsBy::kSoftware);
  EXPECT_STREQ(plan.rx_reason, "not offered");
  EXPECT_STREQ(plan.tx_reason, "not offered");
}

TEST(PortPlan, TheTableSaysOfEachPortWhoDoesWhatAndWhy) {
  const PortRow rows[] = {
      {"uplink", "net_mlx5: 0000:01:00.0", kEverything, plan_port(kEverything, {})},
      {"v", "net_vhost: v.sock", {}, plan_port({}, {.shared_memory = true})},
  };
  const std::string table = table_of(rows);
  EXPECT_THAT(table, StartsWith("port    device                  checks rx checksums     "
                                "makes tx checksums                     the device offers\n"));
  EXPECT_THAT(table, HasSubstr("uplink  net_mlx5: 0000:01:00.0  device                  "
                               "device                                 16 rx and 16 tx queues, rx "
                               "UDP checksum, tx UDP checksum, multi-segment, RSS\n"));
  EXPECT_THAT(table, HasSubstr("v       net_vhost: v.sock       nobody (shared memory)  "
                               "software (one sum serves all members)  1 rx and 1 tx queues\n"));
}

}  // namespace
}  // namespace sluice::dataplane
