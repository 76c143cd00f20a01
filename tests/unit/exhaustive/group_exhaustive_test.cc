// Every state of a group of three ranks that takes three operations through two slots: calls,
// parts, floors, probes in any order, repeated or lost. No slot is used again too early, every sum
// is that of its parts, and no schedule waits for ever.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/unit/exhaustive/group_model.h"
#include "tests/unit/exhaustive/replay.h"

namespace sluice::exhaustive {
namespace {

using wire::OperationKind;
using Mutation = GroupConfig::Mutation;

Found explore(const GroupConfig& config) {
  return explore_by_replay<GroupModel>(config, &describe);
}

void visit(const char* name, const GroupConfig& config) {
  const Found found = explore(config);
  EXPECT_EQ(found.violation, "") << found.path;
  std::printf("%u members, %s: %zu states\n", config.member_count, name, found.states);
  std::fflush(stdout);
}

TEST(ExhaustiveGroup, ThreeSumsThroughTwoSlots) { visit("three sums", {}); }

TEST(ExhaustiveGroup, ASumBetweenTwoBroadcasts) {
  visit(
      "a sum between two broadcasts",
      {.kinds = {OperationKind::kBroadcast, OperationKind::kAllReduce, OperationKind::kBroadcast}});
}

TEST(ExhaustiveGroup, ABroadcastBetweenTwoReductions) {
  visit("a broadcast between two reductions",
        {.kinds = {OperationKind::kReduce, OperationKind::kBroadcast, OperationKind::kReduce}});
}

TEST(ExhaustiveGroup, WrongRulesAreFound) {
  EXPECT_EQ(explore({.member_count = 2, .mutation = Mutation::kSendEarly}).violation,
            "a part that may be sent is refused");
  EXPECT_EQ(explore({.member_count = 2, .mutation = Mutation::kTellEarly}).violation,
            "the group's floor passes what a member lacks");
  EXPECT_EQ(explore({.member_count = 2, .mutation = Mutation::kCountTwice}).violation,
            "another sum");
}

}  // namespace
}  // namespace sluice::exhaustive
