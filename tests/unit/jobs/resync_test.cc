// The givers and takers of state, and how long the window waits.
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
using Kind = ShardCommand::Kind;

class Resync : public ControlTest {
 protected:
  Resync() {
    JobsOptions quick = options();
    quick.member_timeout_ns = 6 * kSecond;
    quick.resync_hold_ns = 10 * kSecond;
    restart(quick);
    workers = patient_job(4);
    is_at(2, 8);
    job().windows[0].open_step.store(9);
    commands.clear();
  }

  Job& job() { return *const_cast<Job*>(only_job()); }
  Step hold_of(std::uint16_t rank) { return job().members[rank].hold_from.load(); }
  void is_at(std::uint16_t rank, Step step) { job().members[rank].reached.store(step); }
  Answered resync(const Worker& worker, std::uint32_t number, bool done = false) {
    return send(worker, wire::Resync{.number = number, .done = done});
  }
  // A request and the transfer that the next status names.
  wire::Status transfer_of(const Worker& worker, std::uint32_t number = 1) {
    resync(worker, number);
    const Answered again = resync(worker, number);
    EXPECT_TRUE(again.is(PacketType::kStatus));
    return again.is(PacketType::kStatus) ? again.body<wire::Status>() : wire::Status{};
  }
  std::vector<const Worker*> all_but(std::initializer_list<int> silent) const {
    std::vector<const Worker*> speakers;
    for (const Worker& worker : workers)
      if (std::find(silent.begin(), silent.end(), worker.rank) == silent.end())
        speakers.push_back(&worker);
    return speakers;
  }
  std::vector<Worker> workers;
};

TEST_F(Resync, TakesTheStateOfTheRankThatHasComeFurthest) {
  is_at(0, 6);
  is_at(3, 5);
  const wire::Status status = transfer_of(workers[1], 4);
  EXPECT_EQ(status.transfer_source, 2);
  EXPECT_EQ(status.transfer_target, 1);
  EXPECT_EQ(status.transfer_number, 4u);
  EXPECT_EQ(status.transfer_step, 2u);
  EXPECT_EQ(status.hold_left_ms, 10'000u);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kOpenTransfer));
  EXPECT_EQ(job().transfer.source().value, 2);
  EXPECT_EQ(job().transfer.target().value, 1);
}

TEST_F(Resync, HoldsTheWindowFromAStepThatNoRecordHasYet) {
  resync(workers[1], 1);
  EXPECT_EQ(hold_of(1), 12u);
  EXPECT_EQ(hold_of(2), kNoStep);
}

TEST_F(Resync, HoldsNoStepBeforeTheFirstOfAReturnedProcess) {
  kill(workers[1], all_but({1}));
  job().windows[0].open_step.store(30);
  Worker successor = successor_of(workers[1]);
  ASSERT_TRUE(rejoin(successor).is(PacketType::kAccept));
  job().windows[0].open_step.store(20);  // as if the request had been under way for long
  resync(successor, 1);
  EXPECT_EQ(hold_of(1), 32u);
}

TEST_F(Resync, IsNamedByStatusesOnlyWhenTheShardHasOpenedIt) {
  shards_answer = false;
  EXPECT_EQ(transfer_of(workers[1]).transfer_step, 0u);
  EXPECT_THAT(sent(), IsEmpty());
  answer(commands[0]);
  const auto statuses = sent_of(PacketType::kStatus);
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_EQ(statuses[0].to.rank.value, 2);
  EXPECT_EQ(statuses[1].to.rank.value, 1);
  for (const Sent& one : statuses) {
    EXPECT_EQ(one.packet.body<wire::Status>().transfer_step, 2u);
    EXPECT_EQ(one.packet.body<wire::Status>().transfer_source, 2);
  }
  pass(2 * kSecond, all_but({}));
  EXPECT_EQ(keepalive(workers[2]).body<wire::Status>().hold_left_ms, 8'000u);
}

TEST_F(Resync, DoneReleasesTheHoldAndIsAcknowledgedByAStatusWithoutTheTransfer) {
  transfer_of(workers[1]);
  commands.clear();
  sent();
  const Answered done = resync(workers[1], 1, true);
  EXPECT_EQ(done.result.verdict, Verdict::kResync);
  EXPECT_EQ(done.body<wire::Status>().transfer_step, 0u);
  EXPECT_EQ(hold_of(1), kNoStep);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kHoldReleased));
  EXPECT_EQ(commands[0].rank.value, 1);
  EXPECT_EQ(sent_of(PacketType::kStatus).size(), 2u);  // the source learns that it is over

  EXPECT_EQ(resync(workers[1], 1, true).body<wire::Status>().transfer_step, 0u);
  resync(workers[1], 1);  // a late copy of the request
  EXPECT_EQ(hold_of(1), kNoStep);
  EXPECT_EQ(kinds().size(), 1u);
  EXPECT_NE(transfer_of(workers[1], 2).transfer_step, 0u);  // it fell behind once more
}

TEST_F(Resync, RequestsWaitInLineAndHoldNothingMeanwhile) {
  transfer_of(workers[1]);
  const wire::Status second = transfer_of(workers[3], 5);
  EXPECT_EQ(second.transfer_target, 1);
  EXPECT_EQ(hold_of(3), kNoStep);
  resync(workers[1], 1, true);
  const wire::Status next = keepalive(workers[3]).body<wire::Status>();
  EXPECT_EQ(next.transfer_target, 3);
  EXPECT_EQ(next.transfer_number, 5u);
  EXPECT_EQ(hold_of(3), 12u);
}

TEST_F(Resync, NeverTakesTheStateOfARankThatWaitsForOneItself) {
  is_at(3, 100);
  transfer_of(workers[1]);
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().transfer_source, 3);
  transfer_of(workers[3]);  // it was too far behind, too
  const wire::Status moved = keepalive(workers[1]).body<wire::Status>();
  EXPECT_EQ(moved.transfer_source, 2);
  EXPECT_EQ(moved.transfer_target, 1);
}

TEST_F(Resync, NeverTakesTheStateOfAProcessThatReturnedWithoutOne) {
  kill(workers[2], all_but({2}));
  Worker successor = successor_of(workers[2]);
  ASSERT_TRUE(rejoin(successor).is(PacketType::kAccept));
  is_at(2, 1000);  // of the process before it
  EXPECT_EQ(transfer_of(workers[1]).transfer_source, 0);
  resync(workers[1], 1, true);
  EXPECT_EQ(transfer_of(successor).transfer_target, 2);
  resync(successor, 1, true);
  EXPECT_EQ(transfer_of(workers[1], 2).transfer_source, 2);  // now it has one
}

TEST_F(Resync, PrefersARankThatSpeaks) {
  pass(2 * kSecond, all_but({2}));
  EXPECT_EQ(transfer_of(workers[1]).transfer_source, 0);
}

TEST_F(Resync, AnotherSourceTakesOverWhenOneDies) {
  EXPECT_EQ(transfer_of(workers[1]).transfer_source, 2);
  pass(kSecond, all_but({2}));
  kill(workers[2], all_but({2}));
  const wire::Status moved = keepalive(workers[1]).body<wire::Status>();
  EXPECT_EQ(moved.transfer_source, 0);
  EXPECT_EQ(moved.transfer_step, 3u);
  EXPECT_LT(moved.hold_left_ms, 9'000u);  // one hold for the whole resync
  EXPECT_EQ(hold_of(1), 12u);
}

TEST_F(Resync, AnotherSourceTakesOverWhenOneFallsSilent) {
  EXPECT_EQ(transfer_of(workers[1]).transfer_source, 2);
  pass(kTakeoverSilence + 100 * kMillisecond, all_but({2}));
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().transfer_source, 0);
  EXPECT_FALSE(jobs.members(JobId{workers[2].job}, now)[2].gone);
}

TEST_F(Resync, AnOpeningOfTheSourceBeforeIsNotTakenForTheNewOnes) {
  shards_answer = false;
  resync(workers[1], 1);
  leave(workers[2], LeaveReason::kAbnormal);
  pass(50 * kMillisecond, all_but({2}));
  EXPECT_THAT(kinds(), ElementsAre(Kind::kOpenTransfer, Kind::kMemberGone, Kind::kOpenTransfer));
  answer(commands[0]);
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().transfer_step, 0u);
  answer(commands[2]);
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().transfer_step, 3u);
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().transfer_source, 0);
}

TEST_F(Resync, AnOpeningThatTheShardLostIsAskedForAgain) {
  shards_answer = false;
  resync(workers[1], 1);
  shards_answer = true;
  pass(1100 * kMillisecond, all_but({}));
  EXPECT_THAT(kinds(), ElementsAre(Kind::kOpenTransfer, Kind::kOpenTransfer));
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().transfer_step, 2u);
}

TEST_F(Resync, ADeadTargetReleasesTheHoldAndMakesWay) {
  transfer_of(workers[1]);
  transfer_of(workers[3]);
  commands.clear();
  leave(workers[1], LeaveReason::kAbnormal);
  EXPECT_EQ(hold_of(1), kNoStep);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberGone, Kind::kHoldReleased));
  pass(50 * kMillisecond, all_but({1}));
  EXPECT_EQ(keepalive(workers[3]).body<wire::Status>().transfer_target, 3);
}

TEST_F(Resync, ANewNumberOfTheSameTargetStartsAgainWithinTheSameHold) {
  transfer_of(workers[1], 1);
  pass(4 * kSecond, all_but({}));
  const wire::Status again = transfer_of(workers[1], 2);
  EXPECT_EQ(again.transfer_number, 2u);
  EXPECT_EQ(again.transfer_step, 3u);
  EXPECT_EQ(again.hold_left_ms, 6'000u);
}

TEST_F(Resync, LongerThanTheHoldIsRefusedWithBothTimesAndTheRankIsFree) {
  transfer_of(workers[1]);
  pass(9900 * kMillisecond, all_but({}));
  EXPECT_EQ(hold_of(1), 12u);
  sent();
  pass(150 * kMillisecond, all_but({}));
  EXPECT_EQ(hold_of(1), kNoStep);
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].to.rank.value, 1);
  EXPECT_EQ(notices[0].packet.body<wire::Notice>().code, NoticeCode::kResyncHold);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("rank 1 at 10.0.0.3:40000 has waited 10.0 s for the state of rank 2"),
                    HasSubstr("at most 10.0 s (limits.resync_hold_s)")));
  EXPECT_FALSE(job().ended.load());
  EXPECT_EQ(job().members[1].left_from[0].load(), 0u);
  EXPECT_TRUE(resync(workers[1], 1).is(PacketType::kNotice));
  EXPECT_TRUE(keepalive(workers[1]).is(PacketType::kNotice));
  EXPECT_EQ(keepalive(workers[0]).packet.mask_word(0), 0b0010u);
  EXPECT_EQ(keepalive(workers[0]).body<wire::Status>().transfer_step, 0u);
  Worker successor = successor_of(workers[1]);
  EXPECT_TRUE(rejoin(successor).is(PacketType::kAccept));
}

TEST_F(Resync, WithNobodyWhoHasTheStateSaysSo) {
  for (const int rank : {0, 2, 3}) leave(workers[rank], LeaveReason::kAbnormal);
  const Answered told = resync(workers[1], 1);
  ASSERT_TRUE(told.is(PacketType::kNotice));
  EXPECT_THAT(told.text(), AllOf(HasSubstr("rank 1"), HasSubstr("nobody else is in the job"),
                                 HasSubstr("from a checkpoint")));
  EXPECT_EQ(jobs.views()[0].state, wire::JobState::kEnded);  // it was the last
}

// Shard 0 knows whether the target waits for more; what it says of another transfer is nothing.
TEST_F(Resync, ThatLostItsLastSourceOnTheWayEndsWhenTheShardSaysThatMoreIsNeeded) {
  const Step first = transfer_of(workers[1]).transfer_step;
  for (const int rank : {0, 2, 3}) leave(workers[rank], LeaveReason::kAbnormal);
  pass(50 * kMillisecond, all_but({0, 2, 3}));
  EXPECT_EQ(commands.back().kind, Kind::kSourceLost);
  EXPECT_EQ(commands.back().rank.value, 2);
  sent();
  const auto lost = [&](Step step) {
    jobs.handle_event({.kind = ShardEvent::Kind::kTransferLost,
                       .job = commands.back().job,
                       .stream = StreamId::kState,
                       .step = step},
                      now);
    return sent_of(PacketType::kNotice);
  };
  EXPECT_TRUE(lost(first - 1).empty());
  const auto notices = lost(first + 3);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("rank 1 at"), HasSubstr("rank 2, which was to give it, is gone"),
                    HasSubstr("nobody else is in the job"), HasSubstr("from a checkpoint")));
}

TEST_F(Resync, ThatLostItsLastSourceOnTheWayIsNotBlamedOnTheNetwork) {
  transfer_of(workers[1]);
  for (const int rank : {0, 2, 3}) leave(workers[rank], LeaveReason::kAbnormal);
  pass(9 * kSecond, all_but({0, 2, 3}));
  EXPECT_EQ(hold_of(1), 12u);  // it may have all that it needs
  sent();
  pass(1100 * kMillisecond, all_but({0, 2, 3}));
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("rank 1"), HasSubstr("from a checkpoint")));
}

TEST_F(Resync, OfAFrozenMemberBringsItBackFirst) {
  pass(7 * kSecond, all_but({1}));
  ASSERT_TRUE(jobs.members(JobId{workers[1].job}, now)[1].gone);
  EXPECT_TRUE(resync(workers[1], 1).is(PacketType::kStatus));
  EXPECT_THAT(kinds(), ElementsAre(Kind::kMemberGone, Kind::kMemberJoined));
  EXPECT_EQ(transfer_of(workers[1]).transfer_target, 1);
}

TEST_F(Resync, OfASynchronousJobIsNotAllowed) {
  auto others = running_job(2, "sync");
  const Answered answered = resync(others[0], 1);
  EXPECT_EQ(answered.result.verdict, Verdict::kNotAllowed);
  EXPECT_EQ(answered.body<wire::Status>().transfer_step, 0u);
}

TEST_F(Resync, OfAStrangerIsCountedAndNotAnswered) {
  Worker stranger = workers[1];
  stranger.cookie ^= 1;
  const Answered answered = resync(stranger, 1);
  EXPECT_EQ(answered.result.verdict, Verdict::kBadCookie);
  EXPECT_TRUE(answered.bytes.empty());
  EXPECT_THAT(kinds(), IsEmpty());
}

}  // namespace
}  // namespace sluice::agg
