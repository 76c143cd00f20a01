// What ends an operation, and that all members are told the same.
#include <map>
#include <set>

#include "tests/unit/operations/bench.h"

namespace sluice::agg {
namespace {

using wire::CallRequest;
using wire::OutcomeCode;
using wire::Sequence;

TEST(Ends, WhoHasNotCalledIsNamedWithHowFarItIsBehind) {
  Bench bench;
  for (std::uint32_t number = 0; number < 5; ++number) {
    bench.call(0, all_reduce(4, number, number));
    if (number < 2) bench.call(1, all_reduce(4, number, number));
  }
  bench.drain();
  bench.call(0, all_reduce(4, 4, 4), CallRequest::kAsk);
  const auto outcomes = bench.drain_all<wire::Outcome>();
  ASSERT_EQ(outcomes.size(), 1u);
  const auto& body = outcomes[0].packet.body<wire::Outcome>();
  EXPECT_EQ(body.code, OutcomeCode::kOpen);
  ASSERT_EQ(body.behind_count, 2);
  EXPECT_EQ(std::uint16_t{outcomes[0].packet.behind(0).rank}, 1);
  EXPECT_EQ(std::uint32_t{outcomes[0].packet.behind(0).operations}, 3u);
  EXPECT_EQ(std::uint16_t{outcomes[0].packet.behind(1).rank}, 2);
  EXPECT_EQ(std::uint32_t{outcomes[0].packet.behind(1).operations}, 5u);
}

TEST(Ends, BothDescriptionsAreToldToAll) {
  Bench bench({.shard_count = 2});
  const wire::Description what = all_reduce(4096);
  const wire::Description other = broadcast(4096, 0);
  EXPECT_EQ(bench.call(0, what), Verdict::kCall);
  bench.drain();
  bench.call(1, what);
  EXPECT_EQ(bench.call(2, other), Verdict::kCollectiveMismatch);
  std::set<std::uint16_t> told;
  for (const SentPacket& sent : bench.drain_all<wire::Outcome>()) {
    const auto& body = sent.packet.body<wire::Outcome>();
    EXPECT_EQ(body.code, OutcomeCode::kDiffers);
    EXPECT_EQ(body.expected, what);
    EXPECT_EQ(body.actual, other);
    EXPECT_EQ(std::uint16_t{body.other}, 0);
    EXPECT_EQ(std::uint16_t{body.rank}, 2);
    told.insert(sent.rank.value);
  }
  EXPECT_EQ(told, (std::set<std::uint16_t>{0, 1, 2}));
  // The group is broken; what was complete before stays so.
  EXPECT_EQ(bench.outcome(1, all_reduce(4, 1, 64)).code, OutcomeCode::kDiffers);
}

TEST(Ends, OperationsThatDifferInBytesAloneAreNamed) {
  Bench bench({.world_size = 2, .shard_count = 2});
  const wire::Description what = all_reduce(200 * kChunk);
  const wire::Description less = all_reduce(200 * kChunk - 4);
  bench.call(0, what);
  bench.drain();
  for (std::uint32_t chunk = 0; chunk < 200; ++chunk) {
    bench.part(0, what, chunk);
    EXPECT_EQ(bench.part(1, less, chunk), Verdict::kCollectiveMismatch) << chunk;
  }
  EXPECT_TRUE(bench.drain_all<wire::PartResult>().empty());
  EXPECT_EQ(bench.call(1, less), Verdict::kCollectiveMismatch);
  for (const SentPacket& sent : bench.drain_all<wire::Outcome>())
    EXPECT_EQ(sent.packet.body<wire::Outcome>().actual, less);
}

TEST(Ends, OperationsThatAreCompleteBeforeADisagreementAreDelivered) {
  Bench bench({.world_size = 2});
  const wire::Description done = all_reduce(4);
  bench.call_all(done);
  bench.part(0, done, 0);
  bench.part(1, done, 0);
  bench.call(0, all_reduce(4, 1, 1));
  bench.call(1, all_reduce(8, 1, 1));
  EXPECT_EQ(bench.outcome(0, done).code, OutcomeCode::kCompleted);
  EXPECT_EQ(bench.outcome(0, all_reduce(4, 1, 1)).code, OutcomeCode::kDiffers);
  std::vector<SentPacket> pulled;
  bench.probe(1, Sequence::kSmall, 0, 1, &pulled);
  ASSERT_EQ(pulled.size(), 1u);
  EXPECT_EQ(floats_of(pulled[0]), std::vector<float>(1, 3));
}

// ---- a member that is lost ----

TEST(Ends, AMemberThatDiesAfterItsPartDoesNotEndTheOperation) {
  Bench bench;
  const wire::Description what = all_reduce(4);
  bench.call_all(what);
  for (std::uint16_t rank = 0; rank < 3; ++rank) bench.part(rank, what, 0);
  bench.kill(2);
  EXPECT_EQ(bench.outcome(0, what).code, OutcomeCode::kCompleted);
  EXPECT_EQ(bench.outcome(1, what).code, OutcomeCode::kCompleted);
}

TEST(Ends, AMemberThatDiesBeforeItsPartIsNamedToAll) {
  Bench bench({.shard_count = 2});
  const wire::Description what = all_reduce(65 * kChunk);
  bench.call_all(what);
  for (const std::uint16_t rank : {0, 1})
    for (std::uint32_t chunk = 0; chunk < 65; ++chunk) bench.part(rank, what, chunk);
  for (std::uint32_t chunk = 0; chunk < 64; ++chunk) bench.part(2, what, chunk);
  bench.drain();
  bench.kill(2);
  // Told without having asked.
  std::set<std::uint16_t> told;
  for (const SentPacket& sent : bench.drain_all<wire::Outcome>()) {
    EXPECT_EQ(sent.packet.body<wire::Outcome>().code, OutcomeCode::kLost);
    EXPECT_EQ(std::uint16_t{sent.packet.body<wire::Outcome>().rank}, 2);
    told.insert(sent.rank.value);
  }
  EXPECT_EQ(told, (std::set<std::uint16_t>{0, 1}));
  // A part that was on its way changes nothing any more.
  bench.job->members[2].reachable = true;
  EXPECT_EQ(bench.part(2, what, 64), Verdict::kNotAllowed);
  EXPECT_EQ(bench.outcome(0, what).code, OutcomeCode::kLost);
}

// Between two shards' looks a part may still come: nobody is told before all have looked.
TEST(Ends, TheVerdictIsThatOfAllShards) {
  for (const bool last_part : {false, true}) {
    Bench bench({.world_size = 2, .shard_count = 2});
    const wire::Description what = broadcast(65 * kChunk, 1);
    bench.call_all(what);
    for (std::uint32_t chunk = 0; chunk < 64; ++chunk) bench.part(1, what, chunk, 1);
    bench.drain();
    bench.kill(1);
    bench.call(0, what, CallRequest::kAsk);
    bench.shards.drain(bench.now, [](const Transmit&, std::span<const std::uint8_t> bytes) {
      EXPECT_NE(bytes[3], static_cast<std::uint8_t>(wire::PacketType::kOutcome));
    });
    const auto request = bench.take_request();
    ASSERT_TRUE(request && request->kind == OperationsRequest::Kind::kHold);
    const ShardCommand command{
        .kind = ShardCommand::Kind::kGroups, .job = bench.job.get(), .groups = *request};
    bench.shards.shard(0).handle_command(command, bench.now);
    if (last_part) {
      EXPECT_EQ(bench.part(1, what, 64, 1), Verdict::kCompleted);
    }
    bench.shards.shard(1).handle_command(command, bench.now);
    if (!last_part) {
      EXPECT_EQ(bench.part(1, what, 64, 1), Verdict::kNotAllowed);
    }
    EXPECT_EQ(bench.outcome(0, what).code,
              last_part ? OutcomeCode::kCompleted : OutcomeCode::kLost);
  }
}

TEST(Ends, ALostMembersFloorHoldsNobody) {
  Bench bench;
  const wire::Description what = broadcast(64 * kChunk, 0);
  bench.call_all(what);
  for (std::uint32_t chunk = 0; chunk < 64; ++chunk) bench.part(0, what, chunk, 0);
  for (const std::uint16_t rank : {0, 1}) {
    bench.set_floor(rank, Sequence::kSmall, 64);
    bench.floors(rank, Sequence::kSmall);
  }
  EXPECT_EQ(bench.near(Sequence::kSmall), 0u);
  bench.kill(2);
  EXPECT_EQ(bench.near(Sequence::kSmall), 64u);
}

TEST(Ends, WhoCallsLaterInABrokenGroupIsToldAtOnce) {
  Bench bench;
  bench.call_all(all_reduce(4));
  bench.kill(2);
  bench.drain();
  bench.call(0, all_reduce(4, 1, 1));
  const auto outcomes = bench.drain_all<wire::Outcome>();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].packet.body<wire::Outcome>().code, OutcomeCode::kLost);
}

TEST(Ends, WhoeverCallsWhatAMemberThatHasLeftHasNotIsToldAtOnce) {
  Bench bench;
  const wire::Description first = all_reduce(4);
  bench.call_all(first);
  for (const std::uint16_t rank : {1, 2}) bench.part(rank, first, 0);
  bench.leave(2, 1);
  EXPECT_TRUE(bench.drain_all<wire::Outcome>().empty());
  bench.part(0, first, 0);
  EXPECT_EQ(bench.outcome(0, first).code, OutcomeCode::kOpen) << "its results are on their way";
  bench.call(0, all_reduce(4, 1, 1));
  const auto outcomes = bench.drain_all<wire::Outcome>();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].packet.body<wire::Outcome>().code, OutcomeCode::kLost);
  EXPECT_EQ(std::uint16_t{outcomes[0].packet.body<wire::Outcome>().rank}, 2);
}

TEST(Ends, AMemberThatLeavesIsNamedToWhoeverWaitsForIt) {
  Bench bench;
  bench.call_all(all_reduce(4));
  bench.call(0, all_reduce(4, 1, 1));
  bench.drain();
  bench.leave(2, 1);
  std::map<std::uint16_t, OutcomeCode> told;
  for (const SentPacket& sent : bench.drain_all<wire::Outcome>())
    told[sent.rank.value] = sent.packet.body<wire::Outcome>().code;
  EXPECT_EQ(told[0], OutcomeCode::kLost);
}

// ---- a member that waits no longer ----

TEST(Ends, ATimeoutCancelsForAllAndForALateCaller) {
  Bench bench({.shard_count = 2});
  const wire::Description what = all_reduce(4);
  for (const std::uint16_t rank : {0, 1}) bench.call(rank, what);
  bench.drain();
  for (const std::uint16_t rank : {0, 1}) bench.part(rank, what, 0);
  EXPECT_EQ(bench.outcome(0, what, CallRequest::kCancel).code, OutcomeCode::kCancelled);
  const wire::Outcome told = bench.outcome(1, what);
  EXPECT_EQ(told.code, OutcomeCode::kCancelled);
  EXPECT_EQ(std::uint16_t{told.rank}, 0);
  bench.drain();
  bench.call(2, what);
  const auto late = bench.drain_all<wire::Outcome>();
  ASSERT_EQ(late.size(), 1u) << "at once";
  EXPECT_EQ(late[0].packet.body<wire::Outcome>().code, OutcomeCode::kCancelled);
  EXPECT_EQ(bench.part(2, what, 0), Verdict::kNotAllowed);
  EXPECT_EQ(bench.probe(2, Sequence::kSmall, 0)->counted & 1, 0u) << "it is void, not counted";
  // The group lives on.
  const wire::Description next = all_reduce(4, 1, 1);
  bench.call_all(next);
  for (std::uint16_t rank = 0; rank < 3; ++rank) bench.part(rank, next, 0);
  EXPECT_EQ(bench.drain_all<wire::PartResult>().size(), 3u);
}

// Whoever has disagreed counts chunks differently, so its later calls differ in that alone.
TEST(Ends, WhatWasCancelledWasSoForAMemberThatDisagreesAboutOneBefore) {
  Bench bench;
  for (const std::uint16_t rank : {0, 1}) {
    bench.call(rank, all_reduce(kChunk));
    bench.call(rank, all_reduce(4, 1, 1));
  }
  EXPECT_EQ(bench.outcome(0, all_reduce(4, 1, 1), CallRequest::kCancel).code,
            OutcomeCode::kCancelled);
  const wire::Outcome told = bench.outcome(2, all_reduce(4, 1, 2));
  EXPECT_EQ(told.code, OutcomeCode::kCancelled);
  EXPECT_EQ(std::uint16_t{told.rank}, 0);
  EXPECT_EQ(bench.outcome(2, all_reduce(kChunk + 4)).code, OutcomeCode::kDiffers);
  EXPECT_EQ(bench.outcome(0, all_reduce(kChunk)).code, OutcomeCode::kDiffers);
}

TEST(Ends, ATimeoutAfterTheLastPartChangesNothing) {
  Bench bench({.world_size = 2});
  const wire::Description what = all_reduce(4);
  bench.call_all(what);
  bench.part(0, what, 0);
  bench.part(1, what, 0);
  EXPECT_EQ(bench.outcome(0, what, CallRequest::kCancel).code, OutcomeCode::kCompleted);
  EXPECT_EQ(bench.outcome(1, what).code, OutcomeCode::kCompleted);
}

TEST(Ends, SeveralAreJudgedOneAfterTheOther) {
  Bench bench({.world_size = 2, .shard_count = 2});
  for (std::uint32_t number = 0; number < 4; ++number) bench.call(0, all_reduce(4, number, number));
  bench.drain();
  for (std::uint32_t number = 0; number < 4; ++number)
    bench.call(0, all_reduce(4, number, number), CallRequest::kCancel);
  std::set<std::uint32_t> cancelled;
  for (const SentPacket& sent : bench.drain_all<wire::Outcome>())
    if (sent.packet.body<wire::Outcome>().code == OutcomeCode::kCancelled)
      cancelled.insert(sent.packet.body<wire::Outcome>().number);
  EXPECT_EQ(cancelled, (std::set<std::uint32_t>{0, 1, 2, 3}));
}

// The owner's chunk is complete, but as a chunk of what the owner called.
TEST(Ends, AChunkOfAnotherDescriptionDoesNotCompleteTheOperation) {
  Bench bench({.world_size = 2});
  const wire::Description what = broadcast(4, 1);
  const wire::Description other = broadcast(8, 1);
  bench.call(0, what);
  bench.drain();
  EXPECT_EQ(bench.part(1, other, 0, 1), Verdict::kCompleted);
  EXPECT_EQ(bench.call(1, other), Verdict::kCollectiveMismatch);
  EXPECT_EQ(bench.outcome(0, what).code, OutcomeCode::kDiffers);
}

// ---- limits ----

TEST(Ends, AJobWithoutSlotsRefusesTheOperation) {
  Bench bench({.world_size = 2, .page_count = 4});
  bench.call_all(all_reduce(4));
  const wire::Description big = all_reduce(2 * wire::kSmallBytes, 1);
  bench.call(0, big);
  bench.drain();
  EXPECT_EQ(bench.outcome(0, big).code, OutcomeCode::kNoMemory);
  EXPECT_EQ(bench.outcome(1, big).code, OutcomeCode::kNoMemory);
  EXPECT_EQ(bench.outcome(1, all_reduce(4)).code, OutcomeCode::kOpen) << "others go on";
}

TEST(Ends, AMemberThatIsFarAheadWaits) {
  Bench bench({.world_size = 2});
  bench.call(1, broadcast(4, 0));
  for (std::uint32_t number = 0; number <= kKeptCalls; ++number)
    EXPECT_EQ(bench.call(0, broadcast(4, 0, number, number)), Verdict::kCall) << number;
  EXPECT_EQ(bench.call(0, broadcast(4, 0, kKeptCalls + 1, kKeptCalls + 1)), Verdict::kTooNew);
  const wire::Outcome told = bench.outcome(0, broadcast(4, 0, kKeptCalls + 1, kKeptCalls + 1));
  EXPECT_EQ(told.code, OutcomeCode::kOpen);
  EXPECT_EQ(std::uint32_t{told.called_by_all}, 1u);
}

}  // namespace
}  // namespace sluice::agg
