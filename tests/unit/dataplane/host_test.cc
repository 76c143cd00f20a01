#include <gtest/gtest.h>

#include "dataplane/host/answer.h"
#include "dataplane/host/unreachable.h"
#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

OwnAddress bob() {
  return {.mac = wire::kBob, .ipv4 = wire::kBobIp, .ipv6 = wire::ipv6_of(1), .port = 7700};
}

wire::Frame parsed(const std::vector<std::uint8_t>& bytes) {
  wire::Frame frame;
  EXPECT_EQ(wire::parse_frame(bytes, wire::UdpChecksums::kVerify, frame), Verdict::kAccepted);
  return frame;
}

std::vector<std::uint8_t> arp(std::uint16_t operation, const wire::IpAddress& sender,
                              const wire::IpAddress& target, std::uint16_t vlan = wire::kNoVlan) {
  std::vector<std::uint8_t> bytes(64);
  bytes.resize(wire::encode_arp_frame(bytes, wire::kBroadcastMac, vlan,
                                      {operation, wire::kAlice, sender, wire::Mac{}, target}));
  return bytes;
}

HostAnswer answer(const std::vector<std::uint8_t>& request, std::vector<std::uint8_t>& reply) {
  reply.assign(request.size(), 0);  // as long as the request: a reply must fit
  const HostAnswer result = answer_as_host(parsed(request), bob(), reply);
  reply.resize(result.reply_bytes);
  return result;
}

TEST(HostAnswer, TellsItsMacAddressToWhoeverAsksForItsAddress) {
  std::vector<std::uint8_t> reply;
  ASSERT_EQ(answer(arp(1, wire::kAliceIp, wire::kBobIp, 0x0005), reply).outcome,
            HostOutcome::kAnswered);
  const wire::Frame frame = parsed(reply);
  const wire::ArpPacket packet = wire::parse_arp(frame.payload).value();
  EXPECT_EQ(frame.ethernet.dst, wire::kAlice);
  EXPECT_EQ(frame.ethernet.vlan_tci, 0x0005);
  EXPECT_EQ(packet.operation, wire::kArpReply);
  EXPECT_EQ(packet.sender_mac, wire::kBob);
  EXPECT_EQ(packet.sender, wire::kBobIp);
  EXPECT_EQ(packet.target_mac, wire::kAlice);
  EXPECT_EQ(packet.target, wire::kAliceIp);
}

TEST(HostAnswer, IgnoresArpForOthersAndReplies) {
  std::vector<std::uint8_t> reply;
  EXPECT_EQ(answer(arp(1, wire::kAliceIp, wire::ipv4_address(10, 77, 0, 9)), reply).outcome,
            HostOutcome::kIgnored);
  EXPECT_EQ(answer(arp(2, wire::kAliceIp, wire::kBobIp), reply).outcome, HostOutcome::kIgnored);
}

TEST(HostAnswer, ProbesForItsAddressWithoutClaimingIt) {
  std::vector<std::uint8_t> probe(64), reply(64), none(64);
  probe.resize(write_probe(bob(), probe));
  const wire::Frame frame = parsed(probe);
  const wire::ArpPacket packet = wire::parse_arp(frame.payload).value();
  EXPECT_EQ(frame.ethernet.dst, wire::kBroadcastMac);
  EXPECT_EQ(packet.operation, wire::kArpRequest);
  EXPECT_EQ(packet.sender_mac, wire::kBob);
  EXPECT_EQ(packet.sender, wire::ipv4_address(0, 0, 0, 0));
  EXPECT_EQ(packet.target, wire::kBobIp);

  OwnAddress twin = bob();
  twin.mac = wire::kAlice;
  const HostAnswer answered = answer_as_host(frame, twin, reply);
  ASSERT_EQ(answered.outcome, HostOutcome::kAnswered);
  reply.resize(answered.reply_bytes);
  EXPECT_EQ(answer_as_host(parsed(reply), bob(), none).outcome, HostOutcome::kConflict);
}

TEST(HostAnswer, NoticesAHostThatClaimsItsAddress) {
  std::vector<std::uint8_t> reply;
  EXPECT_EQ(answer(arp(1, wire::kBobIp, wire::kBobIp), reply).outcome, HostOutcome::kConflict);
}

TEST(HostAnswer, ReturnsAPingOverIpv4AndIpv6WithTheSameData) {
  for (const bool ipv6 : {false, true}) {
    wire::UdpPath path = wire::alice_to_bob();
    if (ipv6) path.src = wire::ipv6_of(11), path.dst = wire::ipv6_of(1);
    std::vector<std::uint8_t> echo{std::uint8_t(ipv6 ? 128 : 8), 0, 0, 0, 0x12, 0x34, 0, 1};
    for (std::uint8_t byte = 0; byte < 57; ++byte) echo.push_back(byte);
    const auto request = wire::icmp_frame(path, echo);
    std::vector<std::uint8_t> reply;
    ASSERT_EQ(answer(request, reply).outcome, HostOutcome::kAnswered) << ipv6;
    EXPECT_EQ(reply.size(), request.size());
    const wire::Frame frame = parsed(reply);  // checks every checksum
    EXPECT_EQ(frame.ethernet.dst, wire::kAlice);
    EXPECT_EQ(frame.ethernet.src, wire::kBob);
    EXPECT_EQ(frame.src, path.dst);
    EXPECT_EQ(frame.dst, path.src);
    EXPECT_EQ(frame.payload[0], ipv6 ? 129 : 0);
    EXPECT_TRUE(std::equal(frame.payload.begin() + 4, frame.payload.end(), echo.begin() + 4));
  }
}

TEST(HostAnswer, IgnoresBroadcastPings) {
  wire::UdpPath path = wire::alice_to_bob();
  path.dst_mac = wire::kBroadcastMac;
  std::vector<std::uint8_t> reply;
  EXPECT_EQ(answer(wire::icmp_frame(path, {8, 0, 0, 0, 0, 1, 0, 1}), reply).outcome,
            HostOutcome::kIgnored);
}

// The error that a host sends about a datagram of ours to Alice's port 40000.
std::vector<std::uint8_t> unreachable(bool ipv6, std::uint8_t type, std::uint8_t code,
                                      std::size_t quoted_bytes = 100) {
  wire::UdpPath ours = wire::alice_to_bob();
  if (ipv6) ours.src = wire::ipv6_of(11), ours.dst = wire::ipv6_of(1);
  const wire::UdpPath alices = ours;
  std::swap(ours.src, ours.dst);
  std::swap(ours.src_port, ours.dst_port);
  const wire::CommonHeader header{.job = 3, .rank = 5, .cookie = 0xC00C1E};
  std::vector<std::uint8_t> payload(20);
  std::memcpy(payload.data(), &header, sizeof(header));
  const auto datagram = wire::udp_frame(ours, payload);
  std::vector<std::uint8_t> icmp{type, code, 0, 0, 0, 0, 0, 0};
  const auto end = std::min(datagram.size(), wire::kEthernetBytes + quoted_bytes);
  icmp.insert(icmp.end(), datagram.begin() + wire::kEthernetBytes,
              datagram.begin() + static_cast<long>(end));
  return wire::icmp_frame(alices, icmp);
}

TEST(Unreachable, NamesTheMemberWhosePortIsClosed) {
  for (const bool ipv6 : {false, true}) {
    const auto bytes = unreachable(ipv6, ipv6 ? 1 : 3, ipv6 ? 4 : 3);
    const wire::Frame frame = parsed(bytes);
    std::vector<std::uint8_t> reply;
    EXPECT_EQ(answer(bytes, reply).outcome, HostOutcome::kUnreachable);
    const auto hint = parse_unreachable(frame, bob());
    ASSERT_TRUE(hint.has_value()) << ipv6;
    EXPECT_EQ(hint->kind, UnreachableKind::kPort);
    EXPECT_EQ(hint->member, ipv6 ? wire::ipv6_of(11) : wire::kAliceIp);
    EXPECT_EQ(hint->member_port, 40000);
    EXPECT_EQ(hint->own_port, 7700);
  }
}

TEST(Unreachable, QuotesWhoseDatagramItWasWhenTheQuoteIsLongEnough) {
  const auto whole = unreachable(false, 3, 3, 100);
  const auto hint = parse_unreachable(parsed(whole), bob());
  ASSERT_TRUE(hint && hint->quoted);
  EXPECT_EQ(hint->quoted->job, 3);
  EXPECT_EQ(hint->quoted->rank, 5);
  EXPECT_EQ(hint->quoted->cookie, 0xC00C1Eu);
  for (const std::size_t quoted_bytes : {28, 36, 43}) {
    const auto cut = unreachable(false, 3, 3, quoted_bytes);
    EXPECT_FALSE(parse_unreachable(parsed(cut), bob())->quoted) << quoted_bytes;
  }
  EXPECT_TRUE(parse_unreachable(parsed(unreachable(false, 3, 3, 44)), bob())->quoted);
}

TEST(Unreachable, TellsClosedPortsFromUnreachableHostsAndSmallMtus) {
  const auto kind = [](bool ipv6, std::uint8_t type, std::uint8_t code) {
    const auto bytes = unreachable(ipv6, type, code);
    return parse_unreachable(parsed(bytes), bob())->kind;
  };
  EXPECT_EQ(kind(false, 3, 1), UnreachableKind::kHost);
  EXPECT_EQ(kind(false, 3, 4), UnreachableKind::kTooBig);
  EXPECT_EQ(kind(true, 1, 3), UnreachableKind::kHost);
  EXPECT_EQ(kind(true, 2, 0), UnreachableKind::kTooBig);
}

TEST(Unreachable, IsWorthlessWhenTheQuoteIsCutOrNotOurs) {
  for (std::size_t quoted = 0; quoted < 28; ++quoted) {
    const auto bytes = unreachable(false, 3, 3, quoted);
    EXPECT_FALSE(parse_unreachable(parsed(bytes), bob()).has_value()) << quoted;
  }
  OwnAddress other = bob();
  other.ipv4 = wire::ipv4_address(10, 77, 0, 99);
  const auto bytes = unreachable(false, 3, 3);
  EXPECT_FALSE(parse_unreachable(parsed(bytes), other).has_value());
}

}  // namespace
}  // namespace sluice::dataplane
