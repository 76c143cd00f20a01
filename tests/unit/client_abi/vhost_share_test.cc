// Jobs of a process that share a vhost-user socket, over a plug-in that this test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
#include <thread>
#include <vector>

#include "tests/unit/client_abi/vhost_fixture.h"

namespace sluice::client {
namespace {

// Two or more jobs of this process at one socket. A frame is told apart by its UDP port.
class SharedVhostTest : public VhostTest {
 protected:
  // To the transport's address, with so many bytes.
  void send_to(const Transport& transport, std::size_t bytes) {
    const std::string address = transport.facts().local_address;
    const std::size_t colon = address.find(':');
    wire::IpAddress dst{wire::Family::kIpv4, {}};
    EXPECT_EQ(::inet_pton(AF_INET, address.substr(0, colon).c_str(), dst.bytes.data()), 1);
    wire::UdpPath path;
    path.src_mac = kApplianceMac;
    path.src = kAppliance;
    path.src_port = 7701;
    path.dst = dst;
    path.dst_port = static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1)));
    port().to_worker.push_back(udp_frame(path, bytes));
  }
  static std::vector<std::size_t> sizes_of(std::span<const Incoming> datagrams) {
    std::vector<std::size_t> sizes;
    for (const Incoming& datagram : datagrams) sizes.push_back(datagram.bytes.size());
    return sizes;
  }
};

TEST_F(SharedVhostTest, IsOpenedOnceAndClosedByTheLast) {
  auto first = open();
  auto second = open();
  EXPECT_EQ(port().times_opened, 1);
  EXPECT_NE(first->facts().local_address, second->facts().local_address);
  EXPECT_EQ(first->facts().receive_credit_packets, 300u);
  EXPECT_EQ(second->facts().receive_credit_packets, 150u) << "its share of the buffers";
  first.reset();
  EXPECT_TRUE(port().open);
  const auto third = open();
  EXPECT_EQ(port().times_opened, 1);
  second.reset();
  EXPECT_TRUE(port().open);
  third->receive(kSecond);
  EXPECT_EQ(port().from_worker.size(), 1u) << "it asks for the appliance";
}

TEST_F(SharedVhostTest, WhoeverLooksTakesFramesForAllAndEachKeepsItsOwn) {
  const auto first = open();
  const auto second = open();
  send_to(*first, 11);
  send_to(*second, 22);
  send_to(*second, 23);
  send_to(*first, 12);
  const auto own = first->receive(kSecond);
  EXPECT_EQ(sizes_of(own), (std::vector<std::size_t>{11, 12}));
  const auto others = second->receive(kSecond);
  EXPECT_EQ(sizes_of(others), (std::vector<std::size_t>{22, 23}));
  send_to(*second, 24);
  EXPECT_TRUE(first->receive(kSecond).empty());
  EXPECT_EQ(others[1].bytes[22], 0xab) << "until the second one's next call";
  EXPECT_EQ(sizes_of(second->receive(kSecond)), (std::vector<std::size_t>{24}));
  first->receive(kSecond);
  second->receive(kSecond);
  EXPECT_EQ(port().lent, 0u);
}

TEST_F(SharedVhostTest, BothSendWhenTheApplianceIsKnownAsTheirOwn) {
  const auto first = open();
  const auto second = open();
  first->receive(kSecond);
  answer_arp();
  first->receive(kSecond);
  second->receive(kSecond);
  std::vector<std::uint8_t> memory(kTxHeadroomBytes + 100, 7);
  const Outgoing datagram{memory.data() + kTxHeadroomBytes, 100, 1};
  port().from_worker.clear();
  std::vector<std::uint16_t> ports;
  for (const auto& transport : {first.get(), second.get()}) {
    ASSERT_EQ(transport->send({&datagram, 1}, kSecond), 1u);
    wire::Frame frame;
    EXPECT_EQ(wire::parse_frame(port().from_worker.back(), wire::UdpChecksums::kVerify, frame),
              Verdict::kAccepted);
    EXPECT_THAT(transport->facts().local_address,
                ::testing::EndsWith(":" + std::to_string(frame.src_port)));
    ports.push_back(frame.src_port);
  }
  EXPECT_NE(ports[0], ports[1]);
}

TEST_F(SharedVhostTest, WhatNobodyTakesFillsItsOwnShareAndNobodyElses) {
  const auto idle = open();
  const auto busy = open();
  for (int i = 0; i < 1000; ++i) send_to(*idle, 100);
  send_to(*busy, 33);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 10 && sizes.empty(); ++i) sizes = sizes_of(busy->receive(kSecond));
  EXPECT_EQ(sizes, (std::vector<std::size_t>{33}));
  std::size_t kept = 0;
  for (std::size_t count; (count = idle->receive(kSecond).size()) != 0;) kept += count;
  EXPECT_EQ(kept, 200u) << "half of the port's buffers";
  EXPECT_EQ(idle->counters().receive_drops, 800u);
  EXPECT_EQ(busy->counters().receive_drops, 0u);
}

TEST_F(SharedVhostTest, WhoLeavesGivesBackWhatItHadAndTheOtherGoesOn) {
  auto first = open();
  const auto second = open();
  for (int i = 0; i < 100; ++i) send_to(*first, 10);
  send_to(*second, 20);
  EXPECT_EQ(first->receive(kSecond).size(), 64u);
  first.reset();
  EXPECT_EQ(port().lent, 0u);
  EXPECT_EQ(sizes_of(second->receive(kSecond)), (std::vector<std::size_t>{20}));
}

TEST_F(SharedVhostTest, ASleeperIsWokenByWhoFindsSomethingForIt) {
  VhostPort::Shared shared = VhostPort::open(plugin_, options(), Log(LogSink{})).value();
  auto sleeper = shared->attach().value();
  auto other = shared->attach().value();
  std::array<Incoming, kBurst> datagrams;
  const auto find_frame = [&] {
    port().to_worker.push_back(udp_frame({.src_mac = kApplianceMac,
                                          .src = kAppliance,
                                          .dst = sleeper->path.src,
                                          .src_port = 7701,
                                          .dst_port = sleeper->path.src_port},
                                         9));
    shared->receive(*other, datagrams, kSecond);
  };
  eventfd_t wakes = 0;
  find_frame();
  EXPECT_NE(::eventfd_read(sleeper->ready.get(), &wakes), 0) << "it is awake";
  sleeper->asleep = true;
  find_frame();
  find_frame();
  EXPECT_EQ(::eventfd_read(sleeper->ready.get(), &wakes), 0);
  EXPECT_EQ(wakes, 1u) << "once is enough";
  EXPECT_EQ(shared->receive(*sleeper, datagrams, kSecond), 3u);
  shared->detach(std::move(sleeper));
  shared->detach(std::move(other));
}

TEST_F(SharedVhostTest, FramesWakeAWaiterUnlessAnotherOneLooksForThem) {
  const auto first = open();
  const OwnedFd wake(::eventfd(1, EFD_NONBLOCK));  // so that no wait takes long
  first->wait(wake.get(), kSecond);
  EXPECT_EQ(port().times_armed, 1) << "it is alone";
  const auto second = open();
  second->receive(kSecond);
  first->wait(wake.get(), kSecond);
  EXPECT_EQ(port().times_armed, 1);
  first->wait(wake.get(), kSecond);
  EXPECT_EQ(port().times_armed, 2) << "the other one has not looked since";
  second->receive(kSecond);
  first->wait(wake.get(), kSecond);
  EXPECT_EQ(port().times_armed, 2);
}

// An appliance that answers every datagram with its bytes; the fake is under the port's lock.
TEST_F(SharedVhostTest, ThreadsEachGetTheirOwnAnswers) {
  plugin_.tx_burst = [](sluice_dpdk_port* opened, const sluice_dpdk_frame* frames,
                        std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      wire::Frame frame;
      EXPECT_TRUE(ok(wire::parse_frame({frames[i].data, frames[i].bytes},
                                       wire::UdpChecksums::kVerify, frame)));
      if (frame.kind == wire::FrameKind::kArp) {
        opened->from_worker.assign(1, {frames[i].data, frames[i].data + frames[i].bytes});
        answer_arp();
      } else {
        std::vector<std::uint8_t> answer(wire::kMaxUdpHeaderBytes + frame.payload.size());
        answer.resize(
            wire::encode_udp_frame(answer, wire::reply_path(frame, kApplianceMac), frame.payload));
        opened->to_worker.push_back(std::move(answer));
      }
    }
    return count;
  };
  constexpr int kThreads = 3, kDatagrams = 2000;
  std::vector<std::unique_ptr<Transport>> transports;
  for (int i = 0; i < kThreads; ++i) transports.push_back(open());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([i, &transports] {
      const std::unique_ptr<Transport> transport = std::move(transports[i]);
      const OwnedFd wake(::eventfd(0, EFD_NONBLOCK));
      std::vector<std::uint8_t> memory(kTxHeadroomBytes + 100);
      const Outgoing datagram{memory.data() + kTxHeadroomBytes, 100, 1};
      for (int sent = 0; sent < kDatagrams;) {
        datagram.data[0] = static_cast<std::uint8_t>(i);
        datagram.data[1] = static_cast<std::uint8_t>(sent);
        sent += static_cast<int>(transport->send({&datagram, 1}, kSecond));
        std::span<const Incoming> answers = transport->receive(kSecond);
        while (sent != 0 && answers.empty()) {
          transport->wait(wake.get(), kMillisecond);
          answers = transport->receive(kSecond);
        }
        for (const Incoming& answer : answers) {
          ASSERT_EQ(answer.bytes.size(), 100u);
          EXPECT_EQ(answer.bytes[0], i);
          EXPECT_EQ(answer.bytes[1], static_cast<std::uint8_t>(sent - 1));
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedVhostTest, BothHearOnceThatTheLinkIsGoneAndANewOneIsOpened) {
  const auto first = open();
  const auto second = open();
  port().up = false;
  for (const auto& transport : {first.get(), second.get()}) {
    PathEvent event;
    transport->receive(2 * kSecond);
    ASSERT_TRUE(transport->poll_path_event(event));
    EXPECT_EQ(event.kind, PathEvent::Kind::kBroken);
    EXPECT_FALSE(transport->poll_path_event(event));
  }
  const auto third = open();  // of an appliance that came back
  EXPECT_EQ(port().times_opened, 2);
}

TEST_F(SharedVhostTest, SaysWhyItCannotBeShared) {
  const auto first = open("10.0.0.77");
  const auto refusal = [&](const VhostOptions& asked) {
    const auto second = open_vhost_over(plugin_, asked, Log(LogSink{}));
    EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(second.status().message(),
                ::testing::AllOf(::testing::HasSubstr(path_),
                                 ::testing::HasSubstr("give both the same, or a port each")));
    return second.status().message();
  };
  VhostOptions asked = options("10.0.0.78");
  EXPECT_THAT(refusal(asked), ::testing::HasSubstr("the local address 10.0.0.77, and this job asks "
                                                   "for 10.0.0.78"));
  asked = options();
  asked.host = "10.0.0.2";
  EXPECT_THAT(refusal(asked),
              ::testing::HasSubstr("the appliance 10.0.0.1, and this job asks for 10.0.0.2"));
  asked = options();
  asked.mtu_bytes = 9000;
  EXPECT_THAT(refusal(asked), ::testing::HasSubstr("mtu 1500, and this job asks for 9000"));
  asked.mtu_bytes = 1400;
  const auto smaller = open_vhost_over(plugin_, asked, Log(LogSink{}));
  ASSERT_TRUE(smaller.ok());
  EXPECT_EQ(smaller.value()->facts().path_datagram_bytes, 1372u);
}

TEST_F(SharedVhostTest, RefusesTheSeventeenthJob) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::size_t i = 0; i < VhostPort::kMaxInboxes; ++i) transports.push_back(open());
  const auto one_more = open_vhost_over(plugin_, options(), Log(LogSink{}));
  ASSERT_FALSE(one_more.ok());
  EXPECT_THAT(one_more.status().message(),
              ::testing::HasSubstr("already carries 16 jobs of this process: use another port"));
  transports.pop_back();
  EXPECT_TRUE(open_vhost_over(plugin_, options(), Log(LogSink{})).ok());
}

}  // namespace
}  // namespace sluice::client
