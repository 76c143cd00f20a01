// One session of a job that does not wait for all ranks, packet by packet: early cancel, catch-up,
// late gradients and their account, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/client_core/straggler_bench.h"

namespace sluice::client {
namespace {

using wire::PacketType;
using Kind = Event::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

float first_float(const Sent& packet) {
  float value = 0;
  std::memcpy(&value, packet.packet().payload().data(), sizeof value);
  return value;
}

TEST(Straggler, CompletesFromTheArenaAndSendsNothingWhenItsStepIsOver) {
  Bench bench(LateMode::kDrop);
  bench.open_step = 2;
  bench.results(1, {kWithoutMe, kWithoutMe, kWithoutMe});
  EXPECT_THAT(bench.events(), IsEmpty());
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  EXPECT_EQ(bench.events().size(), 2u);  // tensor and step
  EXPECT_THAT(tensor.values, ::testing::Each(100));
  EXPECT_THAT(bench.sent(PacketType::kContribution), IsEmpty());
  EXPECT_EQ(bench.counters().cancelled_bytes, 160u);
  EXPECT_EQ(bench.counters().late_chunks, 3u);
  EXPECT_EQ(bench.counters().discarded_chunks, 3u);
  EXPECT_EQ(bench.session.current_step(), 2u);
  EXPECT_EQ(bench.session.behind(), 0u);
}

TEST(Straggler, CancelsWhatWaitsInTheMiddleOfATensor) {
  Bench bench(LateMode::kDrop);
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  std::vector<std::uint8_t> buffer(kMaxDatagramBytes);
  Transmit transmit;
  std::vector<Sent> first;
  while (first.empty() || first.back().type() != PacketType::kContribution) {  // one chunk leaves
    ASSERT_TRUE(bench.session.poll_transmit(transmit, buffer, bench.now));
    const std::span<const std::uint8_t> bytes = gather(transmit, buffer);
    first.push_back({.bytes = {bytes.begin(), bytes.end()}, .port_offset = transmit.port_offset});
    bench.note(first.back());
  }
  bench.result(1, 1, std::vector<float>(16, 7), 1, 0, kWithoutMe);
  EXPECT_THAT(chunks(bench.sent(PacketType::kContribution)), ElementsAre(2));
  bench.open_step = 2;
  bench.result(1, 0, std::vector<float>(16, 8), 2, 0, kBoth);
  bench.result(1, 2, std::vector<float>(8, 9), 2, 0, kBoth);
  EXPECT_TRUE(bench.saw(Kind::kStepDone));
  EXPECT_EQ(tensor.values[16], 7);
  EXPECT_EQ(bench.counters().cancelled_bytes, 64u);
  EXPECT_EQ(bench.counters().delivered_chunks, 2u);
  EXPECT_EQ(bench.counters().discarded_chunks, 1u);
}

TEST(Straggler, SendsNothingMoreWhenAnyPacketShowsThatItsStepIsClosed) {
  Bench bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.open_step = 2;
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  EXPECT_THAT(bench.sent(PacketType::kContribution), IsEmpty());
  bench.pass(kSecond);  // it asks for the results instead, once in a while
  std::size_t probes = 0;
  for (const Sent& packet : bench.passed) {
    EXPECT_NE(packet.type(), PacketType::kContribution);
    probes += packet.type() == PacketType::kProbe;
  }
  EXPECT_GE(probes, 1u);
  EXPECT_LE(probes, 41u);
}

TEST(Straggler, DoesNotSendALostContributionAgainAfterItsStep) {
  Bench bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  ASSERT_EQ(bench.sent(PacketType::kContribution).size(), 3u);
  bench.open_step = 2;
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  bench.pass(100 * kMillisecond);
  const auto probe = [&] {
    for (const Sent& packet : bench.passed)
      if (packet.type() == PacketType::kProbe) return packet.body<wire::Probe>().flow.number;
    return std::uint32_t{0};
  }();
  ASSERT_NE(probe, 0u);
  bench.highest = probe;
  bench.answer(wire::Answer{.feedback = bench.feedback(),
                            .step = 1,
                            .probe_number = probe,
                            .open_step = 2,
                            .first_incomplete = wire::kNoChunk});
  EXPECT_THAT(bench.sent(PacketType::kContribution), IsEmpty());
  EXPECT_EQ(bench.counters().retransmissions, 0u);
}

// Late chunks of a pruned tensor wait as one run. The chunk that stands for it with the scheduler
// is counted before they leave again, and says nothing of the others any more.
TEST(Straggler, RequeuesPrunedChunksWithoutTheOneThatStoodForThem) {
  Bench bench(LateMode::kRequeue, 0, {.rule = PruneRule::kStatic, .fraction = 0.1, .min_elems = 1});
  Tensor tensor;
  bench.miss_step_1(tensor);
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  ASSERT_THAT(chunks(bench.sent(PacketType::kContribution)), ElementsAre(0, 1, 2));
  bench.pass(100 * kMillisecond);
  ASSERT_FALSE(bench.passed.empty());
  const auto probe = bench.passed.back().body<wire::Probe>();
  bench.highest = probe.flow.number;
  bench.answer(wire::Answer{.feedback = bench.feedback(),
                            .step = 2,
                            .probe_number = probe.flow.number,
                            .open_step = 2,
                            .first_incomplete = 0});
  bench.result(2, 0, std::vector<float>(16, 100), 2, 0, kBoth, 2);
  const std::vector<Sent> packets = bench.sent(PacketType::kContribution);
  EXPECT_THAT(chunks(packets), ElementsAre(1, 2));
  for (const Sent& packet : packets) {
    EXPECT_TRUE(packet.body<wire::Contribution>().flow.flags & wire::kFlagSparse);
    EXPECT_EQ(packet.body<wire::Contribution>().base_step, 1u);
  }
}

TEST(Straggler, ReportsEachFinishedGradientOnceAlsoWhenItSendsNone) {
  Bench bench;
  Tensor tensor;
  bench.miss_step_1(tensor);
  std::vector<Sent> reports = bench.sent(PacketType::kFinished);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].body<wire::Finished>().step, 1u);
  EXPECT_EQ(reports[0].body<wire::Finished>().flow.flags & wire::kFlagNil, 0);
  EXPECT_EQ(reports[0].port_offset, 1);
  // The step was complete with fewer than two ranks, so arrivals at the next one are reported.
  EXPECT_EQ(reports[1].body<wire::Finished>().step, 2u);
  EXPECT_EQ(reports[1].body<wire::Finished>().flow.flags, wire::kFlagNil);
  EXPECT_EQ(reports[1].port_offset, 1);
  ASSERT_TRUE(bench.catch_up(tensor).ok());  // a step without a gradient is not reported
  EXPECT_THAT(bench.sent(PacketType::kFinished), IsEmpty());
}

TEST(Straggler, KeepsItsLateGradientAlthoughTheOutputIsTheSameMemory) {
  Bench bench;
  Tensor tensor;  // 1, 2, 3 ... in place
  bench.miss_step_1(tensor);
  EXPECT_THAT(tensor.values, ::testing::Each(100));
  EXPECT_EQ(bench.session.behind(), 1u);  // the open step takes it
  bench.sent();
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  const std::vector<Sent> packets = bench.sent(PacketType::kContribution);
  ASSERT_THAT(chunks(packets), ElementsAre(0, 1, 2));
  EXPECT_EQ(first_float(packets[1]), 17);
  for (const Sent& packet : packets) {
    EXPECT_EQ(packet.body<wire::Contribution>().step, 2u);
    EXPECT_EQ(packet.body<wire::Contribution>().base_step, 1u);
    EXPECT_EQ(packet.body<wire::Contribution>().weight, 1u);
  }
  bench.open_step = 3;
  bench.results(2, {kBoth, kBoth, kBoth}, 50);
  EXPECT_EQ(tensor.values[0], 25);
  EXPECT_EQ(bench.session.behind(), 0u);
  EXPECT_EQ(bench.counters().requeued_chunks, 3u);
  EXPECT_EQ(bench.counters().late_chunks, 3u);
  EXPECT_EQ(bench.counters().delivered_chunks + bench.counters().discarded_chunks, 0u);
}

TEST(Straggler, PassesTheChunksThatWereCountedInTime) {
  Bench bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.open_step = 2;
  bench.results(1, {kBoth, kWithoutMe, kBoth});
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  const std::vector<Sent> packets = bench.sent(PacketType::kContribution);
  ASSERT_THAT(packets, SizeIs(2));
  ASSERT_THAT(chunks(packets), ElementsAre(0, 2, 1));
  for (const Sent& packet : packets) {
    const auto body = packet.body<wire::Contribution>();
    EXPECT_EQ(body.base_step, 1u);
    EXPECT_EQ((body.flow.flags & wire::kFlagNil) != 0, body.chunk != 1);
    EXPECT_EQ(body.weight, body.chunk == 1 ? 1u : 0u);
  }
  bench.open_step = 3;
  bench.results(2, {kWithoutMe, kBoth, kWithoutMe});
  EXPECT_EQ(bench.counters().delivered_chunks, 2u);
  EXPECT_EQ(bench.counters().requeued_chunks, 1u);
}

TEST(Straggler, TriesTheNextStepWhenItsGradientIsLateTwice) {
  Bench bench;
  Tensor tensor;
  bench.miss_step_1(tensor);
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  bench.open_step = 3;
  bench.results(2, {kWithoutMe, kBoth, kWithoutMe});
  EXPECT_EQ(bench.session.behind(), 1u);
  bench.sent();
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  const std::vector<Sent> packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 3u);
  EXPECT_EQ(packets[0].body<wire::Contribution>().base_step, 1u);
  EXPECT_EQ(packets[0].body<wire::Contribution>().step, 3u);
  EXPECT_EQ(first_float(packets[0]), 1);
  EXPECT_TRUE(packets[1].body<wire::Contribution>().flow.flags & wire::kFlagNil);
  bench.open_step = 4;
  bench.results(3, {kBoth, kWithoutMe, kBoth});
  EXPECT_EQ(bench.counters().late_chunks, 3u);
  EXPECT_EQ(bench.counters().requeued_chunks, 3u);
  EXPECT_EQ(bench.session.waiting_late_chunks(), 0u);
}

TEST(Straggler, OnlyPullsStepsThatAreFinishedBeforeTheOpenOne) {
  Bench bench;
  Tensor tensor;
  bench.miss_step_1(tensor);
  bench.open_step = 4;
  bench.result(3, 0, std::vector<float>(16, 5), 1, 0, kWithoutMe);  // too early to be kept
  EXPECT_EQ(bench.session.behind(), 3u);                            // 2, 3, and the open step 4
  bench.sent();
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  std::vector<Sent> packets = bench.sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].body<wire::Probe>().step, 2u);
  EXPECT_EQ(packets[0].body<wire::Probe>().want, 7u);
  bench.results(2, {kWithoutMe, kWithoutMe, kWithoutMe});
  EXPECT_EQ(bench.session.behind(), 2u);
  EXPECT_EQ(bench.session.waiting_late_chunks(), 3u);
}

TEST(Straggler, GivesUpALateGradientBeyondItsStalenessBound) {
  Bench bench(LateMode::kRequeue, 2);
  Tensor tensor;
  bench.miss_step_1(tensor);
  bench.open_step = 3;
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  EXPECT_EQ(bench.session.waiting_late_chunks(), 3u);  // 3 - 1 is still allowed
  bench.open_step = 4;
  bench.answer(wire::Feedback{.feedback = bench.feedback()});
  EXPECT_EQ(bench.session.waiting_late_chunks(), 0u);
  EXPECT_EQ(bench.counters().discarded_chunks, 3u);
  EXPECT_EQ(bench.session.behind(), 2u);
}

TEST(Straggler, KeepsTheNewerOfTwoLateGradients) {
  Bench bench;
  Tensor tensor;
  bench.miss_step_1(tensor);
  Tensor second(1000);
  ASSERT_TRUE(bench.session.submit(of(second), bench.now).ok());  // although it is behind
  bench.open_step = 3;
  bench.results(2, {kWithoutMe, kBoth, kWithoutMe});
  bench.sent();
  EXPECT_EQ(bench.counters().delivered_chunks, 1u);
  EXPECT_EQ(bench.counters().discarded_chunks, 2u);
  ASSERT_TRUE(bench.catch_up(tensor).ok());
  const std::vector<Sent> packets = bench.sent(PacketType::kContribution);
  ASSERT_EQ(packets.size(), 3u);
  EXPECT_EQ(packets[0].body<wire::Contribution>().base_step, 2u);
  EXPECT_EQ(packets[1].body<wire::Contribution>().base_step, 1u);
  EXPECT_EQ(first_float(packets[0]), 1000);
  EXPECT_EQ(first_float(packets[1]), 17);
}

TEST(Straggler, ClearsThePartsOfATensorThatNobodyContributedTo) {
  Bench bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.result(1, 0, {}, 0, wire::kFlagNil, 0);
  bench.result(1, 1, std::vector<float>(16, 7), 1, 0, kWithoutMe, 1);
  bench.result(1, 2, {}, 0, wire::kFlagNil, 0);
  const std::vector<Event> events = bench.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kTensorDone);
  EXPECT_FALSE(events[0].absent);
  EXPECT_EQ(tensor.values[0], 0);
  EXPECT_EQ(tensor.values[16], 7);
  EXPECT_EQ(tensor.values[39], 0);
}

TEST(Straggler, ReportsWhoWasInEveryStep) {
  Bench bench;
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.open_step = 2;
  bench.results(1, {kBoth, kWithoutMe, kBoth});
  const StepReport* report = bench.session.report(1);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->k, 1u);
  EXPECT_EQ(report->weight, 1u);
  EXPECT_EQ(report->in_every[0], kWithoutMe);
  EXPECT_EQ(report->in_any[0], kBoth);
  EXPECT_EQ(bench.session.report(2), nullptr);
  EXPECT_EQ(bench.session.report(0), nullptr);
  EXPECT_EQ(bench.session.facts().policy.k, 1u);
  EXPECT_EQ(bench.session.facts().window_steps, 4u);
}

// 1 of 4 ranks is in the first chunk of each step, both of 2 are in the others.
TEST(Straggler, CountsAShareOfTheWorldHoweverItGetsTheResult) {
  Bench bench(LateMode::kRequeue);
  const auto results = [&](Step step) {
    for (const ChunkIndex chunk : {0, 1, 2}) {
      const bool first = chunk == 0;
      bench.result(step, chunk, std::vector<float>(chunk == 2 ? 8 : 16, 12), first ? 1 : 2, 0,
                   first ? kWithoutMe : kBoth, first ? 4 : 2);
    }
  };
  Tensor waited;
  ASSERT_TRUE(bench.session.submit(of(waited), bench.now).ok());
  bench.sent();
  bench.open_step = 2;
  results(1);
  EXPECT_EQ(waited.values[0], 3);
  EXPECT_EQ(waited.values[16], 6);
  const StepReport* report = bench.session.report(1);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->first_members, 1);
  EXPECT_EQ(report->first_may_count, 4);

  Tensor from_arena;
  results(2);
  ASSERT_TRUE(bench.catch_up(from_arena).ok());
  bench.transmit();
  EXPECT_EQ(from_arena.values, waited.values);
  EXPECT_EQ(bench.session.report(2)->first_may_count, 4);

  ASSERT_TRUE(bench.session.set_averaging(0, AveragingChoice::kWeight).ok());
  Tensor whole;
  bench.open_step = 3;
  results(3);
  ASSERT_TRUE(bench.session.submit(of(whole), bench.now).ok());
  EXPECT_EQ(bench.session.set_averaging(0, AveragingChoice::kSum).code(), StatusCode::kBusy);
  bench.transmit();
  EXPECT_EQ(whole.values[0], 12);
  EXPECT_EQ(whole.values[16], 6);
  EXPECT_EQ(bench.session.facts().averaging, AveragingChoice::kWorld);
}

TEST(Straggler, MixesTensorsWithAndWithoutAGradientInOneStep) {
  Scripted bench(Scripted::default_options(),
                 {{"a", 16, Dtype::kFloat32}, {"b", 16, Dtype::kFloat32}});
  bench.policy = fixed(LateMode::kDrop);
  bench.start();
  bench.open_step = 2;
  Tensor a(1, 16), b(2, 16);
  bench.result(1, 1, std::vector<float>(16, 6), 1, 0, kWithoutMe);
  ASSERT_TRUE(
      bench.session.submit({.tensor = 1, .output = b.values.data(), .contribute = false}, bench.now)
          .ok());
  bench.transmit();
  EXPECT_EQ(b.values[0], 6);
  ASSERT_TRUE(bench.session.end_step().ok());  // "a" is left out
  EXPECT_THAT(bench.sent(PacketType::kContribution), IsEmpty());
  bench.result(1, 0, std::vector<float>(16, 5), 1, 0, kWithoutMe);
  EXPECT_TRUE(bench.saw(Kind::kStepDone));
  EXPECT_EQ(a.values[0], 1);
  EXPECT_EQ(bench.session.counters().late_chunks, 0u);
}

}  // namespace
}  // namespace sluice::client
