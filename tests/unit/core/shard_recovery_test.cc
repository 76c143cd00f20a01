// Probes, feedback, credit and deferral: a worker's means to learn the fate of its packets.
#include <gmock/gmock.h>

#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

using testing::ElementsAre;
using wire::PacketType;

TEST(ShardRecovery, AnswersAProbeWithWhatIsCountedAndCompleteAndWhoIsMissing) {
  Harness harness({.world_size = 3, .chunk_count = 3});
  for (std::uint16_t rank = 0; rank < 3; ++rank) harness.contribute<float>(rank, 1, 0, {1});
  harness.contribute<float>(0, 1, 2, {1});
  harness.drain();
  harness.now += 1500 * kMillisecond;
  EXPECT_EQ(harness.probe(0, 1, 0, 0), Verdict::kProbe);
  const auto sent = harness.drain();
  ASSERT_EQ(sent.size(), 1u);
  const auto& body = sent[0].packet.body<wire::Answer>();
  EXPECT_EQ(body.status, wire::AnswerStatus::kOpen);
  EXPECT_EQ(std::uint64_t{body.counted}, 0b101u);
  EXPECT_EQ(std::uint64_t{body.complete}, 0b001u);
  EXPECT_EQ(std::uint32_t{body.probe_number}, harness.numbers[0]);
  EXPECT_EQ(std::uint32_t{body.first_incomplete}, 1u);
  EXPECT_EQ(sent[0].packet.mask_word(0), 0b111u);
  ASSERT_EQ(body.age_count, 3);
  EXPECT_EQ(sent[0].packet.missing_age(1).rank, 1);
  EXPECT_EQ(std::uint32_t{sent[0].packet.missing_age(1).last_heard_ms}, 1500u);
}

TEST(ShardRecovery, SendsTheCompleteResultsThatAProbeAsksForBeyondCredit) {
  Harness harness({.world_size = 1, .chunk_count = 3});
  for (ChunkIndex chunk : {0u, 1u})
    harness.contribute<float>(0, 1, chunk, {float(chunk + 5)}, {.credit = 0});
  EXPECT_TRUE(harness.drain(PacketType::kResult).empty());
  harness.probe(0, 1, 0, ~std::uint64_t{0});
  const auto sent = harness.drain(PacketType::kResult);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_THAT(floats_of(sent[0]), ElementsAre(5));
  EXPECT_THAT(floats_of(sent[1]), ElementsAre(6));
  EXPECT_TRUE(sent[0].packet.body<wire::ResultHeader>().feedback.flags & wire::kFlagPulled);
}

// The last block of a stream is short. What a first probe was promised has not left when a second
// one asks for all that a block could have.
TEST(ShardRecovery, PullsNoChunkThatTheBlockDoesNotHaveWhileAPromiseIsKept) {
  for (const bool overwritten : {false, true}) {
    Harness harness({.world_size = 1, .chunk_count = 67});
    const auto complete = [&](Step step) {
      for (ChunkIndex chunk = 0; chunk < 67; ++chunk)
        harness.contribute<float>(0, step, chunk, {}, {.nil = true, .credit = 0});
    };
    complete(1);
    harness.drain();
    harness.probe(0, 1, 1, 0b001);
    std::uint8_t out[2048];
    Transmit transmit{.buffer = out};
    ASSERT_EQ(harness.shard(0).poll_transmit({&transmit, 1}, harness.now), 1u);
    wire::Packet answer;
    ASSERT_EQ(wire::parse(transmit.datagram(), answer), Verdict::kAccepted);
    ASSERT_EQ(std::uint64_t{answer.body<wire::Answer>().complete}, 0b111u);
    if (overwritten)
      for (const Step step : {2u, 3u}) complete(step);
    harness.probe(0, 1, 1, ~std::uint64_t{0});
    std::uint64_t pulled = 0;
    for (const Sent& sent : harness.drain(PacketType::kResult))
      if (sent.packet.body<wire::ResultHeader>().step == 1) pulled |= sent.packet.chunks();
    EXPECT_EQ(pulled, overwritten ? 0u : 0b111u);
  }
}

TEST(ShardRecovery, DefersResultsBeyondCreditAndTellsOnce) {
  Harness harness({.world_size = 1, .chunk_count = 5});
  for (ChunkIndex chunk = 0; chunk < 5; ++chunk)
    harness.contribute<float>(0, 1, chunk, {1}, {.credit = 2});
  const auto sent = harness.drain();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].packet.type(), PacketType::kResult);
  EXPECT_EQ(sent[1].packet.type(), PacketType::kResult);
  EXPECT_EQ(sent[2].packet.type(), PacketType::kFeedback);
  EXPECT_GE(sent[2].packet.body<wire::Feedback>().feedback.deferred_count, 1u);
}

// Nothing else would tell of a tail: the worker would find out by its next idle probe.
TEST(ShardRecovery, TellsWhatItDeferredSinceItLastToldWhenCreditComes) {
  Harness harness({.world_size = 1, .chunk_count = 3});
  harness.contribute<float>(0, 1, 0, {1}, {.credit = 0});
  ASSERT_EQ(harness.drain(PacketType::kFeedback).size(), 1u);
  for (ChunkIndex chunk : {1u, 2u}) harness.contribute<float>(0, 1, chunk, {1}, {.credit = 0});
  EXPECT_TRUE(harness.drain().empty());
  const auto gives_credit = [&](std::uint32_t credit) {
    std::uint8_t out[64];
    const wire::Credit body{.flow = {.number = ++harness.numbers[0], .credit = credit}};
    EXPECT_EQ(harness.handle({out, wire::encode(out, harness.sender(0), body)}), Verdict::kCredit);
    return harness.drain();
  };
  const auto sent = gives_credit(10);
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].packet.type(), PacketType::kFeedback);
  EXPECT_EQ(sent[0].packet.body<wire::Feedback>().feedback.deferred_count, 3u);
  EXPECT_TRUE(gives_credit(20).empty()) << "it is told";
}

TEST(ShardRecovery, SendsFeedbackAloneWhenTheReportFlagAsks) {
  Harness harness;
  harness.contribute<float>(0, 1, 0, {1});
  harness.contribute<float>(0, 1, 1, {1}, {.report = true});
  const auto sent = harness.drain();
  ASSERT_EQ(sent.size(), 1u);
  const auto& feedback = sent[0].packet.body<wire::Feedback>().feedback;
  EXPECT_EQ(std::uint32_t{feedback.received_count}, 2u);
  EXPECT_EQ(std::uint32_t{feedback.highest_number}, 2u);
  EXPECT_EQ(std::uint32_t{feedback.echo_timestamp_us}, 7u);
}

TEST(ShardRecovery, SaysThatAStepIsGoneOrNotOpen) {
  Harness harness({.world_size = 1, .chunk_count = 1});
  for (Step step = 1; step <= 3; ++step) harness.contribute<float>(0, step, 0, {1});
  harness.drain();
  for (const auto& [step, status] :
       {std::pair{1u, wire::AnswerStatus::kGone}, std::pair{9u, wire::AnswerStatus::kNotOpen}}) {
    harness.probe(0, step, 0, 1);
    const auto sent = harness.drain();
    ASSERT_EQ(sent.size(), 1u) << "no result is sent";
    EXPECT_EQ(sent[0].packet.body<wire::Answer>().status, status);
    EXPECT_EQ(std::uint32_t{sent[0].packet.body<wire::Answer>().open_step}, 4u);
  }
}

TEST(ShardRecovery, DropsQueuedCopiesOfASlotThatIsReopened) {
  Harness harness({.world_size = 1, .chunk_count = 1});
  for (Step step = 1; step <= 3; ++step) harness.contribute<float>(0, step, 0, {float(step)});
  EXPECT_EQ(harness.shard(0).results_overwritten(), 1u);
  std::vector<std::uint32_t> steps;
  for (const Sent& sent : harness.drain(PacketType::kResult)) {
    const Step step = sent.packet.body<wire::ResultHeader>().step;
    steps.push_back(step);
    EXPECT_THAT(floats_of(sent), ElementsAre(float(step))) << "never the bytes of another step";
  }
  EXPECT_THAT(steps, testing::UnorderedElementsAre(2, 3));
}

TEST(ShardRecovery, StartsAFlowAfreshForAProcessThatTookTheRankOver) {
  Harness harness;
  for (int i = 0; i < 5; ++i) harness.contribute<float>(0, 1, 0, {1});
  harness.job->members[0].cookie = 77;
  wire::Credit body{
      .flow = {.number = 1, .timestamp_us = 99, .credit = 10, .flags = wire::kFlagReport}};
  std::uint8_t out[64];
  const std::size_t size = wire::encode(out, {.job = 5, .rank = 0, .cookie = 77}, body);
  EXPECT_EQ(harness.handle({out, size}), Verdict::kCredit);
  const auto sent = harness.drain();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::uint32_t{sent[0].packet.body<wire::Feedback>().feedback.received_count}, 1u);
  EXPECT_EQ(std::uint32_t{sent[0].packet.body<wire::Feedback>().feedback.number}, 1u);
}

}  // namespace
}  // namespace sluice::agg
