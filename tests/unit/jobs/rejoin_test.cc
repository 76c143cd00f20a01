// Jobs that go on without a rank: losses, and processes that take the rank again.
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using wire::LeaveReason;
using wire::NoticeCode;
using wire::PacketType;
using wire::RefuseCode;
using Kind = ShardCommand::Kind;

class Rejoin : public ControlTest {
 protected:
  Rejoin() {
    JobsOptions quick = options();
    quick.member_timeout_ns = 3 * kSecond;
    restart(quick);
  }
  // The step that shards would have open.
  void open(Step step) { commands.front().job->windows[0].open_step.store(step); }
  const Member& shared(const Worker& worker) { return only_job()->members[worker.rank]; }
};

TEST_F(Rejoin, ADeathLeavesTheOthersRunningAndTellsTheShards) {
  auto workers = patient_job(3);
  commands.clear();
  kill(workers[1], {&workers[0], &workers[2]});
  EXPECT_FALSE(only_job()->ended.load());
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberGone));
  EXPECT_EQ(commands[0].rank.value, 1);
  for (const auto& left_from : shared(workers[1]).left_from) EXPECT_EQ(left_from.load(), 0u);
  EXPECT_FALSE(shared(workers[1]).reachable.load());
  EXPECT_THAT(sent_of(PacketType::kNotice), IsEmpty());
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0b010u);
  EXPECT_TRUE(jobs.members(JobId{workers[0].job}, now)[1].gone);
  EXPECT_EQ(std::string(jobs.views()[0].loss),
            "job 'digits': rank 1 at 10.0.0.3:40000 died (its process answers no ping), last heard "
            "0.6 s ago; the job goes on with 2 of 3 ranks, and this one may join again");
}

TEST_F(Rejoin, TheLastDeathEndsTheJob) {
  auto workers = patient_job(2);
  kill(workers[0], {&workers[1]});
  EXPECT_FALSE(only_job()->ended.load());
  pass(5 * kSecond);
  EXPECT_TRUE(jobs.views()[0].state == wire::JobState::kEnded);
  const Answered told = keepalive(workers[1]);
  ASSERT_TRUE(told.is(PacketType::kNotice));
  EXPECT_EQ(told.body<wire::Notice>().code, NoticeCode::kMemberSilent);
  EXPECT_THAT(told.text(), AllOf(HasSubstr("rank 1"), HasSubstr("nobody is left in the job")));
}

TEST_F(Rejoin, AnErrorOfOneRankLeavesTheOthersRunningAndItsRankFree) {
  auto workers = patient_job(3);
  commands.clear();
  const Answered own = leave(workers[1], LeaveReason::kAbnormal);
  EXPECT_EQ(own.body<wire::Status>().left, 1);
  EXPECT_EQ(own.body<wire::Status>().state, wire::JobState::kRunning);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberGone));
  EXPECT_EQ(shared(workers[1]).left_from[0].load(), 0u);
  EXPECT_EQ(leave(workers[1], LeaveReason::kAbnormal).body<wire::Status>().left, 1);
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().left, 1);  // does not bring it back
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberGone));
  EXPECT_TRUE(join(workers[1]).bytes.empty());  // nor a late copy of its join
  Worker successor = successor_of(workers[1]);
  EXPECT_TRUE(rejoin(successor).is(PacketType::kAccept));
}

TEST_F(Rejoin, AFinishedRankIsNotGivenToANewProcess) {
  auto workers = patient_job(3);
  leave(workers[1]);
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0b010u) << "the job cannot move without it";
  pass(4 * kSecond, {&workers[0], &workers[2]});
  Worker successor = successor_of(workers[1]);
  EXPECT_THAT(refusal_of(successor, RefuseCode::kRankTaken), HasSubstr("left 4.0 s ago"));
  leave(workers[0]);
  leave(workers[2]);
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(Rejoin, ANewProcessOfADeadRankIsAnsweredOnlyWhenTheShardsKnowIt) {
  auto workers = patient_job(3);
  kill(workers[1], {&workers[0], &workers[2]});
  open(7);
  commands.clear();
  shards_answer = false;
  Worker successor = successor_of(workers[1]);
  const Answered silent = join(successor);
  EXPECT_TRUE(silent.bytes.empty());
  EXPECT_TRUE(silent.result.bind);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined));
  EXPECT_EQ(shared(successor).joined_from[0].load(), kNoStep) << "shard 0 says from where";
  for (const auto& left_from : shared(successor).left_from) EXPECT_EQ(left_from.load(), kNoStep);
  EXPECT_TRUE(shared(successor).reachable.load());
  EXPECT_EQ(shared(successor).stale_cookie.load(), workers[1].cookie);
  EXPECT_TRUE(join(successor).bytes.empty());
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined));
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0b010u);

  answer(commands[0]);
  const Answered accepted = join(successor);
  ASSERT_TRUE(accepted.is(PacketType::kAccept));
  const auto& accept = accepted.body<wire::Accept>();
  EXPECT_EQ(accept.rejoined, 1);
  EXPECT_EQ(accept.first_steps[0], 9u);
  EXPECT_EQ(accept.open_steps[0], 7u);
  EXPECT_EQ(accept.joined_count, 3);
  EXPECT_EQ(shared(successor).cookie.load(), successor.cookie);
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0u);
  EXPECT_TRUE(jobs.views()[0].loss.empty());
  EXPECT_TRUE(keepalive(workers[1]).is(PacketType::kNotice));  // the process before it
}

TEST_F(Rejoin, AnAdmissionOfAnEarlierProcessAdmitsNoLaterOne) {
  auto workers = patient_job(3);
  kill(workers[1], {&workers[0], &workers[2]});
  commands.clear();
  shards_answer = false;
  ASSERT_TRUE(keepalive(workers[1]).is(PacketType::kStatus));  // it was only frozen
  leave(workers[1], LeaveReason::kAbnormal);
  Worker successor = successor_of(workers[1]);
  join(successor);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined, Kind::kMemberGone, Kind::kMemberJoined));
  answer(commands[0]);
  EXPECT_TRUE(join(successor).bytes.empty());
  answer(commands[2]);
  EXPECT_TRUE(join(successor).is(PacketType::kAccept));
}

TEST_F(Rejoin, AnAdmissionThatAShardLostIsAskedForAgain) {
  auto workers = patient_job(3);
  leave(workers[1], LeaveReason::kAbnormal);
  commands.clear();
  shards_answer = false;
  Worker successor = successor_of(workers[1]);
  join(successor);
  pass(900 * kMillisecond, {&workers[0], &workers[2]});
  EXPECT_TRUE(join(successor).bytes.empty());
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined));
  pass(100 * kMillisecond, {&workers[0], &workers[2]});
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined, Kind::kMemberJoined));
  shards_answer = true;
  pass(kSecond, {&workers[0], &workers[2]});  // whether or not the process asks again
  EXPECT_TRUE(join(successor).is(PacketType::kAccept));
}

TEST_F(Rejoin, AProcessThatFallsSilentBeforeTheShardsKnowItIsLost) {
  auto workers = patient_job(2);
  leave(workers[1], LeaveReason::kAbnormal);
  shards_answer = false;
  Worker successor = successor_of(workers[1]);
  join(successor);
  for (int i = 0; i < 4; ++i) {
    pass(kSecond, {&workers[0]});
    EXPECT_TRUE(join(successor).bytes.empty()) << "a process that asks is there";
  }
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0b10u) << "it is in no step";
  EXPECT_FALSE(jobs.members(JobId{workers[0].job}, now)[1].gone);
  pass(4 * kSecond, {&workers[0]});
  EXPECT_TRUE(jobs.members(JobId{workers[0].job}, now)[1].gone);
  pass(4 * kSecond);
  EXPECT_TRUE(jobs.views()[0].state == wire::JobState::kEnded) << "nobody is left in the job";
}

TEST_F(Rejoin, ARankSilentForThreeSecondsIsLostAndTakenOverInOne) {
  restart(options());  // members may be silent for 30 s
  auto workers = patient_job(3);
  Worker successor = successor_of(workers[1]);
  pass(kTakeoverSilence + 100 * kMillisecond, {&workers[0], &workers[2]});
  commands.clear();
  ASSERT_TRUE(rejoin(successor).is(PacketType::kAccept));
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberGone, Kind::kMemberJoined));
  EXPECT_FALSE(only_job()->ended.load());
}

TEST_F(Rejoin, AProcessStartedRightAfterADeathGetsTheRankWhenTheOldOneAnswersNoPing) {
  auto workers = patient_job(3);
  Worker successor = successor_of(workers[1]);
  EXPECT_TRUE(join(successor).bytes.empty());
  auto pings = sent_of(PacketType::kPing);
  ASSERT_EQ(pings.size(), 1u);
  EXPECT_EQ(pings[0].to.rank.value, 1);
  pass(400 * kMillisecond, {&workers[0], &workers[2]});
  EXPECT_TRUE(join(successor).bytes.empty());
  pass(250 * kMillisecond, {&workers[0], &workers[2]});
  EXPECT_TRUE(rejoin(successor).is(PacketType::kAccept));
}

TEST_F(Rejoin, ASecondProcessOfALivingRankIsRefusedOnceTheFirstHasAnswered) {
  auto workers = patient_job(3);
  Worker twin = successor_of(workers[1]);
  EXPECT_TRUE(join(twin).bytes.empty());
  pass(300 * kMillisecond, {&workers[0], &workers[1], &workers[2]});
  EXPECT_THAT(refusal_of(twin, RefuseCode::kRankTaken),
              AllOf(HasSubstr("10.0.0.3:40000"), HasSubstr("10.0.9.3:50000")));
  EXPECT_TRUE(jobs.views()[0].loss.empty());
}

// Three pings that a link loses in half a second would end the job.
TEST_F(Rejoin, ASecondProcessOfTheLastRankIsNoHint) {
  auto workers = patient_job(2);
  leave(workers[1], LeaveReason::kAbnormal);
  Worker twin = successor_of(workers[0]);
  refusal_of(twin, RefuseCode::kRankTaken);
  EXPECT_TRUE(sent_of(PacketType::kPing).empty());
  pass(kSecond, {});
  EXPECT_EQ(keepalive(workers[0]).body<wire::Status>().state, wire::JobState::kRunning);
}

TEST_F(Rejoin, AFrozenMemberThatSpeaksAgainIsBackUnderItsCookie) {
  auto workers = patient_job(3);
  pass(4 * kSecond, {&workers[0], &workers[2]});
  EXPECT_TRUE(jobs.members(JobId{workers[1].job}, now)[1].gone);
  open(20);
  commands.clear();
  ASSERT_TRUE(keepalive(workers[1]).is(PacketType::kStatus));
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberJoined));
  EXPECT_EQ(shared(workers[1]).cookie.load(), workers[1].cookie);
  EXPECT_EQ(shared(workers[1]).joined_from[0].load(), 22u);
  EXPECT_TRUE(jobs.members(JobId{workers[1].job}, now)[1].joined);
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0u);
  pass(10 * kSecond, {&workers[0], &workers[1], &workers[2]});
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0u);
}

TEST_F(Rejoin, ALeaveOfAFrozenMemberCountsNoStepAgain) {
  auto workers = patient_job(3);
  pass(4 * kSecond, {&workers[0], &workers[2]});
  commands.clear();
  EXPECT_EQ(leave(workers[1]).body<wire::Status>().left, 1);
  EXPECT_EQ(shared(workers[1]).left_from[0].load(), 0u);
  EXPECT_THAT(kinds(), IsEmpty());
}

TEST_F(Rejoin, AProcessOfAnotherRunIsNeverLetIn) {
  auto workers = patient_job(3);
  kill(workers[1], {&workers[0], &workers[2]});
  Worker stranger = successor_of(workers[1]);
  stranger.join.run_id = 8;
  EXPECT_TRUE(join(stranger).bytes.empty()) << "the others are asked first";
  pass(kSecond, {&workers[0], &workers[2]});
  refusal_of(stranger, RefuseCode::kOtherRun);
}

TEST_F(Rejoin, AProcessWithOtherOptionsIsNotLetIn) {
  auto workers = patient_job(3);
  kill(workers[1], {&workers[0], &workers[2]});
  Worker successor = successor_of(workers[1]);
  successor.join.policy.late = LateMode::kRequeue;
  refusal_of(successor, RefuseCode::kPolicy);
}

TEST_F(Rejoin, AReturnedProcessThatNeverAsksForStateIsGivenUp) {
  JobsOptions impatient = options();
  impatient.resync_hold_ns = 2 * kSecond;
  restart(impatient);
  auto workers = patient_job(3);
  leave(workers[1], LeaveReason::kAbnormal);
  Worker successor = successor_of(workers[1]);
  ASSERT_TRUE(rejoin(successor).is(PacketType::kAccept));
  sent();
  pass(1900 * kMillisecond, {&workers[0], &workers[2], &successor});
  EXPECT_THAT(sent_of(PacketType::kNotice), IsEmpty());
  pass(300 * kMillisecond, {&workers[0], &workers[2], &successor});
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].to.rank.value, 1);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kResyncHold);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("joined the running job 2.0 s ago"), HasSubstr("at most 2.0 s"),
                    HasSubstr("limits.resync_hold_s")));
  EXPECT_TRUE(keepalive(successor).is(PacketType::kNotice));  // the notice was lost; it stays out
  EXPECT_THAT(refusal_of(successor, RefuseCode::kEnded), HasSubstr("limits.resync_hold_s"));
  Worker next = successor_of(successor);
  EXPECT_TRUE(rejoin(next).is(PacketType::kAccept));
}

TEST_F(Rejoin, AReturnedProcessThatFrozeBeforeItReportedItsStateStays) {
  JobsOptions impatient = options();
  impatient.resync_hold_ns = 5 * kSecond;
  impatient.member_timeout_ns = 3 * kSecond;
  restart(impatient);
  auto workers = patient_job(3);
  leave(workers[1], LeaveReason::kAbnormal);
  Worker successor = successor_of(workers[1]);
  ASSERT_TRUE(rejoin(successor).is(PacketType::kAccept));
  send(successor, wire::Resync{.number = 1});
  kill(successor, {&workers[0], &workers[2]});
  ASSERT_TRUE(keepalive(successor).is(PacketType::kStatus));  // back, and the transfer is over
  send(successor, wire::Resync{.number = 1, .done = 1});
  sent();
  pass(6 * kSecond, {&workers[0], &workers[2], &successor});
  EXPECT_THAT(sent_of(PacketType::kNotice), IsEmpty());
  EXPECT_TRUE(keepalive(successor).is(PacketType::kStatus));
}

TEST_F(Rejoin, ASynchronousJobStillEndsWithItsFirstLoss) {
  auto workers = running_job(3);
  commands.clear();
  kill(workers[1], {&workers[0], &workers[2]});
  EXPECT_TRUE(only_job()->ended.load());
  EXPECT_THAT(kinds(), IsEmpty());
  EXPECT_EQ(sent_of(PacketType::kNotice).size(), 2u);
}

}  // namespace
}  // namespace sluice::agg
