#include "config/text.h"

#include <gtest/gtest.h>

#include <array>

namespace sluice::config {
namespace {

TEST(Text, AnAddressWithPrefixReadsBackAsItself) {
  EXPECT_EQ(to_text(parse_ipv4_prefix("192.168.7.250/24").value()), "192.168.7.250/24");
  EXPECT_EQ(to_text(parse_ipv6_prefix("fd00::1/64").value()), "fd00::1/64");
  EXPECT_EQ(to_text(parse_mac("02:51:0A:4d:00:01").value()), "02:51:0a:4d:00:01");
}

TEST(Text, MalformedAddressesAreRefused) {
  for (const char* text : {"", "1.2.3.4", "1.2.3.4/33", "1.2.3/8", "1.2.3.4/", "1.2.3.4/8x", "a/8",
                           "1.2.3.4/-1", "::1/64"})
    EXPECT_FALSE(parse_ipv4_prefix(text)) << text;
  for (const char* text : {"", "fd00::1", "fd00::1/129", "1.2.3.4/24", ":::/3"})
    EXPECT_FALSE(parse_ipv6_prefix(text)) << text;
  for (const char* text :
       {"", "02:51:0a:4d:00", "02:51:0a:4d:00:0g", "02-51-0a-4d-00-01", "02:51:0a:4d:00:01:02"})
    EXPECT_FALSE(parse_mac(text)) << text;
}

TEST(Text, ANumberKeepsItsValueAndIsAFloatToToml) {
  EXPECT_EQ(to_text(30.0), "30.0");
  EXPECT_EQ(to_text(0.1), "0.1");
  EXPECT_EQ(to_text(1e-9), "1e-09");
}

TEST(Text, QuotesAndControlCharactersAreEscaped) {
  EXPECT_EQ(in_quotes("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000A\"");
}

TEST(Text, EditDistanceCountsInsertsDeletesReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("shards", "shards"), 0u);
  EXPECT_EQ(edit_distance("shard", "shards"), 1u);
  EXPECT_EQ(edit_distance("shrads", "shards"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Text, TheNearestWordIsOfferedOnlyWhenItIsNear) {
  constexpr std::array<std::string_view, 3> words = {"interface", "path", "rate_mbps"};
  EXPECT_EQ(nearest("interfaces", words), "interface");
  EXPECT_EQ(nearest("rate_mps", words), "rate_mbps");
  EXPECT_EQ(nearest("quantisation", words), "");
}

TEST(Text, MetricsAddressesNeedANumericHostAndAPort) {
  for (const char* text : {"", "127.0.0.1:9464", "[::1]:9464", "localhost:1", "0.0.0.0:65535"})
    EXPECT_TRUE(is_host_and_port(text)) << text;
  for (const char* text : {":9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "::1:9464",
                           "example:9464", "[::1:9464"})
    EXPECT_FALSE(is_host_and_port(text)) << text;
}

TEST(Text, PciAddressesAreWhole) {
  EXPECT_TRUE(is_pci_address("0000:3b:00.1"));
  EXPECT_FALSE(is_pci_address("3b:00.1"));
  EXPECT_FALSE(is_pci_address("0000:3b:00.8"));
}

}  // namespace
}  // namespace sluice::config
