// Trains of datagrams: which datagrams make one, and its headers.
#include "dataplane/core/train.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/dataplane/frames.h"

namespace sluice::dataplane {
namespace {

struct Case {
  wire::UdpPath path;
  std::size_t ip_bytes;
};

std::vector<Case> cases() {
  wire::UdpPath ipv4 = wire::alice_to_bob();
  wire::UdpPath ipv6 = ipv4;
  ipv6.src = wire::ipv6_of(1);
  ipv6.dst = wire::ipv6_of(2);
  std::vector<Case> all{{ipv4, wire::kIpv4Bytes}, {ipv6, wire::kIpv6Bytes}};
  for (std::uint8_t last = 0; last < 250; ++last) {  // sums that wrap, sooner or later
    ipv6.dst = wire::ipv6_of(last);
    ipv4.dst.bytes[3] = last;
    ipv4.dst_port = static_cast<std::uint16_t>(65'535 - 251 * last);
    all.push_back({ipv4, wire::kIpv4Bytes});
    all.push_back({ipv6, wire::kIpv6Bytes});
  }
  return all;
}

std::vector<std::uint8_t> headers_of(const wire::UdpPath& path, std::size_t payload_bytes) {
  wire::UdpHeaders headers(path);
  std::vector<std::uint8_t> bytes(headers.size());
  EXPECT_TRUE(headers.encode_for_device(bytes, payload_bytes));
  return bytes;
}

// Sums are equal modulo 65,535: both zeros are one.
std::uint16_t sum_of(const std::vector<std::uint8_t>& headers) {
  return static_cast<std::uint16_t>(wire::load_be16(&headers[headers.size() - 2]) % 0xffff);
}

TEST(Train, HasTheHeadersOfOneLongDatagram) {
  for (const Case& one : cases()) {
    for (const std::size_t frames : {2u, 6u, 32u}) {
      std::vector<std::uint8_t> headers = headers_of(one.path, 1434);
      std::vector<std::uint8_t> wanted = headers_of(one.path, frames * 1434);
      lengthen(headers, wire::kEthernetBytes, one.ip_bytes, (frames - 1) * 1434);
      EXPECT_EQ(sum_of(headers), sum_of(wanted));
      headers.resize(headers.size() - 2);
      wanted.resize(wanted.size() - 2);
      EXPECT_EQ(headers, wanted);
    }
  }
}

TEST(Train, IsNoLongerThanAnIpPacket) {
  EXPECT_EQ(most_in_train(42, 1434), 45u);
  EXPECT_EQ(most_in_train(62, 8934), 7u);
  EXPECT_EQ(most_in_train(42, 10), kMostInTrain);
  EXPECT_EQ(most_in_train(42, 65'000), 1u);
  EXPECT_EQ(most_in_train(42, 0), 1u);
}

TEST(Train, IsOfOneFlowAndOfOneMark) {
  const wire::UdpPath path = wire::alice_to_bob();
  const std::vector<std::uint8_t> headers = headers_of(path, 1434);
  EXPECT_TRUE(same_headers(headers, headers_of(path, 1434)));
  EXPECT_FALSE(same_headers(headers, headers_of(path, 1433)));
  wire::UdpPath other = path;
  other.dst_port = 40001;
  EXPECT_FALSE(same_headers(headers, headers_of(other, 1434)));
  other = path;
  other.traffic_class = wire::kEcnCongested;
  EXPECT_FALSE(same_headers(headers, headers_of(other, 1434)));
}

}  // namespace
}  // namespace sluice::dataplane
