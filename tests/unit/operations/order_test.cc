// Sums in the order of ranks: the same bits whatever the order in which parts come.
#include <algorithm>
#include <set>

#include "aggregator/core/fold.h"
#include "tests/unit/operations/bench.h"

namespace sluice::agg {
namespace {

// Floats whose sum depends on the order of the additions.
const std::vector<float> kValues = {16777216.0f, 1.0f, -16777216.0f, 0.75f, 3.0e-5f};

float in_order(std::size_t count) {
  float sum = kValues[0];
  for (std::size_t rank = 1; rank < count; ++rank) sum += kValues[rank];
  return sum;
}

// The sums that members get in each order of arrival.
std::set<float> sums(bool reproducible, std::uint16_t world_size, wire::OperationKind kind) {
  std::set<float> found;
  std::vector<std::uint16_t> order(world_size);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  do {
    Bench bench({.world_size = world_size, .reproducible = reproducible});
    bench.values = kValues;
    wire::Description what = all_reduce(kChunk);
    what.kind = kind;
    const bool to_one = wire::has_root(kind);
    if (to_one) what.root = 1;
    bench.call_all(what);
    for (const std::uint16_t rank : order)
      bench.part(rank, what, 0, wire::has_owner(kind) ? 1 : wire::kNoRank);
    const auto results = bench.drain_all<wire::PartResult>();
    EXPECT_EQ(results.size(), wire::has_owner(kind) ? 1u : world_size);
    for (const SentPacket& result : results)
      for (const float sum : floats_of(result)) found.insert(sum);
  } while (std::next_permutation(order.begin(), order.end()));
  return found;
}

TEST(Order, AReproducibleSumIsThatOfTheRanksInTheirOrder) {
  using enum wire::OperationKind;
  for (const std::uint16_t world_size : {3, 4, 5})
    EXPECT_EQ(sums(true, world_size, kAllReduce), std::set<float>{in_order(world_size)});
  EXPECT_EQ(sums(true, 4, kReduceScatter), std::set<float>{in_order(4)});
  EXPECT_EQ(sums(true, 4, kReduce), std::set<float>{in_order(4)});
  EXPECT_GT(sums(false, 4, kAllReduce).size(), 1u) << "the order of arrival decides otherwise";
}

TEST(Order, MorePartsThanOnePassAddsWaitForTheFirst) {
  const std::uint16_t world_size = 2 * kAddendsPerPass + 3;
  Bench bench({.world_size = world_size, .page_count = 200, .reproducible = true});
  for (std::uint16_t rank = 0; rank < world_size; ++rank)
    bench.values.push_back(rank == 0 ? 16777216.0f : 1.0f);  // each 1 is lost when it is added
  const wire::Description what = all_reduce(kChunk);
  bench.call_all(what);
  for (std::uint16_t rank = world_size - 1; rank > 0; --rank)
    EXPECT_EQ(bench.part(rank, what, 0), Verdict::kFolded);
  EXPECT_EQ(bench.part(5, what, 0), Verdict::kDuplicate);
  EXPECT_EQ(bench.part(0, what, 0), Verdict::kCompleted);
  const auto results = bench.drain_all<wire::PartResult>();
  ASSERT_EQ(results.size(), world_size);
  EXPECT_EQ(floats_of(results[0]), std::vector<float>(kChunk / 4, 16777216.0f));
}

TEST(Order, NarrowFormatsAndPartsWithoutElementsAreSummedAlike) {
  Bench bench({.reproducible = true});
  wire::Description what = all_reduce(8);
  what.dtype = what.wire = Dtype::kBfloat16;
  bench.call_all(what);
  for (const std::uint16_t rank : {2, 0, 1}) bench.part(rank, what, 0, wire::kNoRank, 0x40);
  auto results = bench.drain_all<wire::PartResult>();
  ASSERT_EQ(results.size(), 3u);
  // 0x4040 is 3, and 9 is 0x4110.
  const auto payload = results[0].packet.payload();
  EXPECT_EQ(std::vector<std::uint8_t>(payload.begin(), payload.begin() + 2),
            (std::vector<std::uint8_t>{0x10, 0x41}));
  const wire::Description nothing = all_reduce(0, 1, 1);
  bench.call_all(nothing);
  for (const std::uint16_t rank : {1, 2, 0}) bench.part(rank, nothing, 0);
  EXPECT_EQ(bench.drain_all<wire::PartResult>().size(), 3u);
}

TEST(Order, ABlockNeedsAPageForEachTwoMembersAndGivesAllBack) {
  // Four blocks of slots of a group of four: 4 * (1 + 2) pages, and no more are left.
  Bench bench({.world_size = 4, .page_count = 12, .reproducible = true});
  for (std::uint64_t round = 0; round < 3; ++round) {
    const auto first = static_cast<std::uint32_t>(round * 256);
    const auto number = static_cast<std::uint32_t>(round);
    const wire::Description what = all_reduce(256 * kChunk, number, first);
    ASSERT_EQ(bench.sequence_of(what), wire::Sequence::kSmall);
    bench.call_all(what);
    EXPECT_EQ(bench.reservations.free_pages(), 0u);
    // Everything is early that can be.
    for (const std::uint16_t rank : {3, 2, 1, 0})
      for (std::uint64_t chunk = 0; chunk < 256; ++chunk)
        EXPECT_EQ(bench.part(rank, what, chunk),
                  rank == 0 ? Verdict::kCompleted : Verdict::kFolded);
    bench.drain();
    for (std::uint16_t rank = 0; rank < 4; ++rank) {
      bench.set_floor(rank, wire::Sequence::kSmall, first + 256, first);
      bench.floors(rank, wire::Sequence::kSmall);
    }
    bench.drain();
    EXPECT_EQ(bench.near(wire::Sequence::kSmall), first + 256u);
    for (std::uint16_t rank = 0; rank < 4; ++rank)
      bench.set_floor(rank, wire::Sequence::kSmall, first + 256, first + 256);
  }
}

TEST(Order, AGivenResultTakesThePlaceOfWhatWaits) {
  Bench bench({.reproducible = true});
  const wire::Description what = all_reduce(kChunk);
  bench.call_all(what);
  EXPECT_EQ(bench.part(2, what, 0), Verdict::kFolded);
  std::vector<std::uint8_t> payload(kChunk);
  const std::vector<float> result(kChunk / 4, 42.0f);
  std::memcpy(payload.data(), result.data(), payload.size());
  EXPECT_EQ(bench.send(1,
                       wire::Part{.group = bench.header(1, bench.sequence_of(what)),
                                  .hash = wire::hash_of(what, kGroupId, 1),
                                  .payload_bytes = kChunk,
                                  .kind = what.kind,
                                  .wire = what.wire,
                                  .given = 1},
                       0, payload),
            Verdict::kCompleted);
  const auto results = bench.drain_all<wire::PartResult>();
  ASSERT_EQ(results.size(), 2u) << "whoever has given it has it";
  for (const SentPacket& one : results) EXPECT_EQ(floats_of(one), result);
}

}  // namespace
}  // namespace sluice::agg
