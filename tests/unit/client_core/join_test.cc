// The handshake and every way in which it can end.
#include <gmock/gmock.h>

#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::PacketType;

TEST(Join, ProvesTheSecretOverTheChallengeAndPadsEveryRequest) {
  Scripted bench;
  auto first = bench.sent();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].port_offset, 0);
  const auto request = first[0].body<wire::Join>();
  EXPECT_EQ(request.has_proof, 0);
  EXPECT_EQ(first[0].bytes.size(), request.datagram_bytes);
  EXPECT_GE(first[0].bytes.size(), wire::datagram_bytes(Scripted::kChunkBytes, 2));
  EXPECT_EQ(request.layouts[0].chunk_count, 3u);
  EXPECT_EQ(request.layouts[0].max_elems, 16u);
  EXPECT_EQ(request.layouts[1].chunk_count, kCollectiveChunks);

  bench.challenge();
  auto second = bench.sent();
  ASSERT_EQ(second.size(), 1u);
  auto proven = second[0].body<wire::Join>();
  EXPECT_EQ(proven.nonce, request.nonce);
  EXPECT_EQ(proven.has_proof, 1);
  EXPECT_EQ(second[0].bytes.size(), first[0].bytes.size());
  const wire::Digest expected = wire::join_proof("secret", 1, proven);
  EXPECT_TRUE(wire::same_digest(expected, proven.proof));

  bench.accept();
  EXPECT_EQ(bench.session.state(), SessionState::kForming);
  bench.status(wire::JobState::kRunning, 2, 0);
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
  const auto events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Event::Kind::kJoined);
  EXPECT_EQ(events[1].kind, Event::Kind::kStarted);
}

TEST(Join, AnswersARepeatedChallengeOnceAndANewOneAgain) {
  Scripted bench;
  bench.sent();
  bench.challenge(5);
  EXPECT_EQ(bench.sent().size(), 1u);
  bench.challenge(5);
  EXPECT_EQ(bench.sent().size(), 0u);
  bench.challenge(6);
  EXPECT_EQ(bench.sent().size(), 1u);
}

TEST(Join, IgnoresAnswersToSomebodyElsesNonce) {
  Scripted bench;
  bench.sender = {.job = 3, .rank = 1, .cookie = 1};
  EXPECT_EQ(bench.answer(wire::Accept{.nonce = 12345, .shards = 1, .world_size = 2}),
            Verdict::kBadCookie);
  EXPECT_EQ(bench.answer_text(wire::Refuse{.nonce = 12345}, "no"), Verdict::kBadCookie);
  EXPECT_EQ(bench.session.state(), SessionState::kJoining);
}

TEST(Join, FailsWithTheAppliancesTextAndItsOwnAddressJobAndRank) {
  Scripted bench;
  bench.sender = {.rank = 1};
  bench.answer_text(
      wire::Refuse{.nonce = bench.options.nonce, .code = wire::RefuseCode::kWorldSize},
      "world size 2, job has 4");
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kRefused);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("world size 2, job has 4"), HasSubstr("'job'"),
                                      HasSubstr("rank 1"), HasSubstr("10.0.0.1:7700")));
  EXPECT_EQ(bench.session.state(), SessionState::kClosed);
  EXPECT_EQ(bench.session.next_timeout(), kNever);
  EXPECT_EQ(bench.session.barrier(bench.now).code(), StatusCode::kRefused);
}

TEST(Join, OfMoreTensorsThanItHasRoomForNamesTheNeighboursThatMayDiffer) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 1000; ++i)
    tensors.push_back({.name = "t" + std::to_string(i), .elem_count = 1});
  SessionOptions options{.job_name = "job", .rank = Rank{1}, .world_size = 2, .nonce = 7};
  const Layout layout = Layout::create(tensors, 1344).value();
  JoinMachine machine(options, layout, 0);
  EXPECT_EQ(join_bytes(layout, 2), wire::datagram_bytes(1344, 2)) << "it grows by nothing";
  std::vector<std::uint8_t> bytes(kMaxDatagramBytes);
  bytes.resize(machine.poll_transmit(bytes));
  wire::Packet packet;
  ASSERT_EQ(wire::parse(bytes, packet), Verdict::kAccepted);
  const auto& request = packet.body<wire::Join>();
  EXPECT_EQ(request.tensor_count, 1000u);
  EXPECT_EQ(request.print_tensors, 4u);
  EXPECT_EQ(packet.payload().size(), 250 * sizeof(std::uint32_t));

  const wire::Differs differs{
      .nonce = 7, .first_tensor = 996, .print_tensors = 8, .text_bytes = 2, .job_tensor_count = 9};
  std::vector<std::uint8_t> answer(kMaxDatagramBytes);
  answer.resize(wire::encode(answer, {.rank = 1}, differs, {}, {{'n', 'o'}}));
  ASSERT_EQ(wire::parse(answer, packet), Verdict::kAccepted);
  EXPECT_EQ(machine.handle(packet, 1), Verdict::kJoinRefused);
  EXPECT_THAT(machine.failure().message(),
              HasSubstr("no; the first that differs is one of tensors 996 't996' to 999 't999'"));
}

TEST(Join, OfARunThatHasEndedIsALossAndNotAMistake) {
  Scripted bench;
  bench.sender = {.rank = 1};
  bench.answer_text(wire::Refuse{.nonce = bench.options.nonce, .code = wire::RefuseCode::kEnded},
                    "run 7 of job 'job' has ended: rank 0 fell silent");
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 fell silent"));
}

TEST(Join, GivesUpWithinFiveSecondsWhenNobodyAnswers) {
  Scripted bench;
  bench.pass(3900 * kMillisecond);
  EXPECT_EQ(bench.session.state(), SessionState::kJoining);
  EXPECT_GT(bench.passed.size(), 8u);
  EXPECT_LT(bench.passed.size(), 30u);
  bench.pass(200 * kMillisecond);
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kUnreachable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("10.0.0.1:7700"), HasSubstr("'job'"), HasSubstr("rank 1"),
                    HasSubstr("4.0 s"), HasSubstr("sluiced")));
}

TEST(Join, IsHeardWheneverAPortIsUpForAQuarterOfASecond) {
  Scripted bench;
  for (int window = 0; window < 15; ++window) {
    const std::size_t before = bench.passed.size();
    bench.pass(250 * kMillisecond);
    EXPECT_GT(bench.passed.size(), before) << window;
  }
}

TEST(Join, ToleratesAnApplianceThatIsStartingAndThenBelievesThatNothingListens) {
  Scripted bench;
  for (int i = 0; i < 8; ++i) {
    bench.session.handle_unreachable(bench.now);
    bench.pass(100 * kMillisecond);
  }
  EXPECT_EQ(bench.session.state(), SessionState::kJoining);
  bench.pass(200 * kMillisecond);
  bench.session.handle_unreachable(bench.now);
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kUnreachable);
  EXPECT_THAT(status.message(), HasSubstr("nothing listens"));
}

SessionOptions with_big_chunks() {
  SessionOptions options = Scripted::default_options();
  options.path_datagram_bytes = 2000;
  return options;
}

TEST(Join, NamesBothSizesWhenOnlySmallDatagramsPass) {
  Scripted bench(with_big_chunks(), {{"w", 1000, Dtype::kFloat32}}, 1408);
  bench.pass(1450 * kMillisecond);
  for (const Sent& packet : bench.passed) EXPECT_EQ(packet.bytes.size(), 1502u);
  bench.passed.clear();
  bench.pass(600 * kMillisecond);
  const Sent* bare = nullptr;
  for (const Sent& packet : bench.passed)
    if (packet.bytes.size() < 400) bare = &packet;
  ASSERT_NE(bare, nullptr);
  EXPECT_EQ(bare->body<wire::Join>().has_proof, 0);
  const std::string bare_size = std::to_string(bare->bytes.size()) + " bytes";
  bench.sender = {.rank = 1};
  bench.answer_text(
      wire::Refuse{.nonce = bare->body<wire::Join>().nonce, .code = wire::RefuseCode::kMtu},
      "too small");
  EXPECT_EQ(bench.session.state(), SessionState::kJoining);  // the big one may be right behind
  bench.pass(1900 * kMillisecond);
  EXPECT_EQ(bench.session.state(), SessionState::kJoining);  // or four of them were lost
  bench.pass(100 * kMillisecond);
  const Status status = bench.failure();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(bare_size), HasSubstr("1502 bytes"),
                                      HasSubstr("10.0.0.1:7700"), HasSubstr("rank 1")));
}

TEST(Join, GoesOnWhenThePaddedRequestPassesAfterAll) {
  Scripted bench(with_big_chunks(), {{"w", 1000, Dtype::kFloat32}}, 1408);
  bench.pass(1600 * kMillisecond);
  bench.sender = {.rank = 1};
  bench.answer(wire::Challenge{.nonce = ~bench.options.nonce});  // to the bare request
  bench.challenge();
  bench.sent();
  bench.accept();
  bench.pass(100 * kMillisecond);
  EXPECT_EQ(bench.session.state(), SessionState::kForming);
}

// Its answer may take long, as when the control side is away in between.
TEST(Join, AnAnswerToThePaddedRequestShowsThatItPasses) {
  for (const bool preparing : {true, false}) {
    Scripted bench(with_big_chunks(), {{"w", 1000, Dtype::kFloat32}}, 1408);
    bench.pass(1600 * kMillisecond);
    bench.sender = {.rank = 1};
    const auto answer_bare = [&] {
      bench.answer_text(wire::Refuse{.nonce = ~bench.options.nonce, .code = wire::RefuseCode::kMtu},
                        "too small");
    };
    answer_bare();
    if (preparing)
      bench.answer(wire::Preparing{.nonce = bench.options.nonce});
    else
      bench.challenge();
    answer_bare();
    bench.pass(2 * kSecond);
    EXPECT_EQ(bench.session.state(), SessionState::kJoining);
  }
}

TEST(Join, FailsAtOnceWhenTheTransportSaysThatTheDatagramIsTooBig) {
  Scripted bench;
  bench.session.handle_too_big(1492, 1400, false, bench.now);
  EXPECT_THAT(bench.failure().message(), AllOf(HasSubstr("1492 bytes"), HasSubstr("1400 bytes")));
}

TEST(Join, IsNotUndoneByATooBigThatMayBeForged) {
  Scripted bench;
  bench.start();
  bench.events();
  bench.session.handle_too_big(1492, 600, false, bench.now);
  EXPECT_TRUE(bench.events().empty());
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
  bench.session.handle_too_big(1492, 600, true, bench.now);  // of this host itself
  EXPECT_THAT(bench.failure().message(), AllOf(HasSubstr("1492 bytes"), HasSubstr("600 bytes")));
}

TEST(Join, FailsBeforeItSendsWhenTheLocalInterfaceIsTooSmall) {
  SessionOptions options = Scripted::default_options();
  options.path_datagram_bytes = 1452;
  Scripted bench(options, {{"w", 1000, Dtype::kFloat32}}, 1408);
  EXPECT_TRUE(bench.sent().empty());
  EXPECT_THAT(bench.failure().message(), AllOf(HasSubstr("1452"), HasSubstr("1502")));
}

TEST(Join, RefusesToEnterASynchronousJobInMidRunAndLeaves) {
  Scripted bench;
  bench.sent();
  bench.challenge();
  bench.sent();
  bench.accept(17);
  EXPECT_THAT(bench.failure().message(), HasSubstr("step 17"));
  const auto leaves = bench.sent();
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves[0].body<wire::Leave>().reason, wire::LeaveReason::kAbnormal);
  EXPECT_TRUE(bench.sent().empty());
}

}  // namespace
}  // namespace sluice::client
