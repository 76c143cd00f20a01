#include "dataplane/core/egress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace sluice::dataplane {
namespace {

using Item = Egress::Item;

// A port whose device accepts what the test says; it keeps what left and what was given up.
struct PortUnderTest {
  explicit PortUnderTest(const Egress::Options& options) : egress(options, counters, 0) {}

  void offer(ClassIndex egress_class, TimeNs now, std::uint32_t bytes = 1000) {
    egress.enqueue(
        {reinterpret_cast<void*>(++offered), bytes, egress_class, now},
        [this](void* packet) { freed.push_back(packet); },
        [this](void*) {
          ++mark_attempts;
          return understands_marks;
        });
  }
  // One round: the device accepts `room` packets.
  void flush(TimeNs now, std::size_t room = SIZE_MAX) {
    egress.begin_flush(now);
    for (std::span burst = egress.take(); !burst.empty(); burst = egress.take()) {
      const std::size_t accepted = std::min(burst.size(), room);
      room -= accepted;
      sent.insert(sent.end(), burst.begin(), burst.begin() + static_cast<long>(accepted));
      egress.accept(accepted, now);
      if (accepted < burst.size()) break;
    }
    egress.publish_depth();
  }
  const ClassCounters& of(ClassIndex egress_class) const { return counters.classes[egress_class]; }

  PortCounters counters;
  Egress egress;
  std::uintptr_t offered = 0;
  std::vector<Item> sent;
  std::vector<void*> freed;
  bool understands_marks = true;
  int mark_attempts = 0;
};

Egress::Options strict() {
  Egress::Options options;
  options.queue.least_urgent_share = 0;
  return options;
}

TEST(Egress, AnUrgentFrameNeverWaitsBehindFramesThatTheDeviceRefused) {
  PortUnderTest port(strict());
  for (int frame = 0; frame < 200; ++frame) port.offer(63, 0);
  for (TimeNs now = 1; now < 50; ++now) {
    port.flush(now, 3);
    port.offer(0, now);
    port.flush(now, 1);
    ASSERT_EQ(port.sent.back().egress_class, 0) << "the very next that the device takes";
  }
  EXPECT_EQ(port.of(0).tx_packets.read(), 49u);
  EXPECT_EQ(port.of(63).tx_packets.read(), 3u * 49u);
  EXPECT_EQ(port.of(63).queue_packets.read(), 200u - 3 * 49);
}

TEST(Egress, ARoundSendsOneBurstOfWhatWaitedOrAsMuchAsCameIn) {
  PortUnderTest port(strict());
  for (int frame = 0; frame < 500; ++frame) port.offer(63, 0);
  port.flush(0, 0);
  port.flush(1);
  EXPECT_EQ(port.sent.size(), Egress::kBurstPackets);
  for (int frame = 0; frame < 100; ++frame) port.offer(63, 1);
  port.flush(2);
  EXPECT_EQ(port.sent.size(), Egress::kBurstPackets + 100);
}

TEST(Egress, AnIdlePortsFramesKeepTheirOrderWhenTheDeviceRefusesThem) {
  Egress::Options options = strict();
  options.queue.packets = 50;
  PortUnderTest port(options);
  const std::size_t held = options.queue.packets + Egress::kBurstPackets;
  for (std::size_t frame = 0; frame < held; ++frame) port.offer(20, 0);
  EXPECT_TRUE(port.freed.empty());
  port.flush(0, 0);
  EXPECT_EQ(port.egress.queue().packets(), held) << "a burst was on its way past a full queue";
  port.offer(20, 1);
  EXPECT_EQ(port.freed.size(), 1u);
  for (TimeNs now = 1; !port.egress.empty(); ++now) port.flush(now, 7);
  ASSERT_EQ(port.sent.size(), held);
  for (std::size_t at = 0; at < held; ++at)
    ASSERT_EQ(port.sent[at].packet, reinterpret_cast<void*>(at + 1));
}

TEST(Egress, WhatTheDeviceRefusedKeepsItsOrderAndCostsTheShaperNothing) {
  Egress::Options options = strict();
  options.shaper = {.rate_bps = 8'192'000, .burst_bytes = 1};  // a frame of 1,000 bytes a ms
  PortUnderTest port(options);
  for (int frame = 0; frame < 100; ++frame) port.offer(7, 0);
  for (TimeNs now = 0; now < 90 * kMillisecond; now += 100 * kMicrosecond)
    port.flush(now, now / kMillisecond % 2 == 0 ? 1 : 0);
  ASSERT_GE(port.sent.size(), 44u);
  for (std::size_t at = 0; at < port.sent.size(); ++at)
    ASSERT_EQ(port.sent[at].packet, reinterpret_cast<void*>(at + 1));
  EXPECT_LE(port.sent.size(), 46u) << "one in every ms in which the device takes it";
}

TEST(Egress, TheRateIsKeptWhenTheDeviceRefuses) {
  Egress::Options options = strict();
  options.shaper = {.rate_bps = 1'000'000'000, .burst_bytes = 16 * 1024};
  PortUnderTest port(options);
  std::mt19937 random(5);
  for (TimeNs now = 0; now < 20 * kMillisecond; now += 2 * kMicrosecond) {
    while (port.egress.queue().packets() < 64) port.offer(20, now, 60 + random() % 1440);
    port.flush(now, random() % 3);
  }
  std::uint64_t wire_bytes = 0;
  for (const Item& one : port.sent) wire_bytes += one.bytes + Egress::kWireOverheadBytes;
  EXPECT_NEAR(static_cast<double>(wire_bytes), 2'500'000 + 16 * 1024, 2000);
}

TEST(Egress, EveryFrameIsSentGivenUpOrWaitingWhateverTheDeviceDoes) {
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    std::mt19937 random(seed);
    Egress::Options options;
    options.queue.packets = 100;
    options.queue.bytes = 60'000;
    if (seed % 2 == 0) options.shaper = {.rate_bps = 2'000'000'000, .burst_bytes = 16 * 1024};
    PortUnderTest port(options);
    for (TimeNs now = 0; now < 5 * kMillisecond; now += 5 * kMicrosecond) {
      for (std::uint32_t left = random() % 8; left != 0; --left)
        port.offer(static_cast<ClassIndex>(random() % 64), now, 60 + random() % 1440);
      port.flush(now, random() % 4);
      std::uint64_t drops = 0, sent = 0, bytes = 0, waiting = 0, waiting_bytes = 0, waits = 0;
      for (const ClassCounters& one : port.counters.classes) {
        drops += one.drops.read();
        sent += one.tx_packets.read();
        bytes += one.tx_bytes.read();
        waiting += one.queue_packets.read();
        waiting_bytes += one.queue_bytes.read();
        for (std::size_t bucket = 0; bucket < WaitHistogram::kBuckets; ++bucket)
          waits += one.waits.bucket(bucket);
      }
      ASSERT_EQ(port.offered, sent + drops + waiting) << "I7, seed " << seed;
      ASSERT_EQ(sent, port.sent.size());
      ASSERT_EQ(waits, sent);
      ASSERT_EQ(drops, port.freed.size());
      ASSERT_EQ(waiting, port.egress.queue().packets());
      ASSERT_EQ(waiting_bytes, port.egress.queue().bytes());
      ASSERT_EQ(sent, port.counters.tx_packets.read());
      ASSERT_EQ(bytes, port.counters.tx_bytes.read());
    }
    const std::size_t left = port.egress.queue().packets();
    EXPECT_EQ(port.egress.clear([](void*) {}), left);
    EXPECT_EQ(port.counters.queue_packets.read(), 0u);
  }
}

TEST(Egress, WaitingTimesAreCountedInTheirBucketsWithTheirSum) {
  PortUnderTest port(strict());
  for (const TimeNs queued_at : {0, 100'000, 100'000, 199'000, 200'000}) port.offer(9, queued_at);
  port.flush(200'000);
  const WaitHistogram& waits = port.of(9).waits;
  EXPECT_EQ(waits.bucket(WaitHistogram::bucket_of(200'000)), 1u);
  EXPECT_EQ(waits.bucket(WaitHistogram::bucket_of(100'000)), 2u);
  EXPECT_EQ(waits.bucket(0), 2u);
  EXPECT_EQ(waits.sum_ns(), 200'000u + 2 * 100'000 + 1000);
}

TEST(Egress, EachBucketHoldsWaitsUpToItsBoundAndTheLastTheRest) {
  for (std::size_t bucket = 0; bucket + 1 < WaitHistogram::kBuckets; ++bucket) {
    EXPECT_EQ(WaitHistogram::bucket_of(WaitHistogram::bound_ns(bucket)), bucket);
    EXPECT_EQ(WaitHistogram::bucket_of(WaitHistogram::bound_ns(bucket) + 1), bucket + 1);
  }
  EXPECT_EQ(WaitHistogram::bucket_of(0), 0u);
  EXPECT_EQ(WaitHistogram::bucket_of(kSecond * 1000), WaitHistogram::kBuckets - 1);
}

TEST(Egress, MarksFramesOfACongestedClassAndCountsThoseThatCarryTheMark) {
  Egress::Options options = strict();
  options.queue.mark_above_bytes = 3000;
  options.shaper = {.rate_bps = 1'000'000, .burst_bytes = 1};  // else a burst does not wait
  PortUnderTest port(options);
  for (int frame = 0; frame < 5; ++frame) port.offer(40, 0);
  EXPECT_EQ(port.of(40).marked.read(), 2u);
  port.offer(8, 0);
  EXPECT_EQ(port.mark_attempts, 2) << "only less urgent frames wait: no congestion of its class";
  port.understands_marks = false;
  port.offer(40, 0);
  EXPECT_EQ(port.mark_attempts, 3);
  EXPECT_EQ(port.of(40).marked.read(), 2u);
}

}  // namespace
}  // namespace sluice::dataplane
