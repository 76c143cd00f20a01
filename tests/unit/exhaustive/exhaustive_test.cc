// Every reachable state of small jobs, with every k, both late modes, one and two shards, and the
// death of one worker; and the proof that the checks can fail.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <set>

#include "tests/unit/exhaustive/explorer.h"

namespace sluice::exhaustive {
namespace {

using testing::HasSubstr;

// Four workers take ten times as long as three: `./run test full` has them.
std::uint16_t most_workers() { return std::getenv("SLUICE_FULL_TIER") != nullptr ? 4 : 3; }

std::string name_of(const Config& config) {
  std::string text = "n=" + std::to_string(config.worker_count);
  if (config.sync())
    text += " sync";
  else
    text += " k=" + std::to_string(config.k) + "," + std::to_string(config.next_k) + " " +
            sluice::name_of(config.late);
  return text + " shards=" + std::to_string(config.shard_count) + (config.death ? " death" : "");
}

std::string story(const Report& report) {
  std::string text = report.violation;
  for (const std::string& line : report.path) text += "\n  " + line;
  return text;
}

// Adds to the totals that are printed at the end.
class Exhaustive : public testing::Test {
 protected:
  static void TearDownTestSuite() {
    std::printf("exhaustive: %zu states, %llu events, %.1f CPU s in all\n", states_,
                static_cast<unsigned long long>(events_),
                static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
  }
  static void visit(const Config& config) {
    const std::clock_t begin = std::clock();
    const Report report = explore(config);
    const double taken_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("%-36s %9zu states %10llu events %6zu ends %6.2f CPU s\n", name_of(config).c_str(),
                report.states, static_cast<unsigned long long>(report.events), report.ends,
                taken_s);
    std::fflush(stdout);
    EXPECT_EQ(report.violation, "") << name_of(config) << ": " << story(report);
    EXPECT_GT(report.ends, 0u) << name_of(config) << ": no schedule ends the steps";
    states_ += report.states;
    events_ += report.events;
  }
  enum class NextK { kAny, kTheSame };  // of step 4, compared with step 3

  static void visit_all(Config config, NextK next_k) {
    const std::uint16_t n = config.worker_count;
    config.k = config.next_k = n + 1;
    visit(config);
    for (config.k = 1; config.k <= n; ++config.k)
      for (config.next_k = 1; config.next_k <= n; ++config.next_k)
        for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
          config.late = late;
          if (next_k == NextK::kAny || config.k == config.next_k) visit(config);
        }
  }

  inline static std::size_t states_ = 0;
  inline static std::uint64_t events_ = 0;
};

TEST_F(Exhaustive, EveryStateOfOneShardObeysTheRules) {
  for (std::uint16_t n = 1; n <= most_workers(); ++n) visit_all({.worker_count = n}, NextK::kAny);
}

TEST_F(Exhaustive, EveryStateOfTwoShardsObeysTheRules) {
  for (std::uint16_t n = 1; n <= most_workers(); ++n)
    visit_all({.worker_count = n, .shard_count = 2}, n < 4 ? NextK::kAny : NextK::kTheSame);
}

TEST_F(Exhaustive, AWorkerMayDieInAnyStateOfOneShard) {
  for (const std::uint16_t n : {2, 3})
    visit_all({.worker_count = n, .death = true}, n < 3 ? NextK::kAny : NextK::kTheSame);
}

TEST_F(Exhaustive, AWorkerMayDieInAnyStateOfTwoShards) {
  visit_all({.worker_count = 2, .shard_count = 2, .death = true}, NextK::kAny);
}

// Names are forgotten to save time, not states: a visit that keeps them finds the same ones.
TEST_F(Exhaustive, StatesThatDifferByNamesAloneAreAlike) {
  for (const Config& config :
       {Config{.worker_count = 3, .k = 2, .next_k = 1, .late = LateMode::kRequeue},
        Config{.worker_count = 3, .k = 1, .next_k = 2, .shard_count = 2},
        Config{.worker_count = 2, .k = 1, .next_k = 1, .shard_count = 2, .death = true}}) {
    const Report named = explore(config, Names::kKeep);
    EXPECT_EQ(named.violation, "");
    std::set<Key> classes;
    for (const Key key : named.keys)
      classes.insert(canonical_key(state_of(key), config.worker_count, config.shard_count));
    const Report report = explore(config);
    EXPECT_GT(named.states, 3 * report.states);
    EXPECT_EQ(classes, std::set<Key>(report.keys.begin(), report.keys.end()));
  }
}

// ---- the checks can fail: each wrong rule is found by the invariant that it breaks ----

std::string found(Mutation mutation, Config config) {
  EXPECT_EQ(explore(config).violation, "") << "without the mutation";
  config.mutation = mutation;
  const Report report = explore(config);
  EXPECT_FALSE(report.path.empty());
  return report.violation;
}

TEST(ExhaustiveChecks, FindALatePacketInAResult) {
  EXPECT_THAT(found(Mutation::kFoldLate, {.worker_count = 2, .k = 1}), HasSubstr("I1, I3"));
}

TEST(ExhaustiveChecks, FindADuplicateInASum) {
  EXPECT_THAT(found(Mutation::kFoldTwice, {.worker_count = 2, .k = 2, .next_k = 2}),
              HasSubstr("I1, I3"));
}

TEST(ExhaustiveChecks, FindAPacketOfAnotherStep) {
  EXPECT_THAT(found(Mutation::kMixSteps, {.worker_count = 3, .k = 2, .next_k = 2}),
              HasSubstr("I1, I3"));
}

TEST(ExhaustiveChecks, FindAStepThatOpensEarly) {
  for (const std::uint16_t shard_count : {1, 2})
    EXPECT_THAT(
        found(Mutation::kOpenEarly, {.worker_count = 2, .k = 1, .shard_count = shard_count}),
        HasSubstr("opened before all its chunks were closed"));
}

TEST(ExhaustiveChecks, FindAResultOfFewerThanK) {
  EXPECT_THAT(found(Mutation::kShortOfK, {.worker_count = 3, .k = 2, .next_k = 2}),
              HasSubstr("k 1 complete, and its members make"));
}

TEST(ExhaustiveChecks, FindASlotThatWaitsForADeadWorker) {
  EXPECT_THAT(
      found(Mutation::kForgetSweep, {.worker_count = 2, .k = 2, .next_k = 2, .death = true}),
      HasSubstr("I4: k are in, and the slot is not complete"));
}

}  // namespace
}  // namespace sluice::exhaustive
