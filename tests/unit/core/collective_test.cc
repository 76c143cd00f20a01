// The first packet of a collective fixes nothing before all of it has been checked.
#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

// Ranks 0 and 1 hold a barrier in step 1 as if nothing had come before.
void expect_a_barrier_of_two(Harness& harness) {
  EXPECT_EQ(harness.piece(0, 1, 0, kBarrier), Verdict::kNilFolded);
  EXPECT_EQ(harness.piece(1, 1, 0, kBarrier), Verdict::kCompleted);
  ShardEvent event;
  EXPECT_FALSE(harness.poll_event(event)) << "nobody disagrees";
}

TEST(Collective, IsNotFixedByAChunkBeyondItsSize) {
  Harness harness;
  EXPECT_EQ(harness.piece(1, 1, 1, broadcast(1, 8), 8), Verdict::kBadChunk);
  expect_a_barrier_of_two(harness);
}

TEST(Collective, IsNotFixedByAPayloadOfTheWrongSize) {
  Harness harness;
  EXPECT_EQ(harness.piece(1, 1, 0, broadcast(1, 8), 7), Verdict::kShapeMismatch);
  expect_a_barrier_of_two(harness);
}

TEST(Collective, IsNotFixedByARootOutsideTheRecord) {
  Harness harness({.world_size = 3});
  harness.kill(2);
  EXPECT_EQ(harness.piece(2, 1, 0, broadcast(2, 8), 8), Verdict::kNotAllowed);
  expect_a_barrier_of_two(harness);
}

TEST(Collective, IsNotFixedByARankOutsideTheRecord) {
  Harness harness({.world_size = 3});
  harness.kill(2);
  EXPECT_EQ(harness.piece(2, 1, 0, kBarrier), Verdict::kNotAllowed);
  EXPECT_EQ(harness.piece(1, 1, 0, broadcast(1, 8), 8), Verdict::kCompleted);
  ShardEvent event;
  EXPECT_FALSE(harness.poll_event(event)) << "nobody disagrees";
}

TEST(Collective, ARankOutsideTheRecordCannotEndTheJobByDisagreeing) {
  Harness harness({.world_size = 3});
  harness.kill(2);
  EXPECT_EQ(harness.piece(0, 1, 0, kBarrier), Verdict::kNilFolded);
  EXPECT_EQ(harness.piece(2, 1, 0, broadcast(2, 8), 8), Verdict::kNotAllowed);
  ShardEvent event;
  EXPECT_FALSE(harness.poll_event(event));
  EXPECT_EQ(harness.piece(1, 1, 0, kBarrier), Verdict::kCompleted);
}

TEST(Collective, AReaderOfABroadcastThatMeantABarrierStillDisagrees) {
  Harness harness;
  harness.piece(1, 1, 0, broadcast(1, 65), 64);
  EXPECT_EQ(harness.piece(0, 1, 1, kBarrier), Verdict::kCollectiveMismatch);
  ShardEvent event;
  ASSERT_TRUE(harness.poll_event(event));
  EXPECT_EQ(event.kind, ShardEvent::Kind::kCollectiveMismatch);
  EXPECT_EQ(event.expected, broadcast(1, 65));
  EXPECT_EQ(event.actual, kBarrier);
}

// Chunks of the broadcast in step 1 that rank 0 gets, and those of them without data.
std::pair<std::size_t, std::size_t> results_for_rank_0(Harness& harness) {
  std::size_t all = 0;
  std::size_t empty = 0;
  for (const auto& sent : harness.drain(wire::PacketType::kPieceResult)) {
    if (sent.transmit.rank != Rank{0}) continue;
    ++all;
    empty += sent.packet.payload().empty();
  }
  return {all, empty};
}

TEST(Collective, WhoeverWaitsForARootIsCountedNowhereAndAsksForNothingMore) {
  Harness harness({.world_size = 3});
  EXPECT_EQ(harness.piece(0, 1, 0, broadcast(1, 65)), Verdict::kPassed);
  EXPECT_EQ(harness.piece(0, 1, 1, broadcast(1, 65)), Verdict::kNotAllowed);
  EXPECT_EQ(harness.piece(2, 1, 0, broadcast(1, 66)), Verdict::kCollectiveMismatch);
  EXPECT_EQ(harness.piece(1, 1, 0, broadcast(1, 65), 64), Verdict::kCompleted);
  EXPECT_EQ(harness.piece(2, 1, 0, broadcast(1, 65)), Verdict::kLate);
}

TEST(Collective, ThatHasLostItsRootIsCompleteWithoutWhatWasNotSent) {
  Harness harness({.world_size = 3});
  harness.piece(0, 1, 0, broadcast(1, 130));
  harness.piece(1, 1, 1, broadcast(1, 130), 64);
  harness.kill(1);
  EXPECT_EQ(results_for_rank_0(harness), (std::pair<std::size_t, std::size_t>{3, 2}));
  EXPECT_EQ(harness.piece(0, 2, 0, kBarrier), Verdict::kNilFolded);
  EXPECT_EQ(harness.piece(2, 2, 0, kBarrier), Verdict::kCompleted);
}

TEST(Collective, WhoseRootIsGoneAlreadyIsCompleteWithoutIt) {
  Harness harness({.world_size = 3});
  harness.kill(1);
  EXPECT_EQ(harness.piece(0, 1, 0, broadcast(1, 65)), Verdict::kPassed);
  EXPECT_EQ(results_for_rank_0(harness), (std::pair<std::size_t, std::size_t>{2, 2}));
}

// A barrier after fewer than four steps of a broadcast is the end of a call.
TEST(Collective, LetsNoProcessInBeforeItsCallIsOver) {
  Harness harness({.world_size = 3, .chunk_count = 1});
  const auto send = [&](Step step) { harness.piece(1, step, 0, broadcast(1, 8), 8); };
  const auto meet = [&](Step step) {
    for (const std::uint16_t rank : {0, 1}) harness.piece(rank, step, 0, kBarrier);
  };
  harness.kill(2);
  const auto refused = [&] {
    harness.bring_back(2);
    return harness.job->members[2].joined_from[1] == kNoStep;
  };
  for (Step step = 1; step <= 4; ++step) {
    send(step);
    EXPECT_TRUE(refused()) << "after step " << step;
  }
  meet(5);
  EXPECT_TRUE(refused()) << "the fifth part may follow";
  send(6);
  EXPECT_TRUE(refused());
  meet(7);
  EXPECT_FALSE(refused());
  EXPECT_EQ(harness.job->members[2].joined_from[1], 8u);
}

}  // namespace
}  // namespace sluice::agg
