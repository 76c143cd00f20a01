// Jobs that go on from an appliance that is lost.
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using wire::PacketType;
using wire::RefuseCode;

class Resumed : public ControlTest {
 protected:
  // A process that was in the step at the lost appliance; 0: its job had not started there.
  static Worker member(std::uint16_t rank, Step step, std::uint16_t world_size = 2) {
    Worker worker{.rank = rank, .world_size = world_size};
    worker.join.was_member = 1;
    worker.join.resume_step = step;
    return worker;
  }
  static Worker late_member(std::uint16_t rank, Step step) {
    Worker worker = member(rank, step, 3);
    worker.join.has_policy = 1;
    worker.join.policy = {.kind = PolicyKind::kFixed, .late = LateMode::kRequeue, .k = 2};
    return worker;
  }
};

TEST_F(Resumed, TheJobBeginsWithTheLeastStepOfItsRanksAndSaysSo) {
  Worker ahead = member(0, 42), behind = member(1, 41);
  ASSERT_TRUE(join(ahead).is(PacketType::kAccept));
  EXPECT_EQ(keepalive(ahead).body<wire::Status>().resume_step, 0u) << "it has not begun";
  ASSERT_TRUE(join(behind).is(PacketType::kAccept));
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 41u);
  EXPECT_EQ(only_job()->open_step(StreamId::kCollectives), 1u);
  EXPECT_EQ(keepalive(ahead).body<wire::Status>().resume_step, 41u);
}

TEST_F(Resumed, ARankWhoseJobHadNotStartedIsInTheFirstStep) {
  Worker first = member(0, 1), second = member(1, 0);
  join(first);
  join(second);
  EXPECT_EQ(keepalive(second).body<wire::Status>().resume_step, 1u);
}

TEST_F(Resumed, AJobThatHadStartedForNobodyIsNew) {
  Worker first = member(0, 0);
  Worker second{.rank = 1};
  join(first);
  ASSERT_TRUE(join(second).is(PacketType::kAccept));
  EXPECT_EQ(keepalive(first).body<wire::Status>().resume_step, 0u);
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 1u);
}

TEST_F(Resumed, ANewProcessIsRefusedBesideOneOfTheStep) {
  Worker old = member(0, 42);
  join(old);
  Worker fresh{.rank = 1};
  const Answered refused = join(fresh);
  ASSERT_TRUE(refused.is(PacketType::kRefuse));
  EXPECT_EQ(refused.body<wire::Refuse>().code, RefuseCode::kEnded);
  EXPECT_THAT(refused.text(), AllOf(HasSubstr("step 42"), HasSubstr("rank 0 was in it"),
                                    HasSubstr("rank 1 is a new process")));
}

TEST_F(Resumed, AProcessOfTheStepIsRefusedBesideANewOne) {
  Worker fresh{.rank = 1};
  join(fresh);
  Worker old = member(0, 42);
  const Answered refused = join(old);
  ASSERT_TRUE(refused.is(PacketType::kRefuse));
  EXPECT_THAT(refused.text(),
              AllOf(HasSubstr("rank 0 was in it"), HasSubstr("rank 1 is a new process")));
}

TEST_F(Resumed, AProcessThatWasAdmittedNowhereIsWelcomeInTheFirstStep) {
  Worker old = member(0, 1);
  join(old);
  Worker fresh{.rank = 1};
  ASSERT_TRUE(join(fresh).is(PacketType::kAccept));
  EXPECT_EQ(keepalive(fresh).body<wire::Status>().resume_step, 1u);
}

TEST_F(Resumed, ANewProcessIsRefusedBesideOneThatHasEndedACollective) {
  Worker old = member(0, 1);
  old.join.resume_calls = 1;
  join(old);
  Worker fresh{.rank = 1};
  EXPECT_TRUE(join(fresh).is(PacketType::kRefuse));
}

TEST_F(Resumed, AJobWithStragglersBeginsWithTheNewestStepOfItsRanks) {
  Worker ahead = late_member(0, 42), next = late_member(1, 41), far = late_member(2, 30);
  ahead.join.resume_calls = 3;
  for (Worker* worker : {&ahead, &next, &far}) ASSERT_TRUE(join(*worker).is(PacketType::kAccept));
  const Job& job = *only_job();
  EXPECT_EQ(job.open_step(StreamId::kGradients), 42u);
  EXPECT_TRUE(job.gathers());
  EXPECT_EQ(job.told_open_step(), 0u) << "the ranks give what they have first";
  EXPECT_TRUE(job.givers().test(Rank{0}) && job.givers().test(Rank{1}));
  EXPECT_FALSE(job.givers().test(Rank{2})) << "what it lacks, nobody has kept";
  const Answered told = keepalive(next);
  EXPECT_EQ(told.body<wire::Status>().resume_step, 42u);
  EXPECT_EQ(told.body<wire::Status>().resume_from, 41u);
  EXPECT_EQ(told.body<wire::Status>().resume_calls, 3u);
  EXPECT_EQ(told.body<wire::Status>().needs_state, 0u);
  EXPECT_EQ(keepalive(far).body<wire::Status>().needs_state, 1u);
}

// Rank 2 was not at the appliance where the others have gone on, and is further than they are.
TEST_F(Resumed, OnlyRanksOfTheNewestExchangeThatIsOverGive) {
  Worker knows = late_member(0, 42), was_in = late_member(1, 41), away = late_member(2, 50);
  knows.join.exchange_over = knows.join.exchange_entered = 7;
  was_in.join.exchange_entered = 7;
  away.join.exchange_over = 3;
  away.join.exchange_entered = 9;  // it ended for nobody
  for (Worker* worker : {&knows, &was_in, &away})
    ASSERT_TRUE(join(*worker).is(PacketType::kAccept));
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 42u);
  EXPECT_TRUE(only_job()->givers().test(Rank{0}) && only_job()->givers().test(Rank{1}));
  const wire::Status told = keepalive(was_in).body<wire::Status>();
  EXPECT_EQ(told.exchange_over, 7u);
  EXPECT_GT(told.exchange, 9u);
  EXPECT_EQ(told.needs_state, 0u);
  EXPECT_EQ(keepalive(away).body<wire::Status>().needs_state, 1u);
}

// One of them was frozen, the other has taken its place at the appliance that is lost.
TEST_F(Resumed, OfTwoProcessesOfARankTheOneThatCameLaterGetsIt) {
  Worker frozen = late_member(0, 42), other = late_member(0, 42);
  other.nonce = frozen.nonce + 1;
  ASSERT_TRUE(join(frozen).is(PacketType::kAccept));
  EXPECT_TRUE(join(other).is(PacketType::kRefuse)) << "nothing tells them apart";
  other.join.resume_step = 43;
  ASSERT_TRUE(join(other).is(PacketType::kAccept));
  frozen.join.exchange_over = 6;
  const Answered refused = join(frozen);
  ASSERT_TRUE(refused.is(PacketType::kRefuse));
  EXPECT_THAT(refused.text(), HasSubstr("was taken over"));
  Worker last = late_member(0, 1);
  last.nonce = other.nonce + 1;
  last.join.exchange_over = 7;
  EXPECT_TRUE(join(last).is(PacketType::kAccept));
}

TEST_F(Resumed, AJobWithStragglersWaitsForARankAsLongAsForAMember) {
  Worker first = late_member(0, 42), second = late_member(1, 42);
  join(first);
  join(second);
  const DurationNs timeout_ns = options().member_timeout_ns;
  pass(timeout_ns - 500 * kMillisecond, {&first, &second});
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 0u);
  pass(kSecond, {&first, &second});
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 42u);
  EXPECT_EQ(keepalive(first).body<wire::Status>().joined_count, 2u);
}

TEST_F(Resumed, ARankThatIsAloneDoesNotGoOn) {
  Worker alone = late_member(0, 42);
  join(alone);
  pass(options().member_timeout_ns + kSecond, {&alone});
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 0u);
  Worker fresh = late_member(1, 0);
  fresh.join.was_member = 0;
  ASSERT_TRUE(join(fresh).is(PacketType::kAccept));
  pass(kSecond, {&alone, &fresh});
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 42u);
}

// The third may be where the job was before, with others that are not here.
TEST_F(Resumed, AJobWithStragglersThatHasMovedHereWaitsForAllRanks) {
  Worker first = late_member(0, 42), second = late_member(1, 42), third = late_member(2, 41);
  for (Worker* worker : {&first, &second, &third}) {
    worker->join.epoch = 1;
    worker->join.exchange_over = worker->join.exchange_entered = 2 << 16;  // of epoch 0
  }
  join(first);
  join(second);
  pass(2 * options().member_timeout_ns, {&first, &second});
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 0u);
  ASSERT_TRUE(join(third).is(PacketType::kAccept));
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 42u);
  EXPECT_EQ(keepalive(first).body<wire::Status>().exchange & 0xffff, 1u) << "of epoch 1";
}

TEST_F(Resumed, AJobWithStragglersThatHasRunHereSinceItMovedNeedNotWait) {
  Worker first = late_member(0, 42), second = late_member(1, 42);
  for (Worker* worker : {&first, &second}) worker->join.epoch = 1;
  second.join.exchange_entered = 2 << 16 | 1;
  join(first);
  join(second);
  pass(options().member_timeout_ns + 500 * kMillisecond, {&first, &second});
  EXPECT_EQ(only_job()->open_step(StreamId::kGradients), 42u);
}

}  // namespace
}  // namespace sluice::agg
