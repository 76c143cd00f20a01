// The appliance's address as users write it.
#include "client/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Address, ReadsEveryScheme) {
  const Result<Address> udp = parse_address("udp://box.example:7800");
  ASSERT_TRUE(udp.ok());
  EXPECT_EQ(udp.value().scheme, Address::Scheme::kUdp);
  EXPECT_EQ(udp.value().host, "box.example");
  EXPECT_EQ(udp.value().port, 7800);

  const Result<Address> vhost = parse_address("vhost://10.0.0.1/run/sluice/port0");
  ASSERT_TRUE(vhost.ok());
  EXPECT_EQ(vhost.value().scheme, Address::Scheme::kVhost);
  EXPECT_EQ(vhost.value().host, "10.0.0.1");
  EXPECT_EQ(vhost.value().port, kDefaultPort);
  EXPECT_EQ(vhost.value().path, "/run/sluice/port0");

  const Result<Address> inproc = parse_address("inproc://my test");
  ASSERT_TRUE(inproc.ok());
  EXPECT_EQ(inproc.value().scheme, Address::Scheme::kInproc);
  EXPECT_EQ(inproc.value().host, "my test");
}

TEST(Address, ReadsIpv6InBrackets) {
  const Result<Address> with_port = parse_address("udp://[fd00::1]:7701");
  ASSERT_TRUE(with_port.ok());
  EXPECT_EQ(with_port.value().host, "fd00::1");
  EXPECT_EQ(with_port.value().port, 7701);
  const Result<Address> without = parse_address("udp://[fd00::1]/");
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without.value().port, kDefaultPort);
}

TEST(Address, ReadsAListOfAppliances) {
  const Result<Address> list = parse_address("udp://10.0.0.1,box:7800,10.0.0.3/");
  ASSERT_TRUE(list.ok()) << list.status().message();
  EXPECT_EQ(list.value().host, "10.0.0.1");
  EXPECT_THAT(texts_of(list.value()),
              ElementsAre("udp://10.0.0.1:7700", "udp://box:7800", "udp://10.0.0.3:7700"));
  const Result<Address> ipv6 = parse_address("udp://[::1]:7700,[::2]:7701");
  ASSERT_TRUE(ipv6.ok()) << ipv6.status().message();
  EXPECT_THAT(texts_of(ipv6.value()), ElementsAre("udp://[::1]:7700", "udp://[::2]:7701"));
}

TEST(Address, RefusesWhatItCannotReadAndShowsIt) {
  struct Case {
    const char* text;
    const char* why;
  };
  constexpr Case kCases[] = {
      {"10.0.0.1:7700", "no scheme"},
      {"tcp://10.0.0.1", "unknown scheme \"tcp\""},
      {"udp://", "the host is missing"},
      {"udp://:7700", "the host is missing"},
      {"udp://fd00::1", "needs brackets"},
      {"udp://[fd00::1:7700", "not closed"},
      {"udp://[fd00::1]7700", "followed by :port"},
      {"udp://box:0", "1 to 65519"},
      {"udp://box:65520", "1 to 65519"},  // the data ports follow it
      {"udp://box:77x", "1 to 65519"},
      {"udp://box:7700/job", "nothing follows the port"},
      {"udp://box:", "1 to 65519"},
      {"udp://box,", "the host is missing"},
      {"udp://,box", "the host is missing"},
      {"udp://box,other:0", "1 to 65519"},
      {"vhost://10.0.0.1:7700", "path of the vhost-user socket is missing"},
      {"vhost://10.0.0.1/", "path of the vhost-user socket is missing"},
      {"inproc://", "name is missing"},
  };
  for (const Case& bad : kCases) {
    const Result<Address> result = parse_address(bad.text);
    ASSERT_FALSE(result.ok()) << bad.text;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(bad.why)) << bad.text;
    EXPECT_THAT(result.status().message(), HasSubstr("\"" + std::string(bad.text) + "\""));
  }
}

}  // namespace
}  // namespace sluice::client
