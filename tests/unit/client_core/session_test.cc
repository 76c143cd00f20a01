// A running session against a scripted appliance: submissions, results, recovery, credit, reports.
#include <gmock/gmock.h>

#include <array>

#include "client/core/gradients.h"
#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::PacketType;

// 40 floats in chunks of 16, 16 and 8.
struct Tensor {
  explicit Tensor(float first = 1, std::size_t count = 40) : values(count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  }
  std::vector<float> values;
};

Submission of(Tensor& tensor, std::uint32_t index = 0, Priority priority = 0) {
  return {.tensor = index,
          .input = tensor.values.data(),
          .output = tensor.values.data(),
          .priority = priority};
}

std::vector<ChunkIndex> chunks(const std::vector<Sent>& packets) {
  std::vector<ChunkIndex> list;
  for (const Sent& packet : packets) list.push_back(packet.body<wire::Contribution>().chunk);
  return list;
}

TEST(Session, SendsASubmissionAsNumberedContributionsOfItsChunks) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor, 0, 9), bench.now).ok());
  const auto packets = bench.sent(PacketType::kContribution);
  EXPECT_EQ(chunks(packets), (std::vector<ChunkIndex>{0, 1, 2}));
  const auto last = packets[2].body<wire::Contribution>();
  EXPECT_EQ(packets[2].port_offset, 1);
  EXPECT_EQ(packets[2].priority, 9);
  EXPECT_EQ(last.step, 1u);
  EXPECT_EQ(last.base_step, 1u);
  EXPECT_EQ(last.weight, 1u);
  EXPECT_EQ(last.elem_count, 8);
  EXPECT_EQ(last.priority, 9);
  EXPECT_TRUE(last.flags & wire::kFlagReport);  // the queue is empty
  EXPECT_FALSE(packets[0].body<wire::Contribution>().flags & wire::kFlagReport);
  float first = 0;
  std::memcpy(&first, packets[2].packet().payload().data(), 4);
  EXPECT_EQ(first, 33);
}

TEST(Session, HoldsSubmissionsUntilAllRanksHaveJoined) {
  Scripted bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.challenge();
  bench.sent();
  bench.accept();
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
  bench.status(wire::JobState::kRunning, 2, 0);
  EXPECT_EQ(bench.sent(PacketType::kContribution).size(), 3u);
}

TEST(Session, WritesTheMeanIntoTheTensorAsResultsArriveInAnyOrder) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent()) bench.note(packet);
  EXPECT_EQ(bench.result(1, 2, std::vector<float>(8, 12), 4), Verdict::kFolded);
  EXPECT_EQ(tensor.values[32], 3);
  EXPECT_EQ(tensor.values[31], 32);
  EXPECT_EQ(bench.result(1, 0, std::vector<float>(16, 8), 4), Verdict::kFolded);
  EXPECT_TRUE(bench.events().empty());
  EXPECT_EQ(bench.result(1, 1, std::vector<float>(16, 20), 4), Verdict::kCompleted);
  EXPECT_EQ(tensor.values[16], 5);
  const auto events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Event::Kind::kTensorDone);
  EXPECT_EQ(events[0].step, 1u);
  EXPECT_EQ(events[0].weight, 4u);
  EXPECT_FALSE(events[0].absent);
  EXPECT_EQ(events[1].kind, Event::Kind::kStepDone);
  EXPECT_EQ(bench.session.current_step(), 2u);
}

TEST(Session, DividesByTheWorldOrNotAtAllWhenAsked) {
  for (const Averaging averaging : {Averaging::kWorld, Averaging::kSum}) {
    Scripted bench(Scripted::default_options(), {{"w", 8, Dtype::kFloat32}}, averaging);
    bench.start();
    Tensor tensor(1, 8);
    ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
    bench.sent();
    bench.result(1, 0, std::vector<float>(8, 12), 4);
    EXPECT_EQ(tensor.values[0], averaging == Averaging::kWorld ? 6 : 12);
  }
}

// Gives a chunk that was declared lost a result before it is sent again.
TEST(Session, NeverSendsAChunkWhoseResultWasWritten) {
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
  EXPECT_EQ(bench.session.stats().retransmissions, 1u);
  EXPECT_EQ(tensor.values[16], 2);
}

TEST(Session, ProbesAtTheFirstTimeoutAndAsksForResultsThatMayExist) {
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
  EXPECT_EQ(probe.want, 0b111u);
  EXPECT_EQ(probe.flow.number, 5u);  // a credit update and three contributions came before
}

TEST(Session, BacksOffWhileProbesStayUnanswered) {
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

TEST(Session, ProbesSoonWhenFeedbackShowsAGap) {
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
  EXPECT_EQ(bench.session.stats().retransmissions, 1u);
}

TEST(Session, PullsResultsThatWereDeferred) {
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
  EXPECT_EQ(bench.session.stats().results_pulled, 3u);
}

TEST(Session, AsksForTheOldestBlockOnlyEvery25MillisecondsWhileOthersAreLate) {
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
  EXPECT_EQ(bench.session.stats().retransmissions, 0u);
}

TEST(Session, FailsWhenItsStepHasLeftTheAppliancesWindow) {
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

TEST(Session, CountsDuplicateStrangeAndMisshapenResultsAndKeepsTheTensor) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  EXPECT_EQ(bench.result(1, 0, std::vector<float>(16, 9), 1), Verdict::kNotAllowed);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  EXPECT_EQ(bench.result(1, 3, std::vector<float>(16, 9), 1), Verdict::kBadChunk);
  EXPECT_EQ(bench.result(2, 0, std::vector<float>(16, 9), 1), Verdict::kTooNew);
  EXPECT_EQ(bench.result(1, 2, std::vector<float>(16, 9), 1), Verdict::kShapeMismatch);
  EXPECT_EQ(tensor.values[0], 1);
  EXPECT_EQ(bench.result(1, 0, std::vector<float>(16, 9), 1), Verdict::kFolded);
  tensor.values[0] = 77;
  EXPECT_EQ(bench.result(1, 0, std::vector<float>(16, 9), 1), Verdict::kDuplicate);
  EXPECT_EQ(tensor.values[0], 77);
  EXPECT_EQ(bench.session.stats().duplicate_results, 1u);
}

TEST(Session, SendsNilForTensorsThatWereNotSubmittedAndLeavesAbsentOnesAlone) {
  Scripted bench(Scripted::default_options(),
                 {{"used", 8, Dtype::kFloat32}, {"unused", 8, Dtype::kFloat32}});
  bench.start();
  Tensor used(1, 8);
  Submission submission = of(used);
  submission.weight = 5;
  ASSERT_TRUE(bench.session.submit(submission, bench.now).ok());
  ASSERT_TRUE(bench.session.end_step(bench.now).ok());
  const auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 2u);
  const auto nil = packets[1].body<wire::Contribution>();
  EXPECT_EQ(nil.chunk, 1u);
  EXPECT_TRUE(nil.flags & wire::kFlagNil);
  EXPECT_EQ(nil.elem_count, 0);
  EXPECT_EQ(nil.weight, 5u);
  EXPECT_EQ(bench.session.stats().nil_contributions, 1u);
  bench.result(1, 0, {}, 10, wire::kFlagNil);  // nobody had data for the used one either
  bench.result(1, 1, {}, 10, wire::kFlagNil);
  const auto events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0].absent);
  EXPECT_EQ(used.values[0], 1);
  EXPECT_EQ(events[1].kind, Event::Kind::kStepDone);
}

TEST(Session, EndStepAfterACompleteStepDeclaresNothing) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  ASSERT_TRUE(bench.session.end_step(bench.now).ok());
  bench.sent();
  for (ChunkIndex chunk = 0; chunk < 3; ++chunk)
    bench.result(1, chunk, std::vector<float>(chunk == 2 ? 8 : 16, 2), 2);
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
  EXPECT_EQ(bench.session.stats().nil_contributions, 0u);
}

TEST(Session, RefusesToEndAStepWithMissingTensorsWhenNilIsNotAllowed) {
  SessionOptions options = Scripted::default_options();
  options.allow_nil = false;
  Scripted bench(options);
  bench.start();
  const Status status = bench.session.end_step(bench.now);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("1 tensors"), HasSubstr("allow_nil")));
}

TEST(Session, HoldsTheNextStepUntilEveryResultOfThisOneIsIn) {
  Scripted bench(Scripted::default_options(),
                 {{"a", 8, Dtype::kFloat32}, {"b", 8, Dtype::kFloat32}});
  bench.start();
  Tensor a(1, 8), b(1, 8);
  ASSERT_TRUE(bench.session.submit(of(a, 0), bench.now).ok());
  ASSERT_TRUE(bench.session.submit(of(b, 1), bench.now).ok());
  bench.sent();
  bench.result(1, 0, std::vector<float>(8, 2), 2);
  ASSERT_TRUE(bench.session.submit(of(a, 0), bench.now).ok());
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
  const Status again = bench.session.submit(of(a, 0), bench.now);
  EXPECT_THAT(again.message(), AllOf(HasSubstr("'a'"), HasSubstr("step 2")));
  bench.result(1, 1, std::vector<float>(8, 2), 2);
  const auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].body<wire::Contribution>().step, 2u);
}

TEST(Session, RefusesBadSubmissionsWithTheValue) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  EXPECT_THAT(bench.session.submit(of(tensor, 7), bench.now).message(), HasSubstr("tensor 7"));
  EXPECT_THAT(bench.session.submit({.tensor = 0}, bench.now).message(), HasSubstr("'w'"));
  EXPECT_THAT(bench.session.broadcast(Rank{2}, tensor.values.data(), 4, bench.now).message(),
              HasSubstr("rank 2"));
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
}

TEST(Session, SendsTheMostUrgentTensorFirstWhateverTheOrderOfSubmission) {
  Scripted bench(Scripted::default_options(),
                 {{"late", 32, Dtype::kFloat32}, {"soon", 32, Dtype::kFloat32}});
  bench.start();
  Tensor late(1, 32), soon(1, 32);
  ASSERT_TRUE(bench.session.submit(of(late, 0, 9), bench.now).ok());
  ASSERT_TRUE(bench.session.submit(of(soon, 1, 2), bench.now).ok());
  EXPECT_EQ(chunks(bench.sent(PacketType::kContribution)), (std::vector<ChunkIndex>{2, 3, 0, 1}));
}

TEST(Session, StopsAtItsWindowAndGoesOnWithFeedback) {
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

TEST(Session, SpreadsChunksOverShardsByBlock) {
  Scripted bench(Scripted::default_options(), {{"w", 16 * 192, Dtype::kFloat32}});
  bench.start(2);
  Tensor tensor(1, 16 * 192);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  for (const Sent& packet : bench.sent(PacketType::kContribution))
    EXPECT_EQ(packet.port_offset, 1 + packet.body<wire::Contribution>().chunk / 64 % 2);
}

TEST(Session, SendsACreditUpdateWhenResultsCameAndNothingElseIsSent) {
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

TEST(Session, ReportsAStallWithTensorsRanksAndAges) {
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

TEST(Session, BarrierPassesWithTheResultAndComparesTheCollective) {
  Scripted bench;
  bench.start();
  ASSERT_TRUE(bench.session.barrier(bench.now).ok());
  EXPECT_FALSE(bench.session.barrier(bench.now).ok());  // one at a time
  const auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 1u);
  const auto body = packets[0].body<wire::Contribution>();
  EXPECT_EQ(body.stream, StreamId::kCollectives);
  EXPECT_EQ(body.base_step, 0u);
  EXPECT_TRUE(body.flags & wire::kFlagNil);
  bench.note(packets[0]);
  const std::uint64_t mask = 3;
  wire::ResultHeader header{.feedback = bench.feedback(),
                            .step = 1,
                            .weight = body.weight,
                            .mask_words = 1,
                            .stream = StreamId::kCollectives,
                            .flags = wire::kFlagNil};
  EXPECT_EQ(bench.answer(header, {&mask, 1}), Verdict::kCompleted);
  EXPECT_TRUE(bench.saw(Event::Kind::kCollectiveDone));

  ASSERT_TRUE(bench.session.barrier(bench.now).ok());
  bench.sent();
  header.step = 2;
  header.feedback = bench.feedback();
  header.weight = std::uint64_t{640} << 32 | wire::pack_collective(CollectiveKind::kBroadcast, 0);
  EXPECT_EQ(bench.answer(header, {&mask, 1}), Verdict::kCollectiveMismatch);
  EXPECT_THAT(bench.failure().message(),
              AllOf(HasSubstr("barrier"), HasSubstr("640 bytes from rank 0")));
}

TEST(GradientStream, EndsWithAnErrorBeforeItsStepNumbersWrap) {
  const SessionOptions options = Scripted::default_options();
  GradientStream stream(options, Layout::create({{"w", 8, Dtype::kFloat32}}, 64).value(),
                        Averaging::kWeight, UINT32_MAX - 1);
  Link link(16);
  link.flows.assign(1, Flow(64));
  stream.join(1);
  stream.start(kSecond);
  Tensor tensor(1, 8);
  ASSERT_TRUE(stream.submit(of(tensor), kSecond).ok());
  std::vector<std::uint8_t> buffer(kMaxDatagramBytes);
  Priority priority = 0;
  ASSERT_NE(stream.write_next(0, link, buffer, kSecond, priority), 0u);
  const std::vector<float> sums(8, 2);
  const std::size_t bytes =
      wire::encode(buffer, {},
                   wire::ResultHeader{.step = UINT32_MAX - 1,
                                      .weight = 2,
                                      .elem_count = 8,
                                      .payload_bytes = 32,
                                      .dtype = Dtype::kFloat32},
                   {}, {reinterpret_cast<const std::uint8_t*>(sums.data()), 32});
  wire::Packet packet;
  Verdict why{};
  ASSERT_TRUE(wire::parse({buffer.data(), bytes}, packet, why));
  const Outcome outcome = stream.handle_result(packet, link, kSecond);
  EXPECT_EQ(outcome.failure.code(), StatusCode::kExhausted);
  EXPECT_THAT(outcome.failure.message(), HasSubstr("4294967294"));
  EXPECT_EQ(tensor.values[0], 1);
}

}  // namespace
}  // namespace sluice::client
