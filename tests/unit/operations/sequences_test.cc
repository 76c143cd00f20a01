// Floors and slots: one copy a slot serves operations of any length.
#include "tests/unit/operations/bench.h"

namespace sluice::agg {
namespace {

using wire::Sequence;

constexpr std::uint64_t kBig = 2 * wire::kSmallBytes;

TEST(Sequences, HaveNoSlotsBeforeTheirFirstOperation) {
  Bench bench;
  const wire::Description what = all_reduce(kChunk);
  EXPECT_EQ(bench.slots(Sequence::kSmall), 0u);
  EXPECT_EQ(bench.part(0, what, 0), Verdict::kTooNew);
  bench.call(0, what);
  std::uint32_t told = 0;
  for (const SentPacket& sent : bench.drain_all<wire::Floor>())
    told = sent.packet.body<wire::Floor>().group.slots;
  EXPECT_EQ(told, kFirstSlots) << "all members are told";
  EXPECT_EQ(bench.slots(Sequence::kSmall), kFirstSlots);
  EXPECT_EQ(bench.slots(Sequence::kUp), 0u);
  EXPECT_EQ(bench.part(0, what, 0), Verdict::kFolded);
}

TEST(Sequences, AreUsableOnceEveryShardHasTheSlots) {
  Bench bench({.shard_count = 2});
  bench.call(0, all_reduce(kChunk));
  bench.shards.drain(bench.now, [](auto&&...) {});
  const auto request = bench.take_request();
  ASSERT_TRUE(request && request->kind == OperationsRequest::Kind::kReserve);
  for (std::uint16_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(bench.slots(Sequence::kSmall), 0u);
    bench.shards.shard(shard).handle_command(
        {.kind = ShardCommand::Kind::kGroups, .job = bench.job.get(), .groups = *request},
        bench.now);
  }
  EXPECT_EQ(bench.slots(Sequence::kSmall), kFirstSlots);
}

// A member that has called nothing yet holds the floor; nothing is lost for it.
TEST(Sequences, AMemberThatHasCalledNothingGetsItAllLater) {
  Bench bench;
  const wire::Description what = broadcast(kBig, 0);
  for (const std::uint16_t rank : {0, 1}) bench.call(rank, what);
  bench.drain();
  const std::uint32_t slots = bench.slots(Sequence::kDown);
  for (std::uint32_t chunk = 0; chunk < slots; ++chunk)
    EXPECT_EQ(bench.part(0, what, chunk, 0, 1), Verdict::kCompleted);
  bench.set_floor(0, Sequence::kDown, slots);
  bench.set_floor(1, Sequence::kDown, slots);
  EXPECT_EQ(bench.floors(1, Sequence::kDown), Verdict::kFloors);
  EXPECT_EQ(bench.part(0, what, slots, 0, 1), Verdict::kTooNew) << "rank 2 lacks chunk 0";
  std::vector<SentPacket> pulled;
  bench.probe(2, Sequence::kDown, 0, 1, &pulled);
  ASSERT_EQ(pulled.size(), 1u);
  bench.set_floor(2, Sequence::kDown, 64);
  bench.floors(2, Sequence::kDown);
  EXPECT_EQ(bench.near(Sequence::kDown), 64u);
  EXPECT_EQ(bench.part(0, what, slots, 0, 1), Verdict::kCompleted);
}

TEST(Sequences, ASlowReaderOfManyBroadcastsStopsTheRootAndIsAsked) {
  Bench bench({.world_size = 2});
  for (std::uint32_t number = 0; number < kFirstSlots; ++number)
    for (const std::uint16_t rank : {0, 1}) {
      const wire::Description what = broadcast(4, 0, number, number);
      bench.call(rank, what);
      if (rank == 0 && number == 0) bench.drain();
      if (rank == 0) {
        EXPECT_EQ(bench.part(0, what, 0, 0), Verdict::kCompleted);
      }
    }
  bench.drain();
  const wire::Description next = broadcast(4, 0, kFirstSlots, kFirstSlots);
  bench.set_floor(0, Sequence::kSmall, kFirstSlots);
  EXPECT_EQ(bench.part(0, next, 0, 0), Verdict::kTooNew);
  bench.floors(0, Sequence::kSmall, true, kFirstSlots);
  int answered = 0;
  for (const SentPacket& sent : bench.drain_all<wire::Floor>()) {
    EXPECT_EQ(sent.packet.body<wire::Floor>().stopped, sent.rank == Rank{1});
    ++answered;
  }
  EXPECT_EQ(answered, 2);
  bench.set_floor(1, Sequence::kSmall, kFirstSlots);
  bench.floors(1, Sequence::kSmall);
  const auto told = bench.drain_all<wire::Floor>();
  ASSERT_FALSE(told.empty()) << "who is stopped is told";
  EXPECT_EQ(std::uint32_t{told[0].packet.body<wire::Floor>().group.floor}, kFirstSlots);
  EXPECT_EQ(bench.part(0, next, 0, 0), Verdict::kCompleted);
}

TEST(Sequences, AFloorThatIsLateTwiceOrForgedMovesNothingBack) {
  Bench bench({.world_size = 2});
  const wire::Description what = broadcast(64 * kChunk, 0);
  bench.call_all(what);
  for (std::uint32_t chunk = 0; chunk < 64; ++chunk) bench.part(0, what, chunk, 0);
  bench.set_floor(0, Sequence::kSmall, 64);
  bench.floors(0, Sequence::kSmall);
  bench.set_floor(1, Sequence::kSmall, 40);
  bench.floors(1, Sequence::kSmall);
  EXPECT_EQ(bench.near(Sequence::kSmall), 40u);
  bench.set_floor(1, Sequence::kSmall, 20);  // overtaken
  bench.floors(1, Sequence::kSmall);
  bench.floors(1, Sequence::kSmall);
  EXPECT_EQ(bench.near(Sequence::kSmall), 40u);
  bench.set_floor(1, Sequence::kSmall, 64 + 10'000);
  bench.floors(1, Sequence::kSmall);
  EXPECT_EQ(bench.near(Sequence::kSmall), 64u) << "the least of both";
  EXPECT_EQ(bench.part(0, what, 63, 0), Verdict::kTooOld);
}

TEST(Sequences, AShardLearnsTheFloorFromWhoeverKnowsIt) {
  Bench bench({.world_size = 2, .shard_count = 2});
  const wire::Description what = broadcast(kBig, 0);
  bench.call_all(what);
  const std::uint32_t slots = bench.slots(Sequence::kDown);
  EXPECT_EQ(bench.part(0, what, slots + 64, 0), Verdict::kTooNew);
  bench.set_floor(0, Sequence::kDown, slots, 128);
  EXPECT_EQ(bench.part(0, what, slots + 64, 0), Verdict::kCompleted);
  EXPECT_EQ(bench.near(Sequence::kDown, 1), 128u);
}

TEST(Sequences, ChunkNumbersWrap) {
  for (const std::uint16_t shards : {1, 3}) {
    const std::uint64_t start = (std::uint64_t{1} << 32) - 100;
    Bench bench({.world_size = 2, .shard_count = shards, .page_count = 64, .first_chunk = start});
    const wire::Description what = all_reduce(200 * kChunk, 0, static_cast<std::uint32_t>(start));
    for (const std::uint16_t rank : {0, 1}) bench.set_floor(rank, Sequence::kSmall, start, start);
    bench.call_all(what);
    for (std::uint32_t chunk = 0; chunk < 200; ++chunk) {
      EXPECT_EQ(bench.part(0, what, chunk), Verdict::kFolded) << chunk;
      EXPECT_EQ(bench.part(1, what, chunk), Verdict::kCompleted) << chunk;
    }
    for (const SentPacket& result : bench.drain_all<wire::PartResult>())
      EXPECT_EQ(floats_of(result), std::vector<float>(16, 3));
    for (const std::uint16_t rank : {0, 1}) {
      bench.set_floor(rank, Sequence::kSmall, start + 200, start);
      bench.floors(rank, Sequence::kSmall);
    }
    EXPECT_EQ(bench.near(Sequence::kSmall), start + 200);
    bench.set_floor(0, Sequence::kSmall, start + 200, start + 200);
    EXPECT_EQ(bench.part(0, what, 199), Verdict::kTooOld);
  }
}

TEST(Sequences, AFullOneKeepsNoOtherFromWorking) {
  Bench bench({.world_size = 2});
  wire::Description up = all_reduce(kBig);
  up.kind = wire::OperationKind::kReduceScatter;
  wire::Description down = broadcast(kBig, 0, 1);
  down.kind = wire::OperationKind::kAllGather;
  down.root = wire::kNoRank;
  bench.call_all(up);
  bench.call_all(down);
  const std::uint32_t slots = bench.slots(Sequence::kUp);
  for (std::uint32_t chunk = 0; chunk < slots; ++chunk)
    bench.part(0, up, chunk, static_cast<std::uint16_t>(chunk % 2));
  EXPECT_EQ(bench.part(0, up, slots, 0), Verdict::kTooNew);
  EXPECT_EQ(bench.part(1, down, 1, 1), Verdict::kCompleted);
  EXPECT_EQ(bench.call(1, all_reduce(4, 2)), Verdict::kCall) << "a small one";
  bench.drain();
  EXPECT_EQ(bench.part(1, all_reduce(4, 2), 0), Verdict::kFolded);
}

TEST(Sequences, GroupsAreUsedInAnyOrder) {
  Bench bench({.world_size = 2});
  bench.add_group(8);
  const wire::Description what = all_reduce(4);
  std::size_t results = 0;
  for (const std::uint16_t first : {0, 1})
    for (const std::uint16_t rank : {0, 1}) {  // the ranks use them in opposite orders
      bench.group_id = (first == 0) == (rank == 0) ? kGroupId : std::uint16_t{8};
      bench.call(rank, what);
      bench.drain();
      EXPECT_EQ(bench.part(rank, what, 0), first == 0 ? Verdict::kFolded : Verdict::kCompleted);
      results += bench.drain_all<wire::PartResult>().size();
    }
  EXPECT_EQ(results, 4u);
}

TEST(Sequences, GrowWhenAMemberCouldUseMoreSlots) {
  Bench bench({.world_size = 2, .shard_count = 2, .page_count = 8});
  const wire::Description what = broadcast(kBig, 0);
  bench.call_all(what);
  const std::uint32_t first = bench.slots(Sequence::kDown);
  for (std::uint32_t chunk = 0; chunk < first; ++chunk) bench.part(0, what, chunk, 0);
  bench.floors(0, Sequence::kDown, true, first);
  bench.drain();
  EXPECT_EQ(bench.slots(Sequence::kDown), first) << "it is stopped, and could use no more";
  bench.floors(0, Sequence::kDown, true, 100 * first);
  bench.drain();
  EXPECT_EQ(bench.slots(Sequence::kDown), 2 * first);
  EXPECT_EQ(bench.part(0, what, first, 0), Verdict::kCompleted);
  bench.floors(0, Sequence::kDown, true, 100 * first);
  bench.drain();
  EXPECT_EQ(bench.slots(Sequence::kDown), 4 * first);
  bench.floors(0, Sequence::kDown, true, 100 * first);
  bench.drain();
  EXPECT_EQ(bench.slots(Sequence::kDown), 4 * first) << "the job has no more";
  EXPECT_EQ(bench.reservations.free_pages(), 0u);
}

TEST(Sequences, ARemovedGroupGivesItsPagesBack) {
  Bench bench({.world_size = 2, .page_count = 4});
  for (std::uint32_t generation = 1; generation < 4; ++generation) {
    bench.generation = generation;
    const wire::Description what = broadcast(4 * kChunk, 0);
    bench.call_all(what);
    ASSERT_EQ(bench.part(0, what, 3, 0), Verdict::kCompleted) << "results wait";
    Group& group = *bench.groups.back();
    bench.post({.kind = ShardCommand::Kind::kRemoveGroup,
                .job = bench.job.get(),
                .groups = {.group = &group}});
    bench.reservations.release(group);
    EXPECT_EQ(bench.part(0, what, 3, 0), Verdict::kUnknownGroup);
    EXPECT_EQ(bench.reservations.free_pages(), 4u);
    bench.add_group(kGroupId, generation + 1);
    EXPECT_EQ(bench.part(0, what, 3, 0), Verdict::kOtherGeneration);
  }
}

}  // namespace
}  // namespace sluice::agg
