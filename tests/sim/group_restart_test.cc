// Operations whose appliance is lost and comes back without its memory, at every packet.
#include <gtest/gtest.h>

#include "tests/sim/group_world.h"

namespace sluice::sim {
namespace {

using enum wire::OperationKind;

constexpr TimeNs kEnd = 60 * kSecond;
constexpr DurationNs kDown = 300 * kMillisecond;

PlannedOperation sum(wire::OperationKind kind, std::uint64_t bytes, std::uint16_t root) {
  return {.kind = kind,
          .dtype = Dtype::kFloat32,
          .wire = Dtype::kFloat32,
          .root = root,
          .bytes = bytes};
}
PlannedOperation all_reduce(std::uint64_t bytes) { return sum(kAllReduce, bytes, wire::kNoRank); }
PlannedOperation scatter(std::uint64_t bytes) { return sum(kReduceScatter, bytes, wire::kNoRank); }
PlannedOperation broadcast(std::uint64_t bytes, std::uint16_t root) {
  return {.kind = kBroadcast, .root = root, .bytes = bytes};
}

PlannedGroup group_of(std::vector<std::uint16_t> ranks, std::vector<PlannedOperation> operations) {
  PlannedGroup group{.operations = std::move(operations)};
  for (const std::uint16_t rank : ranks) group.ranks.push_back(Rank{rank});
  return group;
}

GroupWorldOptions world_of(std::vector<PlannedGroup> groups, std::uint16_t world_size = 3) {
  GroupWorldOptions options{
      .world_size = world_size, .page_count = 32, .groups = std::move(groups)};
  options.paces.resize(world_size);
  return options;
}

// Kills the appliance at each packet of the job; returns how often.
std::uint64_t kill_at_each_packet(GroupWorldOptions options, std::uint64_t stride = 1) {
  const std::uint64_t packets = [&] {
    options.restarts = {{.after_packets = UINT64_MAX}};
    GroupWorld world(options);
    EXPECT_TRUE(world.run(kEnd));
    EXPECT_EQ(world.violations(), "");
    return world.packets();
  }();
  std::uint64_t killed = 0;
  for (std::uint64_t after = 0; after < packets && !::testing::Test::HasFailure();
       after += stride) {
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    options.seed = after + 1;
    GroupWorld world(options);
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << " packets\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "") << "killed after " << after << " packets";
    killed += world.restarts();
  }
  return killed;
}

TEST(GroupRestarts, AnAllReduceGoesOnAtEveryPacket) {
  const PlannedOperation mean = [] {
    PlannedOperation one = all_reduce(3'000);
    one.reduction = wire::Reduction::kMean;
    return one;
  }();
  EXPECT_GT(kill_at_each_packet(world_of({group_of({0, 1, 2}, {all_reduce(3'000), mean})})), 50u);
}

TEST(GroupRestarts, ResultsThatAreRoundedAreGivenBitForBit) {
  std::vector<PlannedOperation> operations;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16})
    for (const wire::Reduction reduction : {wire::Reduction::kSum, wire::Reduction::kMean}) {
      PlannedOperation one = all_reduce(2'000);
      one.dtype = dtype;
      one.wire = Dtype::kBfloat16;
      one.reduction = reduction;
      if (reduction == wire::Reduction::kSum) operations.push_back(one);
    }
  EXPECT_GT(kill_at_each_packet(world_of({group_of({0, 1, 2}, operations)})), 20u);
}

// Its root is done when the appliance has its bytes, and has no buffer any more when that is lost.
TEST(GroupRestarts, ABroadcastGoesOnAtEveryPacket) {
  GroupWorldOptions options =
      world_of({group_of({0, 1, 2}, {broadcast(2'000, 1), broadcast(500, 0)})});
  options.paces[2].start_ns = kSecond;
  EXPECT_GT(kill_at_each_packet(options), 30u);
}

// Rank 0 calls for the first time, and something else, and the new appliance hears it first. What
// the others have heard is complete is not what rank 0 waits for.
TEST(GroupRestarts, WhatIsCompleteForSomeIsNotSoForAMemberThatCallsSomethingElse) {
  GroupWorldOptions options = world_of({group_of({0, 1, 2}, {broadcast(157, 2)})});
  options.paces[0].start_ns = kDown + 100 * kMillisecond;
  options.disagreement = GroupWorldOptions::Disagreement{.rank = Rank{0}, .number = 0};
  std::uint32_t completed = 0;
  for (std::uint64_t after = 0; after < 20; ++after) {
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    bool called = false;
    world.drop = [&](const wire::Packet& packet, bool) {
      if (packet.type() != wire::PacketType::kCall || world.restarts() == 0) return false;
      called |= packet.common().rank == 0;
      return !called;
    };
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << " packets\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "");
    EXPECT_EQ(world.told(Rank{0}, 0, 0)->code, StatusCode::kInvalidArgument);
    completed += world.told(Rank{1}, 0, 0)->code == StatusCode::kOk;
  }
  EXPECT_GT(completed, 0u);
}

TEST(GroupRestarts, AReduceAndABarrierGoOnAtEveryPacket) {
  const PlannedOperation barrier{.kind = kBarrier};
  EXPECT_GT(kill_at_each_packet(world_of(
                {group_of({0, 1, 2}, {sum(kReduce, 2'000, 1), barrier, sum(kReduce, 200, 2)})})),
            30u);
}

// Ranks 1 and 2 have ended the reduce, so they ask about nothing, and contribute to it once more.
TEST(GroupRestarts, WhoOwesAPartAsksForTheSlotsThatItHasNotHeardOf) {
  GroupWorldOptions options = world_of({group_of({0, 1, 2}, {sum(kReduce, 64, 0)})});
  options.paces[0].start_ns = kSecond;
  options.control_delay_ns = 30 * kMillisecond;  // its calls are noted before there are slots
  std::uint32_t lost = 0;
  for (std::uint64_t after = 0; after < 20; ++after) {
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    std::uint32_t floors = 0;
    world.drop = [&](const wire::Packet& packet, bool) {
      return packet.type() == wire::PacketType::kFloor && world.restarts() != 0 &&
             packet.common().rank == 2 && ++floors <= 3;
    };
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << " packets\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "");
    lost += floors;
  }
  EXPECT_GT(lost, 5u);
}

TEST(GroupRestarts, AReduceScatterBesideAnAllGatherGoesOnAtEveryPacket) {
  const PlannedOperation gather{.kind = kAllGather, .bytes = 23'000};
  GroupWorldOptions options = world_of({group_of({0, 1, 2}, {scatter(23'000), gather})});
  options.shard_count = 2;
  EXPECT_GT(kill_at_each_packet(options, 41), 30u);
}

TEST(GroupRestarts, GroupsThatOverlapGoOnAtEveryPacket) {
  GroupWorldOptions options =
      world_of({group_of({0, 1}, {all_reduce(1'000), broadcast(700, 1), all_reduce(100)}),
                group_of({1, 2}, {all_reduce(900), scatter(400), all_reduce(100)})});
  options.paces[1].depth = 1;
  EXPECT_GT(kill_at_each_packet(options), 50u);
}

TEST(GroupRestarts, WithLosses) {
  GroupWorldOptions options = world_of(
      {group_of({0, 1, 2}, {all_reduce(2'000), broadcast(3'000, 2), scatter(300), all_reduce(4)})});
  options.loss_ppm = 100'000;
  options.twice_ppm = 50'000;
  options.jitter_ns = 300 * kMicrosecond;
  EXPECT_GT(kill_at_each_packet(options), 100u);
}

// What has been told, made anew or given at the first return is told and given at the second.
TEST(GroupRestarts, OnceMoreAtEveryPacketAfterARestart) {
  GroupWorldOptions options =
      world_of({group_of({0, 1, 2}, {all_reduce(2'000), broadcast(900, 2), all_reduce(1'000)})});
  options.loss_ppm = 50'000;
  std::size_t twice = 0;
  for (std::uint64_t first = 20; first <= 80; first += 20)
    for (std::uint64_t second = 0; second < 100 && !HasFailure(); ++second) {
      options.seed = 1000 * first + second;
      options.restarts = {{.after_packets = first, .down_ns = kDown},
                          {.after_packets = second, .down_ns = kDown}};
      GroupWorld world(options);
      EXPECT_TRUE(world.run(kEnd)) << first << ", " << second << "\n" << world.unfinished();
      EXPECT_EQ(world.violations(), "") << first << ", " << second;
      twice += world.restarts() == 2;
    }
  EXPECT_GT(twice, 100u);
}

TEST(GroupRestarts, CallsWaitForTheAppliance) {
  GroupWorldOptions options =
      world_of({group_of({0, 1, 2}, std::vector<PlannedOperation>(300, all_reduce(40)))});
  for (Pace& pace : options.paces) pace = {.pause_ns = 4 * kMillisecond, .depth = 200};
  options.restarts = {{.after_packets = 200, .down_ns = kDown}};
  GroupWorld world(options);
  EXPECT_TRUE(world.run(kEnd)) << world.unfinished();
  EXPECT_EQ(world.violations(), "");
  EXPECT_EQ(world.restarts(), 1u);
}

// Those that have heard that it was cancelled say so, and nobody gets its sum at the new appliance.
TEST(GroupRestarts, ACancelledOperationOfWhichHalfTheMembersHaveHeardEndsForAll) {
  std::size_t restarts = 0;
  for (std::uint64_t after = 0; after < 200 && !HasFailure(); ++after) {
    GroupWorldOptions options = world_of(
        {group_of({0, 1, 2, 3}, {all_reduce(400), all_reduce(400), broadcast(400, 1)})}, 4);
    options.seed = after + 1;
    options.paces[0].patience_ns = 200 * kMillisecond;
    options.paces[0].depth = 1;
    options.paces[3].start_ns = 400 * kMillisecond;
    options.loss_ppm = 200'000;
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << "\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "") << "killed after " << after;
    restarts += world.restarts();
  }
  EXPECT_GT(restarts, 50u);
}

// Rank 1 has cancelled rank 0's broadcast, whose parts were lost, and knows; rank 0 does not. At
// the next appliance rank 0 asks what became of it 20 ms before rank 1 tells.
TEST(GroupRestarts, NobodyIsAnsweredBeforeAllHaveTold) {
  std::size_t asked_first = 0;
  for (std::uint64_t after = 0; after < 1'000 && !HasFailure(); after += 50) {
    GroupWorldOptions options =
        world_of({group_of({0, 1}, {broadcast(400, 0), all_reduce(100)})}, 2);
    options.paces[1].patience_ns = 50 * kMillisecond;
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    bool one_knows = false;
    TimeNs tells_ns = kNever;
    world.drop = [&](const wire::Packet& packet, bool up) {
      if (world.restarts() == 0)
        one_knows = world.told(Rank{1}, 0, 0) != nullptr && world.told(Rank{0}, 0, 0) == nullptr;
      if (!up) return false;
      const bool is_root = packet.common().rank == 0;
      if (packet.type() != wire::PacketType::kCall)
        return world.restarts() == 0 && is_root && packet.type() == wire::PacketType::kPart;
      const auto& body = packet.body<wire::Call>();
      const bool asks = is_root && body.request == wire::CallRequest::kAsk;
      if (body.group.generation == 1) return asks;
      if (asks && tells_ns == kNever) tells_ns = world.now() + 20 * kMillisecond;
      return !is_root && world.now() < tells_ns;
    };
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << "\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "") << "killed after " << after;
    if (!one_knows || tells_ns == kNever) continue;
    ++asked_first;
    EXPECT_EQ(world.told(Rank{0}, 0, 0)->code, StatusCode::kTimedOut);
  }
  EXPECT_GT(asked_first, 10u);
}

TEST(GroupRestarts, AMemberThatDiesMeanwhileIsNamedAndWhatWasCompleteIsDelivered) {
  std::size_t restarts = 0;
  for (std::uint64_t after = 0; after < 120 && !HasFailure(); ++after) {
    GroupWorldOptions options =
        world_of({group_of({0, 1, 2}, {all_reduce(1'000), broadcast(500, 1), all_reduce(4'000)}),
                  group_of({0, 2}, {all_reduce(100), all_reduce(100)})});
    options.seed = after + 1;
    options.death = GroupWorldOptions::Death{
        .rank = Rank{1}, .at_ns = kSecond + static_cast<DurationNs>(after) * 4 * kMillisecond};
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << "\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "") << "killed after " << after;
    EXPECT_EQ(world.told(Rank{0}, 1, 1)->code, StatusCode::kOk);
    restarts += world.restarts();
  }
  EXPECT_GT(restarts, 50u);
}

// Rank 0 calls the broadcast when it knows that the group is broken, and gets it all the same. Rank
// 1 is late, so the appliance dies while it gets it, and only rank 0 has it then.
TEST(GroupRestarts, WhatWasCompleteIsGivenByAMemberThatCalledItInABrokenGroup) {
  std::size_t delivered = 0;
  for (std::uint64_t after = 0; after < 300 && !HasFailure(); ++after) {
    GroupWorldOptions options =
        world_of({group_of({0, 1, 2}, {all_reduce(100), broadcast(5'000, 2)})});
    options.seed = after + 1;
    options.paces[0].depth = 1;
    options.paces[1].start_ns = kSecond;
    options.abort = GroupWorldOptions::Death{.rank = Rank{2}, .at_ns = kSecond + kDown};
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << "\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "") << "killed after " << after;
    delivered += world.restarts() != 0 && world.told(Rank{1}, 0, 1)->code == StatusCode::kOk;
  }
  EXPECT_GT(delivered, 50u);
}

TEST(GroupRestarts, MembersThatDisagreeAreNamedAfterARestart) {
  std::size_t restarts = 0;
  for (std::uint64_t after = 0; after < 120 && !HasFailure(); ++after) {
    GroupWorldOptions options = world_of({group_of(
        {0, 1, 2}, {all_reduce(400), all_reduce(900), all_reduce(400), broadcast(90, 0)})});
    options.seed = after + 1;
    options.disagreement = GroupWorldOptions::Disagreement{.rank = Rank{1}, .number = 1};
    options.restarts = {{.after_packets = after, .down_ns = kDown}};
    GroupWorld world(options);
    EXPECT_TRUE(world.run(kEnd)) << "killed after " << after << "\n" << world.unfinished();
    EXPECT_EQ(world.violations(), "") << "killed after " << after;
    restarts += world.restarts();
  }
  EXPECT_GT(restarts, 30u);
}

}  // namespace
}  // namespace sluice::sim
