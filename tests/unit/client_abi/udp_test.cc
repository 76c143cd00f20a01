// The UDP transport against plain sockets on the loopback interface.
#include "client/transport/udp/udp.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "aggregator/wire/inet.h"
#include "client/clock.h"
#include "client/fork.h"

namespace sluice::client {
namespace {

constexpr DurationNs kWaitLimit = 5 * kSecond;

// A socket that plays the appliance's port, on an address of its own so that data ports are free.
class Peer {
 public:
  explicit Peer(const char* host, std::uint16_t port = 0)
      : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
    address_.sin_family = AF_INET;
    address_.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &address_.sin_addr);
    bound_ = ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address_), sizeof address_) == 0;
    socklen_t address_bytes = sizeof address_;
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address_), &address_bytes);
  }
  bool bound() const { return bound_; }
  std::uint16_t port() const { return ntohs(address_.sin_port); }

  // The length of the next datagram, its sender in from() and its traffic class in tos(); -1: none.
  ssize_t receive() {
    std::array<char, 64> control{};
    iovec iov{bytes.data(), bytes.size()};
    msghdr message{.msg_name = &from_,
                   .msg_namelen = sizeof from_,
                   .msg_iov = &iov,
                   .msg_iovlen = 1,
                   .msg_control = control.data(),
                   .msg_controllen = control.size()};
    const ssize_t count = ::recvmsg(fd_.get(), &message, 0);
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); count >= 0 && part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_type == IP_TOS) tos_ = *reinterpret_cast<std::uint8_t*>(CMSG_DATA(part));
    }
    return count;
  }
  void reply(std::span<const std::uint8_t> data) {
    ASSERT_EQ(::sendto(fd_.get(), data.data(), data.size(), 0,
                       reinterpret_cast<const sockaddr*>(&from_), sizeof from_),
              static_cast<ssize_t>(data.size()));
  }
  void send_to_sender_of(const Peer& other, std::span<const std::uint8_t> data) {
    from_ = other.from_;
    reply(data);
  }
  std::uint8_t tos() const { return tos_; }
  std::uint16_t sender_port() const { return ntohs(from_.sin_port); }

  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(10'000);

 private:
  OwnedFd fd_;
  sockaddr_in address_{};
  sockaddr_in from_{};
  bool bound_ = false;
  std::uint8_t tos_ = 0xff;
};

// Datagrams to send, with the room in front of them that the interface asks for.
class Burst {
 public:
  Burst(std::size_t count, std::size_t bytes, std::uint16_t port_offset)
      : memory_(count * (kTxHeadroomBytes + bytes)), datagrams_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint8_t* start = &memory_[i * (kTxHeadroomBytes + bytes) + kTxHeadroomBytes];
      start[0] = static_cast<std::uint8_t>(i);
      datagrams_[i] = {.data = start, .bytes = bytes, .port_offset = port_offset};
    }
  }
  std::span<const Outgoing> get() const { return datagrams_; }

 private:
  std::vector<std::uint8_t> memory_;
  std::vector<Outgoing> datagrams_;
};

std::unique_ptr<Transport> open(const char* host, std::uint16_t port, std::size_t mtu = 1500) {
  auto transport = open_udp({.host = host, .port = port, .local_address = "", .mtu_bytes = mtu});
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return std::move(transport).value();
}

// Calls `poll` until it returns true, sleeping in the transport in between.
template <class Poll>
bool wait_for(Transport& transport, Poll poll) {
  const OwnedFd wake(::eventfd(0, EFD_NONBLOCK));
  const TimeNs deadline = monotonic_now() + kWaitLimit;
  while (!poll()) {
    if (monotonic_now() > deadline) return false;
    transport.wait(wake.get(), 10 * kMillisecond);
  }
  return true;
}

TEST(Udp, SpeaksToEveryPortFromOneAndMarksItsDatagrams) {
  Peer control("127.0.2.1");
  Peer data("127.0.2.1", static_cast<std::uint16_t>(control.port() + 1));
  if (!data.bound()) GTEST_SKIP() << "the next port is taken";
  const auto transport = open("127.0.2.1", control.port());
  EXPECT_EQ(transport->facts().path_datagram_bytes, 1472u);
  EXPECT_GE(transport->facts().receive_credit_packets, 32u);
  EXPECT_EQ(transport->send(Burst(2, 100, 0).get(), 0), 2u);
  EXPECT_EQ(transport->send(Burst(kBurst, 1400, 1).get(), 0), kBurst);
  EXPECT_EQ(control.receive(), 100);
  EXPECT_EQ(control.tos() & wire::kEcnMask, wire::kEcnCapable);
  for (std::size_t i = 0; i < kBurst; ++i) {
    ASSERT_EQ(data.receive(), 1400);
    EXPECT_EQ(data.bytes[0], i);
  }
  EXPECT_EQ(data.receive(), -1);
  EXPECT_EQ(data.sender_port(), control.sender_port());
}

TEST(Udp, HandsTheKernelNoMoreForAPortThatSeveralShare) {
  const auto buffer_bytes = [](std::uint32_t sharers) {
    const auto transport = open_udp({.host = "127.0.2.1", .local_address = "", .sharers = sharers});
    int bytes = 0;
    socklen_t size = sizeof bytes;
    EXPECT_TRUE(transport.ok());
    EXPECT_EQ(::getsockopt(transport.value()->poll_fd(), SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
    return bytes;
  };
  const int alone = buffer_bytes(1);
  EXPECT_LE(3 * buffer_bytes(3), alone);
  EXPECT_GT(3 * buffer_bytes(3), alone - 10);
}

TEST(Udp, ReceivesFromTheApplianceAndFromNobodyElse) {
  Peer appliance("127.0.2.2");
  Peer stranger("127.0.2.3");
  const auto transport = open("127.0.2.2", appliance.port());
  ASSERT_EQ(transport->send(Burst(1, 10, 0).get(), 0), 1u);
  ASSERT_EQ(appliance.receive(), 10);
  stranger.send_to_sender_of(appliance, std::vector<std::uint8_t>{6, 6, 6});
  appliance.reply(std::vector<std::uint8_t>{1, 2});
  std::vector<std::vector<std::uint8_t>> seen;
  ASSERT_TRUE(wait_for(*transport, [&] {
    for (const Incoming& datagram : transport->receive(0))
      seen.emplace_back(datagram.bytes.begin(), datagram.bytes.end());
    return !seen.empty();
  }));
  EXPECT_THAT(seen, ::testing::ElementsAre(std::vector<std::uint8_t>{1, 2}));
}

TEST(Udp, SaysWhenNothingListens) {
  std::uint16_t port = 0;
  { port = Peer("127.0.2.4").port(); }
  const auto transport = open("127.0.2.4", port);
  transport->send(Burst(1, 10, 0).get(), 0);
  PathEvent event;
  ASSERT_TRUE(wait_for(*transport, [&] {
    transport->receive(0);
    return transport->poll_path_event(event);
  }));
  EXPECT_EQ(event.kind, PathEvent::Kind::kUnreachable);
  // The error is not held against the next datagram.
  EXPECT_EQ(transport->send(Burst(3, 10, 0).get(), 0), 3u);
}

TEST(Udp, SaysWhenADatagramIsTooBig) {
  Peer appliance("127.0.2.5");
  const auto transport = open("127.0.2.5", appliance.port(), 9000);
  const Burst burst(1, 65'600, 0);  // beyond what IPv4 can carry, on any interface
  EXPECT_EQ(transport->send(burst.get(), 0), 1u);
  PathEvent event;
  ASSERT_TRUE(transport->poll_path_event(event));
  EXPECT_EQ(event.kind, PathEvent::Kind::kTooBig);
  EXPECT_EQ(event.datagram_bytes, 65'600u);
  EXPECT_TRUE(event.certain);
  EXPECT_EQ(transport->counters().send_errors, 1u);
  EXPECT_EQ(transport->send(Burst(1, 10, 0).get(), 0), 1u);
  EXPECT_EQ(appliance.receive(), 10);
}

// Needs the right to send ICMP packets: what a forger on the same network has anyway.
TEST(Udp, GoesOnWhenAForgedIcmpPacketClaimsASmallPathMtu) {
  const OwnedFd raw(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!raw) GTEST_SKIP() << "raw sockets are not allowed here";
  Peer appliance("127.0.2.7");
  const auto transport = open("127.0.2.7", appliance.port());
  ASSERT_EQ(transport->send(Burst(1, 1400, 0).get(), 0), 1u);
  ASSERT_EQ(appliance.receive(), 1400);
  struct {
    icmphdr icmp{};
    iphdr ip{};
    udphdr udp{};
  } forged;
  forged.icmp.type = ICMP_DEST_UNREACH;
  forged.icmp.code = ICMP_FRAG_NEEDED;
  forged.icmp.un.frag.mtu = htons(600);
  forged.ip.version = 4;
  forged.ip.ihl = 5;
  forged.ip.protocol = IPPROTO_UDP;
  forged.ip.tot_len = htons(1428);
  forged.ip.saddr = htonl(INADDR_LOOPBACK);
  ::inet_pton(AF_INET, "127.0.2.7", &forged.ip.daddr);
  forged.udp.source = htons(appliance.sender_port());
  forged.udp.dest = htons(appliance.port());
  forged.icmp.checksum = wire::finish_checksum(
      wire::sum_bytes({reinterpret_cast<const std::uint8_t*>(&forged), sizeof forged}));
  sockaddr_in target{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  ASSERT_EQ(::sendto(raw.get(), &forged, sizeof forged, 0,
                     reinterpret_cast<const sockaddr*>(&target), sizeof target),
            static_cast<ssize_t>(sizeof forged));
  PathEvent event;
  ASSERT_TRUE(wait_for(*transport, [&] {
    EXPECT_EQ(transport->send(Burst(1, 1400, 0).get(), 0), 1u);
    EXPECT_EQ(appliance.receive(), 1400);  // nothing is lost, not even with the report
    return transport->poll_path_event(event) || ::testing::Test::HasFailure();
  }));
  EXPECT_EQ(event.kind, PathEvent::Kind::kTooBig);
  EXPECT_EQ(event.path_datagram_bytes, 572u);
  EXPECT_FALSE(event.certain);
}

TEST(Udp, NamesAHostThatDoesNotResolveAndAnAddressThatIsNotOurs) {
  const auto unknown = open_udp({.host = "no-such-host.invalid", .local_address = ""});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(unknown.status().message(), ::testing::HasSubstr("\"no-such-host.invalid\""));
  const auto link_local = open_udp({.host = "fe80::1", .local_address = ""});
  ASSERT_FALSE(link_local.ok());
  EXPECT_THAT(link_local.status().message(),
              testing::AnyOf(testing::HasSubstr("as in [fe80::1%eth0]"),
                             testing::HasSubstr("cannot open")));  // a machine without IPv6
  const auto foreign = open_udp({.host = "127.0.0.1", .local_address = "192.0.2.1"});
  ASSERT_FALSE(foreign.ok());
  EXPECT_THAT(foreign.status().message(), ::testing::HasSubstr("192.0.2.1"));
}

TEST(Udp, IsClosedInTheChildOfAFork) {
  std::uint16_t port = 0;
  pid_t child = -1;
  char byte = 0;
  std::array<int, 2> ends{};  // ours, the child's
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  Peer appliance("127.0.2.6");
  {
    const auto transport = open("127.0.2.6", appliance.port());
    transport->send(Burst(1, 10, 0).get(), 0);
    ASSERT_EQ(appliance.receive(), 10);
    port = appliance.sender_port();
    child = ::fork();
    if (child == 0) {  // runs, and outlives the parent's socket, as a data loader's worker does
      ::close(ends[0]);
      const bool told = ::write(ends[1], &byte, 1) == 1;
      ::_exit(told && ::read(ends[1], &byte, 1) == 0 ? 0 : 1);
    }
    ::close(ends[1]);
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  }
  // The port is free again although the child lives.
  EXPECT_TRUE(Peer("127.0.0.1", port).bound());
  ::close(ends[0]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace sluice::client
