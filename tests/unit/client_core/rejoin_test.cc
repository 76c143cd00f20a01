// A session's second membership: the state that it keeps, and the state that begins anew.
#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using PacketType = wire::PacketType;

// The bench plays another appliance, which knows nothing of the membership before.
void play_another_appliance(Scripted& bench, Cookie cookie) {
  bench.options.nonce += std::uint64_t{1} << 32;
  bench.number = bench.received = bench.highest = bench.credit = bench.echo_us = 0;
  bench.cookie = cookie;
}

// One step of one tensor: what both ranks get is `sum`.
void take_step(Scripted& bench, Step step, float value) {
  Tensor tensor(value);
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  const std::vector<Sent> sent = bench.sent(PacketType::kContribution);
  ASSERT_EQ(chunks(sent), (std::vector<ChunkIndex>{0, 1, 2}));
  EXPECT_EQ(sent.front().body<wire::Contribution>().step, step);
  for (const Sent& packet : sent) bench.note(packet);
  const std::vector<float> sums(16, 2 * value);
  EXPECT_EQ(bench.result(step, 0, sums, 2), Verdict::kFolded);
  EXPECT_EQ(bench.result(step, 1, sums, 2), Verdict::kFolded);
  EXPECT_EQ(bench.result(step, 2, std::vector<float>(8, 2 * value), 2), Verdict::kCompleted);
  EXPECT_TRUE(bench.saw(Event::Kind::kStepDone));
  EXPECT_EQ(tensor.values, std::vector<float>(40, value));
}

void break_off(Scripted& bench) {
  bench.session.handle_broken({StatusCode::kUnreachable, "it is gone"}, bench.now);
  EXPECT_EQ(bench.failure().message(), "it is gone");
  ASSERT_EQ(bench.session.state(), SessionState::kClosed);
}

TEST(Rejoin, BeginsWithTheFirstStepOfANewMembershipAndGoesOnCounting) {
  Scripted bench;
  bench.start();
  take_step(bench, 1, 3);
  take_step(bench, 2, 4);
  break_off(bench);
  const Counters before = bench.session.counters();
  const auto results = bench.session.verdicts()[static_cast<std::size_t>(Verdict::kCompleted)];

  bench.session.rejoin(8, bench.now);
  EXPECT_EQ(bench.session.state(), SessionState::kJoining);
  EXPECT_TRUE(bench.session.status().ok());
  play_another_appliance(bench, 0xBEEF);
  const std::vector<Sent> joins = bench.sent(PacketType::kJoin);
  ASSERT_EQ(joins.size(), 1u);
  EXPECT_EQ(joins[0].body<wire::Join>().nonce, bench.options.nonce) << "a join of its own";
  EXPECT_EQ(joins[0].body<wire::Join>().run_id, 8u);
  bench.start(2);
  EXPECT_EQ(bench.session.state(), SessionState::kRunning);
  EXPECT_EQ(bench.session.current_step(), 1u);
  take_step(bench, 1, 5);

  const Counters after = bench.session.counters();
  EXPECT_EQ(after.steps_done, 1u);
  EXPECT_EQ(after.shards, 2u);
  EXPECT_GE(after.packets_sent, before.packets_sent + 3);
  EXPECT_GE(after.packets_received, before.packets_received + 3);
  EXPECT_EQ(after.chunk_bytes, before.chunk_bytes);
  EXPECT_EQ(after.receive_credit_packets, before.receive_credit_packets);
  EXPECT_EQ(bench.session.verdicts()[static_cast<std::size_t>(Verdict::kCompleted)], results + 1);
}

TEST(Rejoin, TakesNothingFromTheMembershipBefore) {
  Scripted bench;
  bench.start();
  Tensor tensor;
  ASSERT_TRUE(bench.session.submit(of(tensor), bench.now).ok());
  bench.sent();
  bench.session.handle_broken({StatusCode::kUnreachable, "it is gone"}, bench.now);
  EXPECT_EQ(bench.session.tensors().in_flight_count(), 1u);
  EXPECT_TRUE(bench.saw(Event::Kind::kTensorLost));
  bench.session.rejoin(7, bench.now);
  EXPECT_EQ(bench.session.tensors().in_flight_count(), 0u);
  // A late result, while the session joins and after it has.
  const std::vector<float> sums(16, 2);
  EXPECT_EQ(bench.result(1, 0, sums, 2), Verdict::kBadType);
  const wire::Sender old = bench.sender;
  play_another_appliance(bench, 0xBEEF);
  bench.start();
  const wire::Sender now = std::exchange(bench.sender, old);
  EXPECT_EQ(bench.result(1, 0, sums, 2), Verdict::kBadCookie);
  bench.sender = now;
  bench.number = 0;
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty()) << "the lost one is not made again";
  take_step(bench, 1, 6);
}

TEST(Rejoin, MayFailAndBeTriedAgain) {
  Scripted bench;
  bench.start();
  break_off(bench);
  for (std::uint64_t attempt = 1; attempt <= 3; ++attempt) {
    bench.session.rejoin(7, bench.now);
    play_another_appliance(bench, 0xBEEF);
    bench.pass(bench.options.connect_timeout_ns + kSecond);
    EXPECT_EQ(bench.failure().code(), StatusCode::kUnreachable) << attempt;
    EXPECT_EQ(bench.session.state(), SessionState::kClosed);
  }
  bench.session.rejoin(7, bench.now);
  play_another_appliance(bench, 0xBEEF);
  bench.start();
  take_step(bench, 1, 7);
}

TEST(RejoinDeathTest, OnlyAClosedSessionJoinsAgainAndOnlyOnceItsEndIsPolled) {
  Scripted bench;
  EXPECT_DEATH(bench.session.rejoin(7, bench.now), "kClosed");
  bench.start();
  EXPECT_DEATH(bench.session.rejoin(7, bench.now), "kClosed");
  bench.session.handle_broken({StatusCode::kUnreachable, "it is gone"}, bench.now);
  EXPECT_DEATH(bench.session.rejoin(7, bench.now), "empty");
}

}  // namespace
}  // namespace sluice::client
