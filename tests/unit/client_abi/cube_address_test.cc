// The places of a BCube's appliances, as users write them in the address, a file and the
// environment.
#include "client/cube_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::map<std::string, std::string>;
using Places = std::vector<std::vector<std::string>>;

class CubeAddress : public testing::Test {
 protected:
  ~CubeAddress() override { std::remove(file.c_str()); }

  // Of BCube(2, 2): the rows of the levels, each in brackets.
  void write(const std::string& mode, const std::string& level0, const std::string& level1) const {
    std::ofstream(file) << "ports = 2\nlevels = 2\nmode = \"" << mode << "\"\nappliances = [\n  "
                        << level0 << ",\n  " << level1 << ",\n]\n";
  }
  void write_aggregated() const {
    write("aggregated", R"(["inproc://a", "inproc://b"])", R"(["inproc://c", "inproc://d"])");
  }
  void write_plain() const {
    write("plain", R"(["inproc://a", "inproc://b", "inproc://c", "inproc://d"])",
          R"(["inproc://e", "inproc://f", "inproc://g", "inproc://h"])");
  }
  // What a rank of BCube(2, 2) reads.
  static Result<CubePlaces> parse(const std::string& query, const Environment& environment = {},
                                  std::uint32_t rank = 1) {
    return parse_cube_address("bcube://2,2" + query, rank, [&](const char* name) -> const char* {
      const auto found = environment.find(name);
      return found == environment.end() ? nullptr : found->second.c_str();
    });
  }
  static Places places_of(const std::string& query, const Environment& environment = {}) {
    const Result<CubePlaces> places = parse(query, environment);
    EXPECT_TRUE(places.ok()) << places.status().message();
    return places.ok() ? places.value().appliances : Places();
  }
  static std::string refusal_of(const std::string& query, const Environment& environment = {}) {
    const Result<CubePlaces> places = parse(query, environment);
    EXPECT_FALSE(places.ok());
    if (places.ok()) return {};
    EXPECT_EQ(places.status().code(), StatusCode::kInvalidArgument);
    return places.status().message();
  }

  const std::string file = testing::TempDir() + "/cube_address_" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml";
  const std::string by_file = "?file=" + file;
  const std::string by_levels = "?levels=inproc://x,inproc://y";
};

TEST_F(CubeAddress, NamesTheSwitchesOfAFileThatHaveOneAddress) {
  write("aggregated", R"(["inproc://a", "inproc://b"])", R"(["inproc://c", "inproc://b"])");
  EXPECT_THAT(refusal_of(by_file),
              AllOf(HasSubstr(file), HasSubstr("level 0, switch 1 and level 1, switch 1 have the "
                                               "same address, inproc://b")));
  write("aggregated", R"(["inproc://a", "inproc://a"])", R"(["inproc://c", "inproc://d"])");
  EXPECT_THAT(refusal_of(by_file), HasSubstr("level 0, switch 0 and level 0, switch 1 have the "
                                             "same address, inproc://a"));
}

TEST_F(CubeAddress, NamesTheServersOfAFileThatHaveOneAddress) {
  write("plain", R"(["inproc://a", "inproc://b", "inproc://c", "inproc://d"])",
        R"(["inproc://e", "inproc://f", "inproc://c", "inproc://h"])");
  EXPECT_THAT(refusal_of(by_file), HasSubstr("level 0, server 2 and level 1, server 2 have the "
                                             "same address, inproc://c"));
  write("plain", R"(["inproc://a", "inproc://b", "inproc://c", "inproc://d"])",
        R"(["inproc://e", "inproc://f", "inproc://g", "inproc://f"])");
  EXPECT_THAT(refusal_of(by_file), HasSubstr("level 1, server 1 and level 1, server 3 have the "
                                             "same address, inproc://f"));
}

TEST_F(CubeAddress, NamesAnAddressThatNoLaneCanGoTo) {
  write("aggregated", R"(["inproc://a", "inproc://b"])", R"(["inproc://c", "10.0.0.1"])");
  EXPECT_THAT(refusal_of(by_file), AllOf(HasSubstr(file), HasSubstr("level 1, switch 1: "),
                                         HasSubstr("\"10.0.0.1\": no scheme")));
  EXPECT_THAT(refusal_of("?levels=inproc://x,vhost://10.0.0.1/y"),
              HasSubstr("level 1: vhost://10.0.0.1/y: over a BCube"));
}

TEST_F(CubeAddress, NamesTheLineOfAMistakeInAFile) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"ports = 2\nlevels = \"2\"\n", ":2: levels has a wrong value; give a number"},
      {"ports = -1\n", ":1: ports has a wrong value; give a number"},
      {"ports = 4294967298\n", ":1: ports has a wrong value"},
      {"\nmode = 3\n", ":2: mode has a wrong value; give \"aggregated\" or \"plain\""},
      {"appliances = [\"inproc://a\"]\n", ":1: appliances has a wrong value; give a list"},
      {"appliances = [[\"inproc://a\", 1]]\n", ":1: appliances has a wrong value"},
      {"ports = 2\nlevels =\n", ":2: not valid TOML ("},
      {"ports = 2\nappliances = []\n", ":1: no levels; add levels = ..."},
      {"", ":1: no ports; add ports = ..."}};
  for (const auto& [text, error] : mistakes) {
    std::ofstream(file) << text;
    EXPECT_THAT(refusal_of(by_file), HasSubstr(file + error));
  }
}

// ---- the environment ----

TEST_F(CubeAddress, ReadsTheFileThatTheEnvironmentNames) {
  write_aggregated();
  const Environment environment{{"SLUICE_BCUBE_FILE", file}};
  EXPECT_THAT(places_of("", environment),
              ElementsAre(ElementsAre("inproc://a"), ElementsAre("inproc://d")));
  EXPECT_THAT(places_of(by_levels, environment),
              ElementsAre(ElementsAre("inproc://x"), ElementsAre("inproc://y")));
  EXPECT_THAT(places_of(by_file, {{"SLUICE_BCUBE_FILE", "/nowhere.toml"}}),
              ElementsAre(ElementsAre("inproc://a"), ElementsAre("inproc://d")));
}

TEST_F(CubeAddress, NamesTheVariableOfAFileThatIsRefused) {
  EXPECT_THAT(refusal_of("", {{"SLUICE_BCUBE_FILE", "/nowhere.toml"}}),
              HasSubstr("SLUICE_BCUBE_FILE: /nowhere.toml cannot be read"));
  write("aggregated", R"(["inproc://a"])", R"(["inproc://c", "inproc://d"])");
  EXPECT_THAT(refusal_of("", {{"SLUICE_BCUBE_FILE", file}}),
              AllOf(HasSubstr("SLUICE_BCUBE_FILE: " + file),
                    HasSubstr("level 0: 1 addresses, but it has 2 switches")));
  EXPECT_THAT(refusal_of(by_file), Not(HasSubstr("SLUICE_BCUBE_FILE")));
}

TEST_F(CubeAddress, ReadsTheLevelsThatTheEnvironmentNames) {
  const Environment environment{{"SLUICE_BCUBE_LEVELS", "inproc://p,inproc://q"}};
  EXPECT_THAT(places_of("", environment),
              ElementsAre(ElementsAre("inproc://p"), ElementsAre("inproc://q")));
  EXPECT_THAT(places_of(by_levels, environment),
              ElementsAre(ElementsAre("inproc://x"), ElementsAre("inproc://y")));
  write_aggregated();
  EXPECT_THAT(places_of(by_file, environment),
              ElementsAre(ElementsAre("inproc://a"), ElementsAre("inproc://d")));
}

TEST_F(CubeAddress, NamesTheVariableOfLevelsThatAreRefused) {
  const auto refusal = [](const char* levels) {
    return refusal_of("", {{"SLUICE_BCUBE_LEVELS", levels}});
  };
  EXPECT_THAT(refusal("inproc://p"),
              HasSubstr("SLUICE_BCUBE_LEVELS: levels inproc://p: 1 addresses, but bcube(2,2) has 2 "
                        "levels"));
  EXPECT_THAT(refusal("inproc://p,inproc://p"),
              HasSubstr("SLUICE_BCUBE_LEVELS: level 0 and level 1 have the same address, "
                        "inproc://p"));
  EXPECT_THAT(refusal("inproc://p,box:7700"),
              AllOf(HasSubstr("SLUICE_BCUBE_LEVELS: level 1: "), HasSubstr("\"box:7700\"")));
  EXPECT_THAT(refusal_of("?levels=inproc://p"), Not(HasSubstr("SLUICE_BCUBE_LEVELS")));
}

TEST_F(CubeAddress, NamesBothVariablesThatSayWhereTheAppliancesAre) {
  EXPECT_THAT(refusal_of("", {{"SLUICE_BCUBE_LEVELS", "inproc://p,inproc://q"},
                              {"SLUICE_BCUBE_FILE", "/etc/cube.toml"}}),
              HasSubstr("SLUICE_BCUBE_FILE: file /etc/cube.toml and SLUICE_BCUBE_LEVELS: levels "
                        "inproc://p,inproc://q are both given"));
  EXPECT_THAT(refusal_of(by_levels + "&file=/etc/cube.toml"),
              HasSubstr("file /etc/cube.toml and levels inproc://x,inproc://y are both given"));
}

TEST_F(CubeAddress, ReadsTheModeThatTheEnvironmentNames) {
  write_plain();
  const Result<CubePlaces> places = parse(by_file, {{"SLUICE_BCUBE_MODE", "plain"}});
  ASSERT_TRUE(places.ok()) << places.status().message();
  EXPECT_EQ(places.value().mode, BcubeMode::kPlain);
  const Environment other{{"SLUICE_BCUBE_MODE", "aggregated"}};
  EXPECT_THAT(refusal_of(by_file, other),
              HasSubstr("SLUICE_BCUBE_MODE: mode aggregated, but " + file + " says plain"));
  const Result<CubePlaces> written = parse(by_file + "&mode=plain", other);
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written.value().mode, BcubeMode::kPlain);
}

TEST_F(CubeAddress, NamesTheVariableOfAModeThatIsRefused) {
  EXPECT_THAT(refusal_of(by_levels, {{"SLUICE_BCUBE_MODE", "direct"}}),
              HasSubstr("SLUICE_BCUBE_MODE: mode \"direct\" does not exist"));
  EXPECT_THAT(refusal_of(by_levels, {{"SLUICE_BCUBE_MODE", "plain"}}),
              HasSubstr("SLUICE_BCUBE_MODE: mode plain needs a file"));
  EXPECT_THAT(refusal_of(by_levels + "&mode=direct"),
              AllOf(HasSubstr("\"direct\""), Not(HasSubstr("SLUICE_BCUBE_MODE"))));
}

TEST_F(CubeAddress, ComparesTheDigitsThatTheEnvironmentNames) {
  const Environment own{{"SLUICE_BCUBE_DIGITS", "1,0"}}, other{{"SLUICE_BCUBE_DIGITS", "0,1"}};
  EXPECT_EQ(places_of(by_levels, own).size(), 2u);
  EXPECT_THAT(refusal_of(by_levels, other),
              HasSubstr("SLUICE_BCUBE_DIGITS: digits 0,1 are those of rank 2, but this is rank 1"));
  EXPECT_EQ(places_of(by_levels + "&digits=1,0", other).size(), 2u);
  EXPECT_THAT(refusal_of(by_levels + "&digits=0,1", own),
              AllOf(HasSubstr("those of rank 2"), Not(HasSubstr("SLUICE_BCUBE_DIGITS"))));
}

TEST_F(CubeAddress, TakesTheRankOfTheDigitsWhereNoneIsGiven) {
  const auto taken = [&](const std::string& query, const Environment& environment = {}) {
    return parse(query, environment, kRankByDigits);
  };
  write_plain();
  const Result<CubePlaces> places = taken(by_file + "&digits=0,1");
  ASSERT_TRUE(places.ok()) << places.status().message();
  EXPECT_EQ(places.value().rank, 2u);
  EXPECT_THAT(places.value().appliances, ElementsAre(ElementsAre("inproc://c", "inproc://d"),
                                                     ElementsAre("inproc://e", "inproc://g")));
  const Result<CubePlaces> named = taken(by_levels, {{"SLUICE_BCUBE_DIGITS", "1,1"}});
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named.value().rank, 3u);
  EXPECT_THAT(taken(by_levels).status().message(),
              HasSubstr("neither a rank nor digits=... say which of its 4 workers this is"));
  EXPECT_THAT(taken(by_levels + "&digits=0,2").status().message(), HasSubstr("digit 2 of level 1"));
}

TEST_F(CubeAddress, NamesTheVariableOfDigitsThatNoRankHas) {
  EXPECT_THAT(refusal_of(by_levels, {{"SLUICE_BCUBE_DIGITS", "1,x"}}),
              HasSubstr("SLUICE_BCUBE_DIGITS: digits 1,x: digit x of level 1 must be 0 to 1"));
  EXPECT_THAT(refusal_of(by_levels, {{"SLUICE_BCUBE_DIGITS", "1"}}),
              HasSubstr("SLUICE_BCUBE_DIGITS: digits 1: bcube(2,2) has 2 levels"));
}

}  // namespace
}  // namespace sluice::client
