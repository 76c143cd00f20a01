#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using wire::LeaveReason;
using wire::NoticeCode;
using wire::PacketType;

using Keepalive = ControlTest;

TEST_F(Keepalive, IsAnsweredWithTheJobsStateAndWhoIsMissing) {
  Worker first{.world_size = 3}, third{.rank = 2, .world_size = 3};
  join(first);
  join(third);
  const Answered answered = keepalive(first);
  ASSERT_TRUE(answered.is(PacketType::kStatus));
  const auto& status = answered.body<wire::Status>();
  EXPECT_EQ(status.state, wire::JobState::kForming);
  EXPECT_EQ(status.echo_timestamp_us, 77u);
  EXPECT_EQ(status.joined_count, 2);
  EXPECT_EQ(status.world_size, 3);
  EXPECT_EQ(status.left, 0);
  EXPECT_EQ(answered.packet.mask_word(0), 0b010u);
  EXPECT_TRUE(answered.result.bind);
  EXPECT_EQ(answered.result.verdict, Verdict::kKeepalive);
  EXPECT_EQ(answered.packet.common().cookie, first.cookie);
}

TEST_F(Keepalive, RefreshesTheAddress) {
  auto workers = running_job(2);
  workers[1].address = "10.8.8.8:5";
  EXPECT_TRUE(keepalive(workers[1]).result.bind);
  EXPECT_EQ(jobs.members(JobId{workers[1].job}, now)[1].address, "10.8.8.8:5");
}

TEST_F(Keepalive, OfAStrangerIsCountedAndNotAnswered) {
  auto workers = running_job(2);
  Worker stranger = workers[0];
  const auto verdict_of = [&] {
    const Answered answered = keepalive(stranger);
    EXPECT_TRUE(answered.bytes.empty());
    EXPECT_FALSE(answered.result.bind);
    return answered.result.verdict;
  };
  stranger.cookie ^= 1;
  EXPECT_EQ(verdict_of(), Verdict::kBadCookie);
  stranger.cookie = 0;
  EXPECT_EQ(verdict_of(), Verdict::kBadCookie);
  stranger.rank = 2;
  EXPECT_EQ(verdict_of(), Verdict::kBadRank);
  stranger.job = 200;
  EXPECT_EQ(verdict_of(), Verdict::kUnknownJob);
  stranger.job = 60'000;
  EXPECT_EQ(verdict_of(), Verdict::kUnknownJob);
}

TEST_F(Keepalive, AndJoinLeaveAndResyncAreTheOnlyTypesOfTheControlPort) {
  auto workers = running_job(1);
  EXPECT_EQ(send(workers[0], wire::Probe{}).result.verdict, Verdict::kBadType);
  EXPECT_EQ(send(workers[0], wire::Ping{}).result.verdict, Verdict::kBadType);
  EXPECT_EQ(send(workers[0], wire::Accept{}).result.verdict, Verdict::kBadType);
  EXPECT_EQ(jobs.verdicts().read(Verdict::kBadType), 3u);
}

using Leave = ControlTest;

TEST_F(Leave, OfAFinishedMemberIsStoredBeforeTheShardsAreTold) {
  auto workers = running_job(2);
  commands.clear();
  const Answered answered = leave(workers[0], LeaveReason::kUneven);
  ASSERT_TRUE(answered.is(PacketType::kStatus));
  EXPECT_EQ(answered.body<wire::Status>().left, 1);
  EXPECT_EQ(answered.body<wire::Status>().state, wire::JobState::kRunning);
  EXPECT_EQ(answered.packet.mask_word(0), 0u);
  EXPECT_EQ(answered.result.verdict, Verdict::kLeave);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].kind, ShardCommand::Kind::kMemberGone);
  EXPECT_EQ(commands[0].rank.value, 0);
  const Member& member = only_job()->members[0];
  EXPECT_EQ(member.left_from[0].load(), 5u);
  EXPECT_EQ(member.left_from[1].load(), 2u);
  EXPECT_FALSE(member.reachable.load());
  EXPECT_EQ(only_job()->members[1].left_from[0].load(), kNoStep);
}

// No step of a synchronous job is complete without the rank, and a rank that begins one is told.
TEST_F(Leave, InOrderEndsASynchronousJobWhenAnotherRankGoesOn) {
  auto workers = running_job(3);
  Job* job = commands[0].job;
  leave(workers[1]);
  EXPECT_EQ(job->members[1].left_from[0].load(), kNoStep);
  EXPECT_EQ(job->members[1].left_from[1].load(), 2u);
  for (const std::uint16_t rank : {0, 1, 2}) job->slices[0].flows[rank].last_contribution_step = 4;
  pass(10 * kSecond, {&workers[0], &workers[2]});
  EXPECT_FALSE(job->ended.load());
  job->slices[1].flows[2].last_contribution_step = 5;
  pass(100 * kMillisecond, {&workers[0], &workers[2]});
  EXPECT_TRUE(job->ended.load());
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kMemberLeft);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().rank, 1);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("'digits'"), HasSubstr("rank 1 at 10.0.0.3:40000 ended in order"),
                    HasSubstr("after step 4"), HasSubstr("rank 2 contributes to step 5"),
                    HasSubstr("look at that rank's log"), HasSubstr("finish()")));
}

TEST_F(Leave, OfTheOthersEndsAJobWhoseLastMemberMayHaveFinishedUnheard) {
  auto workers = running_job(2);
  Job* job = commands[0].job;
  for (const std::uint16_t rank : {0, 1}) job->slices[0].flows[rank].last_contribution_step = 4;
  job->windows[0].open_step = 5;
  pass(40 * kSecond, {&workers[0]});
  EXPECT_FALSE(job->ended.load());
  EXPECT_TRUE(sent_of(PacketType::kNotice).empty());
  leave(workers[0]);
  EXPECT_TRUE(jobs.jobs().empty());
  Worker next{.nonce = 500};
  EXPECT_TRUE(join(next).is(PacketType::kAccept));
}

TEST_F(Leave, LooksForWhoIsFurthestOnceATickAndOnlyWhenSomebodyIsGone) {
  auto workers = running_job(6);
  Job* job = commands[0].job;
  std::vector<const Worker*> all;
  for (const Worker& worker : workers) {
    all.push_back(&worker);
    job->slices[0].flows[worker.rank].last_contribution_step = 4;
  }
  job->windows[0].open_step = 5;
  pass(10 * kSecond, all);
  EXPECT_EQ(jobs.furthest_searches(), 0u);
  pass(40 * kSecond, {&workers[0]});  // the others have finished, unheard
  ASSERT_FALSE(job->ended.load());
  const std::uint64_t before = jobs.furthest_searches();
  pass(kSecond, {&workers[0]});
  EXPECT_EQ(jobs.furthest_searches() - before, 20u) << "a tick every 50 ms";
}

TEST_F(Leave, RepeatedIsAnsweredAgainAndCarriedOutOnce) {
  auto workers = running_job(2);
  leave(workers[0]);
  commands.clear();
  const Answered again = leave(workers[0]);
  ASSERT_TRUE(again.is(PacketType::kStatus));
  EXPECT_EQ(again.body<wire::Status>().left, 1);
  EXPECT_TRUE(commands.empty());
}

TEST_F(Leave, OfAllMembersRemovesTheJobAndFreesItsName) {
  auto workers = running_job(2);
  leave(workers[0]);
  EXPECT_EQ(jobs.jobs().size(), 1u);
  const Answered last = leave(workers[1]);
  EXPECT_EQ(commands.back().kind, ShardCommand::Kind::kRemoveJob);
  EXPECT_TRUE(jobs.jobs().empty());
  EXPECT_EQ(jobs.memory_bytes(), 0u);
  EXPECT_EQ(last.body<wire::Status>().state, wire::JobState::kEnded);
  EXPECT_EQ(leave(workers[1]).body<wire::Status>().left, 1);  // the answer was lost

  Worker next{.nonce = 500};
  EXPECT_TRUE(join(next).is(PacketType::kAccept));
  EXPECT_NE(next.job, workers[0].job);
  pass(10 * kSecond);
  EXPECT_EQ(leave(workers[1]).result.verdict, Verdict::kUnknownJob);
}

TEST_F(Leave, MemoryIsFreedOnlyWhenEveryShardHasLetGo) {
  auto workers = running_job(1);
  shards_answer = false;
  leave(workers[0]);
  Job* job = commands.back().job;
  ASSERT_EQ(commands.back().kind, ShardCommand::Kind::kRemoveJob);
  jobs.handle_event({.kind = ShardEvent::Kind::kJobReleased, .job = job}, now);
  EXPECT_EQ(only_job(), job);
  jobs.handle_event({.kind = ShardEvent::Kind::kJobReleased, .job = job}, now);
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(Leave, LateCopyOfAJoinFoundsNoJob) {
  auto workers = running_job(1);
  leave(workers[0]);
  EXPECT_TRUE(join(workers[0]).bytes.empty());
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(Leave, WithAnErrorEndsASynchronousJobNamingTheRank) {
  auto workers = running_job(3);
  pass(500 * kMillisecond, {&workers[0], &workers[2]});
  const Answered own = leave(workers[1], LeaveReason::kAbnormal);
  ASSERT_TRUE(own.is(PacketType::kStatus));
  EXPECT_EQ(own.body<wire::Status>().left, 1);
  EXPECT_TRUE(only_job()->ended.load());
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[0].to.rank.value, 0);
  EXPECT_EQ(notices[1].to.rank.value, 2);
  for (const Sent& one : notices) {
    EXPECT_EQ(one.packet.body<wire::Notice>().code, NoticeCode::kMemberLeft);
    EXPECT_EQ(one.packet.body<wire::Notice>().rank, 1);
    EXPECT_THAT(std::string(one.packet.text()),
                AllOf(HasSubstr("'digits'"), HasSubstr("rank 1"), HasSubstr("10.0.0.3:40000"),
                      HasSubstr("left with an error"), HasSubstr("0.0 s ago"),
                      HasSubstr("start the job again")));
  }
}

TEST_F(Leave, WhileTheJobFormsFreesTheRank) {
  Worker first{.world_size = 3};
  join(first);
  Worker quitter{.rank = 1, .nonce = 77, .world_size = 3};
  join(quitter);
  EXPECT_EQ(leave(quitter, LeaveReason::kAbnormal).body<wire::Status>().left, 1);
  EXPECT_EQ(keepalive(first).packet.mask_word(0), 0b110u);
  Worker successor{.rank = 1, .nonce = 78, .world_size = 3};
  EXPECT_TRUE(join(successor).is(PacketType::kAccept));
  EXPECT_EQ(keepalive(first).packet.mask_word(0), 0b100u);
  EXPECT_EQ(keepalive(quitter).result.verdict, Verdict::kStaleCookie);
}

TEST_F(Leave, ThenJoiningAgainWaitsForTheOtherRanksBeforeItIsRefused) {
  auto workers = running_job(2);
  leave(workers[0]);
  Worker next{.nonce = 300};
  EXPECT_TRUE(join(next).bytes.empty());
  pass(kSecond, {&workers[1]});
  leave(workers[1]);
  EXPECT_TRUE(join(next).is(PacketType::kAccept));

  Worker other{.rank = 1, .nonce = 301};
  ASSERT_TRUE(join(other).is(PacketType::kAccept));
  leave(next);
  pass(4 * kSecond, {&other});
  Worker impatient{.nonce = 302};
  EXPECT_THAT(refusal_of(impatient, wire::RefuseCode::kRankTaken),
              AllOf(HasSubstr("rank 0"), HasSubstr("4.0 s ago"), HasSubstr("1 of 2 ranks")));
}

using End = ControlTest;

TEST_F(End, OfAJobIsToldToWhoeverAsksForTenSeconds) {
  auto workers = running_job(2);
  leave(workers[1], LeaveReason::kAbnormal);
  sent();
  for (int second = 0; second < 9; ++second) {
    const Answered answered = keepalive(workers[0]);
    ASSERT_TRUE(answered.is(PacketType::kNotice));
    EXPECT_THAT(answered.text(), HasSubstr("rank 1"));
    EXPECT_EQ(jobs.jobs().size(), 1u);
    pass(kSecond);
  }
  pass(2 * kSecond);
  EXPECT_TRUE(jobs.jobs().empty());
  EXPECT_EQ(keepalive(workers[0]).result.verdict, Verdict::kUnknownJob);
}

TEST_F(End, IsOverSoonerWhenAllMembersHaveLeft) {
  auto workers = running_job(2);
  leave(workers[1], LeaveReason::kAbnormal);
  leave(workers[0], LeaveReason::kAbnormal);
  pass(50 * kMillisecond);
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(End, RefusesItsOwnRunAndYieldsToAnother) {
  auto workers = running_job(2);
  leave(workers[1], LeaveReason::kAbnormal);
  Worker same{.nonce = 600};
  EXPECT_THAT(refusal_of(same, wire::RefuseCode::kEnded),
              AllOf(HasSubstr("rank 1"), HasSubstr("left with an error")));
  Worker next{.nonce = 601};
  next.join.run_id = 9;
  EXPECT_TRUE(join(next).is(PacketType::kAccept));
  const Answered told = keepalive(workers[0]);
  ASSERT_TRUE(told.is(PacketType::kNotice));
  EXPECT_EQ(told.body<wire::Notice>().code, NoticeCode::kMemberLeft);
}

TEST_F(End, ByACollectiveMismatchPrintsBothDescriptions) {
  auto workers = running_job(2);
  jobs.handle_event({.kind = ShardEvent::Kind::kCollectiveMismatch,
                     .job = commands[0].job,
                     .rank = Rank{1},
                     .stream = StreamId::kCollectives,
                     .step = 4,
                     .expected = {.size_bytes = 4096, .kind = CollectiveKind::kBroadcast},
                     .actual = {.kind = CollectiveKind::kBarrier}},
                    now);
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kCollective);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("collective 4"), HasSubstr("broadcast of 4096 bytes from rank 0"),
                    HasSubstr("rank 1 at 10.0.0.3:40000 says a barrier")));
  EXPECT_TRUE(only_job()->ended.load());
}

TEST_F(End, ByTheStepLimitIsAnnounced) {
  auto workers = running_job(2);
  jobs.handle_event({.kind = ShardEvent::Kind::kStepLimit,
                     .job = commands[0].job,
                     .stream = StreamId::kGradients,
                     .step = kLastStep},
                    now);
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kStepLimit);
  EXPECT_THAT(std::string(notices[0].packet.text()), HasSubstr("4294967294"));
}

TEST_F(End, ByShutdownIsToldToAllMembersOfAllJobs) {
  auto workers = running_job(2);
  Worker lonely{.name = "forming"};
  join(lonely);
  jobs.shutdown(now);
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 3u);
  for (const Sent& one : notices)
    EXPECT_EQ(one.packet.body<wire::Notice>().code, NoticeCode::kShutdown);
}

}  // namespace
}  // namespace sluice::agg
