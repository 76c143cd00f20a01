#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using wire::PacketType;
using wire::RefuseCode;

using PolicyOfAJoin = ControlTest;

constexpr PolicyOptions kFixedTwo{.kind = PolicyKind::kFixed, .late = LateMode::kRequeue, .k = 2};

Worker worker_with(std::uint16_t rank, PolicyOptions policy, std::uint16_t world_size = 3) {
  Worker worker{.rank = rank, .world_size = world_size};
  worker.join.policy = policy;
  worker.join.has_policy = 1;
  return worker;
}

TEST_F(PolicyOfAJoin, IsToldToEveryWorkerAndSizesTheWindows) {
  Worker worker = worker_with(0, kFixedTwo);
  const Answered answered = join(worker);
  ASSERT_TRUE(answered.is(PacketType::kAccept));
  const auto& accept = answered.body<wire::Accept>();
  EXPECT_TRUE(accept.policy == kFixedTwo);
  EXPECT_EQ(accept.window, kAsyncWindow);
  EXPECT_EQ(accept.resync_hold_ms, 30'000u);
  EXPECT_EQ(accept.rejoined, 0);
  for (const Step first : accept.first_steps) EXPECT_EQ(first, 1u);
  const JobSpec& spec = only_job()->spec;
  EXPECT_TRUE(spec.policy == kFixedTwo);
  EXPECT_EQ(spec.windows[0], kAsyncWindow);
  EXPECT_EQ(spec.windows[2], 2u);
  EXPECT_EQ(spec.chunk_counts[2], kCollectiveChunks);
}

TEST_F(PolicyOfAJoin, LeftOutIsTheAppliancesForThatJobName) {
  JobsOptions configured = options();
  configured.policy = {.kind = PolicyKind::kGoodput};
  configured.named_jobs = {{"digits", kFixedTwo}};
  restart(configured);
  Worker named{.world_size = 3}, other{.name = "letters", .world_size = 3};
  named.join.policy = {.kind = PolicyKind::kSaina};  // means nothing without has_policy
  EXPECT_TRUE(join(named).body<wire::Accept>().policy == kFixedTwo);
  EXPECT_EQ(join(other).body<wire::Accept>().policy.kind, PolicyKind::kGoodput);
}

TEST_F(PolicyOfAJoin, TheConfigurationMayAskForReproducibleSumsUnderAName) {
  JobsOptions configured = options();
  configured.named_jobs = {{.job_name = "digits", .reproducible = true}};
  restart(configured);
  Worker asks{.world_size = 3}, silent{.rank = 1, .world_size = 3};
  asks.join.features = wire::kFeatureReproducible;
  EXPECT_TRUE(join(asks).is(PacketType::kAccept));
  EXPECT_TRUE(join(silent).is(PacketType::kAccept));
  EXPECT_TRUE(only_job()->spec.reproducible);
  restart(configured);
  Worker other{.name = "letters", .world_size = 3};
  EXPECT_TRUE(join(other).is(PacketType::kAccept));
  EXPECT_FALSE(only_job()->spec.reproducible);
}

TEST_F(PolicyOfAJoin, OfKLessThanNDoesNotGoWithReproducibleSums) {
  Worker asks = worker_with(0, kFixedTwo);
  asks.join.features = wire::kFeatureReproducible;
  EXPECT_EQ(refusal_of(asks, RefuseCode::kPolicy),
            "job 'digits': rank 0 at 10.0.0.2:40000 asks for policy fixed and the rank asks for "
            "reproducible sums, but with k < n = 3 it is a matter of time who is in a sum: give "
            "policy sync, or leave reproducible out");
  JobsOptions configured = options();
  configured.named_jobs = {{.job_name = "digits", .reproducible = true}};
  restart(configured);
  Worker silent = worker_with(0, kFixedTwo);
  EXPECT_THAT(refusal_of(silent, RefuseCode::kPolicy),
              HasSubstr("policy fixed and the configuration asks for reproducible sums"));
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(PolicyOfAJoin, GoesBeforeTheAppliances) {
  JobsOptions configured = options();
  configured.policy = {.kind = PolicyKind::kGoodput};
  restart(configured);
  Worker worker = worker_with(0, {});
  EXPECT_EQ(join(worker).body<wire::Accept>().policy.kind, PolicyKind::kSync);
  EXPECT_EQ(only_job()->spec.windows[0], kSyncWindow);
  EXPECT_EQ(only_job()->spec.chunk_counts[2], 0u);
}

TEST_F(PolicyOfAJoin, ThatDiffersFromTheFirstRanksIsRefusedWithBothValues) {
  Worker first = worker_with(0, kFixedTwo);
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  Worker second = worker_with(1, {.kind = PolicyKind::kSaina, .k = 1, .count_threshold = 0});
  EXPECT_EQ(refusal_of(second, RefuseCode::kPolicy),
            "rank 1 at 10.0.0.3:40000 asks for policy saina (k 1, sign_threshold 0.5, "
            "count_threshold k, signs all, round_steps 5, late drop), job 'digits' has fixed (k 2, "
            "late requeue, max_staleness 0) (set by rank 0 at 10.0.0.2:40000): give all ranks the "
            "same options");
  Worker third{.rank = 2, .world_size = 3};
  EXPECT_THAT(refusal_of(third, RefuseCode::kPolicy),
              HasSubstr("leaves the policy to the appliance, whose configuration says policy sync, "
                        "job 'digits' has fixed"));
}

TEST_F(PolicyOfAJoin, DiffersOnlyInWhatThePolicyReads) {
  Worker first = worker_with(0, kFixedTwo);
  join(first);
  PolicyOptions same = kFixedTwo;
  same.round_steps = 99;
  same.planned_steps = 7;
  Worker second = worker_with(1, same);
  EXPECT_TRUE(join(second).is(PacketType::kAccept));
  PolicyOptions other = kFixedTwo;
  other.late = LateMode::kDrop;
  Worker third = worker_with(2, other);
  EXPECT_THAT(refusal_of(third, RefuseCode::kPolicy),
              AllOf(HasSubstr("fixed (k 2, late drop)"), HasSubstr("late requeue")));
}

TEST_F(PolicyOfAJoin, ThatMakesNoSenseIsRefusedWithFieldValueAndRange) {
  const auto refused = [&](PolicyOptions policy) {
    Worker worker = worker_with(0, policy);
    return refusal_of(worker, RefuseCode::kPolicy);
  };
  EXPECT_EQ(refused({.kind = PolicyKind::kFixed, .k = 4}),
            "job 'digits': rank 0 at 10.0.0.2:40000 asks for policy fixed with k 4: give an "
            "integer from 1 to 3, the world size");
  EXPECT_THAT(refused({.kind = PolicyKind::kFixed, .k = 0}),
              HasSubstr("k 0: give an integer from 1 to 3"));
  EXPECT_THAT(refused({.kind = PolicyKind::kSaina, .sign_threshold_permille = 1001}),
              HasSubstr("sign_threshold 1.001: give a number from 0.0 to 1.0"));
  EXPECT_THAT(refused({.kind = PolicyKind::kSaina, .sign_stride = 7}),
              HasSubstr("signs 7: give one of \"all\", \"one-in-32\""));
  EXPECT_THAT(refused({.kind = PolicyKind::kSaina, .round_steps = 0}), HasSubstr("round_steps 0"));
  EXPECT_THAT(refused({.kind = PolicyKind::kRamp}), HasSubstr("planned_steps 0"));
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(PolicyOfAJoin, OfTheConfigurationThatDoesNotFitTheJobIsSaidToBeTheConfigurations) {
  JobsOptions configured = options();
  configured.policy = {.kind = PolicyKind::kFixed, .k = 6};
  restart(configured);
  Worker worker{.world_size = 3};
  EXPECT_THAT(refusal_of(worker, RefuseCode::kPolicy),
              HasSubstr("leaves the policy to the appliance, whose configuration says policy fixed "
                        "with k 6: give an integer from 1 to 3"));
}

TEST_F(PolicyOfAJoin, GetsAShorterWindowWhereTheJobsMemoryDoesNotHoldFourSteps) {
  Worker worker = worker_with(0, kFixedTwo);
  worker.join.layouts[0].chunk_count = 10'000;
  join(worker);
  const std::size_t full_bytes = jobs.memory_bytes();
  JobsOptions tight = options();
  tight.max_job_memory_bytes = full_bytes - 1;
  restart(tight);
  const Answered answered = join(worker);
  ASSERT_TRUE(answered.is(PacketType::kAccept));
  EXPECT_EQ(answered.body<wire::Accept>().window, 3);
  tight.max_job_memory_bytes = full_bytes / 4;
  restart(tight);
  EXPECT_THAT(refusal_of(worker, RefuseCode::kLimit), HasSubstr("limits.job_memory_mib"));
}

}  // namespace
}  // namespace sluice::agg
