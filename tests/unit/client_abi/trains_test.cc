// Trains of datagrams: how they are assembled, how they are cut, and the path without them.
#include "client/transport/udp/trains.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "client/clock.h"
#include "client/fork.h"
#include "client/transport/udp/udp.h"

namespace sluice::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Lengths = std::vector<std::size_t>;

// Datagrams of these lengths, most of each in memory of the application's.
class Datagrams {
 public:
  explicit Datagrams(const Lengths& lengths, std::uint16_t port_offset = 0)
      : headers_(lengths.size()), payloads_(lengths.size()) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::size_t header = std::min<std::size_t>(lengths[i], 10);
      headers_[i].assign(kMaxDatagramBytes, static_cast<std::uint8_t>(i));
      payloads_[i].assign(lengths[i] - header, static_cast<std::uint8_t>(i + 100));
      list.push_back({.data = headers_[i].data(),
                      .bytes = header,
                      .port_offset = port_offset,
                      .payload = payloads_[i]});
    }
  }
  std::vector<Outgoing> list;

 private:
  std::vector<std::vector<std::uint8_t>> headers_, payloads_;
};

Lengths trains_of(const Lengths& lengths) {
  Datagrams datagrams(lengths);
  std::span<const Outgoing> rest = datagrams.list;
  Lengths trains;
  while (!rest.empty()) {
    trains.push_back(train_length(rest));
    rest = rest.subspan(trains.back());
  }
  return trains;
}

TEST(Trains, AreOfOneLengthButForTheLast) {
  EXPECT_THAT(trains_of({1400}), ElementsAre(1));
  EXPECT_THAT(trains_of({1400, 1400, 1400}), ElementsAre(3));
  EXPECT_THAT(trains_of({1400, 1400, 60, 1400}), ElementsAre(3, 1));
  EXPECT_THAT(trains_of({60, 1400, 1400}), ElementsAre(1, 2));
  EXPECT_THAT(trains_of({1400, 60, 60, 60, 1400}), ElementsAre(2, 2, 1));
}

TEST(Trains, AreNoLongerThanTheKernelTakes) {
  EXPECT_THAT(trains_of(Lengths(kMaxTrain + 1, 100)), ElementsAre(kMaxTrain, 1));
  EXPECT_THAT(trains_of(Lengths(48, 1400)), ElementsAre(kMaxTrainBytes / 1400, 2));
  EXPECT_THAT(trains_of(Lengths(8, 9000)), ElementsAre(7, 1));
  EXPECT_THAT(trains_of({65'600, 10}), ElementsAre(1, 1));
}

TEST(Trains, GoToOnePort) {
  Datagrams here({100, 100}), there({100}, 1);
  std::vector<Outgoing> both = here.list;
  both.push_back(there.list[0]);
  EXPECT_EQ(train_length(both), 2u);
}

// A socket on the loopback interface.
class Peer {
 public:
  explicit Peer(const char* host) : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, host, &address.sin_addr);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    socklen_t bytes = sizeof address;
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  }
  int fd() const { return fd_.get(); }
  // Every datagram that waits: its length, and each byte as the sender wrote it.
  Lengths receive(std::size_t header = 10) {
    Lengths lengths;
    std::vector<std::uint8_t> bytes(70'000);
    for (;;) {
      socklen_t size = sizeof from;
      const ssize_t got = ::recvfrom(fd_.get(), bytes.data(), bytes.size(), 0,
                                     reinterpret_cast<sockaddr*>(&from), &size);
      if (got < 0) return lengths;
      const auto number = static_cast<std::uint8_t>(lengths.size());
      for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i)
        EXPECT_EQ(bytes[i], i < header ? number : number + 100) << "byte " << i;
      lengths.push_back(static_cast<std::size_t>(got));
    }
  }
  // One message of `bytes`, cut at every `segment` if that is not 0.
  void send(const sockaddr_in& to, std::size_t bytes, int segment) {
    if (segment != 0 && ::setsockopt(fd(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) != 0)
      GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
    std::vector<std::uint8_t> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      data[i] = static_cast<std::uint8_t>(segment == 0 ? 0 : i / static_cast<std::size_t>(segment));
    ASSERT_EQ(
        ::sendto(fd(), data.data(), bytes, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to),
        static_cast<ssize_t>(bytes));
  }

  sockaddr_in address{};
  sockaddr_in from{};

 private:
  OwnedFd fd_;
};

std::unique_ptr<Transport> open(const Peer& peer, const char* host, bool trains,
                                const LogSink& log = {}) {
  auto transport = open_udp(
      {.host = host, .port = ntohs(peer.address.sin_port), .local_address = "", .trains = trains},
      Log(log));
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return std::move(transport).value();
}

// The same datagrams reach the peer either way, the payloads gathered from where they lie.
TEST(Trains, ArriveAsTheDatagramsThatTheyAreMadeOf) {
  Lengths lengths(40, 1400);
  lengths.insert(lengths.end(), {900, 60, 60, 1400, 11});
  for (const bool trains : {true, false}) {
    Peer peer("127.0.3.1");
    const auto transport = open(peer, "127.0.3.1", trains);
    EXPECT_EQ(transport->facts().offloads.empty(), !trains);
    Datagrams datagrams(lengths);
    EXPECT_EQ(transport->send(datagrams.list, 0), lengths.size());
    EXPECT_EQ(peer.receive(), lengths);
    EXPECT_EQ(transport->counters().segmented, trains ? 43u + 2u : 0u);
    EXPECT_EQ(transport->counters().send_errors, 0u);
  }
}

// The transport's socket: nothing else of this process sends from that port.
int socket_of(const sockaddr_in& local) {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
        address.sin_family == AF_INET && address.sin_port == local.sin_port)
      return fd;
  }
  return -1;
}

// A socket that writes no checksums gets the answer of a device that can't: no trains.
TEST(Trains, AreGivenUpWhereTheyAreRefusedAndNothingIsLost) {
  Peer peer("127.0.3.2");
  std::vector<std::string> told;
  const auto tell = [](void* lines, sluice_log_level level, const char* text) {
    EXPECT_EQ(level, SLUICE_LOG_WARN);
    static_cast<std::vector<std::string>*>(lines)->emplace_back(text);
  };
  const auto transport = open(peer, "127.0.3.2", true, {.write = tell, .user = &told});
  Datagrams datagrams(Lengths(20, 1400));
  ASSERT_EQ(transport->send(datagrams.list, 0), 20u);
  ASSERT_EQ(peer.receive().size(), 20u);
  if (transport->counters().segmented == 0) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
  const int on = 1;
  const int fd = socket_of(peer.from);
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  EXPECT_EQ(transport->send(datagrams.list, 0), 20u);
  EXPECT_EQ(peer.receive(), Lengths(20, 1400));
  const int off = 0;
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &off, sizeof off), 0);
  EXPECT_EQ(transport->send(datagrams.list, 0), 20u);
  EXPECT_EQ(peer.receive(), Lengths(20, 1400));
  EXPECT_EQ(transport->counters().segmented, 20u) << "it is not tried again";
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], ::testing::AllOf(::testing::HasSubstr("127.0.3.2"),
                                        ::testing::HasSubstr("one by one"),
                                        ::testing::HasSubstr("ethtool")));
  EXPECT_EQ(transport->counters().send_errors, 0u);
  PathEvent event;
  EXPECT_FALSE(transport->poll_path_event(event));
}

// What a worker receives, datagram by datagram, in bursts.
struct Received {
  Lengths lengths;
  std::vector<std::uint8_t> first_bytes;
};

Received receive_all(Transport& transport) {
  Received all;
  for (;;) {
    const auto datagrams = transport.receive(0);
    if (datagrams.empty()) return all;
    EXPECT_LE(datagrams.size(), kBurst);
    for (const Incoming& one : datagrams) {
      all.lengths.push_back(one.bytes.size());
      EXPECT_THAT(one.bytes, Each(one.bytes.front()));
      all.first_bytes.push_back(one.bytes.front());
    }
  }
}

class Receiving : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    transport_ = open(peer_, "127.0.3.3", GetParam());
    Datagrams hello({20});
    ASSERT_EQ(transport_->send(hello.list, 0), 1u);
    ASSERT_EQ(peer_.receive(), Lengths{20});
    worker_ = peer_.from;
  }
  Peer peer_{"127.0.3.3"};
  std::unique_ptr<Transport> transport_;
  sockaddr_in worker_{};
};

TEST_P(Receiving, CutsTrainsInOrder) {
  peer_.send(worker_, 40 * 1400 + 100, 1400);
  peer_.send(worker_, 60 * 1000, 1000);
  const Received all = receive_all(*transport_);
  Lengths lengths(40, 1400);
  lengths.push_back(100);
  lengths.resize(101, 1000);
  EXPECT_EQ(all.lengths, lengths);
  for (std::size_t i = 0; i < 41; ++i) EXPECT_EQ(all.first_bytes[i], i);
  for (std::size_t i = 41; i < 101; ++i) EXPECT_EQ(all.first_bytes[i], i - 41);
  EXPECT_EQ(transport_->counters().coalesced, GetParam() ? 101u : 0u);
}

TEST_P(Receiving, TakesNoTrainOfAStranger) {
  Peer stranger("127.0.3.4");
  stranger.send(worker_, 14'000, 1400);
  peer_.send(worker_, 2800, 1400);
  stranger.send(worker_, 100, 0);
  EXPECT_THAT(receive_all(*transport_).lengths, ElementsAre(1400, 1400));
}

TEST_P(Receiving, DropsWhatIsLongerThanAnyDatagramOfTheProtocol) {
  peer_.send(worker_, 65'000, 0);
  peer_.send(worker_, kLargestDatagram, 0);
  peer_.send(worker_, kLargestDatagram + 1, 0);
  peer_.send(worker_, 60'000, 20'000);
  EXPECT_THAT(receive_all(*transport_).lengths, ElementsAre(kLargestDatagram));
}

TEST_P(Receiving, CountsWhatTheBufferHadNoRoomForOnceSomethingElseComes) {
  const int bytes = 20'000;  // the kernel takes twice that, headers and all
  ASSERT_EQ(::setsockopt(socket_of(worker_), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  for (int i = 0; i < 100; ++i) peer_.send(worker_, 1400, 0);
  const std::size_t kept = receive_all(*transport_).lengths.size();
  ASSERT_LT(kept, 100u);
  peer_.send(worker_, 100, 0);
  EXPECT_EQ(receive_all(*transport_).lengths.size(), 1u);
  EXPECT_EQ(transport_->counters().receive_drops, 100 - kept);
}

INSTANTIATE_TEST_SUITE_P(Trains, Receiving, ::testing::Values(true, false));

}  // namespace
}  // namespace sluice::client
