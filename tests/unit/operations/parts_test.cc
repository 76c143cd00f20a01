// Chunks of operations: when they are complete, what they hold, and who gets them.
#include <set>

#include "tests/unit/operations/bench.h"

namespace sluice::agg {
namespace {

std::multiset<std::uint16_t> ranks_of(const std::vector<SentPacket>& sent) {
  std::multiset<std::uint16_t> ranks;
  for (const SentPacket& one : sent) ranks.insert(one.rank.value);
  return ranks;
}

TEST(Parts, AnAllReduceIsTheSumOfAllToAll) {
  Bench bench;
  const wire::Description what = all_reduce(24);
  bench.call_all(what);
  EXPECT_EQ(bench.part(0, what, 0), Verdict::kFolded);
  EXPECT_EQ(bench.part(1, what, 0), Verdict::kFolded);
  EXPECT_TRUE(bench.drain().empty());
  EXPECT_EQ(bench.part(2, what, 0), Verdict::kCompleted);
  const auto results = bench.drain_all<wire::PartResult>();
  EXPECT_EQ(ranks_of(results), (std::multiset<std::uint16_t>{0, 1, 2}));
  for (const SentPacket& result : results) {
    EXPECT_EQ(floats_of(result), std::vector<float>(6, 1 + 2 + 3));
    EXPECT_EQ(std::uint32_t{result.packet.body<wire::PartResult>().hash},
              wire::hash_of(what, kGroupId, 1));
  }
}

TEST(Parts, AMeanOfANarrowFormatIsDividedHere) {
  Bench bench;
  wire::Description what = all_reduce(8);
  what.dtype = what.wire = Dtype::kFloat16;
  what.reduction = wire::Reduction::kMean;
  bench.call_all(what);
  // Three times 60,000: the sum is beyond float16, the mean is not.
  const std::vector<std::uint8_t> payload{0x53, 0x7b, 0x53, 0x7b, 0x53, 0x7b, 0x53, 0x7b};
  for (std::uint16_t rank = 0; rank < 3; ++rank)
    bench.send(rank,
               wire::Part{.group = bench.header(rank, wire::Sequence::kSmall),
                          .hash = wire::hash_of(what, kGroupId, 1),
                          .payload_bytes = 8,
                          .wire = Dtype::kFloat16,
                          .reduction = wire::Reduction::kMean},
               0, payload);
  const auto results = bench.drain_all<wire::PartResult>();
  ASSERT_EQ(results.size(), 3u);
  const auto bytes = results[0].packet.payload();
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), payload);
}

TEST(Parts, ABroadcastIsItsRootsBytesToTheOthers) {
  Bench bench;
  const wire::Description what = broadcast(2 * kChunk, 1);
  bench.call_all(what);
  EXPECT_EQ(bench.part(0, what, 0, 1), Verdict::kNotAllowed) << "not the root";
  EXPECT_EQ(bench.part(1, what, 1, 1, 9), Verdict::kCompleted);
  const auto results = bench.drain_all<wire::PartResult>();
  EXPECT_EQ(ranks_of(results), (std::multiset<std::uint16_t>{0, 2}));
  EXPECT_EQ(results[0].packet.payload()[0], 9);
}

TEST(Parts, AReduceAndAReduceScatterGoToTheirOwners) {
  Bench bench;
  wire::Description what = all_reduce(kChunk);
  what.kind = wire::OperationKind::kReduce;
  what.root = 2;
  bench.call_all(what);
  for (std::uint16_t rank = 0; rank < 3; ++rank) bench.part(rank, what, 0, 2);
  EXPECT_EQ(ranks_of(bench.drain_all<wire::PartResult>()), (std::multiset<std::uint16_t>{2}));

  wire::Description parts = all_reduce(kChunk, 1, 1);
  parts.kind = wire::OperationKind::kReduceScatter;
  bench.call_all(parts);
  for (std::uint16_t owner = 0; owner < 3; ++owner)
    for (std::uint16_t rank = 0; rank < 3; ++rank) bench.part(rank, parts, owner, owner);
  EXPECT_EQ(ranks_of(bench.drain_all<wire::PartResult>()), (std::multiset<std::uint16_t>{0, 1, 2}));
}

TEST(Parts, AnAllGatherHasAChunkOfEach) {
  Bench bench;
  wire::Description what = broadcast(kChunk, 0);
  what.kind = wire::OperationKind::kAllGather;
  what.root = wire::kNoRank;
  bench.call_all(what);
  for (std::uint16_t owner = 0; owner < 3; ++owner)
    EXPECT_EQ(bench.part(owner, what, owner, owner), Verdict::kCompleted);
  EXPECT_EQ(ranks_of(bench.drain_all<wire::PartResult>()),
            (std::multiset<std::uint16_t>{0, 0, 1, 1, 2, 2}));
}

TEST(Parts, AnOperationOfNothingIsOverOnceAllHaveCalledIt) {
  Bench bench;
  for (std::uint32_t number = 0; number < 2; ++number) {
    wire::Description what = all_reduce(0, number, number);
    if (number == 1) what = {.number = 1, .first = 1, .kind = wire::OperationKind::kBarrier};
    bench.call_all(what);
    bench.part(0, what, 0);
    bench.part(1, what, 0);
    EXPECT_TRUE(bench.drain_all<wire::PartResult>().empty());
    EXPECT_EQ(bench.part(2, what, 0), Verdict::kCompleted);
    EXPECT_EQ(bench.drain_all<wire::PartResult>().size(), 3u);
  }
}

TEST(Parts, CountOnce) {
  Bench bench;
  const wire::Description what = all_reduce(kChunk);
  bench.call_all(what);
  bench.part(0, what, 0);
  EXPECT_EQ(bench.part(0, what, 0), Verdict::kDuplicate);
  bench.part(1, what, 0);
  bench.part(2, what, 0);
  EXPECT_EQ(bench.part(1, what, 0), Verdict::kDuplicate);
  for (const SentPacket& result : bench.drain_all<wire::PartResult>())
    EXPECT_EQ(floats_of(result), std::vector<float>(16, 6));
}

TEST(Parts, OfAnotherDescriptionChangeNothing) {
  Bench bench({.shard_count = 2, .page_count = 64});
  // Both begin with the same chunk, which is of shard 1, where no call arrives.
  const wire::Description what = all_reduce(kChunk, 0, 64);
  const wire::Description other = all_reduce(kChunk - 4, 0, 64);
  bench.call_all(what);
  EXPECT_EQ(bench.part(0, what, 0), Verdict::kFolded);
  EXPECT_EQ(bench.part(1, other, 0), Verdict::kCollectiveMismatch);
  EXPECT_EQ(bench.part(1, what, 0), Verdict::kFolded);
  EXPECT_EQ(bench.part(2, what, 0), Verdict::kCompleted);
  for (const SentPacket& result : bench.drain_all<wire::PartResult>())
    EXPECT_EQ(floats_of(result), std::vector<float>(16, 6));
}

TEST(Parts, OfStrangersAndOfOtherPlacesAreCountedVerdicts) {
  Bench bench({.world_size = 4, .shard_count = 2});
  bench.add_group(8, 1, 0, {Rank{1}, Rank{3}});
  const wire::Description what = all_reduce(kChunk);
  bench.call_all(what);
  bench.group_id = 9;
  EXPECT_EQ(bench.part(1, what, 0), Verdict::kUnknownGroup);
  bench.group_id = 8;
  EXPECT_EQ(bench.call(0, what), Verdict::kUnknownGroup) << "no member";
  bench.group_id = kGroupId;
  bench.generation = 2;
  EXPECT_EQ(bench.part(1, what, 0), Verdict::kOtherGeneration);
  bench.generation = 1;
  wire::Part part{.group = bench.header(0, wire::Sequence::kSmall),
                  .chunk = 64,
                  .payload_bytes = 8,
                  .wire = Dtype::kFloat32};
  EXPECT_EQ(bench.send(0, part, 0, std::vector<std::uint8_t>(8)), Verdict::kWrongShard);
  part.chunk = 0;
  part.kind = wire::OperationKind::kReduce;
  part.owner = 5;
  EXPECT_EQ(bench.send(0, part, 0, std::vector<std::uint8_t>(8)), Verdict::kShapeMismatch);
  part.payload_bytes = kChunk + 4;
  EXPECT_EQ(bench.send(0, part, 0, std::vector<std::uint8_t>(kChunk + 4)), Verdict::kShapeMismatch);
  EXPECT_EQ(
      bench.send(0, wire::Call{.group = bench.header(0, wire::Sequence::kUp), .what = what}, 0),
      Verdict::kBadField)
      << "another sequence";
  EXPECT_EQ(bench.send(0, wire::Floors{.group = bench.header(0, wire::Sequence::kUp)}, 1),
            Verdict::kWrongShard);
  EXPECT_EQ(
      bench.send(0, wire::PartProbe{.group = bench.header(0, wire::Sequence::kUp), .first = 3}, 0),
      Verdict::kBadChunk);
}

TEST(Parts, ANotFiniteSumIsFlagged) {
  Bench bench({.world_size = 1});
  const wire::Description what = all_reduce(4);
  bench.call_all(what);
  bench.send(0,
             wire::Part{.group = bench.header(0, wire::Sequence::kSmall),
                        .hash = wire::hash_of(what, kGroupId, 1),
                        .payload_bytes = 4,
                        .wire = Dtype::kFloat32},
             0, {0, 0, 0x80, 0x7f});
  const auto results = bench.drain_all<wire::PartResult>();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_NE(results[0].packet.feedback().flags & wire::kFlagNonFinite, 0);
}

TEST(Parts, TheMostUrgentResultLeavesFirst) {
  Bench bench({.world_size = 2});
  const wire::Description what = all_reduce(3 * kChunk);
  bench.call_all(what);
  for (std::uint16_t rank = 0; rank < 2; ++rank)
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk)
      bench.send(rank,
                 wire::Part{.flow = {.priority = static_cast<Priority>(9 - 4 * (chunk % 2))},
                            .group = bench.header(rank, wire::Sequence::kSmall),
                            .chunk = chunk,
                            .payload_bytes = 4,
                            .wire = Dtype::kFloat32},
                 0, {0, 0, 0, 0});
  std::vector<std::uint32_t> order;
  for (const SentPacket& sent : bench.drain_all<wire::PartResult>())
    order.push_back(sent.packet.body<wire::PartResult>().chunk);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{1, 1, 0, 0, 2, 2}));
}

TEST(Parts, ALostResultIsPulled) {
  Bench bench;
  const wire::Description what = broadcast(3 * kChunk, 0);
  bench.call_all(what);
  bench.part(0, what, 0, 0, 5);
  bench.part(0, what, 2, 0, 7);
  std::vector<SentPacket> pulled;
  const auto answer = bench.probe(1, wire::Sequence::kSmall, 0, ~std::uint64_t{0}, &pulled);
  ASSERT_TRUE(answer);
  EXPECT_EQ(std::uint64_t{answer->complete}, 0b101u);
  EXPECT_EQ(std::uint64_t{answer->counted}, 0u);
  ASSERT_EQ(pulled.size(), 2u);
  EXPECT_EQ(pulled[1].packet.payload()[0], 7);
  EXPECT_NE(pulled[1].packet.feedback().flags & wire::kFlagPulled, 0);
  EXPECT_EQ(std::uint64_t{bench.probe(0, wire::Sequence::kSmall, 0)->counted}, 0b101u);
}

}  // namespace
}  // namespace sluice::agg
