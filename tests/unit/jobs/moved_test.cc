// Runs that move from one appliance to another and back, and an appliance that is drained.
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using wire::PacketType;

class Moved : public ControlTest {
 protected:
  // A process that has been a member before, `epoch` moves of its run ago or fewer.
  static Worker member(std::uint16_t rank, Step step, std::uint32_t epoch) {
    Worker worker{.rank = rank, .nonce = 1000u * epoch + rank};
    worker.join.was_member = 1;
    worker.join.resume_step = step;
    worker.join.epoch = epoch;
    return worker;
  }
};

TEST_F(Moved, AChallengeTellsHowOftenTheRunHasMoved) {
  Worker first = member(0, 42, 3);
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  Worker behind = member(1, 42, 1);
  EXPECT_EQ(ask(behind).body<wire::Challenge>().epoch, 3u);
  Worker stranger = member(1, 42, 1);
  stranger.join.run_id += 1;
  EXPECT_EQ(ask(stranger).body<wire::Challenge>().epoch, 0u) << "another run";
}

TEST_F(Moved, ARunThatComesBackReplacesItsOldJobAtOnce) {
  std::vector<Worker> old = running_job(2);
  Worker first = member(0, 42, 2), second = member(1, 42, 2);
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  ASSERT_TRUE(join(second).is(PacketType::kAccept));
  EXPECT_EQ(keepalive(second).body<wire::Status>().resume_step, 42u);
  const Answered answer = keepalive(old[0]);
  ASSERT_TRUE(answer.is(PacketType::kNotice)) << "whoever has not noticed asks again, and follows";
  EXPECT_EQ(answer.body<wire::Notice>().code, wire::NoticeCode::kMoved);
  EXPECT_THAT(answer.text(), HasSubstr("has moved 2 times"));
}

TEST_F(Moved, WhoHasMissedTheMoveGetsNoPlace) {
  Worker first = member(0, 42, 2);
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  Worker behind = member(1, 42, 1);
  EXPECT_TRUE(join(behind).bytes.empty());
  EXPECT_EQ(jobs.members(JobId{first.job}, now)[1].joined, false);
}

TEST_F(Moved, AMemberThatMovesEndsNobodysJob) {
  std::vector<Worker> workers = running_job(2);
  const Answered left = leave(workers[0], wire::LeaveReason::kMoved);
  ASSERT_TRUE(left.is(PacketType::kStatus));
  EXPECT_EQ(left.body<wire::Status>().left, 1u);
  pass(10 * kSecond, {&workers[1]});
  EXPECT_TRUE(keepalive(workers[1]).is(PacketType::kStatus));
  leave(workers[1], wire::LeaveReason::kMoved);
  EXPECT_TRUE(jobs.is_empty()) << "when all have moved, the job is over here";
}

// The others may follow: until then it counts among the ranks of a step.
TEST_F(Moved, AMemberOfAJobWithStragglersThatMovesIsLostWhenNobodyFollowsIt) {
  std::vector<Worker> workers = patient_job(3);
  leave(workers[0], wire::LeaveReason::kMoved);
  Answered after = keepalive(workers[1]);
  ASSERT_TRUE(after.is(PacketType::kStatus));
  EXPECT_EQ(after.packet.mask_word(0), 0u) << "it is not missed: the job may move";
  Worker another = successor_of(workers[0]);
  EXPECT_TRUE(join(another).bytes.empty()) << "it finds the job where it is now";
  EXPECT_TRUE(jobs.views()[0].loss.empty());
  pass(options().member_timeout_ns + kSecond, {&workers[1], &workers[2]});
  EXPECT_THAT(jobs.views()[0].loss, HasSubstr("rank 0 at"));
  EXPECT_THAT(jobs.views()[0].loss, HasSubstr("has moved to another appliance"));
  EXPECT_TRUE(rejoin(another).is(PacketType::kAccept));
  for (Worker* worker : {&another, &workers[1], &workers[2]})
    leave(*worker, wire::LeaveReason::kMoved);
  EXPECT_TRUE(jobs.is_empty());
  EXPECT_TRUE(jobs.jobs().empty() || jobs.views()[0].notice.empty()) << "no error";
}

TEST_F(Moved, DrainingTellsMembersAndRefusesNewJobsByName) {
  std::vector<Worker> workers = running_job(2);
  jobs.drain(now);
  pump();
  ASSERT_EQ(outbox.size(), 2u) << "at once";
  EXPECT_EQ(keepalive(workers[0]).body<wire::Status>().drain, wire::Drain::kAsked);
  Worker fresh{.name = "another"};
  EXPECT_THAT(refusal_of(fresh, wire::RefuseCode::kDraining),
              AllOf(HasSubstr("'another'"), HasSubstr("being drained")));
  Worker moving = member(0, 42, 1);
  EXPECT_TRUE(ask(moving).bytes.empty()) << "it asks elsewhere, or the next process here";
  EXPECT_TRUE(ask(workers[0]).is(PacketType::kChallenge)) << "it is a member";
  EXPECT_FALSE(jobs.is_empty());
  leave(workers[0], wire::LeaveReason::kMoved);
  pump();
  ASSERT_EQ(outbox.size(), 3u) << "the other hears at once that one has moved";
  EXPECT_EQ(keepalive(workers[1]).body<wire::Status>().drain, wire::Drain::kBegun);
  leave(workers[1], wire::LeaveReason::kMoved);
  EXPECT_TRUE(jobs.is_empty());
}

}  // namespace
}  // namespace sluice::agg
