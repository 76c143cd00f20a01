// A running session against a scripted appliance: submissions, results, collectives.
#include <gmock/gmock.h>

#include "client/core/sums/gradients.h"
#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::PacketType;

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
  EXPECT_EQ(last.flow.priority, 9);
  EXPECT_TRUE(last.flow.flags & wire::kFlagReport);  // the queue is empty
  EXPECT_FALSE(packets[0].body<wire::Contribution>().flow.flags & wire::kFlagReport);
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

TEST(Session, CountsAShareOfTheWorldOrDoesNotDivideWhenAsked) {
  for (const AveragingChoice averaging : {AveragingChoice::kWorld, AveragingChoice::kSum}) {
    SessionOptions options = Scripted::default_options();
    options.averaging = averaging;
    Scripted bench(options, {{"w", 8, Dtype::kFloat32}});
    bench.start();
    Tensor tensor(1, 8);
    ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
    bench.sent();
    bench.result(1, 0, std::vector<float>(8, 12), 2, 0, 3, 4);
    EXPECT_EQ(tensor.values[0], averaging == AveragingChoice::kWorld ? 3 : 12);
  }
}

// Gives a chunk that was declared lost a result before it is sent again.
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
  EXPECT_EQ(bench.session.counters().duplicate_results, 1u);
}

// Chunk 0 is used; 1 to 3, 4 to 6 and 7 are of tensors that are left out.
TEST(Session, TakesResultsWithoutDataOfManyTensorsInAnyOrderAndEachOnce) {
  Scripted bench(Scripted::default_options(), {{"used", 16, Dtype::kFloat32},
                                               {"left", 40, Dtype::kFloat32},
                                               {"out", 40, Dtype::kFloat32},
                                               {"too", 8, Dtype::kFloat32}});
  bench.start();
  Tensor used(1, 16);
  ASSERT_TRUE(bench.session.submit(of(used), bench.now).ok());
  ASSERT_TRUE(bench.session.end_step().ok());
  const auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[1].body<wire::Contribution>().chunk, 1u);
  EXPECT_EQ(bench.session.counters().nil_contributions, 7u);
  const auto absent = [&](std::uint64_t chunks) {
    wire::FeedbackHeader header = bench.feedback();
    header.flags = wire::kFlagNil;
    const std::uint64_t mask = 3;
    return bench.answer(wire::ResultHeader{.feedback = header,
                                           .k = 2,
                                           .step = 1,
                                           .chunk = first_chunk(0, chunks),
                                           .weight = 2,
                                           .may_count = 2,
                                           .mask_words = 1},
                        {&mask, 1},
                        {reinterpret_cast<const std::uint8_t*>(&chunks), sizeof chunks});
  };
  EXPECT_EQ(absent(0b01101010), Verdict::kFolded);
  EXPECT_EQ(absent(0b11101010), Verdict::kCompleted) << "the last tensor is done";
  EXPECT_EQ(bench.session.counters().duplicate_results, 4u);
  EXPECT_EQ(absent(0b00010100), Verdict::kCompleted);
  EXPECT_TRUE(bench.events().empty()) << "nobody has asked for a tensor that was left out";
  EXPECT_EQ(bench.result(1, 0, std::vector<float>(16, 8), 2), Verdict::kCompleted);
  const auto events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, Event::Kind::kStepDone);
  EXPECT_EQ(used.values[0], 4);
}

TEST(Session, SendsNilForTensorsThatWereNotSubmittedAndLeavesAbsentOnesAlone) {
  Scripted bench(Scripted::default_options(),
                 {{"used", 8, Dtype::kFloat32}, {"unused", 8, Dtype::kFloat32}});
  bench.start();
  Tensor used(1, 8);
  Submission submission = of(used);
  submission.weight = 5;
  ASSERT_TRUE(bench.session.submit(submission, bench.now).ok());
  ASSERT_TRUE(bench.session.end_step().ok());
  const auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 2u);
  const auto nil = packets[1].body<wire::Contribution>();
  EXPECT_EQ(nil.chunk, 1u);
  EXPECT_TRUE(nil.flow.flags & wire::kFlagNil);
  EXPECT_EQ(nil.elem_count, 0);
  EXPECT_EQ(nil.weight, 5u);
  EXPECT_EQ(bench.session.counters().nil_contributions, 1u);
  bench.result(1, 0, {}, 10, wire::kFlagNil);  // nobody had data for the used one either
  bench.result(1, 1, {}, 10, wire::kFlagNil);
  const auto events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0].absent);
  EXPECT_EQ(used.values[0], 1);
  EXPECT_EQ(events[1].kind, Event::Kind::kStepDone);
}

TEST(Session, ContributesNothingForATensorWithoutInputAndStillGetsTheAverage) {
  Scripted bench(Scripted::default_options(), {{"w", 8, Dtype::kFloat32}});
  bench.start();
  Tensor tensor(1, 8);
  Submission submission = of(tensor);
  submission.input = nullptr;
  ASSERT_TRUE(bench.session.submit(submission, bench.now).ok());
  const auto packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_TRUE(packets[0].body<wire::Contribution>().flow.flags & wire::kFlagNil);
  bench.result(1, 0, std::vector<float>(8, 6), 2);
  EXPECT_EQ(tensor.values[7], 3);
  EXPECT_TRUE(bench.saw(Event::Kind::kTensorDone));
}

TEST(Session, EndStepAfterACompleteStepDeclaresNothing) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  ASSERT_TRUE(bench.session.end_step().ok());
  bench.sent();
  for (ChunkIndex chunk = 0; chunk < 3; ++chunk)
    bench.result(1, chunk, std::vector<float>(chunk == 2 ? 8 : 16, 2), 2);
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
  EXPECT_EQ(bench.session.counters().nil_contributions, 0u);
}

TEST(Session, RefusesToEndAStepWithMissingTensorsWhenNilIsNotAllowed) {
  SessionOptions options = Scripted::default_options();
  options.allow_nil = false;
  Scripted bench(options);
  bench.start();
  const Status status = bench.session.end_step();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("not submitted: w;"), HasSubstr("allow_nil")));
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

TEST(Session, BarrierPassesWithTheResultAndComparesTheCollective) {
  Scripted bench;
  bench.start();
  ASSERT_TRUE(bench.session.barrier(bench.now).ok());
  EXPECT_FALSE(bench.session.barrier(bench.now).ok());  // one at a time
  const auto packets = bench.sent(PacketType::kPiece);
  ASSERT_EQ(packets.size(), 1u);
  const auto body = packets[0].body<wire::Piece>();
  EXPECT_EQ(body.operation, (wire::Operation{.kind = CollectiveKind::kBarrier}));
  EXPECT_EQ(body.payload_bytes, 0u);
  bench.note(packets[0]);
  const std::uint64_t mask = 3;
  wire::PieceResult header{
      .feedback = bench.feedback(), .step = 1, .operation = body.operation, .mask_words = 1};
  EXPECT_EQ(bench.answer(header, {&mask, 1}), Verdict::kCompleted);
  EXPECT_TRUE(bench.saw(Event::Kind::kCollectiveDone));

  ASSERT_TRUE(bench.session.barrier(bench.now).ok());
  bench.sent();
  header.step = 2;
  header.feedback = bench.feedback();
  header.operation = {.size_bytes = 640, .kind = CollectiveKind::kBroadcast};
  EXPECT_EQ(bench.answer(header, {&mask, 1}), Verdict::kCollectiveMismatch);
  EXPECT_THAT(bench.failure().message(),
              AllOf(HasSubstr("barrier"), HasSubstr("640 bytes from rank 0")));
}

TEST(Session, HasNoStreamsOfAStoreWhereItsJobSums) {
  Scripted bench;
  bench.start();
  for (const StreamId stream : {StreamId::kPushes, StreamId::kPulls})
    EXPECT_EQ(bench.answer(wire::Answer{.feedback = bench.feedback(), .stream = stream}),
              Verdict::kBadStream);
  const std::vector<std::uint8_t> element(sizeof(float));
  EXPECT_EQ(bench.answer(wire::Values{.feedback = bench.feedback(), .elem_count = 1}, {}, element),
            Verdict::kBadType);
}

TEST(GradientStream, EndsWithAnErrorBeforeItsStepNumbersWrap) {
  const SessionOptions options = Scripted::default_options();
  Link link(16);
  const Layout layout = Layout::create({{"w", 8, Dtype::kFloat32}}, 64).value();
  Tensors tensors(options, layout, UINT32_MAX - 1);
  Residuals residuals(layout, options.prune, nullptr);
  GradientStream stream(options, layout, tensors, residuals, link);
  link.flows.assign(1, Flow(64));
  ASSERT_TRUE(stream.join({.shards = 1}).ok());
  stream.start(kSecond);
  Tensor tensor(1, 8);
  tensors.accept(of(tensor), kSecond);
  EXPECT_TRUE(stream.schedule_next(kSecond));
  std::vector<std::uint8_t> buffer(kMaxDatagramBytes);
  Transmit transmit;
  ASSERT_TRUE(stream.write_next(transmit, buffer, kSecond));
  const std::vector<float> sums(8, 2);
  const std::size_t bytes = wire::encode(
      buffer, {},
      wire::ResultHeader{
          .step = UINT32_MAX - 1, .weight = 2, .elem_count = 8, .dtype = Dtype::kFloat32},
      {}, {reinterpret_cast<const std::uint8_t*>(sums.data()), 32});
  wire::Packet packet;
  ASSERT_EQ(wire::parse({buffer.data(), bytes}, packet), Verdict::kAccepted);
  (void)stream.handle_result(packet, kSecond);
  EXPECT_EQ(link.failure.code(), StatusCode::kExhausted);
  EXPECT_THAT(link.failure.message(), HasSubstr("4294967294"));
  EXPECT_EQ(tensor.values[0], 1);
}

}  // namespace
}  // namespace sluice::client
