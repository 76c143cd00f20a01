// [[port]] queues, [[class]] and [[rule]]: their values, and each combination that can't work.
#include "config/traffic_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/config/config_file.h"

namespace sluice::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Config read(const std::string& text) {
  const ConfigFile file(text);
  const auto config = load_config(file.path(), {.interfaces = {}, .cpu_count = 4});
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config.value() : Config{};
}

// Each rule is three lines from line 1 on, when it has two keys.
std::string rule(const std::string& keys) { return "[[rule]]\n" + keys + "\n"; }

TEST(TrafficConfig, QueuesClassesAndRulesAreRead) {
  const Config config = read(kGoodPort + "queue_kib = 256\nmark_above_kib = 100\n" +
                             "[[class]]\nindex = 56\nshare = 0.25\n[[class]]\nindex = 63\n" +
                             rule("class = 1\ndscp = 46\npcp = 7\nprotocol = \"tcp\"\nport = 443") +
                             rule("class = 60\nprefix = \"10.1.0.0/16\"") +
                             rule("class = 61\nprefix = \"fd00:1::/32\""));
  EXPECT_EQ(config.ports[0].queue_kib, 256u);
  EXPECT_EQ(config.ports[0].mark_above_kib, 100u);
  EXPECT_THAT(config.classes, ElementsAre(ClassConfig{56, 0.25}, ClassConfig{63, 1.0 / 32}));
  EXPECT_THAT(
      config.rules,
      ElementsAre(
          RuleConfig{
              .egress_class = 1, .dscp = 46, .pcp = 7, .protocol = Protocol::kTcp, .port = 443},
          RuleConfig{.egress_class = 60, .prefix = Ipv4Prefix{{10, 1, 0, 0}, 16}},
          RuleConfig{.egress_class = 61, .prefix = Ipv6Prefix{{0xfd, 0, 0, 1}, 32}}));
}

TEST(TrafficConfig, AQueueThatHoldsAFrameForSecondsIsWarnedAbout) {
  EXPECT_THAT(ConfigFile(kGoodPort + "rate_mbps = 1\n").warnings(),
              ElementsAre("a.toml:5: a full queue holds a frame for 49.741 s: 6072 KiB at 1 Mb/s; "
                          "lower queue_kib to about 64"));
  EXPECT_THAT(
      ConfigFile(kGoodPort + "queue_kib = 65536\nrate_mbps = 100\n").warnings(),
      ElementsAre(HasSubstr("holds a frame for 5.368 s: 65536 KiB at 100 Mb/s; lower queue_kib to "
                            "about 2441")));
  EXPECT_THAT(ConfigFile(kGoodPort + "rate_mbps = 50\n").warnings(), IsEmpty());
  EXPECT_THAT(ConfigFile(kGoodPort + "rate_mbps = 1\nqueue_kib = 64\n").warnings(), IsEmpty());
  EXPECT_THAT(ConfigFile(kGoodPort + "queue_kib = 65536\n").warnings(), IsEmpty());
}

TEST(TrafficConfig, RulesWithoutForwardingAndMarksWithoutShapingAreWarnedAbout) {
  const std::string rules = rule("class = 1\ndscp = 46") + rule("class = 2\ndscp = 8");
  EXPECT_THAT(
      ConfigFile(rules + "[forwarding]\nenabled = false\n" + kGoodPort).warnings(),
      ElementsAre("a.toml:1: rules are about forwarded frames, and forwarding is off: 2 rules; set "
                  "forwarding.enabled = true or remove them"));
  EXPECT_THAT(ConfigFile(rules + kGoodPort).warnings(), IsEmpty());
  EXPECT_THAT(ConfigFile(kGoodPort + "mark_above_kib = 100\n").warnings(),
              ElementsAre(StartsWith("a.toml:5: marks without shaping: 100 KiB; ")));
  EXPECT_THAT(ConfigFile(kGoodPort + "mark_above_kib = 100\nrate_mbps = 1000\n").warnings(),
              IsEmpty());
}

TEST(TrafficConfig, WrongValuesSayWhatIsExpected) {
  EXPECT_THAT(
      ConfigFile(kGoodPort + "queue_kib = 1\n" + "[[class]]\nindex = 64\nshare = 1\n" +
                 rule("class = -1\ndscp = 64\npcp = 8\nprotocol = \"sctp\"\nport = 0\n"
                      "prefix = \"10.0.0.1\""))
          .errors(),
      ElementsAre("a.toml:5: queue_kib has a wrong value: 1; give an integer from 64 to 65536 KiB",
                  "a.toml:7: index has a wrong value: 64; give an integer from 0 to 63",
                  "a.toml:8: share has a wrong value: 1; give a number from 0.001 to 0.999",
                  "a.toml:10: class has a wrong value: -1; give an integer from 0 to 63",
                  "a.toml:11: dscp has a wrong value: 64; give an integer from 0 to 63",
                  "a.toml:12: pcp has a wrong value: 8; give an integer from 0 to 7",
                  "a.toml:13: protocol has a wrong value: \"sctp\"; give one of \"udp\", \"tcp\"",
                  "a.toml:14: port has a wrong value: 0; give an integer from 1 to 65535",
                  "a.toml:15: prefix has a wrong value: \"10.0.0.1\"; give a network such as "
                  "\"10.77.0.0/24\" or \"fd00::/64\""));
}

TEST(TrafficConfig, TheTablesAreListsWithKeysOfTheirOwn) {
  EXPECT_THAT(ConfigFile("[class]\nindex = 1\n" + kGoodPort).errors(),
              ElementsAre("a.toml:1: classes are a list of tables: a table; write [[class]]"));
  EXPECT_THAT(ConfigFile("[[rules]]\nclass = 1\n" + kGoodPort).errors(),
              ElementsAre("a.toml:1: unknown table or key: \"rules\"; did you mean \"rule\"?"));
  EXPECT_THAT(ConfigFile(rule("class = 1\ndcsp = 4") + kGoodPort).errors(),
              ElementsAre("a.toml:3: unknown key in [rule]: \"dcsp\"; did you mean \"dscp\"?"));
  std::string many = kGoodPort;
  for (std::size_t i = 0; i < kMaxRules; ++i)
    many += rule("class = 1\nprotocol = \"udp\"\nport = " + std::to_string(i + 1));
  EXPECT_THAT(ConfigFile(many).errors(), IsEmpty());
  EXPECT_THAT(ConfigFile(many + rule("class = 1\ndscp = 4")).errors(),
              ElementsAre("a.toml:261: too many rules: 65; at most 64"));
}

TEST(TrafficConfig, MarkingBeginsBelowTheQueuesLimit) {
  EXPECT_THAT(ConfigFile(kGoodPort + "queue_kib = 64\nmark_above_kib = 64\n").errors(),
              ElementsAre("a.toml:6: no queue grows beyond mark_above_kib: 64 KiB of 64; lower "
                          "mark_above_kib or raise queue_kib"));
  EXPECT_THAT(ConfigFile(kGoodPort + "queue_kib = 64\nmark_above_kib = 63\n").errors(), IsEmpty());
}

TEST(TrafficConfig, AClassNeedsAnIndexOfItsOwn) {
  EXPECT_THAT(
      ConfigFile("[[class]]\nshare = 0.1\n[[class]]\nindex = 3\n[[class]]\nindex = 3\n" + kGoodPort)
          .errors(),
      ElementsAre(
          "a.toml:1: class without an index: table 1; add index = 0 (most urgent) to 63",
          "a.toml:6: two class tables have the same index: 3; tables 2 and 3 must become one"));
}

TEST(TrafficConfig, TheGuaranteedSharesSumToLessThanAll) {
  const std::string half = "[[class]]\nindex = 1\nshare = 0.5\n";
  EXPECT_THAT(ConfigFile(half + "[[class]]\nindex = 2\nshare = 0.499\n" + kGoodPort).errors(),
              IsEmpty());
  EXPECT_THAT(
      ConfigFile(half + "[[class]]\nindex = 2\nshare = 0.5\n[[class]]\nindex = 3\n" + kGoodPort)
          .errors(),
      ElementsAre("a.toml:6: the guaranteed shares leave nothing to urgency: 1.0 together up to "
                  "here; keep the sum below 1"));
}

TEST(TrafficConfig, SharesThatAreOneOnPaperAreRefusedInAnyOrder) {
  const auto table = [](int index, const char* share) {
    return "[[class]]\nindex = " + std::to_string(index) + "\nshare = " + share + "\n";
  };
  EXPECT_THAT(ConfigFile(table(2, "0.7") + table(1, "0.2") + table(0, "0.1") + kGoodPort).errors(),
              ElementsAre(HasSubstr("the guaranteed shares leave nothing to urgency")));
}

TEST(TrafficConfig, ARuleNeedsAClassAndACondition) {
  EXPECT_THAT(
      ConfigFile(rule("dscp = 3") + rule("class = 3") + kGoodPort).errors(),
      ElementsAre("a.toml:1: rule without a class: number 1; add class = 0 (most urgent) to 63",
                  "a.toml:3: rule without a condition: number 2; add dscp, pcp, protocol, port or "
                  "prefix"));
}

TEST(TrafficConfig, AConditionThatCouldNotBeReadIsOneErrorOnly) {
  EXPECT_THAT(ConfigFile(rule("class = 3\ndscp = 99") + kGoodPort).errors(),
              ElementsAre(StartsWith("a.toml:3: dscp has a wrong value: 99")));
}

TEST(TrafficConfig, APortNeedsAProtocol) {
  EXPECT_THAT(ConfigFile(rule("class = 3\nport = 443") + kGoodPort).errors(),
              ElementsAre("a.toml:3: rule with a port but without a protocol: 443; add protocol = "
                          "\"udp\" or \"tcp\""));
}

TEST(TrafficConfig, APrefixIsANetworkAndNotAHost) {
  EXPECT_THAT(ConfigFile(rule("class = 3\nprefix = \"10.1.2.3/12\"") +
                         rule("class = 3\nprefix = \"fd00::1/127\"") + kGoodPort)
                  .errors(),
              ElementsAre("a.toml:3: prefix is a host's address and not a network's: 10.1.2.3/12; "
                          "give 10.0.0.0/12",
                          "a.toml:6: prefix is a host's address and not a network's: fd00::1/127; "
                          "give fd00::/127"));
  EXPECT_THAT(ConfigFile(rule("class = 3\nprefix = \"10.1.2.3/32\"") +
                         rule("class = 3\nprefix = \"::/0\"") + kGoodPort)
                  .errors(),
              IsEmpty());
}

TEST(TrafficConfig, ARuleBehindAWiderOneIsNeverReached) {
  const auto errors = [](const std::string& first, const std::string& second) {
    return ConfigFile(rule("class = 1\n" + first) + rule("class = 2\n" + second) + kGoodPort)
        .errors();
  };
  const std::pair<const char*, const char*> covered[] = {
      {"dscp = 3", "dscp = 3"},
      {"dscp = 3", "pcp = 1\ndscp = 3"},
      {"protocol = \"udp\"", "protocol = \"udp\"\nport = 53"},
      {"prefix = \"10.0.0.0/8\"", "prefix = \"10.1.0.0/16\"\ndscp = 0"},
      {"prefix = \"::/0\"", "prefix = \"fd00::/8\""},
  };
  for (const auto& [first, second] : covered)
    EXPECT_THAT(errors(first, second),
                ElementsAre("a.toml:4: rule that no frame reaches: number 2, because number 1 "
                            "takes all that fits it; remove it or put it first"))
        << first << " before " << second;
  const std::pair<const char*, const char*> apart[] = {
      {"dscp = 3", "dscp = 4"},
      {"dscp = 3\npcp = 1", "dscp = 3"},
      {"protocol = \"udp\"\nport = 53", "protocol = \"udp\""},
      {"protocol = \"udp\"", "protocol = \"tcp\"\nport = 53"},
      {"prefix = \"10.1.0.0/16\"", "prefix = \"10.0.0.0/8\""},
      {"prefix = \"10.1.0.0/16\"", "prefix = \"10.2.0.0/16\""},
      {"prefix = \"0.0.0.0/0\"", "prefix = \"::/0\""},
  };
  for (const auto& [first, second] : apart)
    EXPECT_THAT(errors(first, second), IsEmpty()) << first << " before " << second;
}

}  // namespace
}  // namespace sluice::config
