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

TEST_F(Join, EndsAJobThatForGoodWaitsForItsRanksWhenAnotherHasAllOfThemAndNoPlace) {
  JobsOptions one = options();
  one.max_jobs = 1;
  restart(one);
  Worker waits;
  ASSERT_TRUE(join(waits).is(PacketType::kAccept));
  Worker other{.name = "other"}, second{.rank = 1, .name = "other"};
  pass(119 * kSecond, {&waits});
  EXPECT_THAT(refusal_of(other, RefuseCode::kLimit), HasSubstr("limits.jobs"));
  pass(2 * kSecond, {&waits});
  EXPECT_TRUE(join(other).is(PacketType::kPreparing)) << "it may wait for its other rank";
  pass(30 * kSecond, {&waits});
  EXPECT_TRUE(join(other).is(PacketType::kPreparing));
  EXPECT_TRUE(sent_of(PacketType::kNotice).empty()) << "one that may never come back ends nothing";
  EXPECT_TRUE(join(second).is(PacketType::kPreparing));
  const auto notices = sent_of(PacketType::kNotice);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(std::string(notices[0].packet.text()),
              AllOf(HasSubstr("'digits' has waited 151 s for its ranks (1 of 2 are here)"),
                    HasSubstr("'other'")));
  EXPECT_TRUE(join(other).is(PacketType::kAccept));
  EXPECT_TRUE(join(second).is(PacketType::kAccept));
}

TEST_F(Join, OfOneAddressOrOnePrefixOfNamesBeyondItsShareIsRefused) {
  Worker first{.name = "ada/a"}, second{.name = "ada/b"}, third{.name = "ada/c"};
  ASSERT_TRUE(join(first).is(PacketType::kAccept));
  const std::size_t job_bytes = jobs.memory_bytes();
  JobsOptions shared = options();
  shared.per_address = {.jobs = 2, .bytes = SIZE_MAX};
  restart(shared);
  for (Worker* worker : {&first, &second}) ASSERT_TRUE(join(*worker).is(PacketType::kAccept));
  EXPECT_THAT(refusal_of(third, RefuseCode::kLimit),
              AllOf(HasSubstr("job 3 of address '10.0.0.2', this appliance serves 2"),
                    HasSubstr("limits.address_jobs")));
  third.address = "10.0.0.9:40000";
  EXPECT_TRUE(join(third).is(PacketType::kAccept));

  shared.per_address = {.jobs = kMaxJobs, .bytes = SIZE_MAX};
  shared.per_prefix = {.jobs = 9, .bytes = 2 * job_bytes + 1};
  restart(shared);
  for (Worker* worker : {&first, &second}) ASSERT_TRUE(join(*worker).is(PacketType::kAccept));
  EXPECT_THAT(refusal_of(third, RefuseCode::kLimit),
              AllOf(HasSubstr("prefix 'ada' may have"), HasSubstr("limits.prefix_memory_mib")));
  third.name = "bob/c";
  EXPECT_TRUE(join(third).is(PacketType::kAccept));
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
