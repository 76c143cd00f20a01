#include "aggregator/wire/ecn.h"

#include <gtest/gtest.h>

#include "tests/unit/dataplane/frames.h"

namespace sluice::wire {
namespace {

std::vector<std::uint8_t> frame_of_class(bool ipv6, bool vlan, std::uint8_t traffic_class,
                                         std::uint8_t salt = 0) {
  UdpPath path = alice_to_bob();
  if (ipv6) path.src = ipv6_of(11), path.dst = ipv6_of(1);
  if (vlan) path.vlan_tci = 0x6123;
  path.traffic_class = traffic_class;
  return udp_frame(path, std::vector<std::uint8_t>(salt, salt));
}

TEST(CongestionMark, SetsTheMarkAndKeepsEveryChecksumRightForEveryTrafficClass) {
  for (const bool ipv6 : {false, true}) {
    for (const bool vlan : {false, true}) {
      for (unsigned traffic_class = 0; traffic_class < 256; ++traffic_class) {
        if ((traffic_class & kEcnMask) == 0) continue;
        // The length of the datagram changes the header's checksum, so that it meets all carries.
        auto bytes = frame_of_class(ipv6, vlan, static_cast<std::uint8_t>(traffic_class),
                                    static_cast<std::uint8_t>(traffic_class * 7));
        ASSERT_TRUE(mark_congestion(bytes));
        Frame frame;
        ASSERT_EQ(parse_frame(bytes, UdpChecksums::kVerify, frame), Verdict::kAccepted)
            << traffic_class;
        ASSERT_EQ(frame.traffic_class, traffic_class | kEcnCongested);
      }
    }
  }
}

TEST(CongestionMark, LeavesFramesOfSendersThatDoNotUnderstandIt) {
  for (const bool ipv6 : {false, true}) {
    for (const bool vlan : {false, true}) {
      const auto before = frame_of_class(ipv6, vlan, 0xb8);
      auto after = before;
      EXPECT_FALSE(mark_congestion(after));
      EXPECT_EQ(after, before);
    }
  }
}

TEST(CongestionMark, ChangesNothingButTheMarkAndTheHeaderChecksum) {
  const auto before = frame_of_class(false, false, kEcnCapable);
  auto after = before;
  ASSERT_TRUE(mark_congestion(after));
  for (std::size_t at = 0; at < before.size(); ++at)
    EXPECT_TRUE(after[at] == before[at] || at == 15 || at == 24 || at == 25) << at;
}

TEST(CongestionMark, KeepsACorruptHeaderCorrupt) {
  auto bytes = frame_of_class(false, false, kEcnCapable);
  bytes[30] ^= 0x40;  // of the destination address
  ASSERT_TRUE(mark_congestion(bytes));
  Frame frame;
  EXPECT_EQ(parse_frame(bytes, UdpChecksums::kVerify, frame), Verdict::kBadChecksum);
}

TEST(CongestionMark, RefusesWhatIsNoIpAndWhatIsTooShortWithoutReadingBehindIt) {
  auto arp = frame_of_class(false, false, kEcnCapable);
  store_be16(&arp[12], kEtherArp);
  EXPECT_FALSE(mark_congestion(arp));
  for (const bool ipv6 : {false, true}) {
    for (const bool vlan : {false, true}) {
      const auto whole = frame_of_class(ipv6, vlan, kEcnCapable);
      const std::size_t headers =
          kEthernetBytes + (vlan ? kVlanTagBytes : 0) + (ipv6 ? kIpv6Bytes : kIpv4Bytes);
      for (std::size_t size = 0; size < headers; ++size) {
        std::vector<std::uint8_t> part(whole.begin(), whole.begin() + static_cast<long>(size));
        part.shrink_to_fit();
        EXPECT_FALSE(mark_congestion(part)) << size;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::wire
