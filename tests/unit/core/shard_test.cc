#include "aggregator/core/shard.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using testing::ElementsAre;
using wire::PacketType;

TEST(Shard, SumsTheContributionsOfAllWorkersAndSendsTheResultToEach) {
  Harness harness({.world_size = 3});
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, {1, 2}, {.weight = 4}), Verdict::kFolded);
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {10, 20}, {.weight = 5}), Verdict::kFolded);
  EXPECT_TRUE(harness.drain().empty());
  EXPECT_EQ(harness.contribute<float>(2, 1, 0, {100, 200}, {.weight = 0}), Verdict::kCompleted);
  const auto sent = harness.drain();
  ASSERT_EQ(sent.size(), 3u);
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    const auto& body = sent[rank].packet.body<wire::ResultHeader>();
    EXPECT_EQ(sent[rank].transmit.rank, Rank{rank});
    EXPECT_THAT(floats_of(sent[rank]), ElementsAre(111, 222));
    EXPECT_EQ(std::uint64_t{body.weight}, 9u);
    EXPECT_EQ(body.k, 3);
    EXPECT_EQ(sent[rank].packet.mask_word(0), 0b111u);
  }
}

TEST(Shard, HandsOutAResultsChecksumThatMatchesItsBytes) {
  Harness harness({.world_size = 1});
  harness.contribute<float>(0, 1, 0, {1, 2, 3});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 1u);
  const wire::Bytes bytes = sent[0].bytes;
  EXPECT_EQ(wire::finish_checksum(sent[0].transmit.sum),
            wire::finish_checksum(wire::sum_bytes(bytes)));
}

TEST(Shard, CountsADuplicateAndNeverAddsIt) {
  Harness harness;
  harness.contribute<float>(0, 1, 0, {1});
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, {1}), Verdict::kDuplicate);
  harness.contribute<float>(1, 1, 0, {2});
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, {1}), Verdict::kDuplicate);
  for (const Sent& sent : harness.drain(PacketType::kResult))
    EXPECT_THAT(floats_of(sent), ElementsAre(3));
}

TEST(Shard, OpensAStepOnlyWhenEveryChunkOfTheOneBeforeIsClosed) {
  Harness harness({.world_size = 1, .chunk_count = 2});
  harness.contribute<float>(0, 1, 0, {1});
  EXPECT_EQ(harness.contribute<float>(0, 2, 0, {1}), Verdict::kTooNew);
  harness.contribute<float>(0, 1, 1, {1});
  EXPECT_EQ(harness.contribute<float>(0, 2, 0, {1}), Verdict::kCompleted);
}

TEST(Shard, RefusesAStepFarInTheFutureAndOneThatLeftTheWindow) {
  Harness harness({.world_size = 1, .chunk_count = 1});
  EXPECT_EQ(harness.contribute<float>(0, 1u << 31, 0, {1}), Verdict::kTooNew);
  EXPECT_EQ(harness.contribute<float>(0, 0, 0, {1}), Verdict::kTooOld);
  for (Step step = 1; step <= 3; ++step) harness.contribute<float>(0, step, 0, {1});
  EXPECT_EQ(harness.contribute<float>(0, 2, 0, {1}), Verdict::kTooOld);
  EXPECT_EQ(harness.contribute<float>(0, 3, 0, {1}), Verdict::kDuplicate);
}

TEST(Shard, KeepsBothRetainedStepsApartInTheirSlots) {
  Harness harness({.world_size = 1, .chunk_count = 2});
  harness.contribute<float>(0, 1, 0, {5});
  harness.contribute<float>(0, 1, 1, {6});
  harness.contribute<float>(0, 2, 0, {7});
  harness.drain();
  harness.probe(0, 1, 0, 1);
  const auto pulled = harness.drain(PacketType::kResult);
  ASSERT_EQ(pulled.size(), 1u);
  EXPECT_THAT(floats_of(pulled[0]), ElementsAre(5));
}

TEST(Shard, NamesEachKindOfWrongPacket) {
  Harness harness({.world_size = 2, .chunk_count = 130, .shard_count = 2});
  EXPECT_EQ(harness.contribute<float>(0, 1, 130, {1}), Verdict::kBadChunk);
  EXPECT_EQ(harness.piece(0, 1, 0, {.size_bytes = 8, .kind = CollectiveKind::kTransfer}, 8),
            Verdict::kBadStream);
  wire::Contribution body{.flow = {.number = 1, .flags = wire::kFlagNil}, .step = 1, .chunk = 64};
  const std::vector<std::uint8_t> first_alone = {1, 0, 0, 0, 0, 0, 0, 0};
  const auto from = [&](const wire::Sender& sender, std::uint16_t shard) {
    std::uint8_t out[128];
    return harness.handle({out, wire::encode(out, sender, body, {}, first_alone)}, shard);
  };
  EXPECT_EQ(from(harness.sender(0), 0), Verdict::kWrongShard);
  EXPECT_EQ(from({.job = 5, .rank = 0, .cookie = 1}, 1), Verdict::kBadCookie);
  EXPECT_EQ(from({.job = 5, .rank = 2, .cookie = 1}, 1), Verdict::kBadRank);
  EXPECT_EQ(from({.job = 6, .rank = 0, .cookie = 1}, 1), Verdict::kUnknownJob);
  harness.job->members[0].stale_cookie = 1;
  EXPECT_EQ(from({.job = 5, .rank = 0, .cookie = 1}, 1), Verdict::kStaleCookie);
  EXPECT_TRUE(harness.drain().empty()) << "strangers get nothing";
}

TEST(Shard, KnowsMembersByTheirCookies) {
  Harness harness;
  const Shard& shard = harness.shard(0);
  EXPECT_TRUE(shard.is_member({.job = 5, .rank = 1, .cookie = harness.cookie(1)}));
  EXPECT_FALSE(shard.is_member({.job = 5, .rank = 0, .cookie = harness.cookie(1)}));
  EXPECT_FALSE(shard.is_member({.job = 5, .rank = 1024, .cookie = harness.cookie(1)}));
  EXPECT_FALSE(shard.is_member({.job = 6, .rank = 1, .cookie = harness.cookie(1)}));
  EXPECT_FALSE(shard.is_member({.job = 65535, .rank = 1, .cookie = harness.cookie(1)}));
  harness.job->members[0].cookie = 0;
  EXPECT_FALSE(shard.is_member({.job = 5, .rank = 0, .cookie = 0}));
}

TEST(Shard, RefusesAContributionOfAnotherShape) {
  Harness harness;
  harness.contribute<float>(0, 1, 0, {1, 2});
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {1}), Verdict::kShapeMismatch);
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {1, 2}), Verdict::kCompleted);
}

TEST(Shard, RefusesAContributionThatNoResultCouldCarry) {
  Harness harness;
  const std::vector<float> wide(kTestChunkBytes / 4 + 1);
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, wide), Verdict::kShapeMismatch);
}

TEST(Shard, SumsMoreWorkersThanOneMaskWordHolds) {
  Harness harness({.world_size = 130, .chunk_count = 2});
  for (std::uint16_t rank = 0; rank < 130; ++rank) {
    const Verdict verdict = harness.contribute<float>(rank, 1, 0, {1});
    EXPECT_EQ(verdict, rank == 129 ? Verdict::kCompleted : Verdict::kFolded);
    if (rank < 129) harness.contribute<float>(rank, 1, 1, {1});
  }
  EXPECT_EQ(harness.contribute<float>(129, 1, 0, {1}), Verdict::kDuplicate);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 130u);
  EXPECT_THAT(floats_of(sent[0]), ElementsAre(130));
  ASSERT_EQ(sent[0].packet.mask_word_count(), 3u);
  EXPECT_EQ(sent[0].packet.mask_word(1), ~std::uint64_t{0});
  EXPECT_EQ(sent[0].packet.mask_word(2), 0b11u);
  harness.probe(3, 1, 0, 0);
  const auto answers = harness.drain(PacketType::kAnswer);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].packet.mask_word(0), 0u);
  EXPECT_EQ(answers[0].packet.mask_word(2), 0b10u) << "only rank 129 is missing from chunk 1";
  EXPECT_EQ(answers[0].packet.missing_age(0).rank, 129);
}

TEST(Shard, WhoHasNoDataDoesNotSayHowUrgentAResultIs) {
  Harness harness({.world_size = 3, .chunk_count = 2, .policy = {}});
  harness.contribute<float>(0, 1, 0, {}, {.priority = 0, .nil = true, .nil_too = 0b10});
  harness.contribute<float>(1, 1, 0, {1}, {.priority = 9});
  harness.contribute<float>(2, 1, 0, {1}, {.priority = 7});
  auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].transmit.priority, 7);
  EXPECT_EQ(sent[0].packet.feedback().priority, 7);
  harness.contribute<float>(1, 1, 1, {}, {.priority = 9, .nil = true});
  harness.contribute<float>(2, 1, 1, {}, {.priority = 9, .nil = true});
  sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].transmit.priority, 0) << "of no data at all: it is short";
}

TEST(Shard, FlagsAResultOfNilsOnlyAndSumsAroundASingleNil) {
  Harness harness;
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, {}, {.nil = true}), Verdict::kNilFolded);
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {}, {.nil = true}), Verdict::kCompleted);
  harness.contribute<float>(0, 1, 1, {}, {.weight = 0, .nil = true});
  harness.contribute<float>(1, 1, 1, {4}, {.weight = 2});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_TRUE(sent[0].packet.body<wire::ResultHeader>().feedback.flags & wire::kFlagNil);
  EXPECT_FALSE(sent[2].packet.body<wire::ResultHeader>().feedback.flags & wire::kFlagNil);
  EXPECT_THAT(floats_of(sent[2]), ElementsAre(4));
}

// Chunks 0 to 5 of 6: nobody has data for 1, 2, 4 and 5.
TEST(Shard, AnswersChunksWithoutDataInOnePacketAndTakesEachByItself) {
  Harness harness({.world_size = 2, .chunk_count = 6});
  const DataOptions four{.nil = true, .nil_too = 0b110110};
  EXPECT_EQ(harness.contribute<float>(0, 1, 1, {}, {.nil = true, .nil_too = 0b1000010}),
            Verdict::kBadChunk);
  EXPECT_EQ(harness.contribute<float>(0, 1, 1, {}, four), Verdict::kNilFolded);
  EXPECT_EQ(harness.contribute<float>(0, 1, 1, {}, four), Verdict::kDuplicate);
  EXPECT_EQ(harness.contribute<float>(1, 1, 4, {}, {.nil = true}), Verdict::kCompleted);
  EXPECT_EQ(harness.contribute<float>(1, 1, 1, {}, four), Verdict::kCompleted) << "but for 4";
  for (const std::uint16_t rank : {0, 1})
    for (const ChunkIndex chunk : {0, 3}) harness.contribute<float>(rank, 1, chunk, {1});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u * 3);  // all four, then 0 and 3
  for (const std::size_t receiver : {0, 1}) {
    EXPECT_EQ(sent[receiver].packet.chunks(), 0b110110u);
    EXPECT_EQ(sent[receiver].packet.body<wire::ResultHeader>().chunk, 1u);
    EXPECT_TRUE(sent[receiver].packet.payload().empty());
  }
  EXPECT_EQ(sent[2].packet.chunks(), 1u);
  harness.probe(0, 1, 0, 0b111111);
  const auto pulled = harness.drain(PacketType::kResult);
  ASSERT_EQ(pulled.size(), 3u);
  EXPECT_EQ(pulled[1].packet.chunks(), 0b110110u);
}

TEST(Shard, RefusesNilWhenTheJobDoesNotAllowIt) {
  Harness harness({.allow_nil = false});
  EXPECT_EQ(harness.contribute<float>(0, 1, 0, {}, {.nil = true}), Verdict::kShapeMismatch);
}

TEST(Shard, SendsFloat16AsTheMeanSoThatItsSumMayExceedTheRange) {
  Harness harness;
  const std::uint16_t half_60000 = 0x7B53;  // 60,000 in IEEE binary16
  harness.contribute<std::uint16_t>(0, 1, 0, {half_60000}, {.dtype = Dtype::kFloat16});
  harness.contribute<std::uint16_t>(1, 1, 0, {half_60000}, {.dtype = Dtype::kFloat16});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u);
  const auto& body = sent[0].packet.body<wire::ResultHeader>();
  EXPECT_TRUE(body.feedback.flags & wire::kFlagMean);
  EXPECT_FALSE(body.feedback.flags & wire::kFlagNonFinite);
  std::uint16_t value;
  std::memcpy(&value, sent[0].packet.payload().data(), sizeof(value));
  EXPECT_EQ(value, half_60000);
}

TEST(Shard, FlagsAResultThatIsNotFinite) {
  Harness harness({.world_size = 1});
  harness.contribute<float>(0, 1, 0, {std::numeric_limits<float>::quiet_NaN()});
  harness.contribute<float>(0, 1, 1, {1});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_TRUE(sent[0].packet.body<wire::ResultHeader>().feedback.flags & wire::kFlagNonFinite);
  EXPECT_FALSE(sent[1].packet.body<wire::ResultHeader>().feedback.flags & wire::kFlagNonFinite);
}

TEST(Shard, UsesOneRecordForAStepOverFourShardsWhateverTheOrderTheyClose) {
  Harness harness({.world_size = 1, .chunk_count = 4 * 64, .shard_count = 4});
  for (Step step = 1; step <= 3; ++step) {
    for (std::uint32_t block : {2u, 0u, 3u, 1u})
      for (std::uint32_t bit = 0; bit < 64; ++bit) {
        EXPECT_EQ(harness.job->windows[0].open_step.load(), step);
        EXPECT_EQ(harness.contribute<float>(0, step, block * 64 + bit, {1}), Verdict::kCompleted);
      }
    EXPECT_EQ(harness.job->windows[0].open_step.load(), step + 1);
  }
}

TEST(Shard, BroadcastsFromTheRootAloneAndPassesABarrierWhenAllHaveCome) {
  Harness harness({.world_size = 3});
  const wire::Operation from_1 = broadcast(1, 70);
  EXPECT_EQ(harness.piece(0, 1, 0, from_1, 64), Verdict::kShapeMismatch);
  EXPECT_EQ(harness.piece(1, 1, 0, from_1, 64, 'a'), Verdict::kCompleted);
  EXPECT_EQ(harness.piece(1, 1, 1, from_1, 7, 'b'), Verdict::kShapeMismatch);
  EXPECT_EQ(harness.piece(1, 1, 1, from_1, 6, 'b'), Verdict::kCompleted);
  EXPECT_EQ(harness.drain(PacketType::kPieceResult).size(), 4u) << "rank 2 gave no credit yet";
  for (const std::uint16_t rank : {0, 1})
    EXPECT_EQ(harness.piece(rank, 2, 0, kBarrier), Verdict::kNilFolded);
  EXPECT_EQ(harness.piece(2, 2, 0, kBarrier), Verdict::kCompleted);
}

TEST(Shard, ReportsACollectiveOnWhichRanksDisagreeWithBothDescriptions) {
  Harness harness;
  harness.piece(0, 1, 0, kBarrier);
  EXPECT_EQ(harness.piece(1, 1, 0, broadcast(1, 8), 8), Verdict::kCollectiveMismatch);
  ShardEvent event;
  ASSERT_TRUE(harness.poll_event(event));
  EXPECT_EQ(event.kind, ShardEvent::Kind::kCollectiveMismatch);
  EXPECT_EQ(event.rank, Rank{1});
  EXPECT_EQ(event.expected, kBarrier);
  EXPECT_EQ(event.actual, broadcast(1, 8));
}

TEST(Shard, CompletesWhatWaitedForAMemberThatLeft) {
  Harness harness({.world_size = 3, .chunk_count = 2});
  for (std::uint16_t rank : {0, 2}) harness.contribute<float>(rank, 1, 0, {1});
  harness.contribute<float>(1, 1, 1, {1});
  harness.job->members[1].left_from[0] = 0;
  harness.job->members[1].reachable = false;
  harness.shard(0).handle_command(
      {.kind = ShardCommand::Kind::kMemberGone, .job = harness.job.get(), .rank = Rank{1}},
      harness.now);
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u) << "nothing is sent to the dead";
  EXPECT_EQ(sent[0].packet.mask_word(0), 0b101u);
  EXPECT_EQ(sent[0].packet.body<wire::ResultHeader>().k, 2);
}

TEST(Shard, ShrinksTheNextRecordsOfAMemberThatFinished) {
  Harness harness({.world_size = 2, .chunk_count = 1});
  harness.job->members[1].left_from[0] = 2;
  harness.shard(0).handle_command(
      {.kind = ShardCommand::Kind::kMemberGone, .job = harness.job.get(), .rank = Rank{1}},
      harness.now);
  harness.contribute<float>(0, 1, 0, {1});
  EXPECT_EQ(harness.contribute<float>(1, 1, 0, {1}), Verdict::kCompleted);
  EXPECT_EQ(harness.contribute<float>(0, 2, 0, {1}), Verdict::kCompleted);
  EXPECT_EQ(harness.contribute<float>(1, 3, 0, {1}), Verdict::kNotAllowed);
}

TEST(Shard, ForgetsARemovedJobAndSaysSo) {
  Harness harness({.world_size = 1});
  harness.contribute<float>(0, 1, 0, {1}, {.report = true});
  harness.shard(0).handle_command(
      {.kind = ShardCommand::Kind::kRemoveJob, .job = harness.job.get()}, harness.now);
  EXPECT_TRUE(harness.drain().empty());
  EXPECT_EQ(harness.contribute<float>(0, 1, 1, {1}), Verdict::kUnknownJob);
  ShardEvent event;
  ASSERT_TRUE(harness.poll_event(event));
  EXPECT_EQ(event.kind, ShardEvent::Kind::kJobReleased);
}

TEST(Shard, CountsAResultAsSentOnlyWhenItWasWritten) {
  Harness harness({.world_size = 1, .chunk_count = 1});
  harness.contribute<float>(0, 1, 0, {1});
  std::uint8_t too_small[32];
  Transmit transmit{.buffer = too_small};
  EXPECT_EQ(harness.shard(0).poll_transmit({&transmit, 1}, harness.now), 0u);
  EXPECT_EQ(harness.job->slices[0].results_sent.read(), 0u);
  std::uint8_t out[2048];
  harness.contribute<float>(0, 2, 0, {1});
  transmit.buffer = out;
  EXPECT_EQ(harness.shard(0).poll_transmit({&transmit, 1}, harness.now), 1u);
  EXPECT_EQ(harness.job->slices[0].results_sent.read(), 1u);
}

// Of every two neighbours: what shards write each for itself, or what one thread writes for all.
TEST(Job, SharesNoCacheLineBetweenShardsMembersOrStreams) {
  const Harness harness({.world_size = 3, .chunk_count = 200, .shard_count = 3});
  const auto line_of = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) / 64; };
  const auto expect_apart = [&](const auto& row) {
    for (std::size_t at = 0; at + 1 < std::size(row); ++at) {
      const auto last_byte = reinterpret_cast<const std::uint8_t*>(&row[at] + 1) - 1;
      EXPECT_LT(line_of(last_byte), line_of(&row[at + 1])) << at;
    }
  };
  expect_apart(harness.job->slices);
  expect_apart(harness.job->members);
  expect_apart(harness.job->windows);
}

TEST(Job, TakesTheMemoryThatItSaid) {
  JobSpec spec{.world_size = 4, .chunk_bytes = 1024, .shard_count = 3};
  spec.chunk_counts = {1000, kCollectiveChunks, 0};
  spec.max_elems = {256, 0, 0};
  spec.windows = {2, 8, 0};
  const Job job(spec);
  std::size_t data_bytes = 0;
  std::uint32_t owned = 0;
  for (const JobSlice& slice : job.slices) {
    owned += slice.gradients.chunk_count;
    data_bytes += slice.gradients.sums.size() * sizeof(Sum);
    for (const PieceSlice& pieces : slice.pieces)
      data_bytes += pieces.operations.size() * sizeof(wire::Operation);
    for (const StreamSlice* stream : {static_cast<const StreamSlice*>(&slice.gradients),
                                      static_cast<const StreamSlice*>(&slice.pieces[0]),
                                      static_cast<const StreamSlice*>(&slice.pieces[1])})
      data_bytes += stream->slots.size() * (sizeof(Slot) + stream->stride_floats * sizeof(float)) +
                    stream->masks.size() * 8;
  }
  EXPECT_EQ(owned, 1000u);
  EXPECT_GE(Job::memory_bytes(spec), data_bytes);
  EXPECT_LT(Job::memory_bytes(spec), data_bytes + 64 * 1024);
}

}  // namespace
}  // namespace sluice::agg
