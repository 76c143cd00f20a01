// The vhost-user transport over a plug-in that this test plays: ARP, framing, and a link that
// breaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <vector>

#include "tests/unit/client_abi/vhost_fixture.h"

namespace sluice::client {
namespace {

TEST_F(VhostTest, AsksForTheApplianceBeforeItSendsAndFramesWhatItSends) {
  const auto transport = open();
  std::vector<std::uint8_t> memory(kTxHeadroomBytes + 100, 7);
  const Outgoing datagram{memory.data() + kTxHeadroomBytes, 100, 3};
  transport->receive(kSecond);
  EXPECT_EQ(transport->send({&datagram, 1}, kSecond), 0u);  // kept until the MAC address is known
  const wire::ArpPacket request = answer_arp();
  EXPECT_EQ(request.target, kAppliance);
  EXPECT_EQ(request.sender.bytes[0], 169);
  EXPECT_EQ(request.sender.bytes[1], 254);
  EXPECT_EQ(request.sender.bytes[3], 6);  // rank 5
  EXPECT_EQ(request.sender_mac.bytes[0], 2);
  transport->receive(kSecond);
  ASSERT_EQ(transport->send({&datagram, 1}, kSecond), 1u);

  wire::Frame frame;
  ASSERT_EQ(port().from_worker.size(), 1u);
  ASSERT_EQ(wire::parse_frame(port().from_worker[0], wire::UdpChecksums::kVerify, frame),
            Verdict::kAccepted);
  EXPECT_EQ(frame.ethernet.dst, kApplianceMac);
  EXPECT_EQ(frame.ethernet.src, request.sender_mac);
  EXPECT_EQ(frame.dst, kAppliance);
  EXPECT_EQ(frame.dst_port, 7703);
  EXPECT_EQ(frame.traffic_class, wire::kEcnCapable);
  EXPECT_THAT(frame.payload, ::testing::ElementsAreArray(std::vector<std::uint8_t>(100, 7)));

  // A payload elsewhere, of an odd length.
  const std::vector<std::uint8_t> payload(1339, 9);
  const Outgoing gathered{
      .data = memory.data() + kTxHeadroomBytes, .bytes = 60, .port_offset = 1, .payload = payload};
  ASSERT_EQ(transport->send({&gathered, 1}, kSecond), 1u);
  ASSERT_EQ(wire::parse_frame(port().from_worker.at(1), wire::UdpChecksums::kVerify, frame),
            Verdict::kAccepted);
  std::vector<std::uint8_t> together(60, 7);
  together.insert(together.end(), payload.begin(), payload.end());
  EXPECT_THAT(frame.payload, ::testing::ElementsAreArray(together));

  // The way back, and two frames that are for somebody else.
  wire::UdpPath path = wire::reply_path(frame, kApplianceMac);
  port().to_worker.push_back(udp_frame(path, 33));
  path.dst_port ^= 1;
  port().to_worker.push_back(udp_frame(path, 34));
  path.dst_port ^= 1;
  path.src = wire::ipv4_address(10, 0, 0, 9);
  port().to_worker.push_back(udp_frame(path, 35));
  const auto received = transport->receive(kSecond);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].bytes.size(), 33u);
}

TEST_F(VhostTest, BelievesAnArpReplyOnlyWhileItAsks) {
  constexpr wire::Mac kForger{{2, 6, 6, 6, 6, 6}};
  const auto transport = open();
  std::vector<std::uint8_t> memory(kTxHeadroomBytes + 100, 7);
  const Outgoing datagram{memory.data() + kTxHeadroomBytes, 100, 3};
  transport->receive(kSecond);
  const wire::ArpPacket request = answer_arp();
  transport->receive(kSecond);
  const auto claim = [&](TimeNs now) {
    std::vector<std::uint8_t> frame(64);
    wire::encode_arp_frame(frame, request.sender_mac, wire::kNoVlan,
                           {.operation = wire::kArpReply,
                            .sender_mac = kForger,
                            .sender = kAppliance,
                            .target_mac = request.sender_mac,
                            .target = request.sender});
    port().to_worker.push_back(frame);
    transport->receive(now);
  };
  const auto destination = [&](TimeNs now) {
    port().from_worker.clear();
    EXPECT_EQ(transport->send({&datagram, 1}, now), 1u);
    wire::Frame frame;
    EXPECT_EQ(wire::parse_frame(port().from_worker.at(0), wire::UdpChecksums::kVerify, frame),
              Verdict::kAccepted);
    return frame.ethernet.dst;
  };
  claim(kSecond + kMillisecond);
  EXPECT_EQ(destination(kSecond + kMillisecond), kApplianceMac);

  port().from_worker.clear();
  transport->receive(3 * kSecond);  // silent for long: another box may answer under the address
  ASSERT_EQ(port().from_worker.size(), 1u);
  EXPECT_EQ(destination(3 * kSecond), kApplianceMac) << "until somebody answers";
  claim(3 * kSecond + kMillisecond);
  EXPECT_EQ(destination(3 * kSecond + kMillisecond), kForger);
}

TEST_F(VhostTest, AsksAgainWhileNobodyAnswers) {
  const auto transport = open();
  transport->receive(kSecond);
  transport->receive(kSecond + kMillisecond);
  EXPECT_EQ(port().from_worker.size(), 1u);
  transport->receive(2 * kSecond);
  EXPECT_EQ(port().from_worker.size(), 2u);
}

TEST_F(VhostTest, AnswersForItsOwnAddress) {
  const auto transport = open("10.0.0.77");
  std::vector<std::uint8_t> frame(64);
  const wire::ArpPacket request{.operation = wire::kArpRequest,
                                .sender_mac = kApplianceMac,
                                .sender = kAppliance,
                                .target_mac = {},
                                .target = wire::ipv4_address(10, 0, 0, 77)};
  wire::encode_arp_frame(frame, wire::kBroadcastMac, wire::kNoVlan, request);
  transport->receive(0);
  port().from_worker.clear();
  port().to_worker.push_back(frame);
  transport->receive(0);
  wire::Frame answer;
  ASSERT_EQ(port().from_worker.size(), 1u);
  ASSERT_EQ(wire::parse_frame(port().from_worker[0], wire::UdpChecksums::kVerify, answer),
            Verdict::kAccepted);
  const wire::ArpPacket reply = wire::parse_arp(answer.payload).value();
  EXPECT_EQ(reply.operation, wire::kArpReply);
  EXPECT_EQ(reply.sender, wire::ipv4_address(10, 0, 0, 77));
  EXPECT_EQ(reply.target, kAppliance);
}

TEST_F(VhostTest, KeepsWhatItFindsBeforeSleeping) {
  const auto transport = open();
  transport->receive(0);
  answer_arp();
  const OwnedFd wake(::eventfd(0, EFD_NONBLOCK));
  transport->wait(wake.get(), kSecond);  // finds the answer instead of sleeping
  EXPECT_TRUE(port().to_worker.empty());
  transport->receive(0);
  std::vector<std::uint8_t> memory(kTxHeadroomBytes + 1);
  const Outgoing datagram{memory.data() + kTxHeadroomBytes, 1, 0};
  EXPECT_EQ(transport->send({&datagram, 1}, 0), 1u);
}

TEST_F(VhostTest, ReportsOnceThatTheLinkIsGone) {
  const auto transport = open();
  PathEvent event;
  transport->receive(kSecond);
  EXPECT_FALSE(transport->poll_path_event(event));
  port().up = false;
  transport->receive(2 * kSecond);
  ASSERT_TRUE(transport->poll_path_event(event));
  EXPECT_EQ(event.kind, PathEvent::Kind::kBroken);
  EXPECT_THAT(event.status.message(), ::testing::HasSubstr(path_));
  EXPECT_FALSE(transport->poll_path_event(event));
}

TEST_F(VhostTest, TakesAndReportsADatagramBeyondTheMtu) {
  const auto transport = open();
  transport->receive(0);
  answer_arp();
  transport->receive(0);
  std::vector<std::uint8_t> memory(kTxHeadroomBytes + 1473);
  const Outgoing datagram{memory.data() + kTxHeadroomBytes, 1473, 0};
  EXPECT_EQ(transport->send({&datagram, 1}, 0), 1u);
  EXPECT_TRUE(port().from_worker.empty());
  PathEvent event;
  ASSERT_TRUE(transport->poll_path_event(event));
  EXPECT_EQ(event.kind, PathEvent::Kind::kTooBig);
  EXPECT_EQ(event.path_datagram_bytes, 1472u);
}

// Another process, which this one plays by having the socket's name.
TEST_F(VhostTest, RefusesASocketThatAnotherProcessHas) {
  OwnedFd other = claim_socket(path_, find_socket(path_).value()).value();
  const auto refused = open_vhost_over(plugin_, options(), Log(LogSink{}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kRefused);
  EXPECT_THAT(refused.status().message(),
              ::testing::AllOf(::testing::HasSubstr(path_), ::testing::HasSubstr("another process"),
                               ::testing::HasSubstr("each process needs one of its own")));
  other.reset();
  EXPECT_TRUE(open_vhost_over(plugin_, options(), Log(LogSink{})).ok());
}

// The appliance answers when its time is over and the socket is shut down: DPDK takes the port for
// open.
TEST_F(VhostTest, SaysThatTheApplianceIsSilentAlsoIfItAnswersTooLate) {
  ASSERT_EQ(::listen(socket_.get(), 1), 0);
  plugin_.open = [](const sluice_dpdk_options* request) {
    const OwnedFd link(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, request->socket_path);
    EXPECT_EQ(::connect(link.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    char byte = 0;
    EXPECT_EQ(::recv(link.get(), &byte, 1, 0), 0);
    port().open = true;
    return &port();
  };
  VhostOptions asked = options();
  asked.open_limit = std::chrono::milliseconds(1);
  const auto refused = open_vhost_over(plugin_, asked, Log(LogSink{}));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              ::testing::AllOf(::testing::HasSubstr(path_), ::testing::HasSubstr("says nothing")));
  EXPECT_FALSE(port().open);
}

TEST_F(VhostTest, NamesASocketThatDoesNotExist) {
  const auto transport = open_vhost_over(
      plugin_, {.host = "10.0.0.1", .socket_path = path_ + "x", .local_address = ""},
      Log(LogSink{}));
  ASSERT_FALSE(transport.ok());
  EXPECT_EQ(transport.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(transport.status().message(), ::testing::HasSubstr(path_ + "x"));
  EXPECT_FALSE(port().open);
}

}  // namespace
}  // namespace sluice::client
