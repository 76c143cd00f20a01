#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using wire::NoticeCode;
using wire::PacketType;

class Liveness : public ControlTest {
 protected:
  Liveness() {
    JobsOptions quick = options();
    quick.member_timeout_ns = 3 * kSecond;
    restart(quick);
  }
};

TEST_F(Liveness, OfMembersThatSpeakIsNeverDoubted) {
  auto workers = running_job(2);
  pass(60 * kSecond, {&workers[0], &workers[1]});
  EXPECT_TRUE(sent().empty());
  EXPECT_FALSE(only_job()->ended.load());
}

TEST_F(Liveness, DataPacketsCountAsLife) {
  auto workers = running_job(2);
  Job* job = commands[0].job;
  for (int second = 0; second < 20; ++second) {
    job->slices[1].flows[1].last_heard_ns.store(now);
    pass(900 * kMillisecond, {&workers[0]});
  }
  EXPECT_TRUE(sent().empty());
  EXPECT_FALSE(job->ended.load());
}

TEST_F(Liveness, SilenceOfASecondIsAnsweredWithAPingEverySecond) {
  auto workers = running_job(2);
  pass(950 * kMillisecond, {&workers[0]});
  EXPECT_TRUE(sent().empty());
  pass(150 * kMillisecond, {&workers[0]});
  auto pings = sent_of(PacketType::kPing);
  ASSERT_EQ(pings.size(), 1u);
  EXPECT_EQ(pings[0].to.rank.value, 1);
  EXPECT_EQ(pings[0].packet.common().cookie, workers[1].cookie);
  pass(kSecond, {&workers[0]});
  EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
  keepalive(workers[1]);
  pass(900 * kMillisecond, {&workers[0]});
  EXPECT_TRUE(sent().empty());
}

TEST_F(Liveness, SilenceBeyondTheTimeoutEndsTheJobWithinASecond) {
  auto workers = running_job(2);
  pass(3 * kSecond, {&workers[0]});
  sent();
  EXPECT_FALSE(only_job()->ended.load());
  pass(kSecond, {&workers[0]});
  EXPECT_TRUE(only_job()->ended.load());
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].to.rank.value, 0);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kMemberSilent);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().rank, 1);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("'digits'"), HasSubstr("rank 1 at 10.0.0.3:40000"),
                    HasSubstr("last heard 3.0"), HasSubstr("limits.member_timeout_s is 3.0")));
  EXPECT_FALSE(only_job()->members[1].reachable.load());
  EXPECT_TRUE(keepalive(workers[1]).is(PacketType::kNotice));  // it was only frozen
}

TEST_F(Liveness, ASuspectIsAskedThreeTimesAndThenDeclaredDead) {
  auto workers = running_job(2);
  jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
  jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
  EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
  pass(200 * kMillisecond, {&workers[0]});
  EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
  pass(200 * kMillisecond, {&workers[0]});
  EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
  EXPECT_FALSE(only_job()->ended.load());
  pass(200 * kMillisecond, {&workers[0]});
  EXPECT_TRUE(only_job()->ended.load());
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kMemberDied);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("rank 1 at 10.0.0.3:40000 died"), HasSubstr("0.6 s ago")));
}

TEST_F(Liveness, ASuspectThatAnswersIsClearedAndCanBeSuspectedAgain) {
  auto workers = running_job(2);
  jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
  pass(250 * kMillisecond, {&workers[0]});
  keepalive(workers[1]);
  pass(800 * kMillisecond, {&workers[0], &workers[1]});
  EXPECT_FALSE(only_job()->ended.load());
  sent();
  jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
  EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
}

// Its socket closed three times for 100 ms, and each ping fell into a gap (swarm, seed 950003090).
TEST_F(Liveness, PingsOverAConnectionThatEndedSinceDoNotSpeakAgainstASuspect) {
  auto workers = running_job(2);
  for (int time = 0; time < 3; ++time) {
    jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
    EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
    pass(220 * kMillisecond, {&workers[0]});
    EXPECT_EQ(sent_of(PacketType::kPing).size(), 1u);
  }
  EXPECT_FALSE(only_job()->ended.load());
  keepalive(workers[1]);
  pass(kSecond, {&workers[0], &workers[1]});
  EXPECT_FALSE(only_job()->ended.load());
}

TEST_F(Liveness, AConnectionThatEndsAgainAndAgainDoesNotHideADeath) {
  auto workers = running_job(2);
  for (int time = 0; time < 40 && !only_job()->ended.load(); ++time) {
    jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
    pass(100 * kMillisecond, {&workers[0]});
  }
  EXPECT_TRUE(only_job()->ended.load()) << "members are silent for 3 s at most here";
}

TEST_F(Liveness, PacketsAlreadyUnderWayDoNotClearASuspect) {
  auto workers = running_job(2);
  jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
  now += 20 * kMillisecond;
  keepalive(workers[1]);
  pass(kSecond, {&workers[0]});
  EXPECT_TRUE(only_job()->ended.load());
}

TEST_F(Liveness, SuspicionOfNobodyIsHarmless) {
  auto workers = running_job(1);
  jobs.suspect(JobId{200}, Rank{0}, now);
  jobs.suspect(JobId{60'000}, Rank{0}, now);
  jobs.suspect(JobId{workers[0].job}, Rank{5}, now);
  EXPECT_TRUE(sent().empty());
}

TEST_F(Liveness, ADeathWhileTheJobFormsFreesTheRank) {
  Worker first{.world_size = 3}, second{.rank = 1, .world_size = 3};
  join(first);
  join(second);
  jobs.suspect(JobId{second.job}, Rank{1}, now);
  pass(kSecond, {&first});
  EXPECT_TRUE(sent_of(PacketType::kNotice).empty());
  EXPECT_EQ(keepalive(first).packet.mask_word(0), 0b110u);
  Worker successor{.rank = 1, .nonce = 900, .world_size = 3};
  EXPECT_TRUE(join(successor).is(PacketType::kAccept));
  EXPECT_EQ(keepalive(first).packet.mask_word(0), 0b100u);
}

TEST_F(Liveness, AFormingJobSaysWhoIsAwaitedOnceNobodyHasComeForFiveSeconds) {
  Worker first{.rank = 0, .world_size = 3}, second{.rank = 2, .world_size = 3};
  join(first);
  const JobId job{first.job};
  pass(4 * kSecond, {&first});
  join(second);
  pass(4900 * kMillisecond, {&first, &second});
  EXPECT_EQ(jobs.describe_awaited(job, now), "");
  pass(200 * kMillisecond, {&first, &second});
  EXPECT_EQ(jobs.describe_awaited(job, now), "2 of 3 ranks here; waiting for rank 1");
  Worker last{.rank = 1, .world_size = 3};
  join(last);
  pass(6 * kSecond, {&first, &second, &last});
  EXPECT_EQ(jobs.describe_awaited(job, now), "") << "it runs";
}

TEST_F(Liveness, AFrozenMemberOfAFormingJobComesBackWhenNobodyTookItsRank) {
  Worker first{.world_size = 3}, second{.rank = 1, .world_size = 3};
  join(first);
  join(second);
  pass(5 * kSecond, {&first});
  EXPECT_TRUE(jobs.members(JobId{first.job}, now)[1].gone);
  const Answered back = keepalive(second);
  ASSERT_TRUE(back.is(PacketType::kStatus));
  EXPECT_EQ(back.packet.mask_word(0), 0b100u);
  EXPECT_TRUE(only_job()->members[1].reachable.load());
}

TEST_F(Liveness, AFormingJobThatEverybodyDesertedGoesAway) {
  Worker first, next{.nonce = 901};
  join(first);
  pass(4 * kSecond);
  EXPECT_TRUE(jobs.jobs().empty());
  EXPECT_TRUE(keepalive(first).is(PacketType::kNotice));
  EXPECT_TRUE(join(next).is(PacketType::kAccept));
}

TEST_F(Liveness, AMemberThatFinishedMayDisappear) {
  auto workers = running_job(2);
  leave(workers[1]);
  jobs.suspect(JobId{workers[1].job}, Rank{1}, now);
  pass(20 * kSecond, {&workers[0]});
  EXPECT_FALSE(only_job()->ended.load());
  EXPECT_TRUE(sent().empty());
}

TEST_F(Liveness, OneJobsDeathLeavesOthersAlone) {
  auto doomed = running_job(2, "doomed");
  auto healthy = running_job(2, "healthy");
  pass(5 * kSecond, {&doomed[0], &healthy[0], &healthy[1]});
  ASSERT_EQ(jobs.views().size(), 2u);
  for (const JobView& view : jobs.views()) {
    const bool ended = view.name == "doomed";
    EXPECT_EQ(view.state, ended ? wire::JobState::kEnded : wire::JobState::kRunning);
    EXPECT_EQ(view.notice.find("rank 1 at " + doomed[1].address) != view.notice.npos, ended);
    EXPECT_EQ(view.notice.empty(), !ended);
  }
}

TEST_F(Liveness, IsShownPerMember) {
  auto workers = running_job(2);
  pass(500 * kMillisecond, {&workers[0]});
  const auto members = jobs.members(JobId{workers[0].job}, now);
  ASSERT_EQ(members.size(), 2u);
  EXPECT_TRUE(members[1].joined);
  EXPECT_EQ(members[1].silent_ns, 500 * kMillisecond);
  EXPECT_LE(members[0].silent_ns, 250 * kMillisecond);
  EXPECT_EQ(members[0].address, "10.0.0.2:40000");
}

}  // namespace
}  // namespace sluice::agg
