// The rows of jobs and ranks on the page of metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/ops/metrics_fixture.h"

namespace sluice::dataplane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(Metrics, JobsShowTheirCountersMembersAndHistograms) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  job->slices[0].contributions.add(7);
  job->slices[1].contributions.add(8);
  job->slices[0].results_sent.add(3);
  job->slices[1].results_deferred.add(2);
  job->slices[1].results_pulled.add(1);
  job->slices[0].slots_in_use.add(4);
  job->slices[0].step_duration.observe(15'000);
  job->slices[1].step_duration.observe(3 * kSecond);
  job->slices[0].flows[1].lag.observe(5'000);
  pass(2 * kSecond, {&workers[0]});
  const Families families = page();
  const std::map<std::string, std::string> digits{{"job", "digits"}};
  EXPECT_EQ(value(families, "sluice_job_contributions_total", digits), 15.0);
  EXPECT_EQ(value(families, "sluice_job_results_total", digits), 3.0);
  EXPECT_EQ(value(families, "sluice_job_results_deferred_total", digits), 2.0);
  EXPECT_EQ(value(families, "sluice_job_results_pulled_total", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_slots_in_use", digits), 4.0);
  EXPECT_EQ(value(families, "sluice_job_members", digits), 2.0);
  EXPECT_EQ(value(families, "sluice_job_running", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_step", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_memory_bytes", digits), jobs.memory_bytes());
  EXPECT_EQ(value(families, "sluice_job_member_silent_seconds", {{"job", "digits"}, {"rank", "1"}}),
            2.0);

  const MetricFamily* duration = find(families, "sluice_job_step_duration_seconds");
  ASSERT_EQ(duration->metric.size(), 1u);
  const auto& steps = duration->metric[0].histogram;
  EXPECT_EQ(steps.sample_count, 2u);
  EXPECT_DOUBLE_EQ(steps.sample_sum, 3.000015);
  EXPECT_EQ(steps.bucket[0].cumulative_count, 0u);
  EXPECT_DOUBLE_EQ(steps.bucket[1].upper_bound, 20e-6);
  EXPECT_EQ(steps.bucket[1].cumulative_count, 1u);
  EXPECT_EQ(steps.bucket.back().cumulative_count, 2u);
  EXPECT_EQ(find(families, "sluice_job_arrival_lag_seconds")->metric.size(), 2u);
}

TEST_F(Metrics, RanksShowWhatBecameOfTheirChunksOverAllShards) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  for (std::size_t index = 0; index < 2; ++index) {
    job->slices[index].flows[1].included.add(10 + index);
    job->slices[index].flows[1].late.add(20 + index);
    job->slices[index].flows[1].requeued.add(30 + index);
  }
  job->members[1].finished.store(std::uint64_t{7} << 32 | 250'000);
  const Families families = page();
  const std::map<std::string, std::string> rank_0{{"job", "digits"}, {"rank", "0"}};
  const std::map<std::string, std::string> rank_1{{"job", "digits"}, {"rank", "1"}};
  EXPECT_EQ(value(families, "sluice_job_included_chunks_total", rank_1), 21.0);
  EXPECT_EQ(value(families, "sluice_job_late_chunks_total", rank_1), 41.0);
  EXPECT_EQ(value(families, "sluice_job_requeued_chunks_total", rank_1), 61.0);
  EXPECT_EQ(value(families, "sluice_job_late_chunks_total", rank_0), 0.0);
  EXPECT_EQ(value(families, "sluice_job_gradient_seconds", rank_1), 0.25);
  EXPECT_EQ(value(families, "sluice_job_gradient_step", rank_1), 7.0);
  EXPECT_EQ(value(families, "sluice_job_gradient_seconds", rank_0), std::nullopt)
      << "a duration that is not known has no row";
}

TEST_F(Metrics, ARankIsMissingOnlyFromTheStepThatIsOpen) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  const auto missing = [&](const std::string& rank) {
    return value(page(), "sluice_job_missing", {{"job", "digits"}, {"rank", rank}});
  };
  EXPECT_EQ(missing("0"), 0.0);
  EXPECT_EQ(missing("1"), 0.0);
  job->slices[1].awaited.ranks[0].store(0b10);
  job->slices[1].awaited.step.store(1);
  EXPECT_EQ(missing("0"), 0.0);
  EXPECT_EQ(missing("1"), 1.0);
  job->windows[0].open_step.store(2);
  EXPECT_EQ(missing("1"), 0.0) << "the step that it was missing from is closed";
}

TEST_F(Metrics, TheStepThatHasNotStartedMissesNobody) {
  agg::Worker first;
  ASSERT_TRUE(join(first).is(wire::PacketType::kAccept));
  agg::Job* job = commands[0].job;
  job->slices[0].awaited.ranks[0].store(1);
  EXPECT_EQ(value(page(), "sluice_job_missing", {{"rank", "0"}}), 0.0);
}

TEST_F(Metrics, RanksThatAreNotThereHaveNoRows) {
  auto workers = running_job(3);
  leave(workers[2], wire::LeaveReason::kFinished);
  const Families families = page();
  for (const char* name : {"sluice_job_included_chunks_total", "sluice_job_late_chunks_total",
                           "sluice_job_requeued_chunks_total", "sluice_job_missing",
                           "sluice_job_arrival_lag_seconds", "sluice_job_member_silent_seconds"}) {
    const MetricFamily* family = find(families, name);
    ASSERT_NE(family, nullptr);
    EXPECT_EQ(family->metric.size(), 2u) << name;
    for (const ClientMetric& metric : family->metric) EXPECT_NE(label(metric, "rank"), "2") << name;
  }
}

TEST_F(Metrics, JobsShowTheirPolicyAndWhatItSaw) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  const std::map<std::string, std::string> digits{{"job", "digits"}};
  Families families = page();
  EXPECT_EQ(value(families, "sluice_job_policy_info",
                  {{"job", "digits"}, {"policy", "sync"}, {"late", "drop"}}),
            1.0);
  EXPECT_EQ(value(families, "sluice_job_k", digits), 2.0);
  EXPECT_EQ(value(families, "sluice_job_chunks", digits), 130.0);
  EXPECT_EQ(value(families, "sluice_job_noise_scale_valid", digits), 0.0);
  EXPECT_EQ(value(families, "sluice_job_signs_flipped_ratio", digits), std::nullopt);
  job->gauges.k.store(1);
  job->gauges.noise_scale.store(3.5);
  job->gauges.noise_scale_valid.store(true);
  job->gauges.signs_flipped.store(0.0);
  families = page();
  EXPECT_EQ(value(families, "sluice_job_k", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_noise_scale", digits), 3.5);
  EXPECT_EQ(value(families, "sluice_job_noise_scale_valid", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_signs_flipped_ratio", digits), 0.0);
}

TEST_F(StoreMetrics, StoresShowTheClocksOfTheirMembersOverAllShards) {
  for (std::uint32_t block : {0u, 1u})
    for (Step iteration : {1u, 2u}) push(0, iteration, block);
  push(1, 1, 0);
  Families families = page();
  EXPECT_EQ(value(families, "sluice_job_clock", {{"job", "store"}, {"rank", "0"}}), 2.0);
  EXPECT_EQ(value(families, "sluice_job_clock", {{"job", "store"}, {"rank", "1"}}), 0.0);
  EXPECT_EQ(value(families, "sluice_job_least_clock", job), 0.0);
  EXPECT_EQ(value(families, "sluice_job_greatest_clock", job), 2.0);
  EXPECT_EQ(value(families, "sluice_job_step", job), 1.0);
  push(1, 1, 1);
  EXPECT_EQ(value(page(), "sluice_job_least_clock", job), 1.0);
  for (std::uint32_t block : {0u, 1u}) {
    store(block).remove(Rank{1});
    store(block).poll_work();
  }
  families = page();
  EXPECT_EQ(value(families, "sluice_job_clock", {{"job", "store"}, {"rank", "1"}}), std::nullopt);
  EXPECT_EQ(value(families, "sluice_job_least_clock", job), 2.0);
  for (std::uint32_t block : {0u, 1u}) {  // the last one goes too, and the store is kept
    store(block).remove(Rank{0});
    store(block).poll_work();
  }
  families = page();
  EXPECT_EQ(value(families, "sluice_job_least_clock", job), std::nullopt);
  EXPECT_EQ(value(families, "sluice_job_step", job), 3.0);
}

TEST_F(StoreMetrics, StoresShowParkedPullsByLayerTheirAgeAndHowOldWhatIsReadWas) {
  EXPECT_TRUE(find(page(), "sluice_job_parked_pulls")->metric.empty());
  EXPECT_EQ(value(page(), "sluice_job_oldest_pull_seconds", job), 0.0);
  for (Step iteration : {1u, 2u, 3u}) push(0, iteration, 1);
  pull(0, 1, 1, 3);
  now += 1500 * kMillisecond;
  Families families = page();
  EXPECT_EQ(value(families, "sluice_job_parked_pulls", layer("1")), 1.0);
  EXPECT_EQ(value(families, "sluice_job_parked_pulls", layer("0")), std::nullopt);
  EXPECT_EQ(value(families, "sluice_job_oldest_pull_seconds", job), 1.5);
  push(1, 1, 1);
  for (agg::StoreAnswer answer; store(1).poll_answer(answer);) EXPECT_EQ(answer.clock, 1u);
  families = page();
  EXPECT_EQ(value(families, "sluice_job_parked_pulls", layer("1")), 0.0);
  EXPECT_EQ(value(families, "sluice_job_waited_pulls_total", layer("1")), 1.0);
  EXPECT_EQ(value(families, "sluice_job_oldest_pull_seconds", job), 0.0);
  const auto& waits = find(families, "sluice_job_pull_wait_seconds")->metric.at(0).histogram;
  EXPECT_EQ(waits.sample_count, 1u);
  EXPECT_DOUBLE_EQ(waits.sample_sum, 1.5);
  const auto& behind = find(families, "sluice_job_staleness_iterations")->metric.at(0).histogram;
  EXPECT_EQ(behind.sample_count, 1u);
  EXPECT_EQ(behind.sample_sum, 2.0);
  EXPECT_EQ(behind.bucket.at(2).upper_bound, 2.0);
  EXPECT_EQ(behind.bucket.at(1).cumulative_count, 0u);
  EXPECT_EQ(behind.bucket.at(2).cumulative_count, 1u);
}

TEST_F(StoreMetrics, StoresShowHowLongAWorkerWaitsAndHowOldItsRequestsAreAsItSaysItself) {
  const std::map<std::string, std::string> second{{"job", "store"}, {"rank", "1"}};
  EXPECT_EQ(value(page(), "sluice_job_suspended_seconds_total", second), 0.0);
  send(workers[1], wire::Keepalive{.suspended_ns = 2'500'000'000, .oldest_request_iterations = 3});
  const Families families = page();
  EXPECT_EQ(value(families, "sluice_job_suspended_seconds_total", second), 2.5);
  EXPECT_EQ(value(families, "sluice_job_oldest_request_iterations", second), 3.0);
  const std::map<std::string, std::string> first{{"job", "store"}, {"rank", "0"}};
  EXPECT_EQ(value(families, "sluice_job_suspended_seconds_total", first), 0.0);
}

TEST_F(Metrics, JobsOfSumsHaveNoRowsOfStores) {
  auto workers = running_job(2);
  const Families families = page();
  for (const char* name :
       {"sluice_job_clock", "sluice_job_least_clock", "sluice_job_parked_pulls",
        "sluice_job_pull_wait_seconds", "sluice_job_staleness_iterations",
        "sluice_job_suspended_seconds_total", "sluice_job_oldest_request_iterations"})
    EXPECT_TRUE(find(families, name)->metric.empty()) << name;
}

TEST_F(Metrics, AJobUnderAReusedNameIsOneRow) {
  auto old = running_job(2);
  leave(old[1], wire::LeaveReason::kAbnormal);
  shards_answer = false;  // the old job's memory stays for a while
  agg::Worker next{.nonce = 700};
  next.join.run_id = 8;
  ASSERT_TRUE(join(next).is(wire::PacketType::kAccept));
  ASSERT_EQ(jobs.jobs().size(), 2u);
  agg::Worker second{.nonce = 701};
  second.join.ordinal = 1;
  ASSERT_TRUE(join(second).is(wire::PacketType::kAccept));
  const Families families = page();
  EXPECT_EQ(find(families, "sluice_job_members")->metric.size(), 2u);
  EXPECT_EQ(value(families, "sluice_job_members", {{"job", "digits"}}), 1.0);
  EXPECT_EQ(value(families, "sluice_job_members", {{"job", "digits/1"}}), 1.0);
}

TEST_F(Metrics, AJobNamedLikeAnothersSecondModelHasALabelOfItsOwn) {
  agg::Worker second{.nonce = 701}, named{.name = "digits/1", .nonce = 702};
  second.join.ordinal = 1;
  ASSERT_TRUE(join(second).is(wire::PacketType::kAccept));
  ASSERT_TRUE(join(named).is(wire::PacketType::kAccept));
  const Families families = page();
  EXPECT_EQ(value(families, "sluice_job_members", {{"job", "digits/1"}}), 1.0);
  EXPECT_EQ(value(families, "sluice_job_members", {{"job", "digits/1/0"}}), 1.0);
}

}  // namespace
}  // namespace sluice::dataplane
