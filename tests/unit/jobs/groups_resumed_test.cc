// Groups of a job that goes on from an appliance that is lost.
#include "tests/unit/jobs/groups_fixture.h"

namespace sluice::agg {
namespace {

using testing::HasSubstr;

class GroupsResumed : public GroupsOfJob {
 protected:
  // A process that was in that many groups at the lost appliance.
  static Worker member(std::uint16_t rank, std::uint32_t groups) {
    Worker one = worker(rank);
    one.join.was_member = 1;
    one.join.resume_step = groups + 1;
    return one;
  }
  void start(std::array<std::uint32_t, 3> groups) {
    shards.emplace(kTestShards);
    for (std::uint16_t rank = 0; rank < 3; ++rank) {
      workers.push_back(member(rank, groups[rank]));
      ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
    }
    EXPECT_NE(keepalive(workers[0]).body<wire::Status>().resume_step, 0u);
    sent();
  }
  static wire::GroupPosition at(std::uint64_t floor, std::uint64_t group_floor = 0,
                                std::uint64_t number = 0) {
    wire::GroupPosition position{.first_number = number, .over_number = number};
    position.floors[0] = floor;
    position.group_floors[0] = group_floor;
    return position;
  }
  // Two of the three ranks join, and wait for longer than limits.member_timeout_s.
  void await_third(const wire::Join& as) {
    shards.emplace(kTestShards);
    for (std::uint16_t rank = 0; rank < 2; ++rank) {
      workers.push_back(member(rank, 1));
      workers.back().join.epoch = as.epoch;
      workers.back().join.exchange_entered = as.exchange_entered;
      ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
    }
    EXPECT_FALSE(tell(0, "all", 0b111, at(3)).is(PacketType::kGroupMade)) << "the job forms";
    const TimeNs due_ns = now + options().member_timeout_ns;
    while (now < due_ns + kSecond) {
      for (const Worker& one : workers) keepalive(one);
      pass(250 * kMillisecond);
    }
  }
  Answered tell(std::uint16_t rank, const std::string& name, std::uint64_t ranks,
                const wire::GroupPosition& position,
                wire::GroupRequest request = wire::GroupRequest::kMake) {
    return ask(workers[rank], name, ranks, request, &position);
  }
};

TEST_F(GroupsResumed, AGroupGoesOnWithTheLeastFloorOnceAllHaveToldAll) {
  start({2, 1, 1});
  EXPECT_FALSE(tell(0, "all", 0b111, at(90, 40, 7)).is(PacketType::kGroupMade));
  EXPECT_FALSE(tell(1, "all", 0b111, at(70, 50, 5)).is(PacketType::kGroupMade));
  EXPECT_FALSE(ask(workers[1], "new", 0b010).is(PacketType::kGroupMade))
      << "it may be one that is still to be told";
  EXPECT_FALSE(tell(2, "all", 0b111, at(80, 60, 9)).is(PacketType::kGroupMade))
      << "rank 0 has another group";
  const auto pair = made(tell(0, "pair", 0b011, at(5)));
  const Answered answered = tell(1, "all", 0b111, at(70, 50, 5));
  const auto all = made(answered);
  EXPECT_EQ(std::uint64_t{answered.body<wire::GroupMade>().floors[0]}, 70u);
  EXPECT_NE(all, pair);
  EXPECT_EQ(made(tell(2, "all", 0b111, at(80, 60, 9))), all);
  EXPECT_EQ(made(ask(workers[1], "pair", 0b011)), pair) << "a member that was still to make it";
  made(ask(workers[1], "new", 0b010));
}

TEST_F(GroupsResumed, AMemberThatWasLostBeforeBreaksItsGroups) {
  start({1, 1, 1});
  tell(0, "all", 0b111, at(90, 80));
  tell(1, "all", 0b111, at(85, 80));
  EXPECT_THAT(refused(tell(2, "all", 0b111, at(20, 10))), HasSubstr("rank 2 was lost to it"));
  const Answered answered = tell(0, "all", 0b111, at(90, 80));
  EXPECT_EQ(std::uint64_t{answered.body<wire::GroupMade>().floors[0]}, 85u);
  EXPECT_THAT(refused(ask(workers[0], "all", 0b111)), HasSubstr("rank 2 of it has left"));
}

TEST_F(GroupsResumed, AMemberThatHasLeftAGroupBreaksIt) {
  start({1, 1, 1});
  tell(0, "all", 0b111, at(90));
  tell(1, "all", 0b111, at(85));
  EXPECT_TRUE(tell(2, "all", 0b111, {}, wire::GroupRequest::kLeave).is(PacketType::kGroupMade));
  made(tell(0, "all", 0b111, at(90)));
  EXPECT_THAT(refused(ask(workers[0], "all", 0b111)), HasSubstr("rank 2 of it has left"));
}

TEST_F(GroupsResumed, OtherRanksOfANameAreRefused) {
  start({1, 1, 0});
  tell(0, "pair", 0b011, at(90));
  EXPECT_THAT(refused(tell(1, "pair", 0b111, at(90))), HasSubstr("rank 1 was in another group"));
}

TEST_F(GroupsResumed, ARankThatDoesNotComeIsLostAfterTheMemberTimeout) {
  await_third({});
  EXPECT_NE(keepalive(workers[0]).body<wire::Status>().resume_step, 0u);
  tell(0, "all", 0b111, at(3));
  made(tell(1, "all", 0b111, at(3)));
  Worker late = member(2, 1);
  EXPECT_THAT(join(late).text(), HasSubstr("has gone on without rank 2"));
}

// It may be where the job was before, with others that are not here.
TEST_F(GroupsResumed, AJobThatHasMovedHereWaitsForAllRanks) {
  await_third({.epoch = 1});
  EXPECT_EQ(keepalive(workers[0]).body<wire::Status>().resume_step, 0u) << "it forms";
  workers.push_back(member(2, 1));
  workers.back().join.epoch = 1;
  ASSERT_TRUE(join(workers.back()).is(PacketType::kAccept));
  EXPECT_NE(keepalive(workers[0]).body<wire::Status>().resume_step, 0u);
}

TEST_F(GroupsResumed, AJobThatHasRunHereSinceItMovedNeedNotWait) {
  await_third({.exchange_entered = 2, .epoch = 1});
  EXPECT_NE(keepalive(workers[0]).body<wire::Status>().resume_step, 0u);
}

TEST_F(GroupsResumed, AMemberThatMovesBreaksNoGroupAndOneThatEndsIsMissed) {
  GroupsOfJob::start();
  const auto all = made(ask(workers[0], "all", 0b111));
  leave(workers[0], wire::LeaveReason::kMoved);
  const Answered after = keepalive(workers[1]);
  ASSERT_TRUE(after.is(PacketType::kStatus));
  EXPECT_EQ(after.packet.mask_word(0), 0u);
  EXPECT_EQ(made(ask(workers[1], "all", 0b111)), all);
  EXPECT_EQ(call(workers[1], all), Verdict::kCall);
  leave(workers[2]);
  EXPECT_EQ(keepalive(workers[1]).packet.mask_word(0), 0b100u);
  EXPECT_THAT(refused(ask(workers[1], "all", 0b111)), HasSubstr("rank 2 of it has left"));
}

}  // namespace
}  // namespace sluice::agg
