#include "aggregator/wire/peek.h"

#include <gtest/gtest.h>

#include "aggregator/wire/packet.h"
#include "tests/unit/dataplane/frames.h"

namespace sluice::wire {
namespace {

using FrameBytes = std::vector<std::uint8_t>;

FlowView peek(const FrameBytes& bytes) {
  EthernetView view;
  EXPECT_EQ(parse_ethernet(bytes, view), Verdict::kAccepted);
  return peek_flow(view);
}

UdpPath path(bool ipv6, std::uint16_t tci = kNoVlan) {
  UdpPath path = alice_to_bob();
  if (ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  path.traffic_class = 46 << 2 | 1;
  path.vlan_tci = tci;
  return path;
}

// Puts `tag` (four bytes: ethertype and tag control) behind the MAC addresses.
FrameBytes with_tag(FrameBytes frame, const FrameBytes& tag) {
  frame.insert(frame.begin() + 12, tag.begin(), tag.end());
  return frame;
}

// Puts extension headers between the IPv6 header and UDP.
FrameBytes with_extensions(std::uint8_t first, const FrameBytes& headers) {
  FrameBytes frame = udp_frame(path(true), {1, 2, 3});
  frame[kEthernetBytes + 6] = first;
  frame.insert(frame.begin() + kEthernetBytes + kIpv6Bytes, headers.begin(), headers.end());
  return frame;
}

TEST(PeekFlow, ReadsClassProtocolPortsAndAddressesOfBothFamilies) {
  for (const bool ipv6 : {false, true}) {
    const FrameBytes frame = udp_frame(path(ipv6), {7, 8, 9});
    const FlowView flow = peek(frame);
    EXPECT_EQ(flow.family, ipv6 ? Family::kIpv6 : Family::kIpv4);
    EXPECT_EQ(flow.traffic_class, 46 << 2 | 1);
    EXPECT_EQ(flow.protocol, kProtoUdp);
    ASSERT_TRUE(flow.has_ports());
    EXPECT_EQ(load_be16(&flow.l4[0]), 40000);
    EXPECT_EQ(load_be16(&flow.l4[2]), 7700);
    EXPECT_EQ(flow.udp_payload()[0], 7);
    const std::size_t bytes = ipv6 ? 16 : 4;
    ASSERT_EQ(flow.addresses.size(), 2 * bytes);
    EXPECT_EQ(std::memcmp(&flow.addresses[0], path(ipv6).src.bytes.data(), bytes), 0);
    EXPECT_EQ(std::memcmp(&flow.addresses[bytes], path(ipv6).dst.bytes.data(), bytes), 0);
  }
}

TEST(PeekFlow, LooksBehindTwoTagsAndTakesThePriorityOfTheOuterOne) {
  const FrameBytes plain = udp_frame(path(false), {1});
  const FrameBytes tagged = udp_frame(path(false, 3 << 13 | 5), {1});
  EXPECT_EQ(peek(plain).pcp, kNoPcp);
  EXPECT_EQ(peek(tagged).pcp, 3);
  EXPECT_EQ(peek(with_tag(plain, {0x88, 0xa8, 0xc0, 9})).pcp, 6);
  for (const FrameBytes& outer : {FrameBytes{0x88, 0xa8, 0xc0, 9}, FrameBytes{0x81, 0, 0xc0, 9}}) {
    const FrameBytes frame = with_tag(tagged, outer);
    const FlowView flow = peek(frame);
    EXPECT_EQ(flow.pcp, 6);
    EXPECT_EQ(flow.ethertype, kEtherIpv4);
    EXPECT_TRUE(flow.has_ports());
  }
  const FlowView third = peek(with_tag(with_tag(tagged, {0x81, 0, 0, 1}), {0x81, 0, 0, 1}));
  EXPECT_EQ(third.family, Family::kNone) << "three tags are beyond it";
}

TEST(PeekFlow, SkipsIpv4Options) {
  FrameBytes frame = udp_frame(path(false), {1});
  frame[kEthernetBytes] = 0x46;
  frame.insert(frame.begin() + kEthernetBytes + kIpv4Bytes, {1, 1, 1, 1});
  EXPECT_EQ(load_be16(&peek(frame).l4[2]), 7700);
  frame[kEthernetBytes] = 0x4f;  // says 60 bytes
  EXPECT_FALSE(peek(frame).has_ports());
  frame[kEthernetBytes] = 0x41;  // says 4
  EXPECT_FALSE(peek(frame).has_ports());
  EXPECT_EQ(peek(frame).protocol, kProtoUdp);
}

TEST(PeekFlow, GivesAllFragmentsOfADatagramTheSameView) {
  for (const std::uint8_t bits : {0x20, 0x00}) {  // more fragments; or an offset only
    FrameBytes frame = udp_frame(path(false), {1});
    frame[kEthernetBytes + 6] = bits;
    frame[kEthernetBytes + 7] = bits == 0 ? 9 : 0;
    EXPECT_EQ(peek(frame).protocol, kProtoUdp);
    EXPECT_FALSE(peek(frame).has_ports());
    const FlowView ipv6 =
        peek(with_extensions(44, {17, 0, 0, std::uint8_t(bits ? 1 : 8), 0, 0, 0, 7}));
    EXPECT_EQ(ipv6.protocol, kProtoUdp);
    EXPECT_FALSE(ipv6.has_ports());
  }
  FrameBytes whole = udp_frame(path(false), {1});
  whole[kEthernetBytes + 6] = 0x40;  // don't fragment
  EXPECT_TRUE(peek(whole).has_ports());
  EXPECT_TRUE(peek(with_extensions(44, {17, 0, 0, 0, 0, 0, 0, 7})).has_ports()) << "atomic";
}

TEST(PeekFlow, WalksIpv6ExtensionHeadersButNotForEver) {
  const FrameBytes options{60, 0, 1, 4, 0, 0, 0, 0};  // then destination options
  const FrameBytes routing{17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};  // then UDP
  FrameBytes chain = options;
  chain.insert(chain.end(), {43, 0, 1, 4, 0, 0, 0, 0});
  chain.insert(chain.end(), routing.begin(), routing.end());
  const FrameBytes frame = with_extensions(0, chain);
  EXPECT_EQ(peek(frame).protocol, kProtoUdp);
  EXPECT_EQ(load_be16(&peek(frame).l4[2]), 7700);

  FrameBytes headers;
  for (int count = 1; count <= kMaxExtensionHeaders + 1; ++count) {
    headers.insert(headers.begin(), {std::uint8_t(count == 1 ? 17 : 60), 0, 1, 4, 0, 0, 0, 0});
    EXPECT_EQ(peek(with_extensions(60, headers)).has_ports(), count <= kMaxExtensionHeaders);
  }
  EXPECT_EQ(peek(with_extensions(50, {1, 2, 3, 4, 5, 6, 7, 8})).protocol, 50) << "ESP hides all";
}

TEST(PeekFlow, StaysInsideFramesCutAnywhere) {
  const FrameBytes chain = with_extensions(
      0, {43, 0, 1, 4, 0, 0, 0, 0, 17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  const FrameBytes tagged = with_tag(udp_frame(path(false, 5), {1, 2}), {0x88, 0xa8, 0, 9});
  for (const FrameBytes& whole : {chain, tagged})
    for (std::size_t bytes = kEthernetBytes; bytes < whole.size(); ++bytes) {
      const FrameBytes cut(whole.begin(), whole.begin() + static_cast<long>(bytes));
      EthernetView view;
      if (!ok(parse_ethernet(cut, view))) continue;
      const FlowView flow = peek_flow(view);
      if (!flow.l4.empty()) {
        EXPECT_LE(flow.l4.data() + flow.l4.size(), cut.data() + cut.size());
      }
      EXPECT_EQ(peek_priority(flow.udp_payload()), std::nullopt);
    }
}

template <class Body>
FrameBytes encoded(const Body& body, FrameBytes payload = {}) {
  FrameBytes bytes(2048);
  bytes.resize(encode(bytes, {.job = 3, .rank = 2, .cookie = 77}, body, {}, payload));
  EXPECT_FALSE(bytes.empty());
  return bytes;
}

TEST(PeekPriority, FindsTheChunksPriorityInContributionsAndResults) {
  Contribution contribution{.elem_count = 2, .dtype = Dtype::kFloat32};
  ResultHeader result{.elem_count = 2, .dtype = Dtype::kFloat32};
  for (const int priority : {0, 1, 128, 255}) {
    contribution.flow.priority = result.feedback.priority = static_cast<Priority>(priority);
    EXPECT_EQ(peek_priority(encoded(contribution, FrameBytes(8))), priority);
    EXPECT_EQ(peek_priority(encoded(result, FrameBytes(8))), priority);
  }
}

TEST(PeekPriority, LetsProbesAndAnswersQueueBehindTheChunksTheySpeakOf) {
  EXPECT_EQ(peek_priority(encoded(Probe{.flow = {.priority = 200}})), 200);
  EXPECT_EQ(peek_priority(encoded(Answer{.feedback = {.priority = 200}})), 200);
  EXPECT_EQ(peek_priority(encoded(Credit{.flow = {.priority = 200}})),
            200);  // a request for feedback
}

TEST(PeekPriority, CountsWhatChunksWaitForAsTheMostUrgent) {
  EXPECT_EQ(peek_priority(encoded(Feedback{})), 0);
  EXPECT_EQ(peek_priority(encoded(Keepalive{})), 0);
}

TEST(PeekPriority, IsNothingForOtherDatagrams) {
  const FrameBytes good =
      encoded(Contribution{.flow = {.priority = 9}, .elem_count = 2, .dtype = Dtype::kFloat32},
              FrameBytes(8));
  ASSERT_EQ(peek_priority(good), 9);
  for (const std::size_t at : {0u, 1u, 2u}) {  // magic and version
    FrameBytes other = good;
    other[at] ^= 1;
    EXPECT_EQ(peek_priority(other), std::nullopt) << at;
  }
  FrameBytes other = good;
  other[3] = 99;  // type
  EXPECT_EQ(peek_priority(other), std::nullopt);
  for (std::size_t bytes = 0; bytes <= sizeof(CommonHeader) + offsetof(FlowHeader, priority);
       ++bytes)
    EXPECT_EQ(peek_priority({good.data(), bytes}), std::nullopt) << bytes;
}

}  // namespace
}  // namespace sluice::wire
