#include "aggregator/wire/inet.h"

#include <gtest/gtest.h>

#include "tests/unit/dataplane/frames.h"

namespace sluice::wire {
namespace {

const std::vector<std::uint8_t> kPayload{1, 2, 3, 4, 5};

Verdict verdict_of(const std::vector<std::uint8_t>& bytes) {
  Frame frame;
  return parse_frame(bytes, UdpChecksums::kVerify, frame);
}

void fix_ipv4_checksum(std::vector<std::uint8_t>& bytes) {
  std::memset(&bytes[24], 0, 2);
  const std::uint16_t checksum = finish_checksum(sum_bytes({&bytes[14], (bytes[14] & 15u) * 4}));
  std::memcpy(&bytes[24], &checksum, 2);
}

TEST(Checksum, EqualsTheWorkedExampleOfRfc1071) {
  const std::vector<std::uint8_t> bytes{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  const std::uint16_t checksum = finish_checksum(sum_bytes(bytes));
  std::uint8_t stored[2];
  std::memcpy(stored, &checksum, 2);
  EXPECT_EQ(load_be16(stored), 0xffff - 0xddf2);
}

TEST(Checksum, OfPartsEqualsTheChecksumOfTheWholeForEveryEvenSplit) {
  std::vector<std::uint8_t> bytes(1031);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + 11);
  const std::uint16_t whole = finish_checksum(sum_bytes(bytes));
  for (std::size_t split = 0; split < bytes.size(); split += 2) {
    const Bytes all(bytes);
    EXPECT_EQ(whole, finish_checksum(sum_bytes(all.first(split)) + sum_bytes(all.subspan(split))));
  }
}

TEST(Checksum, OfAnOddLengthCountsTheLastByteAsTheFirstOfAPair) {
  const std::vector<std::uint8_t> odd{0x12, 0x34, 0x56};
  const std::vector<std::uint8_t> padded{0x12, 0x34, 0x56, 0x00};
  EXPECT_EQ(finish_checksum(sum_bytes(odd)), finish_checksum(sum_bytes(padded)));
}

struct PathCase {
  const char* name;
  bool ipv6;
  bool vlan;
};

class UdpRoundTrip : public ::testing::TestWithParam<PathCase> {};

TEST_P(UdpRoundTrip, GivesBackAddressesPortsClassAndPayload) {
  UdpPath path = alice_to_bob();
  if (GetParam().ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  if (GetParam().vlan) path.vlan_tci = 0x6123;
  path.traffic_class = 0xb8 | kEcnCapable;
  const auto bytes = udp_frame(path, kPayload);
  ASSERT_EQ(bytes.size(), udp_header_bytes(path) + kPayload.size());

  Frame frame;
  ASSERT_EQ(parse_frame(bytes, UdpChecksums::kVerify, frame), Verdict::kAccepted);
  EXPECT_EQ(frame.kind, FrameKind::kUdp);
  EXPECT_EQ(frame.ethernet.vlan_tci, path.vlan_tci);
  EXPECT_EQ(frame.traffic_class, path.traffic_class);
  EXPECT_TRUE(
      std::equal(frame.payload.begin(), frame.payload.end(), kPayload.begin(), kPayload.end()));

  UdpPath back = reply_path(frame, kBob);
  EXPECT_EQ(back.dst_mac, kAlice);
  EXPECT_EQ(back.dst, path.src);
  EXPECT_EQ(back.dst_port, path.src_port);
  std::swap(back.src_mac, back.dst_mac);
  std::swap(back.src, back.dst);
  std::swap(back.src_port, back.dst_port);
  back.traffic_class = path.traffic_class;
  EXPECT_EQ(back, path);
}

TEST_P(UdpRoundTrip, FindsEveryFlippedBitOfAddressesPortsAndPayload) {
  UdpPath path = alice_to_bob();
  if (GetParam().ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  if (GetParam().vlan) path.vlan_tci = 0x6123;
  const auto bytes = udp_frame(path, kPayload);
  const std::size_t ip = kEthernetBytes + (GetParam().vlan ? kVlanTagBytes : 0);
  const std::size_t first = ip + (GetParam().ipv6 ? 8 : 12);  // the source address
  for (std::size_t at = first; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto broken = bytes;
      broken[at] ^= static_cast<std::uint8_t>(1 << bit);
      EXPECT_FALSE(ok(verdict_of(broken))) << "byte " << at << " bit " << bit;
    }
  }
}

TEST_P(UdpRoundTrip, CutAnywhereIsTruncated) {
  UdpPath path = alice_to_bob();
  if (GetParam().ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  if (GetParam().vlan) path.vlan_tci = 0x6123;
  const auto bytes = udp_frame(path, kPayload);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A copy of the exact size, so that a sanitizer sees any read behind the end.
    const std::vector<std::uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    EXPECT_EQ(verdict_of(cut), Verdict::kTruncated) << size;
  }
}

// As a device does it: what it finds in the checksum's place is summed like all else.
TEST_P(UdpRoundTrip, ADeviceCompletesWhatIsLeftToIt) {
  UdpPath path = alice_to_bob();
  if (GetParam().ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  if (GetParam().vlan) path.vlan_tci = 0x6123;
  UdpHeaders headers(path);
  for (std::size_t payload_bytes = 0; payload_bytes < 300; ++payload_bytes) {
    const std::vector<std::uint8_t> payload(payload_bytes,
                                            static_cast<std::uint8_t>(payload_bytes));
    const auto whole = udp_frame(path, payload);
    auto bytes = whole;
    std::fill_n(bytes.begin(), headers.size(), std::uint8_t{0xee});
    ASSERT_TRUE(headers.encode_for_device(bytes, payload_bytes));
    const std::size_t udp = headers.size() - kUdpBytes;
    std::uint16_t checksum = finish_checksum(sum_bytes(Bytes(bytes).subspan(udp)));
    if (checksum == 0) checksum = 0xffff;
    std::memcpy(&bytes[udp + 6], &checksum, sizeof checksum);
    ASSERT_EQ(bytes, whole) << payload_bytes;
  }
  std::vector<std::uint8_t> small(headers.size() - 1);
  EXPECT_FALSE(headers.encode_for_device(small, 0));
}

TEST_P(UdpRoundTrip, HeadersForOneLengthAreGoodForTheNext) {
  UdpPath path = alice_to_bob();
  if (GetParam().ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  if (GetParam().vlan) path.vlan_tci = 0x6123;
  UdpHeaders headers(path);
  for (const std::size_t payload_bytes : {100, 100, 7, 100, 0, 1400, 1400}) {
    const std::vector<std::uint8_t> payload(payload_bytes, 0x5a);
    auto bytes = udp_frame(path, payload);
    const auto whole = bytes;
    std::fill_n(bytes.begin(), headers.size(), std::uint8_t{0xee});
    ASSERT_TRUE(headers.encode(bytes, payload_bytes, sum_bytes(payload)));
    ASSERT_EQ(bytes, whole) << payload_bytes;
    ASSERT_FALSE(headers.encode(bytes, 0xffff, {}));
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, UdpRoundTrip,
                         ::testing::Values(PathCase{"ipv4", false, false},
                                           PathCase{"ipv4_vlan", false, true},
                                           PathCase{"ipv6", true, false},
                                           PathCase{"ipv6_vlan", true, true}),
                         [](const auto& path_case) { return path_case.param.name; });

TEST(ParseFrame, CutsOffLinkLayerPadding) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  bytes.resize(60, 0xee);
  Frame frame;
  ASSERT_EQ(parse_frame(bytes, UdpChecksums::kVerify, frame), Verdict::kAccepted);
  EXPECT_EQ(frame.payload.size(), kPayload.size());
}

TEST(ParseFrame, NeverAcceptsAUdpChecksumOfZero) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  bytes[40] = bytes[41] = 0;
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadChecksum);
}

TEST(ParseFrame, WantsAChecksumWhereADeviceHasVerifiedIt) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  Frame frame;
  bytes[40] ^= 0xff;  // the device knows better than we, who do not look
  EXPECT_EQ(parse_frame(bytes, UdpChecksums::kVerified, frame), Verdict::kAccepted);
  bytes[40] = bytes[41] = 0;
  EXPECT_FALSE(ok(parse_frame(bytes, UdpChecksums::kVerified, frame)));
}

TEST(ParseFrame, LeavesUdpChecksumsAloneOnATrustedLink) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  bytes[40] ^= 0xff;
  Frame frame;
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadChecksum);
  EXPECT_EQ(parse_frame(bytes, UdpChecksums::kTrust, frame), Verdict::kAccepted);
}

TEST(ParseFrame, DropsFirstMiddleAndLastFragments) {
  for (const std::uint16_t bits : {0x2000, 0x2010, 0x0010}) {
    auto bytes = udp_frame(alice_to_bob(), kPayload);
    store_be16(&bytes[20], bits);
    fix_ipv4_checksum(bytes);
    EXPECT_EQ(verdict_of(bytes), Verdict::kFragment) << bits;
  }
}

TEST(ParseFrame, DropsIpv6Fragments) {
  UdpPath path = alice_to_bob();
  path.src = ipv6_of(11), path.dst = ipv6_of(1);
  auto bytes = udp_frame(path, kPayload);
  bytes[20] = 44;
  EXPECT_EQ(verdict_of(bytes), Verdict::kFragment);
}

TEST(ParseFrame, RefusesLengthsThatContradictEachOther) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  store_be16(&bytes[38], 9);  // UDP says one byte of data, IP says five
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadLength);
  bytes = udp_frame(alice_to_bob(), kPayload);
  store_be16(&bytes[16], 19);  // shorter than its own header
  fix_ipv4_checksum(bytes);
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadLength);
  bytes = udp_frame(alice_to_bob(), kPayload);
  bytes[14] = 0x44;  // four words of header
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadLength);
}

TEST(ParseFrame, SkipsIpv4Options) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  bytes.insert(bytes.begin() + 34, {1, 1, 1, 0});  // three no-ops and the end
  bytes[14] = 0x46;
  store_be16(&bytes[16], static_cast<std::uint16_t>(bytes.size() - 14));
  fix_ipv4_checksum(bytes);
  Frame frame;
  ASSERT_EQ(parse_frame(bytes, UdpChecksums::kVerify, frame), Verdict::kAccepted);
  EXPECT_EQ(frame.src_port, 40000);
  EXPECT_EQ(frame.payload.size(), kPayload.size());
}

TEST(ParseFrame, RefusesAVersionThatDiffersFromTheEthertype) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  bytes[14] = 0x65;
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadField);
}

TEST(ParseEthernet, RefusesGroupAndZeroSources) {
  auto bytes = udp_frame(alice_to_bob(), kPayload);
  bytes[6] |= 1;
  EthernetView view;
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadField);
  std::memset(&bytes[6], 0, 6);
  EXPECT_EQ(verdict_of(bytes), Verdict::kBadField);
}

TEST(EncodeUdp, SetsDontFragment) {
  const auto bytes = udp_frame(alice_to_bob(), kPayload);
  EXPECT_EQ(load_be16(&bytes[20]), 0x4000);
}

TEST(EncodeUdp, NeverSendsAChecksumOfZero) {
  // Search a payload whose checksum would be zero; the field must then hold all ones.
  bool found = false;
  for (unsigned value = 0; value < 0x10000 && !found; ++value) {
    const auto bytes = udp_frame(
        alice_to_bob(), {static_cast<std::uint8_t>(value >> 8), static_cast<std::uint8_t>(value)});
    ASSERT_NE(load_be16(&bytes[40]), 0);
    found = load_be16(&bytes[40]) == 0xffff;
    if (found) {
      EXPECT_EQ(verdict_of(bytes), Verdict::kAccepted);
    }
  }
  EXPECT_TRUE(found);
}

TEST(EncodeUdp, WithACachedSumEqualsEncodingTheWholeFrame) {
  const PartialSum cached = sum_bytes(kPayload);
  for (std::uint8_t member = 2; member < 20; ++member) {
    UdpPath path = alice_to_bob();
    path.dst = ipv4_address(10, 77, 0, member);
    const auto whole = udp_frame(path, kPayload);
    std::vector<std::uint8_t> headers(udp_header_bytes(path));
    ASSERT_EQ(encode_udp_headers(headers, path, kPayload.size(), cached), headers.size());
    EXPECT_TRUE(std::equal(headers.begin(), headers.end(), whole.begin()));
  }
}

TEST(EncodeUdp, WritesNothingThatDoesNotFit) {
  std::vector<std::uint8_t> out(46, 0x77);
  EXPECT_EQ(encode_udp_frame(out, alice_to_bob(), kPayload), 0u);
  EXPECT_EQ(out, std::vector<std::uint8_t>(46, 0x77));
  UdpPath mixed = alice_to_bob();
  mixed.dst = ipv6_of(1);
  out.resize(200);
  EXPECT_EQ(encode_udp_frame(out, mixed, kPayload), 0u);
}

TEST(Arp, RoundTripGivesBackEveryField) {
  const ArpPacket sent{kArpRequest, kAlice, kAliceIp, Mac{}, kBobIp};
  std::vector<std::uint8_t> bytes(64);
  ASSERT_EQ(encode_arp_frame(bytes, kBroadcastMac, kNoVlan, sent), 42u);
  Frame frame;
  ASSERT_EQ(parse_frame(bytes, UdpChecksums::kVerify, frame), Verdict::kAccepted);
  ASSERT_EQ(frame.kind, FrameKind::kArp);
  const ArpPacket got = parse_arp(frame.payload).value();
  EXPECT_EQ(got.operation, kArpRequest);
  EXPECT_EQ(got.sender_mac, kAlice);
  EXPECT_EQ(got.sender, kAliceIp);
  EXPECT_EQ(got.target, kBobIp);
}

TEST(IpAddress, KnowsWhichSourcesAreNeverHonest) {
  EXPECT_TRUE(ipv4_address(0, 0, 0, 0).is_bad_source());
  EXPECT_TRUE(ipv4_address(127, 0, 0, 1).is_bad_source());
  EXPECT_TRUE(ipv4_address(224, 0, 0, 1).is_bad_source());
  EXPECT_TRUE(ipv4_address(255, 255, 255, 255).is_bad_source());
  EXPECT_FALSE(kAliceIp.is_bad_source());
  EXPECT_TRUE((IpAddress{Family::kIpv6, {}}.is_bad_source()));
  EXPECT_TRUE((IpAddress{Family::kIpv6, {0xff, 2}}.is_bad_source()));
  EXPECT_FALSE(ipv6_of(1).is_bad_source());
  EXPECT_TRUE(IpAddress{}.is_bad_source());
}

}  // namespace
}  // namespace sluice::wire
