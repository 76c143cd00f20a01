// Members that ask for much beside jobs that ask for nothing: the order of service, and the number
// of datagrams that one packet can trigger. One loop is an lcore's: the packets that arrived, then
// up to 64 datagrams.
#include <gmock/gmock.h>

#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using wire::PacketType;

constexpr int kDatagramsPerLoop = SendBudget::kDatagrams;
constexpr std::uint64_t kEverything = ~std::uint64_t{0};

// The harness's job asks; another job of one rank on the same shard wants its results.
class Fairness : public testing::Test {
 protected:
  static constexpr std::uint16_t kOtherJob = 6;

  // The results of steps 1 and 2, `chunks` each, are there and deferred: no rank gave credit.
  void ask_with(std::uint16_t world_size, std::uint32_t chunks) {
    harness =
        std::make_unique<Harness>(HarnessOptions{.world_size = world_size, .chunk_count = chunks});
    for (ChunkIndex chunk = 0; chunk < chunks; ++chunk)
      for (std::uint16_t rank = 0; rank < world_size; ++rank)
        harness->contribute<float>(rank, 1, chunk, std::vector<float>(16, 1), {.credit = 0});
    harness->drain();
  }

  void add_other_job(std::uint32_t chunks) {
    JobSpec spec{.id = JobId{kOtherJob}, .name = "other", .world_size = 1, .chunk_bytes = 64};
    spec.chunk_counts = {chunks, 0, 0};
    spec.max_elems = {16, 0, 0};
    spec.windows = {kSyncWindow, 0, 0};
    other = std::make_unique<Job>(spec);
    other->members[0].cookie = 1;
    other->members[0].reachable = true;
    harness->shard(0).handle_command({.kind = ShardCommand::Kind::kAddJob, .job = other.get()},
                                     harness->now);
    other->start(harness->now);
  }
  void contribute_to_other(ChunkIndex chunk) {
    const float value = 1;
    const wire::Contribution body{.flow = {.number = ++other_number, .credit = 100'000},
                                  .step = 1,
                                  .chunk = chunk,
                                  .base_step = 1,
                                  .weight = 1,
                                  .elem_count = 1};
    std::uint8_t out[256];
    const std::size_t size =
        wire::encode(out, {.job = kOtherJob, .rank = 0, .cookie = 1}, body, {},
                     {reinterpret_cast<const std::uint8_t*>(&value), sizeof value});
    ASSERT_EQ(harness->handle({out, size}), Verdict::kCompleted);
  }

  struct Loop {
    int datagrams = 0;
    int others_datagrams = 0;
    int pulled = 0;
    std::size_t asked_bytes = 0;  // sent to the members that ask
  };
  Loop loop(int datagrams = kDatagramsPerLoop) {
    Loop seen;
    std::uint8_t out[2048];
    Transmit transmit{.buffer = out};
    for (; seen.datagrams < datagrams; ++seen.datagrams) {
      if (harness->shard(0).poll_transmit({&transmit, 1}, harness->now) == 0) break;
      if (transmit.job.value == kOtherJob) {  // its results, mostly
        ++seen.others_datagrams;
        continue;
      }
      seen.asked_bytes += transmit.datagram_bytes();
      wire::Packet packet;
      EXPECT_EQ(wire::parse(transmit.datagram(), packet), Verdict::kAccepted);
      seen.pulled += packet.type() == PacketType::kResult;
    }
    return seen;
  }

  std::unique_ptr<Harness> harness;
  std::unique_ptr<Job> other;
  std::uint32_t other_number = 0;
};

TEST_F(Fairness, OneProbeALoopForEverythingDoesNotStarveAnotherJob) {
  ask_with(1, 64);
  add_other_job(1280);
  for (ChunkIndex chunk = 0; chunk < 1280; ++chunk) contribute_to_other(chunk);
  int results = 0;
  int loops = 0;
  for (; loops < 100'000 && results < 1280; ++loops) {
    ASSERT_EQ(harness->probe(0, 1, 0, kEverything), Verdict::kProbe);
    results += loop().others_datagrams;
  }
  EXPECT_EQ(results, 1280) << "in " << loops << " loops";
  EXPECT_LE(loops, 1280 / kDatagramsPerLoop * 5 / 4);
}

// Two of 512 ranks go on alone, so that each slot is opened anew before a loop has sent its result
// to an eighth of them.
TEST_F(Fairness, AWideJobWhoseSlotsAreOpenedAnewMeanwhileDoesNotKeepItsTurn) {
  harness = std::make_unique<Harness>(
      HarnessOptions{.world_size = 512, .chunk_count = 1, .policy = fixed_k(1)});
  harness->pass_full_steps();
  add_other_job(64);
  Step step = kFullSteps;
  int results = 0;
  for (ChunkIndex chunk = 0; chunk < 64; ++chunk) {
    contribute_to_other(chunk);
    for (const Step last = step + 2 * kAsyncWindow; step < last;) {
      ++step;
      for (const std::uint16_t rank : {0, 1}) harness->contribute<float>(rank, step, 0, {1});
    }
    results += loop().others_datagrams;
  }
  EXPECT_EQ(results, 64) << "one a loop, each in the loop in which it was complete";
  EXPECT_GT(harness->shard(0).results_overwritten(), 64u);
}

// A result that completes meanwhile waits for them all.
TEST_F(Fairness, RepliesAloneSoonLetTheLcoreReceiveAgain) {
  ask_with(1, 64);
  add_other_job(64);
  harness->credit(0, 100'000);
  harness->probe(0, 1, 0, kEverything);
  const auto sent_in_a_loop = [this] {
    int sent = 0;
    const auto count = [&](const Transmit&, std::span<const std::uint8_t>) { ++sent; };
    SendTo into{count};
    harness->shards.serve(0, into, harness->now);
    return sent;
  };
  EXPECT_LE(sent_in_a_loop(), 4) << "an answer, and three of the 64 results that it pulls";
  for (ChunkIndex chunk = 0; chunk < 64; ++chunk) contribute_to_other(chunk);
  EXPECT_EQ(sent_in_a_loop(), kDatagramsPerLoop) << "results are not held up for replies";
}

TEST_F(Fairness, CatchUpOfAHundredStragglersDoesNotDelayAnotherJobsResult) {
  ask_with(100, 8 * 64);
  add_other_job(64);
  for (std::uint16_t rank = 0; rank < 100; ++rank)
    for (std::uint32_t block = 0; block < 8; ++block)
      ASSERT_EQ(harness->probe(rank, 1, block, kEverything), Verdict::kProbe);
  contribute_to_other(0);
  EXPECT_EQ(loop(2).others_datagrams, 1)
      << "the first or second datagram is the other job's result";
  for (ChunkIndex chunk = 1; chunk < 64; ++chunk) contribute_to_other(chunk);
  EXPECT_EQ(loop(80).others_datagrams, 63) << "and many of them leave almost as if alone";
}

TEST_F(Fairness, AskingAgainAndAgainBringsNoMoreThanTheCreditAllows) {
  ask_with(1, 64);
  constexpr std::size_t kProbes = 10'000;
  const std::size_t probe_bytes = sizeof(wire::CommonHeader) + sizeof(wire::Probe);
  std::size_t sent_bytes = 0;
  int pulled = 0;
  for (std::size_t i = 0; i < kProbes; ++i) {
    ASSERT_EQ(harness->probe(0, 1, 0, kEverything), Verdict::kProbe);
    const Loop seen = loop(2 * kDatagramsPerLoop);
    sent_bytes += seen.asked_bytes;
    pulled += seen.pulled;
  }
  EXPECT_LE(pulled, 64) << "the member says that it has taken none of them";
  // An answer has 95 bytes, with its mask: twice a probe.
  EXPECT_LE(sent_bytes, kProbes * (2 * probe_bytes + 1) + 64 * 100);
}

TEST_F(Fairness, ANewProbeReplacesTheOneAboutTheSameBlock) {
  ask_with(1, 128);
  for (const std::uint64_t want : {0b1111u, 0b0011u, 0b0101u}) harness->probe(0, 1, 0, want);
  harness->probe(0, 1, 1, 0b1);
  const auto answers = harness->drain(PacketType::kAnswer);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(std::uint32_t{answers[0].packet.body<wire::Answer>().probe_number},
            harness->numbers[0] - 1)
      << "the newest decides what came before it";
}

// A job of hundreds waits in a barrier and probes for it, so that every turn is long in coming
// (swarm seeds 1189, 3100196 and 770077003650): its worker asks for a result once, until it is
// overdue, and about the block again before each of its turns.
TEST_F(Fairness, ResultsThatWerePromisedLeaveWhateverIsAskedMeanwhileAndOnce) {
  ask_with(1, 128);
  std::vector<ChunkIndex> chunks;
  int answers = 0;
  for (const std::uint64_t want : {0b1110u, 0b0101u, 0u, 0u, 0u, 0u, 0u, 0u}) {
    harness->probe(0, 1, 0, want);
    std::uint8_t out[2048];
    Transmit transmit{.buffer = out};
    ASSERT_EQ(harness->shard(0).poll_transmit({&transmit, 1}, harness->now), 1u);
    wire::Packet packet;
    ASSERT_EQ(wire::parse(transmit.datagram(), packet), Verdict::kAccepted);
    if (packet.type() == PacketType::kResult)
      chunks.push_back(ChunkIndex{packet.body<wire::ResultHeader>().chunk});
    answers += packet.type() == PacketType::kAnswer;
  }
  EXPECT_THAT(chunks, testing::ElementsAre(1, 0, 2, 3)) << "0 from the second answer on";
  EXPECT_EQ(answers, 4) << "every other turn";
  EXPECT_TRUE(harness->drain(PacketType::kResult).empty());
}

TEST_F(Fairness, AProbeThatFindsNoRoomIsCountedAndOneThatWasAnsweredMakesRoom) {
  constexpr std::uint32_t kBlocks = kRepliesPerMember + 8;
  ask_with(1, kBlocks * kChunksPerBlock);
  for (std::uint32_t block = 0; block < kBlocks; ++block) harness->probe(0, 1, block, kEverything);
  EXPECT_EQ(harness->shard(0).replies_dropped(), 8u);
  std::size_t answers = 0;
  for (const Sent& one : harness->drain()) answers += one.packet.type() == PacketType::kAnswer;
  EXPECT_EQ(answers, kRepliesPerMember);
  harness->probe(0, 1, kBlocks - 1, 0);
  const auto sent = harness->drain();
  ASSERT_EQ(sent.size(), 1u) << "results that wait for credit do not keep answers out";
  EXPECT_EQ(std::uint32_t{sent[0].packet.body<wire::Answer>().block}, kBlocks - 1);
  EXPECT_EQ(harness->shard(0).replies_dropped(), 8u);
}

TEST_F(Fairness, PulledResultsWaitForCreditAndGoOnWithIt) {
  ask_with(1, 192);
  for (const std::uint32_t block : {0u, 1u, 2u}) harness->probe(0, 1, block, kEverything);
  std::size_t pulled = harness->drain(PacketType::kResult).size();
  EXPECT_LE(pulled, 64u);
  for (std::uint32_t told = 100; pulled < 192 && told < 1000; told += 50) {
    harness->credit(0, told);
    const std::size_t more = harness->drain(PacketType::kResult).size();
    EXPECT_LE(more, 100u);
    pulled += more;
  }
  EXPECT_EQ(pulled, 192u) << "each once";
}

// Everything that was sent was lost, so the member's credit stands still; only answers come through
// from now on. Credit counts what arrived.
TEST_F(Fairness, ALostTailIsPulledHoweverSmallTheCredit) {
  ask_with(1, 64);
  for (int i = 0; i < 1000; ++i) {
    harness->probe(0, 1, 0, kEverything);
    harness->drain();
  }
  std::uint64_t lacking = kEverything;
  std::uint32_t arrived = 0;
  int probes = 0;
  for (; lacking != 0 && probes < 200; ++probes) {
    harness->credit(0, arrived + 1);
    harness->probe(0, 1, 0, lacking);
    int results = 0;
    for (const Sent& sent : harness->drain()) {
      if (sent.packet.type() != PacketType::kResult) {
        arrived = sent.packet.feedback().number;
      } else if (++results == 1) {  // the rest is lost again
        const auto& body = sent.packet.body<wire::ResultHeader>();
        lacking &= ~(std::uint64_t{1} << body.chunk);
        arrived = body.feedback.number;
      }
    }
  }
  EXPECT_EQ(lacking, 0u);
  EXPECT_LE(probes, 2 * 64);
}

TEST_F(Fairness, RepliesOfOneJobTakeTurnsWithThoseOfAnother) {
  ask_with(100, 8 * 64);
  add_other_job(64);
  for (std::uint16_t rank = 0; rank < 100; ++rank)
    for (std::uint32_t block = 0; block < 8; ++block) harness->probe(rank, 1, block, kEverything);
  const wire::Credit body{.flow = {.number = 1, .credit = 10, .flags = wire::kFlagReport}};
  std::uint8_t out[64];
  const std::size_t size = wire::encode(out, {.job = kOtherJob, .rank = 0, .cookie = 1}, body);
  ASSERT_EQ(harness->handle({out, size}), Verdict::kCredit);
  EXPECT_EQ(loop(2).others_datagrams, 1) << "feedback does not wait behind 800 probes";
}

TEST_F(Fairness, AProcessThatTakesTheRankOverOwesNothingForTheOldOne) {
  ask_with(1, 64);
  harness->probe(0, 1, 0, kEverything);
  harness->job->members[0].cookie = 77;
  EXPECT_TRUE(harness->drain().empty());
}

}  // namespace
}  // namespace sluice::agg
