// What the operator changes while jobs run: secrets, limits, policies, and who goes.

#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::HasSubstr;

class Operator : public ControlTest {};

TEST_F(Operator, ChangesTheSecretWhileTheOlderOneIsStillGood) {
  Worker old{.rank = 0, .name = "old"}, fresh{.rank = 0, .secret = "tahini", .name = "fresh"};
  JobsOptions changed = options();
  changed.secret = "tahini";
  changed.older_secrets = {"sesame"};
  jobs.change_options(changed);
  EXPECT_TRUE(join(old).is(wire::PacketType::kAccept));
  EXPECT_TRUE(join(fresh).is(wire::PacketType::kAccept));
  changed.older_secrets.clear();
  jobs.change_options(changed);
  Worker late{.rank = 1, .name = "old"};
  EXPECT_THAT(refusal_of(late, wire::RefuseCode::kBadSecret), HasSubstr("wrong secret"));
  EXPECT_TRUE(keepalive(old).is(wire::PacketType::kStatus)) << "members have a cookie";
}

TEST_F(Operator, ChangesPoliciesOfJobsToComeAlone) {
  Worker first{.rank = 0};
  EXPECT_EQ(join(first).body<wire::Accept>().policy.kind, PolicyKind::kSync);
  JobsOptions changed = options();
  changed.policy = {.kind = PolicyKind::kFixed, .k = 1};
  changed.max_workers = 1;
  jobs.change_options(changed);
  Worker second{.rank = 1};
  EXPECT_EQ(join(second).body<wire::Accept>().policy.kind, PolicyKind::kSync);
  Worker other{.rank = 0, .name = "other", .world_size = 1};
  EXPECT_EQ(join(other).body<wire::Accept>().policy.kind, PolicyKind::kFixed);
  Worker large{.rank = 0, .name = "large"};
  EXPECT_THAT(refusal_of(large, wire::RefuseCode::kLimit), HasSubstr("2"));
}

TEST_F(Operator, ChangesLimitsForTheNextJoin) {
  running_job(2);
  JobsOptions changed = options();
  changed.max_jobs = 1;
  jobs.change_options(changed);
  Worker second{.rank = 0, .name = "second"};
  EXPECT_THAT(refusal_of(second, wire::RefuseCode::kLimit), HasSubstr("limits.jobs"));
  changed.max_jobs = 2;
  jobs.change_options(changed);
  EXPECT_TRUE(join(second).is(wire::PacketType::kAccept));
}

// A member that hears that its job has ended, and not why, fails for good.
TEST_F(Operator, AStatusThatHasWaitedForTheEndGivesWayToTheNotice) {
  const auto workers = running_job(2);
  jobs.drain(now);
  ASSERT_TRUE(jobs.kick(JobId{workers[0].job}, {}, now).ok());
  const std::vector<Sent> all = sent();
  EXPECT_GE(all.size(), 2u);
  for (const Sent& one : all) EXPECT_EQ(one.packet.type(), wire::PacketType::kNotice);
}

TEST_F(Operator, ASilentMemberIsJudgedByTheLatestTimeout) {
  const auto workers = running_job(2);
  JobsOptions changed = options();
  changed.member_timeout_ns = 2 * kSecond;
  jobs.change_options(changed);
  pass(3 * kSecond, {&workers[0]});
  EXPECT_EQ(jobs.members(JobId{workers[0].job}, now)[1].joined, false);
}

TEST_F(Operator, EndsAJobAndTellsAllItsMembers) {
  const auto workers = running_job(2);
  EXPECT_TRUE(jobs.kick(JobId{workers[0].job}, {}, now).ok());
  const auto notices = sent_of(wire::PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[1].packet.text(), "job 'digits': the operator of the appliance has ended it");
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kEnded);
  EXPECT_THAT(jobs.kick(JobId{workers[0].job}, {}, now).message(), HasSubstr("ended already"));
}

TEST_F(Operator, ARankThatGoesEndsASynchronousJobByName) {
  const auto workers = running_job(2);
  EXPECT_TRUE(jobs.kick(JobId{workers[0].job}, Rank{1}, now).ok());
  const auto notices = sent_of(wire::PacketType::kNotice);
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              HasSubstr("has removed rank 1 at 10.0.0.3:40000; a synchronous job needs all ranks"));
}

TEST_F(Operator, AJobThatGoesOnLosesTheRankAlone) {
  const auto workers = patient_job(3);
  EXPECT_TRUE(jobs.kick(JobId{workers[0].job}, Rank{1}, now).ok());
  const auto notices = sent_of(wire::PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].to.rank, Rank{1});
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kRunning);
  EXPECT_THAT(std::string(jobs.views()[0].loss), HasSubstr("goes on with 2 of 3 ranks"));
  Worker again = successor_of(workers[1]);
  EXPECT_TRUE(rejoin(again).is(wire::PacketType::kAccept)) << "another process may take it";
}

TEST_F(Operator, LearnsWhatIsNotThere) {
  Worker first{.rank = 0};
  join(first);
  const JobId job{first.job};
  EXPECT_THAT(jobs.kick(job, Rank{2}, now).message(), HasSubstr("its ranks are 0 to 1"));
  EXPECT_THAT(jobs.kick(job, Rank{0}, now).message(), HasSubstr("has not started"));
  EXPECT_EQ(jobs.kick(JobId{200}, {}, now).code(), StatusCode::kNotFound);
  EXPECT_TRUE(jobs.kick(job, {}, now).ok()) << "a job that forms ends too";
}

}  // namespace
}  // namespace sluice::agg
