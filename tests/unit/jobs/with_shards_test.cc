// The control side with real shards: the effect of a loss, a return and a resync on the steps.
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using wire::PacketType;

// Three ranks, two chunks of one value, k = 2.
class WithShards : public ControlTest {
 protected:
  WithShards() {
    shards.emplace(kTestShards);
    workers = patient_job(3);
  }

  Verdict contribute(const Worker& worker, Step step, ChunkIndex chunk) {
    const float one = 1;
    const wire::Contribution body{.flow = {.number = ++packet_number, .credit = 1000},
                                  .step = step,
                                  .chunk = chunk,
                                  .base_step = step,
                                  .weight = 1,
                                  .elem_count = 1};
    std::array<std::uint8_t, 128> out;
    const std::size_t bytes =
        wire::encode(out, {worker.job, worker.rank, worker.cookie}, body, {},
                     {reinterpret_cast<const std::uint8_t*>(&one), sizeof one});
    wire::Packet packet;
    EXPECT_EQ(wire::parse({out.data(), bytes}, packet), Verdict::kAccepted);
    return shards->shard(shard_of(chunk, kTestShards)).handle(packet, false, now);
  }
  // All chunks of a step, by each of the workers.
  void step_by(Step step, std::initializer_list<const Worker*> by) {
    for (const Worker* worker : by)
      for (ChunkIndex chunk = 0; chunk < worker->join.layouts[0].chunk_count; ++chunk)
        contribute(*worker, step, chunk);
    pump();
  }
  Step open_step() { return only_job()->windows[0].open_step.load(); }
  const StepRecord& record(Step step) {
    return only_job()->windows[0].records[step % kAsyncWindow];
  }
  Answered resync(const Worker& worker, std::uint32_t number, bool done = false) {
    return send(worker, wire::Resync{.number = number, .done = done});
  }

  std::vector<Worker> workers;
  std::uint32_t packet_number = 0;
};

TEST_F(WithShards, TheFirstStepsNeedAllRanksAndALossCompletesThem) {
  step_by(1, {&workers[0], &workers[1]});
  EXPECT_EQ(open_step(), 1u);
  leave(workers[2], wire::LeaveReason::kAbnormal);
  pump();
  EXPECT_EQ(open_step(), 2u);
  step_by(2, {&workers[0], &workers[1]});
  EXPECT_EQ(open_step(), 3u);
}

TEST_F(WithShards, AReturnedRankCountsFromItsFirstStepOn) {
  leave(workers[2], wire::LeaveReason::kAbnormal);
  step_by(1, {&workers[0], &workers[1]});
  Worker successor = successor_of(workers[2]);
  const Answered accepted = rejoin(successor);
  ASSERT_TRUE(accepted.is(PacketType::kAccept));
  EXPECT_EQ(accepted.body<wire::Accept>().first_steps[0], 4u);
  EXPECT_EQ(contribute(successor, 2, 0), Verdict::kNotAllowed);
  step_by(2, {&workers[0], &workers[1]});
  step_by(3, {&workers[0], &workers[1]});
  EXPECT_EQ(open_step(), 4u);
  EXPECT_TRUE(record(4).eligible.test(Rank{2}));
  step_by(4, {&successor, &workers[0]});
  EXPECT_EQ(open_step(), 5u);
}

TEST_F(WithShards, AHeldStepWaitsForTheTargetUntilItIsDone) {
  const Worker &a = workers[0], &b = workers[1], &target = workers[2];
  for (Step step = 1; step <= 3; ++step) step_by(step, {&a, &b, &target});
  ASSERT_EQ(open_step(), 4u);
  resync(target, 1);
  const wire::Status status = resync(target, 1).body<wire::Status>();
  EXPECT_EQ(status.transfer_step, 2u);
  EXPECT_EQ(status.transfer_target, 2);
  const StreamWindow& state = only_job()->windows[2];
  EXPECT_EQ(state.open_step.load(), 2u);
  EXPECT_EQ(state.records[0].eligible.count(), 2u);
  EXPECT_TRUE(state.records[0].eligible.test(Rank{2}));
  for (Step step = 4; step <= 7; ++step) step_by(step, {&a, &b});
  EXPECT_EQ(open_step(), 7u);  // 4 + 3 is held
  resync(target, 1, true);
  pump();
  EXPECT_EQ(open_step(), 8u);
}

TEST_F(WithShards, AHeldStepGoesOnWhenTheTargetDies) {
  const Worker &a = workers[0], &b = workers[1], &target = workers[2];
  for (Step step = 1; step <= 3; ++step) step_by(step, {&a, &b, &target});
  resync(target, 1);
  for (Step step = 4; step <= 7; ++step) step_by(step, {&a, &b});
  ASSERT_EQ(open_step(), 7u);
  leave(target, wire::LeaveReason::kAbnormal);
  pump();
  EXPECT_EQ(open_step(), 8u);
}

}  // namespace
}  // namespace sluice::agg
