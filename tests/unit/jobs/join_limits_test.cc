// Joins against the limits of memory and of jobs.
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using wire::PacketType;
using wire::RefuseCode;

using Join = ControlTest;

TEST_F(Join, WaitsWithoutAnAnswerWhileShardsStillHoldTheMemoryThatItNeeds) {
  Worker old;
  join(old);
  JobsOptions tight = options();
  tight.max_total_memory_bytes = jobs.memory_bytes() + 1000;
  restart(tight);
  commands.clear();
  ASSERT_TRUE(join(old).is(PacketType::kAccept));
  pass(kTakeoverSilence + 50 * kMillisecond);
  shards_answer = false;
  Worker fresh{.nonce = 50};
  fresh.join.run_id = 8;
  const Answered silent = join(fresh);
  EXPECT_TRUE(silent.bytes.empty());
  EXPECT_EQ(silent.result.verdict, Verdict::kJoin);
  ASSERT_EQ(commands.back().kind, ShardCommand::Kind::kRemoveJob);
  for (std::uint16_t shard = 0; shard < kTestShards; ++shard)
    jobs.handle_event({.kind = ShardEvent::Kind::kJobReleased, .job = commands.back().job}, now);
  EXPECT_TRUE(join(fresh).is(PacketType::kAccept));
}

TEST_F(Join, BeyondAJobsMemoryIsRefusedWithTheNumbersAndTheKey) {
  JobsOptions small = options();
  small.max_job_memory_bytes = std::size_t{1} << 20;
  restart(small);
  Worker worker;
  worker.join.layouts[0].chunk_count = 100'000;
  EXPECT_THAT(refusal_of(worker, RefuseCode::kLimit),
              AllOf(HasSubstr("needs 213 MiB"), HasSubstr("may have 1 MiB"),
                    HasSubstr("raise limits.job_memory_mib to 213")));
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(Join, MemoryForSumsInTheOrderOfRanksIsRefusedWithTheNumbers) {
  JobsOptions small = options();
  small.max_job_memory_bytes = std::size_t{230} << 20;
  restart(small);
  Worker worker;
  worker.join.layouts[0].chunk_count = 100'000;
  ASSERT_TRUE(join(worker).is(PacketType::kAccept));  // 210 MiB
  restart(small);
  worker.join.features = wire::kFeatureReproducible;
  EXPECT_THAT(refusal_of(worker, RefuseCode::kLimit),
              AllOf(HasSubstr("needs 312 MiB (99 of them to sum 2 ranks in their order: "
                              "reproducible), a job may have 230 MiB"),
                    HasSubstr("raise limits.job_memory_mib to 312")));
  EXPECT_TRUE(jobs.jobs().empty());
}

TEST_F(Join, BeyondTheTotalMemoryIsRefusedWithTheNumbersAndTheKey) {
  JobsOptions small = options();
  small.max_total_memory_bytes = std::size_t{4} << 20;
  restart(small);
  Worker first, second{.name = "other"};
  first.join.layouts[0].chunk_count = second.join.layouts[0].chunk_count = 1000;
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  EXPECT_THAT(refusal_of(second, RefuseCode::kLimit),
              AllOf(HasSubstr("needs 3 MiB, 3 of 4 MiB are in use by 1 jobs"),
                    HasSubstr("limits.total_memory_mib to 6")));
}

TEST_F(Join, BeyondTheJobCountIsRefused) {
  JobsOptions one = options();
  one.max_jobs = 1;
  restart(one);
  Worker first, second{.name = "other"};
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  EXPECT_THAT(refusal_of(second, RefuseCode::kLimit),
              AllOf(HasSubstr("job 2"), HasSubstr("serves 1"), HasSubstr("limits.jobs")));
}

TEST_F(Join, OfManyJobsInTurnNeverRunsOutOfIds) {
  for (unsigned run = 0; run < 2 * kMaxJobs; ++run) {
    Worker worker{.name = "job" + std::to_string(run), .world_size = 1};
    ASSERT_TRUE(join(worker).is(PacketType::kAccept)) << run;
    ASSERT_TRUE(leave(worker).is(PacketType::kStatus));
  }
  EXPECT_EQ(jobs.memory_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::agg
