#include "config/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/config/config_file.h"

namespace sluice::config {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(Loader, AnUnknownKeyNamesItsLineAndTheNearestKey) {
  const ConfigFile file("[appliance]\nshrads = 2\n" + kGoodPort);
  EXPECT_THAT(
      file.errors(),
      ElementsAre("a.toml:2: unknown key in [appliance]: \"shrads\"; did you mean \"shards\"?"));
}

TEST(Loader, AKeyOfAnotherTableIsSentThere) {
  const ConfigFile file("[appliance]\nrate_mbps = 2\n" + kGoodPort);
  EXPECT_THAT(
      file.errors(),
      ElementsAre("a.toml:2: unknown key in [appliance]: \"rate_mbps\"; it belongs in [port]"));
}

TEST(Loader, AKeyLikeNoOtherGetsTheListOfKeys) {
  const ConfigFile file(kGoodPort + "[metrics]\nquantisation = 2\n");
  EXPECT_THAT(
      file.errors(),
      ElementsAre("a.toml:6: unknown key in [metrics]: \"quantisation\"; remove it; the keys "
                  "here are address, certificate, password_file"));
}

TEST(Loader, UnknownTablesAndBareKeysAreErrors) {
  const ConfigFile file("jobs = 3\n" + kGoodPort + "[limit]\njobs = 3\n");
  EXPECT_THAT(file.errors(),
              ElementsAre("a.toml:1: unknown table or key: \"jobs\"; it belongs under [limits]",
                          "a.toml:6: unknown table or key: \"limit\"; did you mean \"limits\"?"));
}

TEST(Loader, ValuesOutOfRangeNameTheRange) {
  const ConfigFile file("[appliance]\nshards = 17\nport = -1\n" + kGoodPort +
                        "[port.fault]\nrx_drop = 1.5\n");
  EXPECT_THAT(
      file.errors(),
      ElementsAre("a.toml:2: shards has a wrong value: 17; give an integer from 1 to 16",
                  "a.toml:3: port has a wrong value: -1; give an integer from 1 to 65519",
                  "a.toml:9: rx_drop has a wrong value: 1.5; give a number from 0.0 to 1.0"));
}

TEST(Loader, ANumberThatIsNotANumberIsOutOfRange) {
  const ConfigFile file(kGoodPort + "[port.fault]\nrx_drop = nan\n");
  EXPECT_THAT(file.errors(), ElementsAre(StartsWith("a.toml:6: rx_drop has a wrong value: nan")));
}

TEST(Loader, ANumberTooLongForAnIntegerIsAnError) {
  const ConfigFile file(kGoodPort + "[limits]\njobs = 99999999999999999999\n");
  EXPECT_THAT(file.errors(),
              ElementsAre(AnyOf(StartsWith("a.toml:6: jobs has a wrong value"),  // toml11 3
                                StartsWith("a.toml:6: not valid TOML (too large integer"))));
}

TEST(Loader, WrongTypesSayWhatIsExpected) {
  const ConfigFile file(
      "[appliance]\nshards = \"2\"\nhugepages = 1\naddress = \"10.0.0.1\"\n"
      "polling = \"lazy\"\nmac = [1]\n" +
      kGoodPort);
  EXPECT_THAT(
      file.errors(),
      ElementsAre(
          "a.toml:2: shards has a wrong value: \"2\"; give an integer from 1 to 16",
          "a.toml:3: hugepages has a wrong value: 1; give true or false",
          "a.toml:4: address has a wrong value: \"10.0.0.1\"; give an IPv4 address with "
          "prefix length such as \"10.77.0.1/24\"",
          "a.toml:5: polling has a wrong value: \"lazy\"; give one of \"adaptive\", \"busy\"",
          "a.toml:6: mac has a wrong value: an array; give an Ethernet address such as "
          "\"02:51:0a:4d:00:01\""));
}

TEST(Loader, AnIntegerServesWhereANumberIsExpected) {
  const ConfigFile file(kGoodPort + "[limits]\nmember_timeout_s = 3\n");
  const auto config = load_config(file.path(), {.interfaces = {}, .cpu_count = 4});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().limits.member_timeout_ns(), 3 * kSecond);
}

TEST(Loader, APolicyIsReadAndJobsOverrideSingleKeysOfIt) {
  // A job before [policy] takes its values over all the same.
  const ConfigFile file(
      kGoodPort +
      "[[job]]\nname = \"digits\"\nk = 6\n"
      "[policy]\npolicy = \"fixed\"\nlate = \"requeue\"\nk = 2\nmax_staleness = 9\n"
      "[[job]]\nname = \"letters\"\npolicy = \"saina\"\nsign_threshold = 0.625\n"
      "count_threshold = \"k\"\nsigns = \"one-in-32\"\nround_steps = 40\n"
      "[limits]\nresync_hold_s = 12\n");
  const auto read = load_config(file.path(), {.interfaces = {}, .cpu_count = 4});
  ASSERT_TRUE(read.ok()) << read.status().message();
  const Config& config = read.value();
  EXPECT_EQ(config.limits.resync_hold_ns(), 12 * kSecond);
  const PolicyOptions fixed{
      .kind = PolicyKind::kFixed, .late = LateMode::kRequeue, .k = 2, .max_staleness = 9};
  EXPECT_TRUE(config.policy == fixed);
  ASSERT_EQ(config.jobs.size(), 2u);
  EXPECT_EQ(config.jobs[0].name, "digits");
  PolicyOptions digits = fixed;
  digits.k = 6;
  EXPECT_TRUE(config.jobs[0].policy == digits);
  const PolicyOptions letters{.kind = PolicyKind::kSaina,
                              .late = LateMode::kRequeue,
                              .k = 2,
                              .sign_threshold_permille = 625,
                              .count_threshold = 0,
                              .sign_stride = kOneSignIn32,
                              .round_steps = 40,
                              .max_staleness = 9};
  EXPECT_TRUE(config.jobs[1].policy == letters);
}

TEST(Loader, TheDefaultPolicyIsThatOfTheProtocol) {
  EXPECT_TRUE(Config{}.policy == PolicyOptions{});
}

TEST(Loader, WrongPolicyValuesSayWhatIsExpected) {
  const ConfigFile file(
      kGoodPort +
      "[policy]\npolicy = \"fastest\"\nlate = \"keep\"\nk = 0\nsign_threshold = 50\n"
      "count_threshold = \"n\"\nsigns = 32\nround_steps = 0\n");
  EXPECT_THAT(
      file.errors(),
      ElementsAre(
          "a.toml:6: policy has a wrong value: \"fastest\"; give one of \"sync\", "
          "\"fixed\", \"saina\", \"ramp\", \"goodput\"",
          "a.toml:7: late has a wrong value: \"keep\"; give one of \"drop\", \"requeue\"",
          "a.toml:8: k has a wrong value: 0; give an integer from 1 to 1024",
          "a.toml:9: sign_threshold has a wrong value: 50; give a number from 0.0 to 1.0 in "
          "steps of 0.001",
          "a.toml:10: count_threshold has a wrong value: \"n\"; give an integer from 1 to "
          "65535, or \"k\"",
          "a.toml:11: signs has a wrong value: 32; give one of \"all\", \"one-in-32\"",
          StartsWith("a.toml:12: round_steps has a wrong value: 0; give an integer from 1")));
}

TEST(Loader, JobTablesAreAListWithTheKeysOfThePolicy) {
  EXPECT_THAT(ConfigFile("[job]\nname = \"x\"\n" + kGoodPort).errors(),
              ElementsAre("a.toml:1: jobs are a list of tables: a table; write [[job]]"));
  EXPECT_THAT(ConfigFile("[[jobs]]\nname = \"x\"\n" + kGoodPort).errors(),
              ElementsAre("a.toml:1: unknown table or key: \"jobs\"; did you mean \"job\"?"));
  EXPECT_THAT(
      ConfigFile("[[job]]\nname = \"x\"\nround_step = 3\n" + kGoodPort).errors(),
      ElementsAre("a.toml:3: unknown key in [job]: \"round_step\"; did you mean \"round_steps\"?"));
}

TEST(Loader, ASinglePortTableIsToldToBeAList) {
  const ConfigFile file("[port]\nname = \"p\"\n");
  EXPECT_THAT(file.errors(),
              ElementsAre("a.toml:1: ports are a list of tables: a table; write [[port]]"));
}

TEST(Loader, AScalarWhereATableBelongsIsAnError) {
  const ConfigFile file("limits = 4\n" + kGoodPort);
  EXPECT_THAT(file.errors(),
              ElementsAre("a.toml:1: \"limits\" must be a table: an integer; write [limits]"));
}

TEST(Loader, BrokenTomlIsOneLineWithItsLineNumber) {
  const ConfigFile file("[appliance]\nshards =\n");
  EXPECT_THAT(file.errors(), ElementsAre(AllOf(StartsWith("a.toml:2: not valid TOML ("),
                                               HasSubstr("value"),  // toml11's words
                                               EndsWith("): shards =; correct this line"))));
}

TEST(Loader, AKeyGivenTwiceIsAnErrorAtTheSecond) {
  const ConfigFile file("[appliance]\nshards = 1\nshards = 2\n");
  EXPECT_THAT(file.errors(), ElementsAre(AllOf(StartsWith("a.toml:3: not valid TOML"),
                                               HasSubstr("already exists"))));
}

TEST(Loader, AnyBytesEndInErrorsAndNeverInACrash) {
  for (const std::string& text :
       {std::string("\0\1\2", 3), std::string("x = \"\xff\""), std::string("[[[["),
        std::string("d = 1979-99-99"), std::string("\xef\xbb\xbf"), std::string("= ="),
        std::string("[a.b.c]\n[a]\nb = 1\n")})
    EXPECT_FALSE(ConfigFile(text).errors().empty()) << testing::PrintToString(text);
}

TEST(Loader, AMissingFileADirectoryAndAHugeFileAreErrors) {
  const ConfigFile file("");
  const std::string missing = file.path() + ".none";
  EXPECT_THAT(check_config(missing).errors, ElementsAre(HasSubstr("No such file or directory")));
  EXPECT_THAT(check_config("/").errors, ElementsAre(HasSubstr("Is a directory")));
  file.write("a.toml", std::string((1 << 20) + 1, '#'));
  EXPECT_THAT(file.errors(), ElementsAre(HasSubstr("too long")));
}

TEST(Loader, AllErrorsComeAtOnceInTheOrderOfTheFile) {
  const ConfigFile file("[limits]\njobz = 1\njobs = 0\n[appliance]\nshards = 0\n");
  EXPECT_THAT(file.errors(), ElementsAre(StartsWith("a.toml:1: no ports"), StartsWith("a.toml:2:"),
                                         StartsWith("a.toml:3:"), StartsWith("a.toml:5:")));
  const auto config = load_config(file.path());
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(std::ranges::count(config.status().message(), '\n'), 3);
}

TEST(Loader, TheSecretComesFromItsFileWithoutTheLineBreak) {
  const ConfigFile file("");
  const std::string secret = file.write("secret", "open sesame\n");
  file.write("a.toml", "[appliance]\nsecret_file = \"" + secret + "\"\n" + kGoodPort);
  const auto config = load_config(file.path());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().appliance.secret, "open sesame");
}

TEST(Loader, FurtherLinesOfTheSecretFileAreOlderSecrets) {
  const ConfigFile file("");
  const std::string secret = file.write("secret", "open sesame\r\ntahini\n\nhalva");
  file.write("a.toml", "[appliance]\nsecret_file = \"" + secret + "\"\n" + kGoodPort);
  const auto config = load_config(file.path());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().appliance.secret, "open sesame");
  EXPECT_THAT(config.value().appliance.older_secrets, ElementsAre("tahini", "halva"));
}

TEST(Loader, ASecretFileMustExistHoldSomethingAndBePrivate) {
  const ConfigFile file("");
  const auto errors_with = [&](const std::string& path) {
    file.write("a.toml", "[appliance]\nsecret_file = \"" + path + "\"\n" + kGoodPort);
    return file.errors();
  };
  EXPECT_THAT(errors_with(file.write("open", "x", 0644)),
              ElementsAre(StartsWith("a.toml:2: secret_file can be read by everyone")));
  EXPECT_THAT(errors_with(file.write("empty", "\n")),
              ElementsAre(StartsWith("a.toml:2: secret_file holds nothing")));
  EXPECT_THAT(errors_with(file.write("long", std::string(300, 'x'))),
              ElementsAre(StartsWith("a.toml:2: secret_file holds too much")));
  EXPECT_THAT(errors_with(file.write("many", "a\nb\nc\nd\ne\n")),
              ElementsAre(StartsWith("a.toml:2: secret_file holds too much")));
  EXPECT_THAT(errors_with("/nonexistent"),
              ElementsAre(StartsWith("a.toml:2: secret_file can't be read (No such file")));
}

TEST(Loader, ThePasswordOfTheMetricsComesFromItsFile) {
  const ConfigFile file("");
  const auto write = [&](const std::string& path) {
    file.write("a.toml", "[metrics]\npassword_file = \"" + path + "\"\n" + kGoodPort);
  };
  write(file.write("password", "prometheus:open sesame\n"));
  const auto config = load_config(file.path());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().metrics.password, "prometheus:open sesame");
  for (const char* wrong : {"", "sesame", "a:b\nc:d"}) {
    write(file.write("password", wrong));
    EXPECT_THAT(file.errors(), ElementsAre(StartsWith("a.toml:2: password_file holds something")));
  }
  write(file.write("open", "a:b", 0644));
  EXPECT_THAT(file.errors(),
              ElementsAre(StartsWith("a.toml:2: password_file can be read by everyone")));
}

TEST(Loader, ASecretOfTheWrongTypeIsNotPrinted) {
  const ConfigFile file("[appliance]\nsecret = 4711\n" + kGoodPort);
  EXPECT_THAT(file.errors(), ElementsAre(Not(HasSubstr("4711"))));
}

TEST(Loader, TheKernelTellsOurInterfacesAndCores) {
  const HostFacts facts = read_host_facts();
  EXPECT_GE(facts.cpu_count, 1u);
  const auto loopback = std::ranges::find(facts.interfaces, "lo", &HostFacts::Interface::name);
  EXPECT_NE(loopback, facts.interfaces.end());
}

}  // namespace
}  // namespace sluice::config
