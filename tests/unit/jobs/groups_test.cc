// Jobs of kind operations: the limits of a join, and how groups are made, left, broken and removed.
#include "tests/unit/jobs/groups_fixture.h"

namespace sluice::agg {
namespace {

using testing::HasSubstr;

TEST_F(GroupsOfJob, AJoinWithTensorsOrAPolicyIsRefused) {
  Worker asks = worker(0);
  asks.join.layouts[kTensorStream].chunk_count = 3;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("leave all of these out"));
  asks = worker(0);
  asks.join.has_policy = 1;
  EXPECT_THAT(refusal_of(asks, wire::RefuseCode::kBadRequest), HasSubstr("policy"));
}

TEST_F(GroupsOfJob, ARankOfAnotherKindIsRefusedWithBoth) {
  Worker first = worker(0);
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  Worker other{.rank = 1, .name = "ops", .world_size = 3};
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kPolicy),
              HasSubstr("asks for sums of gradients, job 'ops' has operations of groups"));
}

TEST_F(GroupsOfJob, AllRanksAskForReproducibleSumsOrTheConfigurationDoes) {
  Worker first = worker(0);
  first.join.features = wire::kFeatureReproducible;
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  EXPECT_TRUE(only_job()->spec.operations->reproducible);
  EXPECT_LE(Job::memory_bytes(only_job()->spec), kJobBytes / 8 + (1 << 20));
  Worker other = worker(1);
  EXPECT_THAT(refusal_of(other, wire::RefuseCode::kLayout),
              HasSubstr("rank 1 says reproducible 0, job 'ops' has 1 (set by rank 0)"));
  JobsOptions configured = options();
  configured.named_jobs = {{.job_name = "ops", .reproducible = true}};
  restart(configured);
  start();
  EXPECT_TRUE(only_job()->spec.operations->reproducible);
}

// Its other members follow, and make it there.
TEST_F(GroupsOfJob, AGroupIsNotMadeOnceAMemberHasMoved) {
  start();
  const auto before = made(ask(workers[1], "before", 0b110));
  leave(workers[0], wire::LeaveReason::kMoved);
  EXPECT_FALSE(ask(workers[1], "behind", 0b111).is(PacketType::kGroupMade)) << "it asks again";
  EXPECT_EQ(made(ask(workers[2], "before", 0b110)), before);
}

TEST_F(GroupsOfJob, TheJobTakesAShareOfWhatAJobMayHave) {
  start();
  const std::size_t bytes = Job::memory_bytes(only_job()->spec);
  EXPECT_LE(bytes, kJobBytes / 8 + (1 << 20));
  EXPECT_GE(bytes, kJobBytes / 8 - (1 << 20));
}

TEST_F(GroupsOfJob, GroupsThemselvesTakeOfTheJobsMemory) {
  JobsOptions small = options();
  small.max_job_memory_bytes = std::size_t{8} << 20;
  restart(small);
  start();
  const OperationsSpec& spec = *only_job()->spec.operations;
  const std::size_t one = Group::memory_bytes(1, 3, kTestShards);
  EXPECT_EQ(spec.group_bytes, (std::size_t{8} << 20) / 8 / 4);
  std::size_t count = 0;
  Answered answered;
  do answered = ask(workers[0], "group" + std::to_string(count), 1);
  while (answered.text().empty() && ++count < kMaxGroups);
  EXPECT_EQ(count, spec.group_bytes / one);
  EXPECT_THAT(answered.text(), HasSubstr("raise limits.job_memory_mib (8)"));
  ask(workers[0], "group0", 1, wire::GroupRequest::kLeave);
  pass(1200 * kMillisecond, {&workers[0], &workers[1], &workers[2]});
  made(ask(workers[0], "another", 1));
}

TEST_F(GroupsOfJob, AMembersAbortBreaksItsGroupAlone) {
  start();
  const auto all = made(ask(workers[0], "all", 0b111));
  made(ask(workers[0], "pair", 0b011));
  EXPECT_TRUE(ask(workers[1], "all", 0b111, wire::GroupRequest::kAbort).is(PacketType::kGroupMade));
  EXPECT_EQ(call(workers[0], all), Verdict::kCall) << "it is told that the group is broken";
  EXPECT_THAT(refused(ask(workers[2], "all", 0b111)), HasSubstr("rank 1 of it has left"));
  made(ask(workers[1], "pair", 0b011));
}

TEST_F(GroupsOfJob, MembersThatNameTheSameRanksGetTheSameGroup) {
  start();
  const auto first = made(ask(workers[0], "dp", 0b101));
  EXPECT_EQ(made(ask(workers[2], "dp", 0b101)), first);
  EXPECT_EQ(made(ask(workers[0], "dp", 0b101)), first) << "asked again";
  EXPECT_NE(made(ask(workers[0], "tp", 0b101)), first);
  EXPECT_EQ(call(workers[2], first), Verdict::kCall);
  EXPECT_EQ(call(workers[1], first), Verdict::kUnknownGroup);
}

TEST_F(GroupsOfJob, WhatNoGroupCanBeIsRefusedWithBothValues) {
  start();
  made(ask(workers[0], "dp", 0b101));
  EXPECT_THAT(refused(ask(workers[2], "dp", 0b111)),
              HasSubstr("rank 2 says ranks 0, 1, 2, rank 0 has made it of ranks 0, 2"));
  EXPECT_THAT(refused(ask(workers[1], "dp", 0b101)), HasSubstr("rank 1 is not one of its ranks"));
  EXPECT_THAT(refused(ask(workers[1], "big", 0b1010)), HasSubstr("ranks 0 to 2"));
}

TEST_F(GroupsOfJob, AtMost256GroupsAreMade) {
  JobsOptions big = options();
  big.max_job_memory_bytes = std::size_t{1} << 30;
  restart(big);
  start();
  for (std::size_t i = 0; i < kMaxGroups; ++i)
    made(ask(workers[0], "group" + std::to_string(i), 1));
  EXPECT_THAT(refused(ask(workers[0], "one more", 1)), HasSubstr("256 groups"));
}

TEST_F(GroupsOfJob, AGroupIsRemovedWhenAllMembersHaveLeftIt) {
  start();
  const auto first = made(ask(workers[0], "dp", 0b011));
  made(ask(workers[1], "dp", 0b011));
  EXPECT_TRUE(ask(workers[0], "dp", 0b011, wire::GroupRequest::kLeave).is(PacketType::kGroupMade));
  EXPECT_THAT(refused(ask(workers[0], "dp", 0b011)), HasSubstr("this rank has left it"));
  EXPECT_EQ(call(workers[1], first), Verdict::kCall);
  ask(workers[1], "dp", 0b011, wire::GroupRequest::kLeave);
  EXPECT_EQ(call(workers[1], first), Verdict::kUnknownGroup);
  const auto second = made(ask(workers[0], "dp", 0b011));
  EXPECT_NE(second.first, first.first) << "its id is in use until no event can mean it";
  EXPECT_NE(second.second, first.second);
  pass(1200 * kMillisecond, {&workers[0], &workers[1], &workers[2]});
  EXPECT_EQ(made(ask(workers[0], "third", 1)).first, first.first);
}

TEST_F(GroupsOfJob, ALostRankBreaksItsGroupsAndTheJobGoesOn) {
  start();
  made(ask(workers[0], "all", 0b111));
  const auto pair = made(ask(workers[0], "pair", 0b011));
  leave(workers[2], wire::LeaveReason::kAbnormal);
  EXPECT_EQ(call(workers[0], pair), Verdict::kCall);
  EXPECT_THAT(refused(ask(workers[1], "all", 0b111)), HasSubstr("rank 2 of it has left"));
  EXPECT_THAT(refused(ask(workers[0], "new", 0b111)), HasSubstr("rank 2 is no member"));
  made(ask(workers[0], "without", 0b011));
  EXPECT_TRUE(keepalive(workers[0]).is(PacketType::kStatus));
}

TEST_F(GroupsOfJob, AnAbortEndsTheJobForAllWithItsReason) {
  start();
  const std::string why = "the loss is NaN";
  wire::Leave body{.reason = wire::LeaveReason::kAborted,
                   .text_bytes = static_cast<std::uint16_t>(why.size())};
  std::array<std::uint8_t, 512> out;
  const Worker& from = workers[1];
  const std::size_t bytes =
      wire::encode(out, {from.job, from.rank, from.cookie}, body, {},
                   {reinterpret_cast<const std::uint8_t*>(why.data()), why.size()});
  send({out.data(), bytes}, from.address);
  const std::vector<Sent> notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_THAT(std::string(notices[0].packet.text()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(notices[0].packet.text()), HasSubstr(why));
}

TEST_F(GroupsOfJob, AProcessThatTakesALostRankMakesGroupsOfItsOwn) {
  start();
  made(ask(workers[0], "all", 0b111));
  leave(workers[2], wire::LeaveReason::kAbnormal);
  pump();
  Worker successor = successor_of(workers[2]);
  ASSERT_TRUE(rejoin(successor).is(PacketType::kAccept));
  EXPECT_THAT(refused(ask(successor, "all", 0b111)), HasSubstr("rank 2 of it has left"));
  const auto group = made(ask(successor, "again", 0b111));
  EXPECT_EQ(made(ask(workers[0], "again", 0b111)), group);
  EXPECT_EQ(call(successor, group), Verdict::kCall);
}

}  // namespace
}  // namespace sluice::agg
