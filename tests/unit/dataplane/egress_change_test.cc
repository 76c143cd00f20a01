// A port whose shares, limits and rate change while frames wait.

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "dataplane/core/egress.h"

namespace sluice::dataplane {
namespace {

using Item = Egress::Item;

class Changing : public testing::Test {
 protected:
  static Egress::Options options(std::uint64_t rate_bps, std::map<ClassIndex, double> shares = {}) {
    Egress::Options result{.queue = {.packets = 4096, .bytes = 4u << 20},
                           .shaper = Egress::shaper_for(rate_bps, 1500)};
    for (const auto& [egress_class, share] : shares) result.queue.shares[egress_class] = share;
    return result;
  }
  void offer(ClassIndex egress_class) {
    egress.enqueue(
        {reinterpret_cast<void*>(++offered), 1000, egress_class, now}, [this](void*) { ++dropped; },
        [](void*) { return false; });
  }
  // A round in which the device takes at most `room` frames.
  void flush(std::size_t room = SIZE_MAX) {
    egress.begin_flush(now);
    for (auto burst = egress.take(); !burst.empty(); burst = egress.take()) {
      const std::size_t taken = std::min(burst.size(), room);
      room -= taken;
      for (const Item& item : burst.first(taken)) {
        ++sent[item.egress_class];
        order.push_back(reinterpret_cast<std::uintptr_t>(item.packet));
      }
      egress.accept(taken, now);
      if (taken < burst.size()) break;
    }
    egress.publish_depth();
  }

  TimeNs now = kSecond;
  PortCounters counters;
  Egress egress{options(0), counters, now};
  std::uintptr_t offered = 0;
  std::size_t dropped = 0;
  std::map<ClassIndex, std::size_t> sent;
  std::vector<std::uintptr_t> order;
};

TEST_F(Changing, LosesNoFrameAndKeepsTheOrderOfAClass) {
  for (int turn = 0; turn < 50; ++turn) {
    for (int frame = 0; frame < 40; ++frame) offer(20);
    flush(17);
    egress.change(options(turn % 2 == 0 ? 10'000'000'000 : 0, {{20, 0.1 + turn * 0.01}}), now);
    now += kMillisecond;
  }
  for (int round = 0; round < 1000 && order.size() < offered; ++round, now += kMillisecond) flush();
  EXPECT_EQ(order.size(), offered);
  EXPECT_EQ(dropped, 0u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(counters.queue_bytes.read(), 0u);
}

TEST_F(Changing, GivesSharesToTheFramesThatWaitAlready) {
  egress.change(options(100'000'000), now);
  for (int frame = 0; frame < 1000; ++frame) {
    offer(10);
    offer(50);
  }
  for (int round = 0; round < 10; ++round, now += kMillisecond) flush();
  EXPECT_LT(sent[50] * 20, sent[10]) << "1/32 of the bytes";
  sent.clear();
  egress.change(options(100'000'000, {{50, 0.5}}), now);
  for (int round = 0; round < 30; ++round, now += kMillisecond) flush();
  EXPECT_NEAR(static_cast<double>(sent[50]), static_cast<double>(sent[10]), 2);
  sent.clear();
  egress.change(options(100'000'000, {{63, 0.5}}), now);
  for (int round = 0; round < 20; ++round, now += kMillisecond) flush();
  EXPECT_EQ(sent[50], 0u) << "its share is gone";
}

TEST_F(Changing, SendsAtTheNewRateFromNowOn) {
  for (const std::uint64_t rate_bps : {80'000'000, 800'000'000}) {
    egress.change(options(rate_bps), now);
    for (int frame = 0; frame < 3000; ++frame) offer(10);
    sent.clear();
    for (int round = 0; round < 100; ++round, now += 100 * kMicrosecond) flush();
    const double bits = static_cast<double>(sent[10]) * (1000 + Egress::kWireOverheadBytes) * 8;
    EXPECT_NEAR(bits, static_cast<double>(rate_bps) / 100, 400'000) << "the bucket was full";
    now += kSecond;
    egress.change(options(0), now);
    for (int round = 0; round < 1000 && !egress.empty(); ++round) flush();
    EXPECT_TRUE(egress.empty()) << "unshaped";
  }
}

TEST_F(Changing, AQueueThatHoldsMoreThanItMayTakesInNothingAndKeepsTheRest) {
  egress.change(options(8'000'000), now);
  for (int frame = 0; frame < 500; ++frame) offer(10);
  Egress::Options smaller = options(8'000'000);
  smaller.queue.bytes = 100'000;
  egress.change(smaller, now);
  EXPECT_EQ(egress.queue().packets(), 500u);
  EXPECT_EQ(dropped, 0u);
  offer(10);
  EXPECT_EQ(dropped, 1u);
  EXPECT_EQ(egress.queue().packets(), 500u);
}

}  // namespace
}  // namespace sluice::dataplane
