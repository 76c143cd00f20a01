// Guaranteed shares and congestion marks of the egress queue, and its properties under random
// arrivals against a model that is too simple to be wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "dataplane/core/egress_queue.h"

namespace sluice::dataplane {
namespace {

using Item = EgressQueue::Item;

Item item(std::uintptr_t number, ClassIndex egress_class, std::uint32_t bytes = 1000) {
  return {reinterpret_cast<void*>(number), bytes, egress_class};
}

Item pop(EgressQueue& queue) {
  Item next;
  return queue.pop(next) ? next : Item{};
}

// What had to go for an arrival, in this order; the arrival itself at the end when it did not fit.
std::vector<Item> offer(EgressQueue& queue, const Item& arrival) {
  std::vector<Item> dropped;
  for (Item evicted; !queue.push(arrival);) {
    const bool made_room = queue.make_room(arrival, evicted);
    dropped.push_back(made_room ? evicted : arrival);
    if (!made_room) break;
  }
  return dropped;
}

constexpr std::uint32_t kMaxBytes = 1500;

// Every class of `classes` always waits; returns the bytes that each got of `total`.
std::map<ClassIndex, std::uint64_t> saturate(EgressQueue& queue,
                                             const std::vector<ClassIndex>& classes,
                                             std::uint64_t total, std::mt19937& random) {
  std::uniform_int_distribution<std::uint32_t> length(60, kMaxBytes);
  std::map<ClassIndex, std::uint64_t> got;
  std::uintptr_t number = 0;
  for (const ClassIndex one : classes)
    for (int count = 0; count < 4; ++count)
      EXPECT_TRUE(queue.push(item(++number, one, length(random))));
  for (std::uint64_t sent = 0; sent < total;) {
    const Item next = pop(queue);
    got[next.egress_class] += next.bytes;
    sent += next.bytes;
    EXPECT_TRUE(queue.push(item(++number, next.egress_class, length(random))));
  }
  return got;
}

TEST(EgressShares, EveryChosenClassGetsItsShareAndTheMostUrgentTheRest) {
  EgressQueue::Limits limits;
  limits.shares[10] = 0.25;
  limits.shares[40] = 0.1;
  limits.shares[63] = 0.05;
  EgressQueue queue(limits);
  std::mt19937 random(1);
  const std::uint64_t total = 50'000'000;
  auto got = saturate(queue, {0, 10, 20, 40, 63}, total, random);
  const auto share = [&](ClassIndex one) {
    return static_cast<double>(got[one]) / static_cast<double>(total);
  };
  EXPECT_NEAR(share(10), 0.25, 0.001);
  EXPECT_NEAR(share(40), 0.1, 0.001);
  EXPECT_NEAR(share(63), 0.05, 0.001);
  EXPECT_EQ(got[20], 0u) << "no share, and always something more urgent";
}

TEST(EgressShares, AShareHoldsInEveryStretchOfTimeThatTheClassWaits) {
  EgressQueue::Limits limits;
  limits.shares[30] = 0.2;
  limits.shares[50] = 0.15;
  EgressQueue queue(limits);
  std::mt19937 random(2);
  std::uniform_int_distribution<std::uint32_t> length(60, kMaxBytes);
  std::uintptr_t number = 0;
  const std::vector<ClassIndex> classes{0, 30, 50};
  for (int packet = 0; packet < 2; ++packet)
    for (const ClassIndex one : classes)
      ASSERT_TRUE(queue.push(item(++number, one, length(random))));
  // In a stretch of B bytes a class gets share * B, but for a packet of every class. It is behind
  // by the largest drop of (bytes got - share * bytes sent) seen so far.
  std::map<ClassIndex, double> balance, best;
  for (int step = 0; step < 200'000; ++step) {
    const Item next = pop(queue);
    ASSERT_TRUE(queue.push(item(++number, next.egress_class, length(random))));
    for (const ClassIndex one : {30, 50}) {
      balance[one] -= limits.shares[one] * next.bytes;
      if (next.egress_class == one) balance[one] += next.bytes;
      best[one] = std::max(best[one], balance[one]);
      ASSERT_LE(best[one] - balance[one], 3 * kMaxBytes) << "class " << int{one};
    }
  }
}

TEST(EgressShares, AClassThatComesAndGoesIsServedWithinItsShareOfBytes) {
  EgressQueue::Limits limits;
  limits.shares[56] = 0.05;
  EgressQueue queue(limits);
  std::mt19937 random(3);
  std::uniform_int_distribution<std::uint32_t> length(60, kMaxBytes);
  std::uintptr_t number = 0;
  for (int packet = 0; packet < 4; ++packet) ASSERT_TRUE(queue.push(item(++number, 0)));
  std::uint32_t bytes = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    // The share of the packet before must be over, too.
    const std::uint32_t before = std::exchange(bytes, length(random));
    ASSERT_TRUE(queue.push(item(++number, 56, bytes)));
    std::uint64_t others = 0;
    for (;;) {
      const Item next = pop(queue);
      if (next.egress_class == 56) break;
      others += next.bytes;
      ASSERT_TRUE(queue.push(item(++number, 0, length(random))));
    }
    ASSERT_LE(others, std::max(before, bytes) / 0.05 + kMaxBytes);
    ASSERT_GE(others + kMaxBytes, bytes / 0.05) << "a share is no more than a share";
  }
}

TEST(EgressShares, WhatWasServedBecauseNobodyMoreUrgentWaitedIsNoDebt) {
  EgressQueue::Limits limits;
  limits.shares[56] = 0.1;
  EgressQueue queue(limits);
  for (std::uintptr_t number = 1; number <= 1000; ++number)
    ASSERT_TRUE(queue.push(item(number, 56)));
  for (int alone = 0; alone < 500; ++alone) ASSERT_EQ(pop(queue).egress_class, 56);
  for (std::uintptr_t number = 2000; number < 2100; ++number)
    ASSERT_TRUE(queue.push(item(number, 0)));
  int urgent = 0;
  while (pop(queue).egress_class != 56) ++urgent;
  EXPECT_LE(urgent, 10);
  EXPECT_GE(urgent, 9);
}

TEST(EgressShares, UrgentOverloadCannotTakeAClassItsGuaranteedRoom) {
  EgressQueue::Limits limits{.packets = 100, .bytes = 1 << 20};
  limits.shares[40] = 0.1;
  EgressQueue queue(limits);
  std::uintptr_t number = 0;
  const auto add = [&](ClassIndex one) {
    const auto dropped = offer(queue, item(++number, one));
    return dropped.empty() || dropped.back().egress_class != one;
  };
  for (int packet = 0; packet < 30; ++packet) add(40);
  for (int packet = 0; packet < 30; ++packet) add(50);
  for (int packet = 0; packet < 500; ++packet) add(0);
  EXPECT_EQ(queue.packets_of(50), 0u) << "no share: gave way";
  EXPECT_EQ(queue.packets_of(40), 10u) << "a tenth of 100 packets is its own";
  EXPECT_EQ(queue.packets_of(0), 90u);
  pop(queue);
  while (queue.packets_of(40) > 5) static_cast<void>(pop(queue).egress_class == 0 && add(0));
  while (add(0) && queue.packets_of(0) < 95) {
  }
  EXPECT_TRUE(add(40)) << "within its room it may take more urgent frames' place";
  EXPECT_EQ(queue.packets(), 100u);
}

TEST(EgressShares, TheLeastUrgentThatWaitsIsNotStarvedByOverloadEither) {
  EgressQueue queue({.packets = 320, .bytes = 1 << 20});
  std::uintptr_t number = 0;
  std::map<ClassIndex, std::uint64_t> got;
  for (int step = 0; step < 100'000; ++step) {
    // Two arrivals of every class for each packet sent.
    for (const ClassIndex one : std::array<ClassIndex, 6>{0, 0, 8, 8, 63, 63})
      offer(queue, item(++number, one));
    const Item next = pop(queue);
    got[next.egress_class] += next.bytes;
  }
  EXPECT_NEAR(static_cast<double>(got[63]) / 1e8, 1.0 / 32, 0.001);
  EXPECT_LT(static_cast<double>(got[8]) / 1e8, 0.01);
}

TEST(EgressMarks, AClassIsCongestedByWhatIsAsUrgentOrMoreUrgentOnly) {
  EgressQueue queue({.packets = 100, .bytes = 1 << 20, .mark_above_bytes = 5000});
  for (std::uintptr_t number = 1; number <= 10; ++number) ASSERT_TRUE(queue.push(item(number, 56)));
  EXPECT_TRUE(queue.congested(56));
  EXPECT_TRUE(queue.congested(63));
  EXPECT_FALSE(queue.congested(55)) << "what is less urgent does not hold it up";
  EXPECT_FALSE(queue.congested(0));
  for (std::uintptr_t number = 11; number <= 15; ++number) ASSERT_TRUE(queue.push(item(number, 8)));
  EXPECT_FALSE(queue.congested(8)) << "at the threshold, not above it";
  ASSERT_TRUE(queue.push(item(16, 0, 60)));
  EXPECT_TRUE(queue.congested(8));
  EXPECT_FALSE(queue.congested(7));
}

TEST(EgressMarks, WithoutAThresholdNothingIsEverCongested) {
  EgressQueue queue({});
  for (std::uintptr_t number = 1; number <= 4000; ++number)
    ASSERT_TRUE(queue.push(item(number, 9)));
  EXPECT_FALSE(queue.congested(9));
}

// --- Against a model ---

// 64 lists, and the rules as sentences. Strict priority; no shares.
class Model {
 public:
  Model(std::size_t packets, std::uint64_t bytes) : packet_limit_(packets), byte_limit_(bytes) {}

  std::vector<void*> offer(const Item& arrival) {
    std::vector<void*> dropped;
    while (!fits(arrival)) {
      int victim = 63;
      while (victim > arrival.egress_class && classes_[static_cast<std::size_t>(victim)].empty())
        --victim;
      if (victim == arrival.egress_class || arrival.bytes > byte_limit_) {
        dropped.push_back(arrival.packet);
        return dropped;
      }
      auto& list = classes_[static_cast<std::size_t>(victim)];
      dropped.push_back(list.back().packet);
      remove(list.back());
      list.pop_back();
    }
    classes_[arrival.egress_class].push_back(arrival);
    ++packets_;
    bytes_ += arrival.bytes;
    return dropped;
  }
  Item pop() {
    for (auto& list : classes_) {
      if (list.empty()) continue;
      const Item next = list.front();
      list.pop_front();
      remove(next);
      return next;
    }
    return {};
  }
  void put_back(const Item& undone) {
    classes_[undone.egress_class].push_front(undone);
    ++packets_;
    bytes_ += undone.bytes;
  }
  std::uint64_t bytes_as_urgent(ClassIndex one) const {
    std::uint64_t bytes = 0;
    for (std::size_t index = 0; index <= one; ++index)
      for (const Item& waiting : classes_[index]) bytes += waiting.bytes;
    return bytes;
  }
  std::size_t packets() const { return packets_; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t packets_of(ClassIndex one) const { return classes_[one].size(); }

 private:
  bool fits(const Item& one) const {
    return packets_ < packet_limit_ && bytes_ + one.bytes <= byte_limit_;
  }
  void remove(const Item& one) {
    --packets_;
    bytes_ -= one.bytes;
  }
  std::size_t packet_limit_;
  std::uint64_t byte_limit_;
  std::array<std::deque<Item>, kClassCount> classes_;
  std::size_t packets_ = 0;
  std::uint64_t bytes_ = 0;
};

TEST(EgressProperties, StrictQueueDoesExactlyWhatTheModelDoes) {
  constexpr std::uint64_t kMarkAbove = 20'000;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const std::uint32_t packets = 1 + random() % 80;
    const std::uint64_t bytes = 2000 + random() % 60'000;
    const std::uint32_t classes = 1 + random() % 64;
    EgressQueue queue({.packets = packets,
                       .bytes = bytes,
                       .least_urgent_share = 0,
                       .mark_above_bytes = kMarkAbove});
    Model model(packets, bytes);
    std::uintptr_t in = 0, out = 0, dropped = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 100 < 55) {
        const Item arrival =
            item(++in, static_cast<ClassIndex>(random() % classes), 60 + random() % 1440);
        std::vector<void*> gone;
        for (const Item& one : offer(queue, arrival)) gone.push_back(one.packet);
        ASSERT_EQ(gone, model.offer(arrival)) << "seed " << seed << " step " << step;
        dropped += gone.size();
        ASSERT_EQ(queue.congested(arrival.egress_class),
                  model.bytes_as_urgent(arrival.egress_class) > kMarkAbove);
      } else if (random() % 4 != 0) {
        const Item next = pop(queue);
        ASSERT_EQ(next.packet, model.pop().packet) << "seed " << seed << " step " << step;
        out += next.packet != nullptr;
      } else {
        // A burst of which the device refuses the rest.
        std::vector<Item> burst;
        for (std::uint32_t left = random() % 8; left != 0 && !queue.empty(); --left) {
          burst.push_back(pop(queue));
          ASSERT_EQ(burst.back().packet, model.pop().packet);
        }
        const std::size_t accepted = burst.empty() ? 0 : random() % (burst.size() + 1);
        out += accepted;
        for (std::size_t at = burst.size(); at > accepted; --at) {
          queue.put_back(burst[at - 1]);
          model.put_back(burst[at - 1]);
        }
      }
      ASSERT_EQ(queue.packets(), model.packets());
      ASSERT_EQ(queue.bytes(), model.bytes());
      ASSERT_EQ(in, out + dropped + queue.packets()) << "I7";
    }
    for (std::size_t one = 0; one < kClassCount; ++one)
      ASSERT_EQ(queue.packets_of(static_cast<ClassIndex>(one)),
                model.packets_of(static_cast<ClassIndex>(one)));
  }
}

TEST(EgressProperties, WithSharesNothingIsLostReorderedWithinAClassOrEvictedAgainstTheRules) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    EgressQueue::Limits limits{.packets = 64, .bytes = 64'000};
    if (seed % 2 == 0) limits.shares[20] = 0.3, limits.shares[60] = 0.2;
    EgressQueue queue(limits);
    std::map<ClassIndex, std::deque<void*>> waiting;  // in order of arrival
    std::uintptr_t number = 0;
    for (int step = 0; step < 20'000; ++step) {
      const auto one = static_cast<ClassIndex>(random() % 8 * 10 % 64);
      const Item arrival = item(++number, one, 60 + random() % 1440);
      bool queued = true;
      for (Item victim; !queue.push(arrival);) {
        if (!queue.make_room(arrival, victim)) {
          queued = false;
          break;
        }
        ASSERT_EQ(victim.packet, waiting[victim.egress_class].back()) << "the newest goes";
        waiting[victim.egress_class].pop_back();
        const bool chosen = limits.shares[arrival.egress_class] != 0;
        if (seed % 2 == 0 && !chosen) {
          ASSERT_GT(victim.egress_class, arrival.egress_class);
        }
        const double share = limits.shares[victim.egress_class];
        const bool above_its_room =
            queue.packets_of(victim.egress_class) + 1 > std::floor(share * 64) ||
            queue.bytes_of(victim.egress_class) + victim.bytes > std::floor(share * 64'000);
        ASSERT_TRUE(above_its_room);
      }
      if (queued) waiting[one].push_back(arrival.packet);
      if (random() % 3 != 0) continue;
      for (std::uint32_t left = random() % 4; left != 0 && !queue.empty(); --left) {
        const Item next = pop(queue);
        ASSERT_EQ(next.packet, waiting[next.egress_class].front());
        waiting[next.egress_class].pop_front();
      }
    }
    std::size_t left = 0;
    for (const auto& [one, list] : waiting) left += list.size();
    ASSERT_EQ(queue.packets(), left);
  }
}

TEST(EgressProperties, SharesHoldAlthoughTheDeviceRefusesMostOfEveryBurst) {
  EgressQueue::Limits limits;
  limits.shares[30] = 0.2;
  EgressQueue queue(limits);
  std::mt19937 random(7);
  std::uintptr_t number = 0;
  for (int packet = 0; packet < 40; ++packet)
    for (const ClassIndex one : {0, 30, 56}) ASSERT_TRUE(queue.push(item(++number, one)));
  std::map<ClassIndex, std::uint64_t> got;
  for (int round = 0; round < 40'000; ++round) {
    std::vector<Item> burst;
    while (burst.size() < 32) burst.push_back(pop(queue));
    const std::size_t accepted = random() % 4;
    for (std::size_t at = burst.size(); at > accepted; --at) queue.put_back(burst[at - 1]);
    for (std::size_t at = 0; at < accepted; ++at) {
      got[burst[at].egress_class] += burst[at].bytes;
      ASSERT_TRUE(queue.push(item(++number, burst[at].egress_class)));
    }
  }
  const double all = static_cast<double>(got[0] + got[30] + got[56]);
  EXPECT_NEAR(static_cast<double>(got[30]) / all, 0.2, 0.002);
  EXPECT_EQ(got[56], 0u);
}

}  // namespace
}  // namespace sluice::dataplane
