// Schedules of the host's scheduling policies: no tensor waits for ever, the link is full, urgent
// tensors overtake. tests/unit/sched has the policies alone.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/schedules/straggling.h"

namespace sluice::sim {
namespace {

using client::ScheduleOptions;
using Policy = client::Schedule;

constexpr std::uint64_t kChunkElems = 64;

// Synchronous: the last tensor is submitted first, and the priority is the tensor's index.
JobPlan in_backward_order(JobPlan plan, const ScheduleOptions& schedule) {
  plan.session.schedule = schedule;
  plan.random_order = false;
  plan.backward_order = true;
  plan.random_priority = false;
  for (RankPlan& rank : plan.ranks) rank.compute_max_ns = 0;
  return plan;
}

// One unit of 4 chunks in flight: stop and wait.
ScheduleOptions one_unit() {
  return {.policy = Policy::kCredit, .unit_bytes = 16 * kChunkElems, .credit_bytes = 1};
}

bool is_gradient(const Passing& passing, std::uint16_t rank) {
  return is_contribution(passing) && rank_of(passing) == rank;
}
ChunkIndex chunk_of(const Passing& passing) {
  return passing.packet.body<wire::Contribution>().chunk;
}

class Scheduling : public Schedule {
 protected:
  void set_links(std::uint64_t bytes_per_second, DurationNs delay_ns) {
    for (LinkOptions* link : {&options.uplink, &options.downlink}) {
      link->bytes_per_second = bytes_per_second;
      link->delay_ns = delay_ns;
      link->queue_frames = 10'000;
    }
  }
  const client::Session& session(RunIndex run, std::uint16_t rank) {
    return world().worker(run, rank).session();
  }
};

class CreditOfOneUnit : public Scheduling, public testing::WithParamInterface<std::uint64_t> {};

TEST_P(CreditOfOneUnit, does_not_let_ranks_wait_for_each_other_that_submit_in_other_orders) {
  options.seed = GetParam();
  options.appliance.jobs.shard_count = static_cast<std::uint16_t>(1 + GetParam() % 4);
  JobPlan plan = make_plan(3, 3, {2000, 30, 9000, 64, 5000});
  plan.seed = GetParam();
  plan.session.schedule = one_unit();
  for (RankPlan& rank : plan.ranks) rank.compute_max_ns = 0;  // all tensors wait at once
  const RunIndex run = world().add_run(plan);
  expect_completed(run, 2 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CreditOfOneUnit, testing::Range<std::uint64_t>(1, 13));

TEST_F(Scheduling, units_go_on_although_the_last_packet_of_each_is_lost_once) {
  const RunIndex run = world().add_run(in_backward_order(make_plan(2, 2, {64 * 40}), one_unit()));
  std::set<std::pair<Step, ChunkIndex>> lost;
  world().set_filter([&](Passing& passing) {
    if (!is_gradient(passing, 0) || chunk_of(passing) % 4 != 3) return;
    const Step step = passing.packet.body<wire::Contribution>().step;
    passing.drop = lost.insert({step, chunk_of(passing)}).second;
  });
  expect_completed(run, 5 * kSecond);
  EXPECT_EQ(lost.size(), 20u);
  EXPECT_EQ(session(run, 0).counters().retransmissions, 20u);
}

TEST_F(Scheduling, units_go_on_although_feedback_on_them_is_lost) {
  JobPlan plan = in_backward_order(make_plan(2, 1, {64 * 40}), one_unit());
  plan.ranks[1].step_delay_ns = kSecond;  // no results meanwhile
  const RunIndex run = world().add_run(plan);
  int count = 0;
  int lost = 0;
  world().set_filter([&](Passing& passing) {
    if (passing.packet.type() != PacketType::kFeedback || ++count % 2 == 0) return;
    passing.drop = true;
    ++lost;
  });
  expect_completed(run, 5 * kSecond);
  EXPECT_GE(lost, 3);
}

TEST_F(Scheduling, a_unit_over_four_shards_waits_for_no_timer) {
  options.appliance.jobs.shard_count = 4;
  JobPlan plan = in_backward_order(make_plan(2, 1, {64 * 64 * 40}),
                                   {.policy = Policy::kCredit,
                                    .unit_bytes = 256 * 4 * kChunkElems,  // a block in each shard
                                    .credit_bytes = 1});
  plan.ranks[1].step_delay_ns = kSecond;
  const RunIndex run = world().add_run(plan);
  TimeNs first = 0;
  TimeNs last = 0;
  world().set_filter([&](Passing& passing) {
    if (!is_gradient(passing, 0)) return;
    if (first == 0) first = passing.now;
    last = passing.now;
  });
  expect_completed(run, 3 * kSecond);
  EXPECT_EQ(session(run, 0).counters().retransmissions, 0u);
  // Ten units of 256 packets of 0.3 us and a round trip; a timer would be 2 ms each.
  EXPECT_LE(last - first, 10 * kMillisecond);
}

// ---- strict ----

TEST_F(Scheduling, strict_fills_a_link_of_10_gbits_and_1_ms) {
  set_links(1'250'000'000, 500 * kMicrosecond);  // about 870 packets on the way
  options.socket_frames = 10'000;
  options.appliance.jobs.max_total_memory_bytes = std::size_t{1} << 30;
  options.appliance.jobs.max_job_memory_bytes = std::size_t{1} << 30;
  constexpr std::uint32_t kPackets = 10'000;
  JobPlan plan = in_backward_order(make_plan(2, 3, {336ull * kPackets}), {});
  plan.chunk_bytes = 1344;
  plan.check_values = false;
  plan.session.receive_credit_packets = 4096;
  const RunIndex run = world().add_run(plan);
  expect_completed(run, kSecond);
  std::vector<TimeNs> ends;
  for (const LoggedEvent& event : world().worker(run, 0).log())
    if (event.kind == Kind::kStepDone) ends.push_back(event.at);
  ASSERT_EQ(ends.size(), 3u);
  // A packet is 1,426 to 1,466 bytes on the wire: 11.5 ms, and a round trip for the last one.
  const auto ideal_ns = static_cast<DurationNs>(kPackets * 1466 * 0.8) + kMillisecond;
  EXPECT_LE(ends[0], 2 * ideal_ns) << "the window grows from 64 packets within a few round trips";
  EXPECT_LE(ends[2] - ends[1], ideal_ns * 11 / 10);
}

// What is urgent leaves the session at once, though a big tensor fills the window, whether results
// come (every packet time) or not (feedback for half a window at a time). From there it waits for
// one packet at most, the one on the wire: I6.
class Overtaking : public Scheduling, public testing::WithParamInterface<int> {};

TEST_P(Overtaking, takes_no_longer_than_the_packet_that_is_on_the_wire) {
  set_links(12'500'000, 200 * kMicrosecond);
  JobPlan plan = in_backward_order(make_plan(2, 1, {64 * 4, 64 * 4000}), {});
  if (GetParam() % 2 == 1) plan.ranks[1].step_delay_ns = kSecond;  // no results
  const DurationNs after_ns = 15 * kMillisecond + GetParam() * 371 * kMicrosecond;
  plan.gap_rule = [&](Step, std::uint32_t) { return after_ns; };
  const RunIndex run = world().add_run(plan);
  TimeNs began = 0;
  std::vector<DurationNs> waits;
  std::uint32_t before = 0;
  world().set_filter([&](Passing& passing) {
    if (!is_gradient(passing, 0)) return;
    if (began == 0) began = passing.now;
    if (chunk_of(passing) < 4) waits.push_back(passing.now - began - after_ns);
    before += waits.empty();
  });
  expect_completed(run, 5 * kSecond);
  ASSERT_EQ(waits.size(), 4u);
  EXPECT_EQ(waits, (std::vector<DurationNs>(4, 0)));
  EXPECT_GT(before, 100u);
  EXPECT_LT(before, 3900u);
}

INSTANTIATE_TEST_SUITE_P(Moments, Overtaking, testing::Range(0, 12));

// ---- prophet ----

// Four tensors of 400 packets, 11 ms each at 12.5 MB/s, ready every 20 ms; from step 13 on every
// 35 ms.
JobPlan predictable(JobPlan plan) {
  plan = in_backward_order(std::move(plan), {.policy = Policy::kProphet});
  plan.gap_rule = [](Step step, std::uint32_t) { return (step < 13 ? 20 : 35) * kMillisecond; };
  return plan;
}

TEST_F(Scheduling, prophet_learns_plans_and_learns_anew_when_readiness_drifts) {
  set_links(12'500'000, 100 * kMicrosecond);
  const RunIndex run =
      world().add_run(predictable(make_plan(2, 24, {64 * 400, 64 * 400, 64 * 400, 64 * 1000})));
  const auto plan_after = [&](Step step) {
    EXPECT_TRUE(world().run_until([&] { return world().worker(run, 0).steps_done() >= step; },
                                  world().now() + 10 * kSecond));
    return session(run, 0).describe_plan();
  };
  EXPECT_NE(plan_after(5).find("learning"), std::string::npos);
  std::string plan = plan_after(10);
  EXPECT_NE(plan.find("burst 4 at 60.000 ms: 1 tensors, 400 packets, priority 0\n"),
            std::string::npos)
      << plan;
  EXPECT_NE(plan.find("block 1 at 0.000 ms: "), std::string::npos) << plan;
  EXPECT_NE(plan_after(17).find("learning"), std::string::npos);
  plan = plan_after(22);
  EXPECT_NE(plan.find("1 times anew"), std::string::npos) << plan;
  EXPECT_NE(plan.find("burst 4 at 105.000 ms"), std::string::npos) << plan;
  expect_completed(run, world().now() + 5 * kSecond);
}

class ProphetOverShards : public Scheduling, public testing::WithParamInterface<std::uint16_t> {};

TEST_P(ProphetOverShards, has_sent_a_block_when_the_predicted_tensor_comes) {
  options.appliance.jobs.shard_count = GetParam();
  set_links(12'500'000, 100 * kMicrosecond);
  options.socket_frames = 256;
  JobPlan plan = predictable(make_plan(2, 10, {64 * 400, 64 * 400, 64 * 400, 64 * 1000}));
  plan.session.receive_credit_packets = 256;  // else the shards' windows are 16 packets
  const RunIndex run = world().add_run(plan);
  TimeNs began = 0;
  std::uint32_t first_block = 0;
  TimeNs urgent = 0;
  world().set_filter([&](Passing& passing) {
    if (!is_gradient(passing, 0) || passing.packet.body<wire::Contribution>().step != 10) return;
    if (began == 0) began = passing.now;
    if (chunk_of(passing) >= 1200 && passing.now < began + 20 * kMillisecond) ++first_block;
    if (chunk_of(passing) / 400 == 2 && urgent == 0) urgent = passing.now;
  });
  expect_completed(run, 5 * kSecond);
  EXPECT_GT(first_block, 500u);  // of 1,000: the rest would not have arrived in time
  EXPECT_LT(first_block, 900u);
  EXPECT_LE(urgent, began + 20 * kMillisecond + 700 * kMicrosecond);
}

INSTANTIATE_TEST_SUITE_P(Shards, ProphetOverShards, testing::Values(1, 4));

class SchedulingWithLosses : public Straggling {};

TEST_F(SchedulingWithLosses, prophet_learns_anew_when_a_member_dies_and_the_others_go_on) {
  JobPlan plan = fastest(3, 2, 200, {64 * 40, 64 * 40}, LateMode::kRequeue);
  plan = in_backward_order(std::move(plan), {.policy = Policy::kProphet});
  plan.gap_rule = [](Step, std::uint32_t) { return 5 * kMillisecond; };
  const RunIndex run = world().add_run(plan);
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {0, 1, 2}, 12); }, 10 * kSecond));
  client::Session& session = world().worker(run, 0).session();
  EXPECT_EQ(session.describe_plan().find("learning"), std::string::npos);
  world().kill(world().worker(run, 2), false);
  EXPECT_TRUE(world().run_until(
      [&] { return session.describe_plan().find("1 times anew") != std::string::npos; },
      world().now() + 10 * kSecond));
  expect_same_replicas(run, world().now() + 20 * kSecond);
}

class Restarted : public SchedulingWithLosses, public testing::WithParamInterface<Policy> {};

TEST_P(Restarted, ranks_go_on_with_every_schedule) {
  JobPlan plan = fastest(3, 2, 40, {64 * 40, 64 * 300, 64}, LateMode::kRequeue);
  ScheduleOptions schedule = one_unit();
  schedule.policy = GetParam();
  plan = in_backward_order(std::move(plan), schedule);
  const RunIndex run = world().add_run(plan);
  ASSERT_TRUE(world().run_until([&] { return steps_done(run, {0, 1, 2}, 10); }, 10 * kSecond));
  world().kill(world().worker(run, 1), false);
  world().add_worker(run, Rank{1}, world().now() + 4 * kSecond);
  expect_same_replicas(run, world().now() + 60 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Policies, Restarted,
                         testing::Values(Policy::kStrict, Policy::kCredit, Policy::kProphet,
                                         Policy::kFifo));

}  // namespace
}  // namespace sluice::sim
