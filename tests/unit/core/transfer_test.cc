// Stream 2: one rank's state to another.
#include <gmock/gmock.h>

#include <random>

#include "aggregator/core/shard.h"
#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;
using wire::PacketType;

class Transfers : public testing::Test {
 protected:
  Transfers() { harness.pass_full_steps(); }                        // all have given credit
  static constexpr std::uint32_t kBytes = 2 * kTestChunkBytes + 8;  // three chunks
  Verdict send(std::uint16_t rank, Step step, ChunkIndex chunk, bool data) {
    const std::size_t payload_bytes = chunk < 2 ? kTestChunkBytes : 8;
    return harness.piece(rank, step, chunk, transfer(kBytes), data ? payload_bytes : 0,
                         static_cast<char>(chunk + 1));
  }
  static wire::Operation transfer(std::uint32_t size_bytes) {
    return {.size_bytes = size_bytes, .root = 1, .kind = CollectiveKind::kTransfer};
  }
  Step open(std::uint16_t source, std::uint16_t target) {
    harness.job->transfer.source_and_target = std::uint32_t{source} << 16 | target;
    harness.command(ShardCommand::Kind::kOpenTransfer);
    ShardEvent event;
    EXPECT_TRUE(harness.poll_event(event));
    EXPECT_EQ(event.kind, ShardEvent::Kind::kTransferOpened);
    return event.step;
  }
  Harness harness{{.world_size = 4, .chunk_count = 1, .policy = fixed_k(1)}};
};

TEST_F(Transfers, GoFromSourceToTargetAndToNobodyElse) {
  const Step step = open(1, 3);
  EXPECT_EQ(send(0, step, 0, false), Verdict::kNotAllowed);
  EXPECT_EQ(send(3, step, 1, false), Verdict::kNotAllowed);
  EXPECT_EQ(send(3, step, 0, true), Verdict::kShapeMismatch);
  for (ChunkIndex chunk = 1; chunk < 3; ++chunk)
    EXPECT_EQ(send(1, step, chunk, true), Verdict::kCompleted);
  const auto sent = harness.drain(PacketType::kPieceResult);
  ASSERT_THAT(sent, SizeIs(4));
  for (const Sent& each : sent)
    EXPECT_TRUE(each.transmit.rank == Rank{1} || each.transmit.rank == Rank{3});
}

TEST_F(Transfers, AnotherRankCannotFixTheSizeOfAPiece) {
  const Step step = open(1, 3);
  EXPECT_EQ(harness.piece(0, step, 0, transfer(kBytes + 1)), Verdict::kNotAllowed);
  EXPECT_EQ(send(1, step, 0, true), Verdict::kFolded);
  EXPECT_EQ(send(3, step, 0, false), Verdict::kCompleted);
}

TEST_F(Transfers, TheSourceCannotRunAheadOfTheTarget) {
  const Step step = open(1, 3);
  for (ChunkIndex chunk = 0; chunk < 3; ++chunk) send(1, step, chunk, true);
  EXPECT_EQ(harness.open_step(StreamId::kState), step) << "the target has not asked for it";
  EXPECT_EQ(send(1, step + 1, 0, true), Verdict::kTooNew);
  EXPECT_EQ(send(3, step, 0, false), Verdict::kCompleted);
  EXPECT_EQ(harness.open_step(StreamId::kState), step + 1);
  for (const Sent& each : harness.drain(PacketType::kPieceResult))
    EXPECT_EQ(each.packet.payload()[0], each.packet.body<wire::PieceResult>().chunk + 1);
}

TEST_F(Transfers, ANewOneAbandonsTheOldOneInMidStep) {
  const Step first = open(1, 3);
  send(1, first, 0, true);
  const Step second = open(1, 2);
  EXPECT_EQ(second, first + 1);
  EXPECT_EQ(send(1, first, 1, true), Verdict::kLate);
  EXPECT_EQ(send(3, second, 0, false), Verdict::kNotAllowed);
  EXPECT_EQ(send(1, second, 0, true), Verdict::kFolded);
  EXPECT_EQ(send(2, second, 0, false), Verdict::kCompleted);
}

// The source would believe that it is through, and go on in the step of the new one.
TEST_F(Transfers, ASweepDoesNotCompleteTheStepThatANewOneAbandoned) {
  const Step first = open(1, 3);
  for (ChunkIndex chunk = 0; chunk < 3; ++chunk) send(1, first, chunk, true);
  harness.drain(PacketType::kPieceResult);
  harness.kill(3);  // whose packet alone is missing: the sweep is still to come
  const Step second = open(1, 2);
  while (harness.shard(0).poll_work(harness.now)) {
  }
  EXPECT_THAT(harness.drain(PacketType::kPieceResult), testing::IsEmpty());
  EXPECT_EQ(harness.open_step(StreamId::kState), second);
}

}  // namespace
}  // namespace sluice::agg
