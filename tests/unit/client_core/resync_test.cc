// One session that falls behind the window, or gives its state to a rank that has, packet by
// packet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/client_core/straggler_bench.h"

namespace sluice::client {
namespace {

using Kind = Event::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Resync, FallsBehindWhenItsStepHasLeftTheWindow) {
  Bench bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.result(1, 1, std::vector<float>(16, 7), 1, 0, kBoth);
  EXPECT_EQ(bench.gone(1, 9), Verdict::kTooOld);
  const std::vector<Event> events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, Kind::kTensorLost);
  EXPECT_EQ(events[0].kind, Kind::kFellBehind);
  EXPECT_EQ(events[0].step, 1u);
  EXPECT_THAT(events[0].status.message(), HasSubstr("step 9"));
  EXPECT_EQ(bench.counters().delivered_chunks, 1u);
  EXPECT_EQ(bench.counters().discarded_chunks, 2u);  // nobody knows
  EXPECT_TRUE(!bench.session.behind_status().ok());
  EXPECT_EQ(bench.session.behind(), 8u);
  EXPECT_EQ(bench.session.submit(of(tensor), bench.now).code(), StatusCode::kBehind);
  EXPECT_EQ(bench.catch_up(tensor).code(), StatusCode::kBehind);
  EXPECT_EQ(bench.session.end_step().code(), StatusCode::kBehind);
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
}

// delivered + residual + discarded = sum of the gradients, by value: what left in a value of which
// nobody knows is discarded with it, what has not left stays.
TEST(Resync, FallingBehindDiscardsTheResidualOfWhatLeftAndOfNothingElse) {
  constexpr float kSmall = 0x1p-12F;  // lost beside 1 in float16
  Scripted bench(Scripted::default_options(),
                 {{"early", 8, Dtype::kFloat32}, {"w", 40, Dtype::kFloat32}}, 64, Dtype::kFloat16);
  bench.policy = fixed(LateMode::kDrop);
  bench.start();
  std::vector<float> early(8, 1 + kSmall), w(40, 1 + kSmall), average(40);
  const auto submit = [&](std::uint32_t tensor, std::vector<float>& values) {
    return bench.session.submit(
        {.tensor = tensor, .input = values.data(), .output = average.data()}, bench.now);
  };
  const auto result = [&](Step step, ChunkIndex chunk, std::uint16_t elems) {
    wire::FeedbackHeader header = bench.feedback();
    header.flags = wire::kFlagMean;
    const std::vector<std::uint8_t> zeros(2 * elems);
    bench.answer(wire::ResultHeader{.feedback = header,
                                    .k = 2,
                                    .step = step,
                                    .chunk = chunk,
                                    .weight = 2,
                                    .may_count = 2,
                                    .elem_count = elems,
                                    .dtype = Dtype::kFloat16,
                                    .mask_words = 1},
                 std::array<std::uint64_t, 1>{kBoth}, zeros);
  };
  const auto residual = [&](std::uint32_t tensor) {
    Kept kept;
    EXPECT_TRUE(bench.session.residual(tensor, kept).ok());
    return std::vector<float>(kept.values.begin(), kept.values.end());
  };
  // Step 1 is delivered and leaves what float16 loses.
  ASSERT_TRUE(submit(0, early).ok() && submit(1, w).ok());
  bench.sent();
  for (const auto& [chunk, elems] : {std::pair{0u, 8}, {1u, 32}, {2u, 8}})
    result(1, chunk, static_cast<std::uint16_t>(elems));
  ASSERT_EQ(bench.session.counters().steps_done, 1u);
  ASSERT_EQ(residual(0), std::vector<float>(8, kSmall));
  ASSERT_EQ(residual(1), std::vector<float>(40, kSmall));
  // In step 2 one tensor is done and asked again, for step 3; of the other, one chunk leaves.
  std::ranges::fill(early, 1.0F);
  std::ranges::fill(w, 1.0F);
  ASSERT_TRUE(submit(0, early).ok());
  bench.sent();
  result(2, 0, 8);
  ASSERT_TRUE(submit(0, early).ok() && submit(1, w).ok());
  Sent first;
  Transmit transmit;
  std::vector<std::uint8_t> buffer(kMaxDatagramBytes);
  do {
    ASSERT_TRUE(bench.session.poll_transmit(transmit, buffer, bench.now));
    const std::span<const std::uint8_t> bytes = gather(transmit, buffer);
    first.bytes.assign(bytes.begin(), bytes.end());
  } while (first.type() != wire::PacketType::kContribution);
  ASSERT_EQ(first.body<wire::Contribution>().chunk, 1u);
  bench.open_step = 9;
  EXPECT_EQ(bench.answer(wire::Answer{.feedback = bench.feedback(),
                                      .step = 2,
                                      .open_step = 9,
                                      .first_incomplete = wire::kNoChunk,
                                      .status = wire::AnswerStatus::kGone}),
            Verdict::kTooOld);
  EXPECT_EQ(bench.session.counters().discarded_chunks, 3u);
  EXPECT_EQ(residual(0), std::vector<float>(8, kSmall));
  std::vector<float> wanted(32, 0.0F);
  wanted.resize(40, kSmall);
  EXPECT_EQ(residual(1), wanted);
}

wire::Status transfer(Step step, std::uint16_t source, std::uint16_t target) {
  return {.joined_count = 2,
          .world_size = 2,
          .state = wire::JobState::kRunning,
          .transfer_step = step,
          .transfer_number = 1,
          .hold_left_ms = 1000,
          .transfer_source = source,
          .transfer_target = target};
}

// The first piece of transfer 5, from rank 0.
void answer_header(Scripted& bench, const std::array<std::uint8_t, 12>& header) {
  bench.answer(
      wire::PieceResult{
          .feedback = bench.feedback(),
          .step = 5,
          .operation = {.size_bytes = 12, .root = 0, .kind = CollectiveKind::kTransfer},
          .mask_words = 1,
          .payload_bytes = 12},
      std::array<std::uint64_t, 1>{kBoth}, header);
}

TEST(Resync, AStatusOfBeforeItsOwnTransferDoesNotMakeItAGiver) {
  Bench bench;
  ASSERT_TRUE(bench.session.resync(bench.now).ok());
  bench.answer(transfer(5, 0, 1));
  std::array<std::uint8_t, 12> header{};
  header[8] = 7;  // the last step in a state of 0 bytes
  answer_header(bench, header);
  ASSERT_TRUE(bench.saw(Kind::kStateReceived));
  bench.answer(transfer(4, 1, 0));
  EXPECT_FALSE(bench.saw(Kind::kStateWanted));
  bench.answer(transfer(6, 1, 0));
  EXPECT_TRUE(bench.saw(Kind::kStateWanted));
}

// The status of one transfer is here before the application has heard of the one before.
TEST(Resync, TheEndOfARequestThatNothingWasGivenForIsNotTheEndOfTheStateThatIsRead) {
  Bench bench;
  const auto wanted_in = [&](Step step) { bench.answer(transfer(step, 1, 0)); };
  const auto state_events = [&] {
    std::vector<Kind> kinds;
    for (const Event& event : bench.events())
      if (event.kind != Kind::kStalled) kinds.push_back(event.kind);
    return kinds;
  };
  bench.events();
  wanted_in(5);
  wanted_in(6);
  const std::vector<std::uint8_t> state(10, 1);
  EXPECT_TRUE(bench.session.send_state(state, 3, bench.now));
  EXPECT_FALSE(bench.session.send_state(state, 3, bench.now)) << "one is read already";
  EXPECT_THAT(state_events(),
              ElementsAre(Kind::kStateWanted, Kind::kStateUnwanted, Kind::kStateWanted));
  wanted_in(7);
  EXPECT_THAT(state_events(), ElementsAre(Kind::kStateSent, Kind::kStateWanted));
}

TEST(Resync, RefusesAStateLargerThanItsMachinesMemory) {
  SessionOptions options = Scripted::default_options();
  options.max_state_bytes = 1 << 20;
  Scripted bench(options);
  bench.policy = fixed(LateMode::kRequeue, 0);
  bench.start();
  ASSERT_TRUE(bench.session.resync(bench.now).ok());
  bench.answer(transfer(5, 0, 1));
  std::array<std::uint8_t, 12> header{};
  header[5] = 1;  // 2^40 bytes
  answer_header(bench, header);
  for (const Event& event : bench.events()) {
    if (event.kind != Kind::kStateReceived) continue;
    EXPECT_EQ(event.status.code(), StatusCode::kExhausted);
    EXPECT_THAT(event.status.message(), HasSubstr("state of rank 0, 1099511627776 bytes"));
    EXPECT_THAT(event.status.message(), HasSubstr("this machine has 1048576"));
    return;
  }
  FAIL() << "the resync is not over";
}

TEST(Resync, CannotCatchUpInASynchronousJob) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  const Status status =
      bench.session.submit({.output = tensor.values.data(), .contribute = false}, bench.now);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("synchronous"));
  EXPECT_EQ(bench.session.resync(bench.now).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::client
