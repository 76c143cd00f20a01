// Mistakes in starting a job over a BCube: each ends the join with an error that names the
// mismatch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/client_abi/cube_support.h"

namespace {

using job_test::Cube;
using job_test::error_of;
using job_test::kLong;
using job_test::kSlowdown;
using job_test::on_every_rank;
using sluice::Error;
using sluice::Job;
using sluice::Options;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::Not;
using ::testing::StartsWith;

// Who holds a rank at an appliance and who asks for it, as its refusal names them.
std::pair<std::string, std::string> rivals_for(const std::string& rank, const std::string& error) {
  const std::regex refusal("rank " + rank +
                           " of job '[^']+' is held by (inproc:[0-9]+), heard [0-9.]+ s ago, and "
                           "(inproc:[0-9]+) asks for it: give each process its own rank, ");
  std::smatch found;
  if (!std::regex_search(error, found, refusal)) return {};
  return {found[1], found[2]};
}

TEST(CubeMistakes, NameAnAddressThatCannotBeServed) {
  const Cube cube{2, 2, "foreign"};
  const std::string file = cube.write_plain_file("udp://192.0.2.SERVERLEVEL");
  Options options = cube.options(1);
  options.address = cube.shape() + "?file=" + file;
  EXPECT_THAT(error_of([&] {
                Job job(options, {{"t", 8}});
              }).what(),
              AllOf(HasSubstr("level 0"), HasSubstr("192.0.2.20:7700"),
                    HasSubstr("address of this machine")));
  std::remove(file.c_str());
}

TEST(CubeMistakes, NameWhatTheyCannotDo) {
  const Cube cube{2, 2, "cannot"};
  const auto refusal = [&](const std::function<void(Options&)>& change) -> std::string {
    Options options = cube.options(1);
    change(options);
    const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
    EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
    return error.what();
  };
  const auto address = [&](const std::string& text) {
    return refusal([&](Options& options) { options.address = text; });
  };
  EXPECT_THAT(refusal([](Options& o) { o.policy.kind = SLUICE_POLICY_FIXED; }),
              HasSubstr("policy sync"));
  EXPECT_THAT(refusal([](Options& o) { o.schedule.kind = SLUICE_SCHEDULE_CREDIT; }),
              HasSubstr("schedule strict"));
  EXPECT_THAT(refusal([](Options& o) { o.world_size = 5; }),
              AllOf(HasSubstr("at " + cube.address(1) + ": world size 5"), HasSubstr("4 servers")));
  const auto sizeless = [&](const std::string& text) {
    return refusal([&](Options& options) {
      options.address = text;
      options.world_size = 0;
    });
  };
  EXPECT_THAT(sizeless("bcube://2,1?levels=inproc://x&digits=0"),
              AllOf(HasSubstr("of rank 0"), HasSubstr("this is rank 1")));
  EXPECT_THAT(sizeless("bcube://2?levels=inproc://x"), HasSubstr("two numbers"));
  EXPECT_THAT(sizeless("bcube://2,12"), HasSubstr("world_size is 4096; must be 1 to 1024"));
  EXPECT_THAT(sizeless(cube.at(0, 0)), HasSubstr("world_size is 0; must be 1 to 1024"));
  EXPECT_THAT(refusal([](Options& o) { o.local_address = "10.0.0.1"; }), HasSubstr("10.0.0.1"));
  EXPECT_THAT(refusal([](Options& o) { o.job_name = std::string(60, 'x'); }),
              AllOf(HasSubstr("60"), HasSubstr("bytes")));
  EXPECT_THAT(address(cube.address(1) + "&digits=0,1"),
              AllOf(HasSubstr("of rank 2"), HasSubstr("rank 1, whose digits are 1,0")));
  EXPECT_THAT(address(cube.address(1) + "&digits=0,2"), HasSubstr("digit 2 of level 1"));
  EXPECT_THAT(refusal([](Options& o) { o.rank = SLUICE_RANK_BY_DIGITS; }),
              HasSubstr("neither a rank nor digits=... say which of its 4 workers this is"));
  EXPECT_THAT(refusal([](Options& o) { o.rank = 4; }), HasSubstr("or SLUICE_RANK_BY_DIGITS"));
  EXPECT_THAT(refusal([&](Options& o) {
                o.address = cube.at(0, 0);
                o.rank = SLUICE_RANK_BY_DIGITS;
              }),
              AllOf(HasSubstr("below world_size 4"), Not(HasSubstr("DIGITS"))));
  EXPECT_THAT(address("bcube://2,2?levels=inproc://x,inproc://x"),
              AllOf(HasSubstr("level 0"), HasSubstr("level 1"), HasSubstr("inproc://x")));
  EXPECT_THAT(address("bcube://2,2?levels=inproc://x"), HasSubstr("1 addresses"));
  EXPECT_THAT(address("bcube://2,2?levels=inproc://x,vhost://10.0.0.1/y"), HasSubstr("vhost://"));
  EXPECT_THAT(address("bcube://2?levels=inproc://x"), HasSubstr("two numbers"));
  EXPECT_THAT(address("bcube://1,2?levels=inproc://x"), HasSubstr("ports"));
  EXPECT_THAT(address("bcube://2,2"), HasSubstr("not said"));
  EXPECT_THAT(address("bcube://2,2?level=inproc://x"), HasSubstr("\"level\""));
  EXPECT_THAT(
      address("bcube://2,2?file=/nowhere.toml"),
      HasSubstr("/nowhere.toml cannot be read: No such file or directory; `python3 -m sluice "
                "bcube plan` writes"));
  const std::string file = cube.write_plain_file();
  EXPECT_THAT(address("bcube://3,2?file=" + file),
              AllOf(HasSubstr("bcube(2,2)"), HasSubstr("bcube(3,2)")));
  EXPECT_THAT(address("bcube://2,2?mode=aggregated&file=" + file),
              AllOf(HasSubstr("aggregated"), HasSubstr("plain")));
  std::ofstream(file, std::ios::app) << "port = 3\n";
  EXPECT_THAT(address("bcube://2,2?file=" + file), AllOf(HasSubstr("not port"), HasSubstr(file)));
  std::remove(file.c_str());
}

TEST(CubeMistakes, NameTheVariableThatIsTheCause) {
  Options options = Cube{2, 2, "variable"}.options(1);
  options.address = "bcube://2,2";
  ::setenv("SLUICE_BCUBE_FILE", "/nowhere.toml", 1);
  const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
  ::unsetenv("SLUICE_BCUBE_FILE");
  EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(error.what(), HasSubstr("SLUICE_BCUBE_FILE: /nowhere.toml cannot be read"));
}

// Levels 0 and 1 of rank 0 are exchanged. Who sees it first says so; the others may hear of its end
// alone.
TEST(CubeMistakes, NameALevelThatLeadsToAnotherSwitch) {
  const Cube cube{2, 2, "swapped"};
  std::vector<std::string> errors(4);
  on_every_rank(4, [&](std::uint32_t rank) {
    Options options = cube.options(rank);
    options.timeouts.join_ms = 2000;
    if (rank == 0)
      options.address = cube.shape() + "?levels=" + cube.at(0, 1) + "," + cube.at(0, 0);
    try {
      Job job(options, {{"t", 8}});
    } catch (const Error& error) {
      errors[rank] = error.what();
    }
  });
  EXPECT_THAT(errors[0], AnyOf(HasSubstr("another switch"), HasSubstr("left with an error")));
  EXPECT_THAT(errors, Contains(AllOf(HasSubstr("another switch"), HasSubstr("worker 0"),
                                     HasSubstr("not worker"), HasSubstr("with its level 0"),
                                     HasSubstr("with its level 1"))));
}

// Else it would be taken for a switch that is not there, for which another one stands in.
TEST(CubeMistakes, NameWhatIsRefusedThoughASwitchStandsIn) {
  const Cube cube{2, 2, "refused"};
  const std::string file = testing::TempDir() + "/refused.toml";
  std::ofstream(file) << R"(ports = 2
levels = 2
appliances = [["inproc://refused-0-0", "inproc://refused-0-1"],
              ["inproc://refused-1-0", "inproc://refused-1-1"]]
)";
  std::vector<std::string> errors(4);
  on_every_rank(4, [&](std::uint32_t rank) {
    Options options = cube.options(rank);
    options.address = cube.shape() + "?file=" + file;
    options.timeouts.join_ms = 2000;
    if (rank == 1) options.averaging = SLUICE_AVERAGE_SUM;
    // Who shares no switch with the mistaken one may begin before it hears.
    errors[rank] = error_of([&] { Job(options, {{"t", 8}}).barrier(kLong); }).what();
  });
  EXPECT_THAT(errors,
              Contains(AllOf(HasSubstr("averaging"), Not(HasSubstr("where its lanes move to")))));
  std::remove(file.c_str());
}

// Of one run, so that the rank alone is amiss. One of them at least is refused, in the lane in
// which it came second.
TEST(CubeMistakes, NameTwoWorkersWithOneRank) {
  const Cube cube{2, 2, "twins"};
  std::vector<std::string> errors(2);
  on_every_rank(2, [&](std::uint32_t twin) {
    Options options = cube.options(3);
    options.timeouts.join_ms = 1500 * kSlowdown;
    errors[twin] = error_of([&] { Job job(options, {{"t", 8}}); }).what();
  });
  std::string refusal;
  for (const std::string& error : errors)
    if (error.find("held by") != std::string::npos) refusal = error;
  const auto [holder, other] = rivals_for("1", refusal);  // its digit at either level
  EXPECT_THAT(holder, StartsWith("inproc:")) << errors[0] << '\n' << errors[1];
  EXPECT_THAT(other, AllOf(StartsWith("inproc:"), Ne(holder))) << refusal;
  EXPECT_THAT(refusal, AnyOf(HasSubstr("whose rank r is worker 2 + 1 r"),
                             HasSubstr("whose rank r is worker 1 + 2 r")));
}

// Worker 0 goes to its neighbours' switch of level 0, where worker 2 has its rank.
TEST(CubeMistakes, NameTheAddressOfALevelWhereAnotherWorkerHasTheRank) {
  const Cube cube{2, 2, "astray"};
  std::string refusal;
  on_every_rank(2, [&](std::uint32_t which) {
    Options options = cube.options(which == 0 ? 2 : 0);
    options.timeouts.join_ms = 1500 * kSlowdown;
    if (which == 1) {
      std::this_thread::sleep_for(milliseconds(300 * kSlowdown));
      options.address = cube.shape() + "?levels=" + cube.at(2, 0) + "," + cube.at(0, 1);
    }
    const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
    if (which == 0) return;  // it hears of the other's end
    EXPECT_EQ(error.status(), SLUICE_REFUSED);
    refusal = error.what();
  });
  const auto [holder, other] = rivals_for("0", refusal);
  EXPECT_THAT(holder, StartsWith("inproc:")) << refusal;
  EXPECT_THAT(other, AllOf(StartsWith("inproc:"), Ne(holder))) << refusal;
  EXPECT_THAT(refusal, AllOf(HasSubstr("at inproc://astray-0-1 (level 0, switch 0,"),
                             HasSubstr("whose rank r is worker 0 + 1 r"),
                             HasSubstr("in a BCube the addresses of its own switches")));
}

// Worker 2 is not there yet: worker 0 meets worker 3 in its place.
TEST(CubeMistakes, NameWhoIsAtItsNeighboursSwitchOfTheRightLevel) {
  const Cube cube{2, 2, "elsewhere"};
  std::vector<std::string> errors(2);
  on_every_rank(2, [&](std::uint32_t which) {
    Options options = cube.options(3 * which);
    options.timeouts.join_ms = 1500 * kSlowdown;
    if (which == 0)
      options.address = cube.shape() + "?levels=" + cube.at(2, 0) + "," + cube.at(0, 1);
    errors[which] = error_of([&] { Job job(options, {{"t", 8}}); }).what();
  });
  // Who sees it first says so; the other may hear of its end alone.
  EXPECT_THAT(
      errors,
      Contains(AnyOf(AllOf(HasSubstr("at inproc://elsewhere-0-1 (level 0, switch 0,"),
                           HasSubstr("there rank 1 is worker 3 with its level 0, not worker 1 with "
                                     "its level 0; check the addresses and cables of both")),
                     AllOf(HasSubstr("at inproc://elsewhere-0-1 (level 0, switch 1,"),
                           HasSubstr("there rank 0 is worker 0 with its level 0, not worker 2 with "
                                     "its level 0; check the addresses and cables of both")))));
}

}  // namespace
