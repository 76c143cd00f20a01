// Prophet's measurements of the network.
#include "client/sched/meter.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

class Network {
 public:
  DurationNs packet_ns = 5 * kMicrosecond;
  DurationNs overhead_ns = kMillisecond;

  // A busy period; `idle`: half-way this worker had nothing to send for 50 ms.
  void send(LinkMeter& meter, std::uint32_t packets, bool idle = false, bool lose = false) {
    begin(meter);
    for (std::uint32_t i = 1; i < packets; ++i) {
      now_ += packet_ns;
      if (idle && i == packets / 2) now_ += 50 * kMillisecond;
      const WindowState windows{.in_flight_packets = i, .arrived_packets = arrived_, .now = now_};
      meter.observe(windows);
      meter.sent(windows, idle && i == packets / 2);
    }
    if (lose) meter.lost();
    now_ += packet_ns + overhead_ns;
    arrived_ += packets;
    meter.observe({.arrived_packets = arrived_, .now = now_});
  }
  void begin(LinkMeter& meter) {
    now_ += kMillisecond;
    meter.observe({.arrived_packets = arrived_, .now = now_});
    meter.sent({.arrived_packets = arrived_, .now = now_}, true);
  }

 private:
  TimeNs now_ = kSecond;
  std::uint32_t arrived_ = UINT32_MAX - 100;  // it wraps
};

TEST(LinkMeter, TellsPacketsFromOverheadByPeriodsOfDifferentLengths) {
  LinkMeter meter;
  Network network;
  for (const std::uint32_t packets : {400u, 100u, 3u, 900u}) network.send(meter, packets);
  ASSERT_TRUE(meter.known());
  EXPECT_NEAR(meter.packets_per_ns(), 1 / 5'000.0, 1e-9);
  EXPECT_NEAR(static_cast<double>(meter.overhead_ns()), kMillisecond, 10);
}

TEST(LinkMeter, CountsTheOverheadAsPacketsWhileAllPeriodsAreAlike) {
  LinkMeter meter;
  Network network;
  for (int i = 0; i < 5; ++i) network.send(meter, 1000);
  ASSERT_TRUE(meter.known());
  EXPECT_NEAR(1 / meter.packets_per_ns(), 6'000, 1);
  EXPECT_EQ(meter.overhead_ns(), 0);
}

TEST(LinkMeter, KnowsNothingFromAFewPackets) {
  LinkMeter meter;
  Network network;
  for (int i = 0; i < 20; ++i) network.send(meter, 15);
  EXPECT_FALSE(meter.known());
  network.send(meter, 16);
  EXPECT_TRUE(meter.known());
}

TEST(LinkMeter, FollowsANetworkThatChanges) {
  LinkMeter meter;
  Network network;
  for (int i = 0; i < 20; ++i) network.send(meter, i % 2 == 0 ? 400 : 900);
  network.packet_ns = 20 * kMicrosecond;
  network.overhead_ns = 2 * kMillisecond;
  for (int i = 0; i < 60; ++i) network.send(meter, i % 2 == 0 ? 400 : 900);
  EXPECT_NEAR(1 / meter.packets_per_ns(), 20'000, 50);
  EXPECT_NEAR(static_cast<double>(meter.overhead_ns()), 2.0 * kMillisecond, 20'000);
}

TEST(LinkMeter, LeavesOutPausesLossesAndWhatWasNotSentAfterAll) {
  LinkMeter meter;
  Network network;
  for (const std::uint32_t packets : {400u, 900u}) network.send(meter, packets);
  const double rate = meter.packets_per_ns();
  const DurationNs overhead_ns = meter.overhead_ns();
  network.send(meter, 400, true);
  network.send(meter, 400, false, true);
  network.begin(meter);  // handed out, and nothing is in flight
  network.begin(meter);
  EXPECT_EQ(meter.packets_per_ns(), rate);
  EXPECT_EQ(meter.overhead_ns(), overhead_ns);
  network.packet_ns *= 2;
  network.send(meter, 400);
  EXPECT_NE(meter.packets_per_ns(), rate);
}

}  // namespace
}  // namespace sluice::client
