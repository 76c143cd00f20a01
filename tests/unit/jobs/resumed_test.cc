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

TEST_F(Resumed, AJobThatToleratesStragglersIsRefused) {
  Worker old = member(0, 42, 3);
  old.join.has_policy = 1;
  old.join.policy = {.kind = PolicyKind::kFixed, .late = LateMode::kRequeue, .k = 2};
  const Answered refused = join(old);
  ASSERT_TRUE(refused.is(PacketType::kRefuse));
  EXPECT_EQ(refused.body<wire::Refuse>().code, RefuseCode::kPolicy);
  EXPECT_THAT(refused.text(), AllOf(HasSubstr("step 42"), HasSubstr("synchronous")));
}

}  // namespace
}  // namespace sluice::agg
