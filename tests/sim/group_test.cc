// The schedules of operations by name, on the production objects.
#include <gtest/gtest.h>

#include "tests/sim/swarm_groups.h"

namespace sluice::sim {
namespace {

using wire::OperationKind;

PlannedOperation all_reduce(std::uint64_t bytes, Priority priority = client::kUsualPriority) {
  return {.kind = OperationKind::kAllReduce,
          .dtype = Dtype::kFloat32,
          .wire = Dtype::kFloat32,
          .bytes = bytes,
          .priority = priority};
}
PlannedOperation broadcast(std::uint64_t bytes, std::uint16_t root) {
  return {.kind = OperationKind::kBroadcast, .root = root, .bytes = bytes};
}

GroupWorldOptions world_of(std::uint16_t world_size, std::vector<PlannedOperation> operations) {
  GroupWorldOptions options{.world_size = world_size};
  PlannedGroup group{.operations = std::move(operations)};
  for (std::uint16_t rank = 0; rank < world_size; ++rank) {
    group.ranks.push_back(Rank{rank});
    options.paces.push_back({});
  }
  options.groups.push_back(std::move(group));
  return options;
}

constexpr TimeNs kEnd = 60 * kSecond;

// Runs it to its end, which is sound.
void expect_sound(GroupWorld& world) {
  EXPECT_TRUE(world.run(kEnd));
  EXPECT_EQ(world.violations(), "");
}

TEST(Groups, EveryKindOfOperationGivesItsResult) {
  std::vector<PlannedOperation> operations;
  for (const std::uint64_t bytes : {0u, 4u, 5'000u, 200'000u})
    for (int kind = 0; kind < 6; ++kind) {
      PlannedOperation operation{.kind = static_cast<OperationKind>(kind), .bytes = bytes};
      if (wire::is_reduction(operation.kind)) operation.dtype = operation.wire = Dtype::kFloat32;
      if (operation.kind == OperationKind::kBarrier) operation.bytes = 0;
      if (wire::has_root(operation.kind)) operation.root = 1;
      operations.push_back(operation);
    }
  for (const std::uint16_t shards : {1, 3}) {
    GroupWorldOptions options = world_of(4, operations);
    options.shard_count = shards;
    GroupWorld world(options);
    expect_sound(world);
    EXPECT_EQ(world.checked(), 4 * operations.size());
    EXPECT_EQ(world.count(Verdict::kDuplicate), 0u) << "nothing is sent twice";
  }
}

TEST(Groups, AMemberThatHasCalledNothingYetMissesNothing) {
  GroupWorldOptions options = world_of(3, {broadcast(100'000, 0), all_reduce(400)});
  options.paces[2].start_ns = 2 * kSecond;
  GroupWorld world(options);
  expect_sound(world);
  EXPECT_GT(world.told(Rank{1}, 0, 0)->at_ns, 3 * kSecond) << "the root is stopped by rank 2";
}

TEST(Groups, WhoHasNotCalledIsNamedInWords) {
  GroupWorldOptions options = world_of(3, std::vector<PlannedOperation>(5, all_reduce(400)));
  options.paces[2].start_ns = 50 * kSecond;
  GroupWorld world(options);
  EXPECT_FALSE(world.run(10 * kSecond));
  EXPECT_EQ(world.describe_stall(Rank{0}, 0, 5 * kSecond),
            "rank 0: group 'group0', operation 0: all_reduce of 100 float32 has made no progress "
            "for 8.9 s: rank 2 has not called it and is 1 operations behind");
}

TEST(Groups, ASlowReaderOfManyBroadcastsHoldsItsRootBackAndLosesNothing) {
  GroupWorldOptions options = world_of(2, std::vector<PlannedOperation>(900, broadcast(64, 0)));
  options.paces[0].depth = 200;
  options.paces[1] = {.pause_ns = 4 * kMillisecond, .depth = 1};
  GroupWorld world(options);
  expect_sound(world);
}

TEST(Groups, LostFloorsAreToldAgain) {
  for (const wire::PacketType lost : {wire::PacketType::kFloors, wire::PacketType::kFloor}) {
    GroupWorld world(world_of(2, {broadcast(300'000, 0)}));
    int count = 0;
    world.drop = [&](const wire::Packet& packet, bool) {
      return packet.type() == lost && ++count <= 5;
    };
    expect_sound(world);
    EXPECT_GT(count, 0);
  }
}

TEST(Groups, LostCallsAreToldAgain) {
  GroupWorld world(world_of(2, std::vector<PlannedOperation>(20, all_reduce(64))));
  int count = 0;
  world.drop = [&](const wire::Packet& packet, bool) {
    return packet.type() == wire::PacketType::kCall && ++count % 2 != 0;
  };
  expect_sound(world);
}

TEST(Groups, ChunkNumbersWrapInTheMiddleOfAnOperation) {
  GroupWorldOptions options = world_of(3, {all_reduce(100'000), all_reduce(4), all_reduce(80'000)});
  options.groups[0].first_chunk = (std::uint64_t{1} << 32) - 300;
  options.shard_count = 3;
  options.loss_ppm = 20'000;
  GroupWorld world(options);
  expect_sound(world);
}

TEST(Groups, OperationsThatDisagreeInBytesAloneOverSeveralShardsAreNamed) {
  GroupWorldOptions options = world_of(3, {all_reduce(400), all_reduce(100'000), all_reduce(4)});
  options.shard_count = 3;
  options.disagreement = GroupWorldOptions::Disagreement{.rank = Rank{1}, .number = 1};
  GroupWorld world(options);
  expect_sound(world);
  EXPECT_EQ(world.told(Rank{0}, 0, 0)->code, StatusCode::kOk);
  for (const std::uint16_t rank : {0, 1, 2}) {
    const auto* const told = world.told(Rank{rank}, 0, 1);
    EXPECT_EQ(told->code, StatusCode::kInvalidArgument);
    EXPECT_NE(told->text.find("25000 float32"), std::string::npos) << told->text;
    EXPECT_NE(told->text.find("25001 float32"), std::string::npos) << told->text;
    EXPECT_NE(told->text.find("operation 1"), std::string::npos) << told->text;
  }
}

TEST(Groups, ABroadcastAfterADisagreementReachesThoseThatAgreeWithItsRoot) {
  PlannedOperation gather{.kind = OperationKind::kAllGather, .bytes = 256};
  GroupWorldOptions options =
      world_of(3, {gather, broadcast(100, 0), all_reduce(400), broadcast(100, 0)});
  options.disagreement = GroupWorldOptions::Disagreement{.rank = Rank{2}, .number = 0};
  for (Pace& pace : options.paces) pace.depth = 2;
  options.paces[2].start_ns = kSecond;
  GroupWorld world(options);
  expect_sound(world);
  const auto code_of = [&](std::uint16_t rank, std::uint64_t number) {
    return world.told(Rank{rank}, 0, number)->code;
  };
  EXPECT_EQ(code_of(0, 1), StatusCode::kOk) << "the root is done when the appliance has the bytes";
  EXPECT_EQ(code_of(1, 1), StatusCode::kOk);
  EXPECT_EQ(code_of(2, 1), StatusCode::kInvalidArgument);
  for (const std::uint16_t rank : {0, 1, 2}) {
    EXPECT_EQ(code_of(rank, 0), StatusCode::kInvalidArgument);
    EXPECT_EQ(code_of(rank, 2), StatusCode::kInvalidArgument);
    EXPECT_EQ(code_of(rank, 3), StatusCode::kInvalidArgument) << "its root knew of the break";
  }
  EXPECT_EQ(run_groups(draw_groups(1588)).violations, "");
}

TEST(Groups, AnUrgentSmallOperationPassesABigOne) {
  GroupWorldOptions options = world_of(2, {all_reduce(2'000'000), all_reduce(64, 0)});
  options.bytes_per_ns = 0.1;
  GroupWorld world(options);
  expect_sound(world);
  const TimeNs big_ns = world.told(Rank{0}, 0, 0)->at_ns - kSecond;
  const TimeNs small_ns = world.told(Rank{0}, 0, 1)->at_ns - kSecond;
  EXPECT_LT(small_ns * 5, big_ns);
}

// A reduce-scatter fills uplinks and an all-gather downlinks: together they take little longer than
// the longer one alone.
TEST(Groups, ReduceScatterAndAllGatherRunAtFullRateTogether) {
  const std::uint64_t part = 250'000;
  PlannedOperation scatter = all_reduce(part);
  scatter.kind = OperationKind::kReduceScatter;
  const PlannedOperation gather{.kind = OperationKind::kAllGather, .bytes = part};
  const auto time_of = [](std::vector<PlannedOperation> operations) {
    GroupWorldOptions options = world_of(4, std::move(operations));
    options.bytes_per_ns = 0.1;
    options.chunk_bytes = 1024;
    options.credit_packets = 256;
    options.page_count = 1024;
    GroupWorld world(options);
    expect_sound(world);
    return world.now() - kSecond;
  };
  const TimeNs alone_ns = std::max(time_of({scatter}), time_of({gather}));
  const TimeNs both_ns = time_of({scatter, gather});
  EXPECT_LT(both_ns, alone_ns * 3 / 2);
}

TEST(Groups, TwoGroupsAreUsedInOppositeOrders) {
  GroupWorldOptions options = world_of(2, std::vector<PlannedOperation>(10, all_reduce(400)));
  options.groups.push_back(options.groups[0]);
  options.paces[0].depth = options.paces[1].depth = 1;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {  // each rank draws its own order
    options.seed = seed;
    GroupWorld world(options);
    expect_sound(world);
  }
}

TEST(Groups, ATimeoutBesideALateCallerIsToldToBothAndTheGroupGoesOn) {
  GroupWorldOptions options = world_of(3, {all_reduce(400), all_reduce(400)});
  options.paces[0].patience_ns = kSecond;
  options.paces[0].depth = 1;
  options.paces[2].start_ns = 1500 * kMillisecond;
  GroupWorld world(options);
  expect_sound(world);
  for (const std::uint16_t rank : {0, 1, 2}) {
    EXPECT_EQ(world.told(Rank{rank}, 0, 0)->code, StatusCode::kTimedOut);
    EXPECT_EQ(world.told(Rank{rank}, 0, 1)->code, StatusCode::kOk);
  }
}

TEST(Groups, AMemberThatDiesIsNamedToTheOthersInEveryOpenOperation) {
  GroupWorldOptions options = world_of(3, std::vector<PlannedOperation>(40, all_reduce(30'000)));
  options.shard_count = 2;
  options.bytes_per_ns = 0.02;
  options.death = GroupWorldOptions::Death{.rank = Rank{1}, .at_ns = kSecond + 20 * kMillisecond};
  GroupWorld world(options);
  expect_sound(world);
  EXPECT_EQ(world.told(Rank{0}, 0, 0)->code, StatusCode::kOk);
  const auto* const last = world.told(Rank{2}, 0, 39);
  EXPECT_EQ(last->code, StatusCode::kPeerLost);
  EXPECT_NE(last->text.find("rank 1"), std::string::npos);
}

TEST(Groups, AnAbortEndsTheGroupForTheOthersAndLeavesOtherGroupsAlone) {
  GroupWorldOptions options = world_of(3, std::vector<PlannedOperation>(40, all_reduce(30'000)));
  options.groups.push_back(options.groups[0]);
  options.shard_count = 2;
  options.bytes_per_ns = 0.02;
  options.abort = GroupWorldOptions::Death{.rank = Rank{1}, .at_ns = kSecond + 20 * kMillisecond};
  GroupWorld world(options);
  expect_sound(world);
  for (const std::uint16_t rank : {0, 2}) {
    EXPECT_EQ(world.told(Rank{rank}, 0, 0)->code, StatusCode::kOk);
    const auto* const last = world.told(Rank{rank}, 0, 39);
    EXPECT_EQ(last->code, StatusCode::kPeerLost);
    EXPECT_NE(last->text.find("rank 1"), std::string::npos);
  }
  for (const std::uint16_t rank : {0, 1, 2})
    EXPECT_EQ(world.told(Rank{rank}, 1, 39)->code, StatusCode::kOk);
}

// Rank 1 has called four operations and leaves. Ranks 0 and 2 complete them, and the fifth ends at
// once, whether it was called before rank 1 left or after.
TEST(Groups, AMemberThatLeavesIsNamedToWhoeverCallsAnOperationThatLacksIt) {
  PlannedOperation scatter = all_reduce(4'000);
  scatter.kind = OperationKind::kReduceScatter;
  for (const DurationNs late_ns : {DurationNs{0}, 500 * kMillisecond}) {
    GroupWorldOptions options = world_of(3, {all_reduce(400), broadcast(9'000, 1), scatter,
                                             all_reduce(30'000), all_reduce(400), scatter});
    options.shard_count = 2;
    options.leave = GroupWorldOptions::Leave{.rank = Rank{1}, .after = 4};
    for (Pace& pace : options.paces) pace.depth = 1;
    options.paces[2].pause_ns = late_ns;
    GroupWorld world(options);
    expect_sound(world);
    for (const std::uint16_t rank : {0, 2}) {
      EXPECT_EQ(world.told(Rank{rank}, 0, 3)->code, StatusCode::kOk);
      for (const std::uint64_t number : {4, 5}) {
        const auto* const told = world.told(Rank{rank}, 0, number);
        EXPECT_EQ(told->code, StatusCode::kPeerLost);
        EXPECT_NE(told->text.find("lacks rank 1"), std::string::npos) << told->text;
      }
    }
    EXPECT_LT(world.told(Rank{0}, 0, 4)->at_ns - world.told(Rank{1}, 0, 3)->at_ns,
              late_ns + kSecond);
  }
}

TEST(Groups, AMemberThatLeavesHoldsNobodyBack) {
  PlannedOperation reduce = all_reduce(100'000);
  reduce.kind = OperationKind::kReduce;
  reduce.root = 0;
  GroupWorldOptions options = world_of(3, {reduce});
  options.leave = GroupWorldOptions::Leave{.rank = Rank{1}, .after = 1};
  options.paces[2].start_ns = 2 * kSecond;
  GroupWorld world(options);
  int floors = 0;
  world.drop = [&](const wire::Packet& packet, bool up) {  // all that rank 1 says of its floor
    return up && packet.common().rank == 1 && packet.type() == wire::PacketType::kFloors &&
           ++floors != 0;
  };
  expect_sound(world);
  EXPECT_EQ(world.told(Rank{0}, 0, 0)->code, StatusCode::kOk);
}

TEST(Groups, ASequenceWithoutMemoryIsRefused) {
  GroupWorldOptions options = world_of(2, {all_reduce(64), all_reduce(100'000), all_reduce(64)});
  options.page_count = 4;
  options.disagreement = GroupWorldOptions::Disagreement{.rank = Rank{9}};  // failures are expected
  GroupWorld world(options);
  expect_sound(world);
  EXPECT_EQ(world.told(Rank{0}, 0, 0)->code, StatusCode::kOk);
  EXPECT_EQ(world.told(Rank{1}, 0, 1)->code, StatusCode::kExhausted);
  EXPECT_EQ(world.told(Rank{1}, 0, 2)->code, StatusCode::kOk);
}

TEST(Groups, ReproducibleSumsAreInTheOrderOfRanksWhateverIsLostAndLate) {
  std::vector<PlannedOperation> operations;
  for (const std::uint64_t bytes : {400u, 100'000u})
    for (const OperationKind kind :
         {OperationKind::kAllReduce, OperationKind::kReduceScatter, OperationKind::kReduce}) {
      PlannedOperation operation = all_reduce(bytes);
      operation.kind = kind;
      if (wire::has_root(kind)) operation.root = 2;
      operations.push_back(operation);
    }
  for (const std::uint16_t shards : {1, 3}) {
    GroupWorldOptions options = world_of(5, operations);
    options.shard_count = shards;
    options.loss_ppm = 50'000;
    options.twice_ppm = 50'000;
    options.jitter_ns = 3 * kMillisecond;
    options.paces[0].start_ns = kSecond;  // all others wait for it
    for (const bool reproducible : {true, false}) {
      options.reproducible = reproducible;
      GroupWorld world(options);
      expect_sound(world);
      EXPECT_EQ(world.checked(), 5 * operations.size());
    }
  }
}

TEST(Groups, SeedsAreSound) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const GroupWorldOptions options = draw_groups(seed);
    EXPECT_EQ(run_groups(options).violations, "") << "seed " << seed << ": " << describe(options);
  }
}

TEST(Groups, ASeedIsARun) {
  const GroupWorldOptions options = draw_groups(77);
  const GroupOutcome first = run_groups(options);
  const GroupOutcome second = run_groups(options);
  EXPECT_EQ(first.trace_hash, second.trace_hash);
  EXPECT_NE(first.trace_hash, 0u);
}

}  // namespace
}  // namespace sluice::sim
