// A running session against a scripted appliance that loses, withholds and delays: probes, pulls,
// windows, credit and stall reports.
#include <gmock/gmock.h>

#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::PacketType;

TEST(SessionRecovery, NeverSendsAChunkWhoseResultWasWritten) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.pass(60 * kMillisecond);  // the first timeout, before any sample
  ASSERT_FALSE(bench.passed.empty());
  const auto probe = bench.passed.back().body<wire::Probe>();
  bench.highest = probe.flow.number;
  bench.received = 2;
  bench.answer(wire::Answer{.feedback = bench.feedback(),
                            .step = 1,
                            .counted = 0b001,
                            .probe_number = probe.flow.number,
                            .first_incomplete = wire::kNoChunk});
  bench.result(1, 1, std::vector<float>(16, 4), 2);
  EXPECT_EQ(chunks(bench.sent(PacketType::kContribution)), (std::vector<ChunkIndex>{2}));
  EXPECT_EQ(bench.session.counters().retransmissions, 1u);
  EXPECT_EQ(tensor.values[16], 2);
}

TEST(SessionRecovery, ProbesAtTheFirstTimeoutWithoutAskingForResultsThatMayBeOnTheirWay) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.pass(49 * kMillisecond);
  EXPECT_TRUE(bench.passed.empty());
  bench.pass(2 * kMillisecond);
  ASSERT_EQ(bench.passed.size(), 1u);
  const auto probe = bench.passed[0].body<wire::Probe>();
  EXPECT_EQ(probe.block, 0u);
  EXPECT_EQ(probe.step, 1u);
  EXPECT_EQ(probe.want, 0u);
  // A credit update, three contributions and a question about the last of them came before.
  EXPECT_EQ(probe.flow.number, 6u);
}

TEST(SessionRecovery, BacksOffWhileProbesStayUnanswered) {
  SessionOptions options = Scripted::default_options();
  options.silence_timeout_ns = 100 * kSecond;
  Scripted bench(options);
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.pass(3 * kSecond);
  std::size_t probes = 0;
  for (const Sent& packet : bench.passed) probes += packet.type() == PacketType::kProbe;
  EXPECT_GE(probes, 6u);  // 50, 100, 200, 400, then every 500 ms
  EXPECT_LE(probes, 10u);
}

TEST(SessionRecovery, ProbesSoonWhenFeedbackShowsAGap) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 3u);
  bench.note(packets[0]);
  bench.note(packets[2]);  // the second is lost
  bench.now += 400 * kMicrosecond;
  wire::FeedbackHeader feedback = bench.feedback();
  feedback.echo_timestamp_us = packets[2].body<wire::Contribution>().flow.timestamp_us;
  bench.answer(wire::Feedback{.feedback = feedback});
  bench.pass(110 * kMicrosecond);  // a quarter of the round trip
  ASSERT_EQ(bench.passed.size(), 1u);
  const auto probe = bench.passed[0].body<wire::Probe>();
  bench.note(bench.passed[0]);
  bench.answer(wire::Answer{.feedback = bench.feedback(),
                            .step = 1,
                            .counted = 0b101,
                            .probe_number = probe.flow.number,
                            .first_incomplete = 0});
  EXPECT_EQ(chunks(bench.sent(PacketType::kContribution)), (std::vector<ChunkIndex>{1}));
  EXPECT_EQ(bench.session.counters().retransmissions, 1u);
}

TEST(SessionRecovery, PullsResultsThatWereDeferred) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent()) bench.note(packet);
  bench.now += 400 * kMicrosecond;
  wire::FeedbackHeader feedback = bench.feedback();
  feedback.deferred_count = 3;
  bench.answer(wire::Feedback{.feedback = feedback});
  bench.pass(110 * kMicrosecond);
  ASSERT_EQ(bench.passed.size(), 1u);
  EXPECT_EQ(bench.passed[0].body<wire::Probe>().want, 0b111u);
  for (ChunkIndex chunk = 0; chunk < 3; ++chunk)
    bench.result(1, chunk, std::vector<float>(chunk == 2 ? 8 : 16, 2), 2, wire::kFlagPulled);
  EXPECT_TRUE(bench.saw(Event::Kind::kStepDone));
  EXPECT_EQ(bench.session.counters().results_pulled, 3u);
}

// What was pulled need not be what was deferred: it may have stood in a queue, and comes twice.
void looks_on_for_deferred_results(const std::vector<std::uint8_t>& flags_in_turn) {
  Scripted bench(Scripted::default_options(), {{"w", 16 * 80, Dtype::kFloat32}});
  bench.start();
  Tensor tensor(1, 16 * 80);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  std::size_t sent = 0;
  while (sent < 80) {
    const auto packets = bench.sent(PacketType::kContribution);
    ASSERT_FALSE(packets.empty());
    for (const Sent& packet : packets) bench.note(packet);
    sent += packets.size();
    bench.answer(wire::Feedback{.feedback = bench.feedback()});
  }
  bench.deferred = 2;  // of the second block
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  const auto first = bench.sent(PacketType::kProbe);
  ASSERT_EQ(first.size(), 1u) << "its results take all buffers";
  EXPECT_EQ(first[0].body<wire::Probe>().block, 0u);
  const std::vector<float> sums(16, 2);
  for (const std::uint8_t flags : flags_in_turn)
    for (ChunkIndex chunk = 0; chunk < 2; ++chunk) bench.result(1, chunk, sums, 2, flags);
  for (ChunkIndex chunk = 2; chunk < 64; ++chunk) bench.result(1, chunk, sums, 2);
  const auto probes = bench.sent(PacketType::kProbe);
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].body<wire::Probe>().block, 1u);
  EXPECT_EQ(probes[0].body<wire::Probe>().want, 0xFFFFu);
}

TEST(SessionRecovery, LooksOnForDeferredResultsWhenOthersComeTwice) {
  looks_on_for_deferred_results({0, wire::kFlagPulled});
}

TEST(SessionRecovery, LooksOnForDeferredResultsWhenOthersWerePulledFirst) {
  looks_on_for_deferred_results({wire::kFlagPulled, 0});
}

TEST(SessionRecovery, AsksForTheOldestBlockOnlyEvery25MillisecondsWhileOthersAreLate) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent()) bench.note(packet);
  wire::FeedbackHeader feedback = bench.feedback();
  feedback.echo_timestamp_us = wire_time_us(bench.now);
  bench.answer(wire::Feedback{.feedback = feedback});
  std::size_t probes = 0;
  for (int i = 0; i < 40; ++i) {
    bench.pass(25 * kMillisecond);
    for (const Sent& packet : bench.passed) {
      if (packet.type() != PacketType::kProbe) continue;
      ++probes;
      bench.note(packet);
      bench.answer(wire::Answer{.feedback = bench.feedback(),
                                .step = 1,
                                .counted = 0b111,
                                .probe_number = packet.body<wire::Probe>().flow.number,
                                .first_incomplete = 0});
    }
    bench.passed.clear();
  }
  EXPECT_GE(probes, 30u);
  EXPECT_LE(probes, 42u);
  EXPECT_EQ(bench.session.counters().retransmissions, 0u);
}

TEST(SessionRecovery, FailsWhenItsStepHasLeftTheAppliancesWindow) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent()) bench.note(packet);
  bench.answer(wire::Answer{.feedback = bench.feedback(),
                            .step = 1,
                            .open_step = 4,
                            .first_incomplete = wire::kNoChunk,
                            .status = wire::AnswerStatus::kGone});
  EXPECT_THAT(bench.failure().message(), AllOf(HasSubstr("step 1"), HasSubstr("at step 4")));
  EXPECT_EQ(bench.sent(PacketType::kLeave).size(), 1u);
}

TEST(SessionRecovery, StopsAtItsWindowAndGoesOnWithFeedback) {
  Scripted bench(Scripted::default_options(), {{"w", 16 * 200, Dtype::kFloat32}});
  bench.start();
  Tensor tensor(1, 16 * 200);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  const auto first = bench.sent(PacketType::kContribution);
  EXPECT_EQ(first.size(), 47u);  // 48, and the credit update at the start
  for (const Sent& packet : first) bench.note(packet);
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  EXPECT_GE(bench.sent(PacketType::kContribution).size(), 47u);
}

TEST(SessionRecovery, SpreadsChunksOverShardsByBlock) {
  Scripted bench(Scripted::default_options(), {{"w", 16 * 192, Dtype::kFloat32}});
  bench.start(2);
  Tensor tensor(1, 16 * 192);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent(PacketType::kContribution))
    EXPECT_EQ(packet.port_offset, 1 + packet.body<wire::Contribution>().chunk / 64 % 2);
}

TEST(SessionRecovery, SendsACreditUpdateWhenResultsCameAndNothingElseIsSent) {
  Scripted bench(Scripted::default_options(), {{"w", 16 * 64, Dtype::kFloat32}});
  bench.start();
  EXPECT_EQ(bench.credit, 64u);
  Tensor tensor(1, 16 * 64);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent()) bench.note(packet);
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  for (const Sent& packet : bench.sent()) bench.note(packet);
  const std::uint32_t advertised = bench.credit;
  for (ChunkIndex chunk = 0; chunk < 30; ++chunk)
    bench.result(1, chunk, std::vector<float>(16, 2), 2);
  EXPECT_TRUE(bench.sent().empty());
  for (ChunkIndex chunk = 30; chunk < 33; ++chunk)
    bench.result(1, chunk, std::vector<float>(16, 2), 2);
  const auto updates = bench.sent();
  ASSERT_EQ(updates.size(), 1u);
  ASSERT_EQ(updates[0].type(), PacketType::kCredit);
  EXPECT_GE(updates[0].body<wire::Credit>().flow.credit, advertised + 32);
}

TEST(SessionRecovery, ReportsAStallWithTensorsRanksAndAges) {
  Scripted bench(Scripted::default_options(),
                 {{"fc1.weight", 8, Dtype::kFloat32}, {"fc1.bias", 8, Dtype::kFloat32}});
  bench.start();
  Tensor tensor(1, 8);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent()) bench.note(packet);
  const std::uint64_t missing = 0b01;
  const wire::MissingAge age{.rank = 0, .last_heard_ms = 2500};
  for (int i = 0; i < 22; ++i) {
    bench.status(wire::JobState::kRunning, 2, 0);
    bench.answer(wire::Answer{.feedback = bench.feedback(),
                              .step = 1,
                              .counted = 1,
                              .first_incomplete = 0,
                              .mask_words = 1,
                              .age_count = 1},
                 {&missing, 1}, {reinterpret_cast<const std::uint8_t*>(&age), sizeof(age)});
    bench.pass(250 * kMillisecond);
  }
  std::vector<std::string> reports;
  for (const Event& event : bench.events())
    if (event.kind == Event::Kind::kStalled) reports.push_back(event.status.message());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], AllOf(HasSubstr("'fc1.weight'"), HasSubstr("not submitted 'fc1.bias'"),
                                HasSubstr("missing: rank 0"), HasSubstr("rank 0 last heard 2.")));
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
}

}  // namespace
}  // namespace sluice::client
