#include "dataplane/core/egress_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::dataplane {
namespace {

void* packet(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

EgressQueue::Item item(std::uintptr_t number, ClassIndex egress_class, std::uint32_t bytes = 100) {
  return {packet(number), bytes, egress_class};
}

EgressQueue::Item pop(EgressQueue& queue) {
  EgressQueue::Item next;
  return queue.pop(next) ? next : EgressQueue::Item{};
}

// What had to go for an arrival, in this order; the arrival itself at the end when it did not fit.
std::vector<void*> offer(EgressQueue& queue, const EgressQueue::Item& arrival) {
  std::vector<void*> dropped;
  for (EgressQueue::Item evicted; !queue.push(arrival);) {
    const bool made_room = queue.make_room(arrival, evicted);
    dropped.push_back(made_room ? evicted.packet : arrival.packet);
    if (!made_room) break;
  }
  return dropped;
}

EgressQueue strict(std::uint32_t packets = 16, std::uint64_t bytes = 1 << 20) {
  return EgressQueue({.packets = packets, .bytes = bytes, .least_urgent_share = 0});
}

TEST(EgressQueue, SendsTheMostUrgentFirstAndKeepsTheOrderWithinAClass) {
  EgressQueue queue = strict();
  ASSERT_TRUE(queue.push(item(1, 63)));
  ASSERT_TRUE(queue.push(item(2, 5)));
  ASSERT_TRUE(queue.push(item(3, 0)));
  ASSERT_TRUE(queue.push(item(4, 5)));
  std::vector<void*> order;
  while (!queue.empty()) order.push_back(pop(queue).packet);
  EXPECT_EQ(order, (std::vector<void*>{packet(3), packet(2), packet(4), packet(1)}));
  EXPECT_EQ(pop(queue).packet, nullptr);
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(EgressQueue, WhenFullTheNewestOfTheLeastUrgentGoesFirst) {
  EgressQueue queue = strict(3);
  ASSERT_TRUE(queue.push(item(1, 9)));
  ASSERT_TRUE(queue.push(item(2, 9)));
  ASSERT_TRUE(queue.push(item(3, 4)));
  EXPECT_EQ(offer(queue, item(4, 0)), std::vector<void*>{packet(2)});
  EXPECT_EQ(pop(queue).packet, packet(4));
  EXPECT_EQ(pop(queue).packet, packet(3));
  EXPECT_EQ(pop(queue).packet, packet(1));
}

TEST(EgressQueue, WhenFullOfEquallyOrMoreUrgentItemsTheArrivalIsRefused) {
  EgressQueue queue = strict(2);
  ASSERT_TRUE(queue.push(item(1, 5)));
  ASSERT_TRUE(queue.push(item(2, 5)));
  EXPECT_EQ(offer(queue, item(3, 5)), std::vector<void*>{packet(3)});
  EXPECT_FALSE(queue.push(item(3, 5)));
  EXPECT_FALSE(queue.push(item(3, 60)));
  EXPECT_EQ(queue.packets(), 2u);
}

TEST(EgressQueue, ALongArrivalPushesOutSeveralShortOnes) {
  EgressQueue queue = strict(16, 1000);
  for (std::uintptr_t number = 1; number <= 10; ++number) ASSERT_TRUE(queue.push(item(number, 8)));
  EXPECT_EQ(offer(queue, item(11, 1, 350)),
            (std::vector<void*>{packet(10), packet(9), packet(8), packet(7)}));
  EXPECT_EQ(queue.bytes(), 950u);
}

TEST(EgressQueue, TheLeastUrgentClassGetsItsShareOfBytes) {
  EgressQueue queue({.packets = 4096, .bytes = 1 << 30, .least_urgent_share = 1.0 / 9});
  for (std::uintptr_t number = 1; number <= 2000; ++number)
    ASSERT_TRUE(queue.push(item(number, 0)));
  for (std::uintptr_t number = 1; number <= 500; ++number)
    ASSERT_TRUE(queue.push(item(10'000 + number, 63)));
  int least_urgent = 0;
  int gap = 0;
  int longest_gap = 0;
  for (int sent = 0; sent < 900; ++sent) {
    if (pop(queue).egress_class == 63) {
      ++least_urgent;
      gap = 0;
    } else {
      longest_gap = std::max(longest_gap, ++gap);
    }
  }
  EXPECT_EQ(least_urgent, 100) << "one in nine";
  EXPECT_EQ(longest_gap, 8);
}

TEST(EgressQueue, TheShareIsOfBytesNotOfPackets) {
  EgressQueue queue({.packets = 4096, .bytes = 1 << 30, .least_urgent_share = 1.0 / 5});
  for (std::uintptr_t number = 1; number <= 3000; ++number)
    ASSERT_TRUE(queue.push(item(number, 0, 100)));
  for (std::uintptr_t number = 1; number <= 50; ++number)
    ASSERT_TRUE(queue.push(item(10'000 + number, 63, 1000)));
  std::uint64_t urgent_bytes = 0;
  std::uint64_t least_bytes = 0;
  for (int sent = 0; sent < 2050; ++sent) {
    const auto next = pop(queue);
    (next.egress_class == 63 ? least_bytes : urgent_bytes) += next.bytes;
  }
  EXPECT_EQ(least_bytes * 4, urgent_bytes);
}

TEST(EgressQueue, WhatAClassWaitedForBeforeItBecameTheLeastUrgentIsNoClaim) {
  EgressQueue queue({.packets = 4096, .bytes = 1 << 30, .least_urgent_share = 1.0 / 9});
  std::uintptr_t number = 0;
  for (const ClassIndex waiting : {ClassIndex{10}, ClassIndex{63}})
    for (int count = 0; count < 200; ++count) ASSERT_TRUE(queue.push(item(++number, waiting)));
  int without_urgent = 0;
  int longest = 0;
  int middle = 0;
  for (int sent = 0; sent < 3600; ++sent) {  // class 63 is empty after half of them
    ASSERT_TRUE(queue.push(item(++number, 0)));
    const ClassIndex egress_class = pop(queue).egress_class;
    middle += egress_class == 10;
    without_urgent = egress_class == 0 ? 0 : without_urgent + 1;
    longest = std::max(longest, without_urgent);
  }
  EXPECT_EQ(queue.packets_of(63), 0u);
  EXPECT_EQ(middle, 200);
  EXPECT_LE(longest, 2) << "one packet of each of the two";
}

TEST(EgressQueue, ReusesItsNodesForEver) {
  EgressQueue queue = strict(4);
  for (std::uintptr_t number = 1; number < 10'000; ++number) {
    const auto egress_class = static_cast<ClassIndex>(number % 64);
    offer(queue, item(number, egress_class));
    if (number % 7 == 0) pop(queue);
    ASSERT_LE(queue.packets(), 4u);
    ASSERT_EQ(queue.bytes(), queue.packets() * 100u);
  }
}

}  // namespace
}  // namespace sluice::dataplane
