// Elastic jobs of kind operations: processes come and go, and get their ranks from the job.
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

using testing::HasSubstr;
using wire::PacketType;

class ElasticJob : public ControlTest {
 protected:
  ElasticJob() {
    JobsOptions small = options();
    small.max_job_memory_bytes = std::size_t{256} << 20;
    restart(small);
    shards.emplace(kTestShards);
  }
  // A process that asks for any rank of at most three.
  static Worker process(std::uint64_t number) {
    Worker one{.rank = kAnyRank.value,
               .address = "10.0.0." + std::to_string(number) + ":40000",
               .name = "ops",
               .nonce = 1000 + number,
               .world_size = 3};
    one.join.layouts[kTensorStream] = {.hash = 5};
    one.join.layouts[index_of(StreamId::kCollectives)] = {.chunk_count = kCollectiveChunks};
    one.join.kind = JobKind::kOperations;
    return one;
  }
  // Joins, as often as a worker asks, and takes the rank that the job gives.
  Answered come(Worker& one) {
    Answered answered = join(one);
    if (answered.bytes.empty()) answered = join(one);  // shard 0 knows it now
    EXPECT_TRUE(answered.is(PacketType::kAccept));
    if (answered.is(PacketType::kAccept)) {
      EXPECT_EQ(answered.result.rank.value, answered.packet.common().rank);
      one.rank = answered.packet.common().rank;
    }
    return answered;
  }
  Answered ask(const Worker& from, const std::string& name, std::uint64_t ranks,
               wire::GroupRequest request = wire::GroupRequest::kMake) {
    wire::MakeGroup body{
        .request = request, .mask_words = 1, .name_bytes = static_cast<std::uint8_t>(name.size())};
    std::memcpy(body.name, name.data(), name.size());
    std::array<std::uint8_t, 512> out;
    const std::size_t bytes =
        wire::encode(out, {from.job, from.rank, from.cookie}, body, {&ranks, 1});
    return send({out.data(), bytes}, from.address);
  }
};

TEST_F(ElasticJob, StartsWithItsFirstProcessAndGivesEachARank) {
  Worker first = process(1);
  come(first);
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(keepalive(first).body<wire::Status>().state, wire::JobState::kRunning);
  Worker second = process(2);
  Worker third = process(3);
  come(second);
  come(third);
  EXPECT_EQ(second.rank, 1);
  EXPECT_EQ(third.rank, 2);
  EXPECT_EQ(ask(third, "all", 0b111).text(), "");
  Worker fourth = process(4);
  EXPECT_THAT(refusal_of(fourth, wire::RefuseCode::kLimit),
              HasSubstr("job 'ops' has 3 processes, and its world size allows no more"));
}

TEST_F(ElasticJob, ALostAnswerGivesTheSameRankAgain) {
  Worker first = process(1);
  Worker second = process(2);
  come(first);
  come(second);
  Worker again = process(2);
  come(again);
  EXPECT_EQ(again.rank, second.rank);
  EXPECT_EQ(again.cookie, second.cookie);
}

TEST_F(ElasticJob, ARankThatIsLeftOrLostIsGivenOutAgain) {
  Worker one = process(1);
  Worker two = process(2);
  Worker three = process(3);
  for (Worker* const each : {&one, &two, &three}) come(*each);
  ask(one, "all", 0b111);
  leave(two);
  Worker four = process(4);
  come(four);
  EXPECT_EQ(four.rank, two.rank);
  EXPECT_NE(four.cookie, two.cookie);
  kill(three, {&one, &four});
  Worker five = process(5);
  come(five);
  EXPECT_EQ(five.rank, three.rank);
  EXPECT_THAT(ask(five, "all", 0b111).text(), HasSubstr("of it has left or was lost"));
  EXPECT_EQ(ask(five, "again", 0b111).text(), "");
  EXPECT_EQ(ask(one, "again", 0b111).text(), "");
}

TEST_F(ElasticJob, AGroupThatAMemberAbortsIsBrokenAndTheOthersGoOn) {
  Worker one = process(1);
  Worker two = process(2);
  come(one);
  come(two);
  ask(one, "pair", 0b11);
  ask(one, "other", 0b11);
  EXPECT_EQ(ask(two, "pair", 0b11, wire::GroupRequest::kAbort).text(), "");
  EXPECT_THAT(ask(one, "pair", 0b11).text(), HasSubstr("rank 1 of it has left or was lost"));
  EXPECT_EQ(ask(one, "other", 0b11).text(), "");
  EXPECT_EQ(ask(two, "anew", 0b11).text(), "");
}

TEST_F(ElasticJob, ProcessesThatSayTheirRankAreNotMixedWithOthers) {
  Worker one = process(1);
  come(one);
  Worker fixed = process(2);
  fixed.rank = 1;
  EXPECT_THAT(refusal_of(fixed, wire::RefuseCode::kBadRequest),
              HasSubstr("asks job 'ops' for rank 1, and the job is elastic"));
  Worker sums{.rank = kAnyRank.value, .address = "10.0.0.9:1", .nonce = 9, .world_size = 3};
  EXPECT_THAT(refusal_of(sums, wire::RefuseCode::kBadRequest), HasSubstr("outside job"));
}

TEST_F(ElasticJob, EndsWithItsLastProcessAndBeginsAnew) {
  for (const auto how : {wire::LeaveReason::kFinished, wire::LeaveReason::kAbnormal}) {
    const std::uint64_t number = how == wire::LeaveReason::kFinished ? 1 : 10;
    Worker one = process(number);
    Worker two = process(number + 1);
    come(one);
    EXPECT_EQ(one.rank, 0);
    come(two);
    leave(one, how);
    leave(two, how);
    EXPECT_TRUE(jobs.is_empty());
    pump();
  }
}

}  // namespace
}  // namespace sluice::agg
