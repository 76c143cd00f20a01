// Every state in which n members can lose an aggregator, for small n, without any transport: the
// members' states are summed by hand, and the new aggregator is a sum by hand.
#include "client/core/handover/handover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ranges>

namespace sluice::client {
namespace {

using Kind = Handover::Kind;
using Fate = Handover::Fate;

// How far one member is with one row of the step.
enum class At : std::uint8_t { kNothing, kContributed, kDone };
constexpr At kAts[] = {At::kNothing, At::kContributed, At::kDone};

struct RowCase {
  Kind kind{};
  std::uint32_t root = 0;
  std::vector<At> at;  // by member
};

// The members of a job, each with its handover, and rows of which each is somewhere.
struct Members {
  Members(std::uint32_t count, const std::vector<RowCase>& cases, std::vector<bool> is_ahead,
          Step step = 7)
      : rows(cases), ahead(std::move(is_ahead)), first_step(step) {
    for (std::uint32_t self = 0; self < count; ++self) {
      Handover& member = all.emplace_back(count, self);
      for (std::uint32_t row = 0; row < rows.size(); ++row) {
        EXPECT_EQ(member.add_row(rows[row].kind, rows[row].root), row);
        if (step > 1) {  // the step before is over for all
          member.contribute(row, step - 1);
          member.finish(row);
        }
        if (rows[row].at[self] != At::kNothing) member.contribute(row, step);
        if (rows[row].at[self] == At::kDone) member.finish(row);
      }
    }
  }

  Step step_of(std::uint32_t self) const { return first_step + (ahead[self] ? 1 : 0); }

  // What the new aggregator does with the members' states.
  void exchange(const std::vector<std::uint32_t>& collectives = {}) {
    std::vector<float> sum(Handover::state_elems(count(), rows.size()));
    for (std::uint32_t self = 0; self < count(); ++self) {
      all[self].begin(step_of(self), collectives.empty() ? 0 : collectives[self]);
      EXPECT_EQ(all[self].state(), Handover::State::kExchanging);
      EXPECT_EQ(all[self].states().size(), sum.size());
      std::ranges::transform(all[self].states(), sum, sum.begin(), std::plus<>());
    }
    for (Handover& member : all) {
      std::ranges::copy(sum, member.states().begin());
      member.end_exchange();
    }
  }

  std::uint32_t count() const { return static_cast<std::uint32_t>(all.size()); }

  std::vector<Handover> all;
  std::vector<RowCase> rows;
  std::vector<bool> ahead;
  Step first_step;
};

// Whether members can be there: a result needs every member's contribution, and so does a member
// that is in the next step. Only a sum that is not wanted can be counted earlier.
bool is_possible(const RowCase& row, const std::vector<bool>& ahead) {
  const auto all_contributed = std::ranges::find(row.at, At::kNothing) == row.at.end();
  const bool some_ahead = std::ranges::find(ahead, true) != ahead.end();
  if (some_ahead && !all_contributed) return false;
  for (std::uint32_t member = 0; member < row.at.size(); ++member) {
    if (ahead[member] && row.at[member] != At::kDone) return false;
    const bool wants =
        row.kind == Kind::kAllReduce || (row.kind == Kind::kReduce) == (member == row.root);
    if (row.at[member] == At::kDone && wants && !all_contributed) return false;
  }
  // The root of a sum that others wait for has it before any of them is through the step.
  return row.kind != Kind::kReduce || !some_ahead || row.at[row.root] == At::kDone;
}

// Each member's contribution is a bit, so a sum shows who is in it, and how often.
std::uint64_t bit(std::uint32_t member) { return std::uint64_t{1} << 8 * member; }

void check(Members& members, std::uint32_t index) {
  const RowCase& row = members.rows[index];
  const std::uint32_t count = members.count();
  const auto wants = [&](std::uint32_t member) {
    return row.kind == Kind::kAllReduce || (row.kind == Kind::kReduce) == (member == row.root);
  };
  std::uint64_t whole = 0;
  for (std::uint32_t member = 0; member < count; ++member)
    if (row.kind != Kind::kBroadcast || member == row.root) whole += bit(member);
  const auto is_held = [&](std::uint32_t member) {
    if (row.kind == Kind::kBroadcast) return member == row.root && row.at[member] != At::kNothing;
    return wants(member) && row.at[member] == At::kDone;
  };
  const bool held = std::ranges::any_of(std::views::iota(0u, count), is_held);
  std::uint64_t sum = 0;
  std::uint32_t givers = 0;
  for (std::uint32_t member = 0; member < count; ++member) {
    const Handover& one = members.all[member];
    ASSERT_EQ(one.first_step(), members.first_step);
    const Fate fate = one.fate(index);
    const bool lacks = row.at[member] == At::kContributed;
    EXPECT_EQ(one.needs(index), lacks);
    if (fate == Fate::kGive) {
      EXPECT_TRUE(is_held(member)) << "member " << member << " gives what it does not have";
      sum += whole;
      ++givers;
    }
    const bool contributes = fate == Fate::kContributeAgain || fate == Fate::kContributeFirst;
    EXPECT_EQ(contributes, !held);
    if (contributes) {
      EXPECT_EQ(fate == Fate::kContributeFirst, row.at[member] == At::kNothing);
      if (row.kind != Kind::kBroadcast || member == row.root) sum += bit(member);
    }
    EXPECT_EQ(fate == Fate::kTake, held && lacks && wants(member) && !is_held(member));
  }
  EXPECT_EQ(givers, held && row.kind != Kind::kReduce ? 1u : 0u);
  // What the new aggregator sums is the old sum: each contribution once.
  EXPECT_EQ(sum, held && givers == 0 ? 0 : whole);
}

// Calls `body` with all words of `length` letters out of 0 .. letters - 1.
void for_words(std::uint32_t length, std::uint32_t letters,
               const std::function<void(const std::vector<std::uint32_t>&)>& body) {
  std::vector<std::uint32_t> word(length);
  while (true) {
    body(word);
    std::uint32_t at = 0;
    while (at < length && ++word[at] == letters) word[at++] = 0;
    if (at == length) return;
  }
}

std::vector<RowCase> cases_of(std::uint32_t count, const std::vector<bool>& ahead) {
  std::vector<RowCase> found;
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast})
    for (std::uint32_t root = 0; root < (kind == Kind::kAllReduce ? 1 : count); ++root)
      for_words(count, 3, [&](const std::vector<std::uint32_t>& word) {
        RowCase row{.kind = kind, .root = root, .at = {}};
        for (const std::uint32_t letter : word) row.at.push_back(kAts[letter]);
        if (is_possible(row, ahead)) found.push_back(std::move(row));
      });
  return found;
}

// One member at least is not ahead: else it would be the next step.
void for_ahead(std::uint32_t count, const std::function<void(const std::vector<bool>&)>& body) {
  for_words(count, 2, [&](const std::vector<std::uint32_t>& word) {
    std::vector<bool> ahead(word.begin(), word.end());
    if (std::ranges::find(ahead, false) != ahead.end()) body(ahead);
  });
}

TEST(Handover, AResultIsGivenOnceAndEveryContributionCountsOnceWhereverFiveMembersAre) {
  std::size_t states = 0;
  for (std::uint32_t count = 1; count <= 5; ++count)
    for_ahead(count, [&](const std::vector<bool>& ahead) {
      for (const RowCase& row : cases_of(count, ahead)) {
        Members members(count, {row}, ahead);
        members.exchange();
        check(members, 0);
        ++states;
      }
    });
  EXPECT_GT(states, 1'000u);
}

TEST(Handover, TheFateOfARowDependsOnNoOtherRow) {
  for (std::uint32_t count = 2; count <= 3; ++count)
    for_ahead(count, [&](const std::vector<bool>& ahead) {
      const std::vector<RowCase> cases = cases_of(count, ahead);
      for (const RowCase& first : cases)
        for (const RowCase& second : cases) {
          Members members(count, {first, second}, ahead);
          members.exchange();
          check(members, 0);
          check(members, 1);
        }
    });
}

// A member's bit is one of sixteen in a word, and the first word is full.
TEST(Handover, OneHolderOfManyGivesTheResult) {
  for (const std::uint32_t count : {16u, 17u, 33u})
    for (std::uint32_t holder = 0; holder < count; ++holder) {
      RowCase row{.kind = Kind::kAllReduce, .root = 0, .at = {}};
      row.at.assign(count, At::kContributed);
      row.at[holder] = At::kDone;
      Members members(count, {row, row}, std::vector<bool>(count));
      members.exchange();
      for (std::uint32_t member = 0; member < count; ++member)
        for (const std::uint32_t index : {0u, 1u})
          EXPECT_EQ(members.all[member].fate(index), member == holder ? Fate::kGive : Fate::kTake);
    }
}

TEST(Handover, AMemberAheadGivesWhatItHasAndThenFollowsWithItsNextStep) {
  // Steps are stated in sixteen bits.
  for (const Step step : {1u, 2u, 0xFFFEu, 0xFFFFu, 0x10000u, 0x1FFFFu}) {
    const RowCase row{.kind = Kind::kAllReduce, .root = 0, .at = {At::kContributed, At::kDone}};
    Members members(2, {row}, {false, true}, step);
    members.all[1].contribute(0, step + 1);
    members.exchange();
    for (const Handover& member : members.all) EXPECT_EQ(member.first_step(), step);
    EXPECT_EQ(members.all[0].fate(0), Fate::kTake);
    EXPECT_EQ(members.all[1].fate(0), Fate::kGive);
    EXPECT_FALSE(members.all[0].is_ahead_in(0));
    EXPECT_TRUE(members.all[1].is_ahead_in(0));
    EXPECT_FALSE(members.all[1].needs(0));
  }
}

TEST(Handover, AnotherAggregatorMayBeLostOnceTheFirstLossIsSettled) {
  const RowCase row{
      .kind = Kind::kAllReduce, .root = 0, .at = {At::kContributed, At::kContributed}};
  Members members(2, {row}, {false, false});
  members.exchange();
  check(members, 0);
  for (Handover& member : members.all) {
    member.finish(0);
    member.settle();
    EXPECT_EQ(member.state(), Handover::State::kSettled);
    member.contribute(0, members.first_step + 1);
  }
  ++members.first_step;
  members.all[1].finish(0);
  members.rows[0].at[1] = At::kDone;
  members.exchange();
  check(members, 0);
  EXPECT_EQ(members.all[1].fate(0), Fate::kGive);
}

TEST(Handover, ACollectiveIsOverForAllOnceItIsOverForOne) {
  for (const std::uint32_t ended : {0u, 5u, 0xFFFFu}) {
    Members members(3, {}, {false, false, false});
    members.exchange({ended, ended + 1, ended});
    EXPECT_TRUE(members.all[0].is_collective_over());
    EXPECT_FALSE(members.all[1].is_collective_over());
    EXPECT_TRUE(members.all[2].is_collective_over());
    Members equal(3, {}, {false, false, false});
    equal.exchange({ended, ended, ended});
    for (const Handover& member : equal.all) EXPECT_FALSE(member.is_collective_over());
  }
}

TEST(HandoverDeathTest, StatesAreExchangedOnceUntilTheLossIsSettled) {
  Handover member(2, 0);
  member.begin(1, 0);
  EXPECT_DEATH(member.begin(1, 0), "CHECK");
  EXPECT_DEATH(member.settle(), "CHECK");
}

TEST(HandoverDeathTest, AResultComesOnlyOfAContribution) {
  Handover member(2, 0);
  member.add_row(Kind::kAllReduce, 0);
  EXPECT_DEATH(member.finish(0), "CHECK");
}

}  // namespace
}  // namespace sluice::client
