// The errors of a job whose policy options make no sense, or differ between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <sluice/sluice.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client_abi/job_support.h"

namespace {

using job_test::error_of;
using job_test::fixed;
using job_test::kLong;
using job_test::on_every_rank;
using job_test::options_for;
using sluice::Error;
using sluice::Job;
using sluice::Options;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kWorld = 4;
constexpr std::size_t kElems = 3000;

TEST(PolicyOfAJob, RanksThatAskForDifferentPoliciesAreToldBoth) {
  std::atomic<int> refused{0};
  on_every_rank(2, [&](std::uint32_t rank) {
    Options options = options_for("disagree", rank, 2);
    options.policy.kind = rank == 0 ? SLUICE_POLICY_FIXED : SLUICE_POLICY_RAMP;
    options.policy.planned_steps = 100;
    options.timeouts.join_ms = 2000;  // of who is not refused
    const Error error = error_of([&] { Job job(options, {{"a", 4}}); });
    if (error.status() != SLUICE_REFUSED) return;
    ++refused;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("fixed"), HasSubstr("ramp")));
  });
  EXPECT_EQ(refused, 1);
}

TEST(PolicyOfAJob, PolicyOptionsThatMakeNoSenseAreNamed) {
  struct Case {
    void (*set)(Options&);
    const char* field;
  };
  const Case cases[] = {
      {[](Options& c) { c.policy.kind = 9; }, "policy.kind is 9"},
      {[](Options& c) { c.policy.late = 2; }, "late is 2"},
      {[](Options& c) { c.policy.k = 0; }, "k is 0"},
      {[](Options& c) { c.policy.k = 5; }, "1 to 4, the world size"},
      {[](Options& c) {
         c.policy.kind = SLUICE_POLICY_SAINA;
         c.policy.sign_threshold_permille = 1001;
       },
       "1001"},
      {[](Options& c) {
         c.policy.kind = SLUICE_POLICY_SAINA;
         c.policy.count_threshold = 65'536;
       },
       "65536"},
      {[](Options& c) {
         c.policy.kind = SLUICE_POLICY_SAINA;
         c.policy.sign_stride = 2;
       },
       "sign_stride is 2"},
      {[](Options& c) { c.policy.kind = SLUICE_POLICY_RAMP; }, "planned_steps is 0"},
      {[](Options& c) {
         c.policy.kind = SLUICE_POLICY_SAINA;
         c.policy.round_steps = 0;
       },
       "round_steps is 0"},
  };
  for (const Case& wrong : cases) {
    Options options = fixed("options", 0, kWorld, 2, SLUICE_LATE_DROP);
    wrong.set(options);
    const Error error = error_of([&] { Job job(options, {{"a", 4}}); });
    EXPECT_EQ(error.status(), SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr(wrong.field));
  }
}

}  // namespace
