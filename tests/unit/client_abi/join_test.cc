// Joins that fail: how fast, and with whose error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sluice/sluice.hpp>
#include <thread>

#include "tests/unit/client_abi/job_support.h"

namespace {

using job_test::Clock;
using job_test::error_of;
using job_test::one_of_three;
using job_test::options_for;
using job_test::seconds_since;
using sluice::Error;
using sluice::Job;
using sluice::Options;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Options, HaveTheDefaultsOfC) {
  sluice_options defaults{};
  defaults.struct_size = sizeof defaults;
  ASSERT_EQ(sluice_options_init(&defaults), SLUICE_OK);
  Options options;
  sluice_options raw = options.raw();
  for (const char** text : {&raw.address, &raw.job_name, &raw.secret, &raw.local_address}) {
    EXPECT_STREQ(*text, "");
    *text = nullptr;
  }
  raw.callbacks.user = nullptr;
  EXPECT_EQ(std::memcmp(&raw, &defaults, sizeof raw), 0);
}

TEST(Joins, EndAJoinWhenInterrupted) {
  Options options = options_for("lonely", 0, 2);
  options.callbacks.interrupted = [] { return true; };
  const auto start = Clock::now();
  EXPECT_EQ(error_of([&] { Job job(options, {{"t", 8}}); }).status(), SLUICE_INTERRUPTED);
  EXPECT_LT(seconds_since(start), 10.0);  // of the 60 s that it may wait
}

TEST(Joins, NameTheRanksThatDidNotCome) {
  Options options = options_for("absentees", 1, 3);
  options.timeouts.join_ms = 400;
  const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
  EXPECT_EQ(error.status(), SLUICE_TIMED_OUT);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("absentees"), HasSubstr("0"), HasSubstr("2")));
}

// A rank that waits in its join for as long as this lives.
class WaitingRank {
 public:
  explicit WaitingRank(Options options, std::vector<sluice::Tensor> tensors = {{"t", 8}})
      : thread_([this, options, tensors]() mutable {
          options.callbacks.interrupted = [this] { return over_.load(); };
          EXPECT_EQ(error_of([&] { Job job(options, tensors); }).status(), SLUICE_INTERRUPTED);
        }) {
    std::this_thread::sleep_for(milliseconds(300));
  }
  ~WaitingRank() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(Joins, RefuseAnotherLayoutAndAWrongSecret) {
  Options options = options_for("layouts", 0, 2);
  options.secret = "right";
  const WaitingRank first(options);
  options.rank = 1;
  options.secret = "wrong";
  EXPECT_EQ(error_of([&] { Job job(options, {{"t", 8}}); }).status(), SLUICE_REFUSED);
  options.secret = "right";
  const Error error = error_of([&] { Job job(options, {{"t", 9}}); });
  EXPECT_EQ(error.status(), SLUICE_REFUSED);
  EXPECT_THAT(error.what(), HasSubstr("layout"));
}

TEST(Joins, RefuseTensorsOfEqualShapesInAnotherOrderAndNameTheFirst) {
  Options options = options_for("orders", 0, 2);
  const WaitingRank first(options, {{"embed", 8}, {"key", 8}, {"value", 8}, {"head", 8}});
  options.rank = 1;
  const auto refusal = [&](const std::vector<sluice::Tensor>& tensors) {
    const Error error = error_of([&] { Job job(options, tensors); });
    EXPECT_EQ(error.status(), SLUICE_REFUSED);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal({{"embed", 8}, {"value", 8}, {"key", 8}, {"head", 8}}),
              AllOf(HasSubstr("set by rank 0"), HasSubstr("first that differs is tensor 1 'value'"),
                    HasSubstr("there the one that is 2 'key' here")));
  EXPECT_THAT(refusal({{"embed", 8}, {"key", 8}, {"VALUE", 8}, {"head", 8}}),
              HasSubstr("tensor 2 'VALUE' here, and there one of another name"));
  EXPECT_THAT(refusal({{"embed", 8}, {"key", 8}}),
              HasSubstr("tensor 2, which this rank does not have"));
  EXPECT_THAT(refusal({{"embed", 8}, {"key", 8}, {"value", 8}, {"head", 8}, {"bias", 8}}),
              HasSubstr("tensor 4 'bias' here, which the job does not have"));
}

TEST(Joins, RefuseOtherPruneOptionsAndNameTheFirst) {
  Options options = options_for("prunes", 0, 2);
  options.prune.rule = SLUICE_PRUNE_STATIC;
  options.prune.fraction = 0.1;
  const WaitingRank first(options);
  options.rank = 1;
  options.prune.fraction = 0.25;
  EXPECT_THAT(error_of([&] {
                Job job(options, {{"t", 8}});
              }).what(),
              AllOf(HasSubstr("rank 1 at "), HasSubstr("says prune_fraction 0.25"),
                    HasSubstr("has 0.1 (set by rank 0")));
  options.prune.rule = SLUICE_PRUNE_OFF;
  options.prune.fraction = 0.01;
  EXPECT_THAT(error_of([&] {
                Job job(options, {{"t", 8}});
              }).what(),
              AllOf(HasSubstr("says prune 'off'"), HasSubstr("has 'static'")));
}

TEST(Joins, RefuseARankThatAveragesInAnotherWay) {
  const WaitingRank first(options_for("averages", 0, 2));
  Options options = options_for("averages", 1, 2);
  options.averaging = SLUICE_AVERAGE_WORLD;
  const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
  EXPECT_EQ(error.status(), SLUICE_REFUSED);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("averages by 'world'"),
                                  HasSubstr("by 'default' (set by rank 0")));
}

TEST(Joins, RefuseARankWithAnotherWireFormat) {
  Options options = options_for("formats", 0, 2);
  options.wire = SLUICE_WIRE_INT8;
  const WaitingRank first(options);
  options.rank = 1;
  options.wire = SLUICE_WIRE_BFLOAT16;
  const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
  EXPECT_EQ(error.status(), SLUICE_REFUSED);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("rank 1 travels as bfloat16"), HasSubstr("as int8 (set by rank 0)")));
}

TEST(Joins, FailWithinFiveSecondsWhenNothingListens) {
  Options options = options_for("nobody", 0, 1);
  options.address = "udp://127.0.0.1:9";
  EXPECT_TRUE(one_of_three([&] {
    const auto start = Clock::now();
    const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
    const double took_s = seconds_since(start);
    EXPECT_EQ(error.status(), SLUICE_UNREACHABLE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:9"), HasSubstr("nobody")));
    return took_s < 5.0;
  }));
}

TEST(Joins, SayWhoseErrorItIsWhenTheApplianceCannotBeOpened) {
  Options options = options_for("lost", 3, 4);
  options.address = "udp://no-such-host.invalid";
  const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
  EXPECT_EQ(error.status(), SLUICE_NOT_FOUND);
  EXPECT_THAT(error.what(), AllOf(StartsWith("job 'lost' rank 3 at udp://no-such-host.invalid: "),
                                  HasSubstr("cannot be resolved")));
}

TEST(Joins, NameTheRemedyWithoutThePlugin) {
  ::setenv("SLUICE_PLUGIN_DIR", "/nonexistent", 1);
  Options options = options_for("plugin", 0, 1);
  options.address = "vhost://10.0.0.1/run/sluice/port0";
  const Error error = error_of([&] { Job job(options, {{"t", 8}}); });
  ::unsetenv("SLUICE_PLUGIN_DIR");
  EXPECT_EQ(error.status(), SLUICE_NOT_FOUND);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("/nonexistent/libsluice_dpdk.so"),
                                  HasSubstr("SLUICE_PLUGIN_DIR"), HasSubstr("udp://")));
}

}  // namespace
