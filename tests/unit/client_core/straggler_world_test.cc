// Sessions of jobs that do not wait for all ranks, against the real aggregator. Replicas that apply
// the same steps are equal, whichever ranks are late, stopped, killed or new.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/client_core/replicas.h"

namespace sluice::client {
namespace {

using Kind = Event::Kind;

WorldOptions fixed(std::uint16_t k, LateMode late) {
  WorldOptions options;
  options.policy.kind = PolicyKind::kFixed;
  options.policy.k = k;
  options.policy.late = late;
  return options;
}

// Every chunk that was submitted with data is accounted for (invariant I8).
void expect_account(SmallWorld& world, const Replicas& replicas, std::size_t rank) {
  const Counters& counters = world.session(rank).counters();
  EXPECT_EQ(counters.delivered_chunks + counters.requeued_chunks + counters.discarded_chunks +
                world.session(rank).waiting_late_chunks(),
            replicas.submitted_chunks(rank))
      << "rank " << rank;
}

struct Trial {
  explicit Trial(WorldOptions world_options)
      : options(std::move(world_options)), world(options), replicas(world, options) {}
  // Until every rank has applied step `last`.
  void run(Step last, DurationNs limit_ns) {
    replicas.last_step = last;
    ASSERT_TRUE(world.run([&] { return replicas.all_at(last) || !world.first_failure().empty(); },
                          limit_ns))
        << describe();
    EXPECT_EQ(world.first_failure(), "");
    EXPECT_EQ(replicas.difference(), "");
    for (std::size_t rank = 0; rank < options.workers; ++rank)
      expect_account(world, replicas, rank);
  }
  std::string describe() {
    std::string text = world.first_failure();
    for (std::size_t rank = 0; rank < options.workers; ++rank)
      text += "\nrank " + std::to_string(rank) + " at " + std::to_string(replicas.step(rank)) +
              ", open " + std::to_string(world.session(rank).open_step()) + ": " +
              world.session(rank).describe_stall(world.now());
    return text;
  }
  WorldOptions options;
  SmallWorld world;
  Replicas replicas;
};

TEST(Stragglers, DoNotHoldTheOthersWhenTheyAreDropped) {
  Trial trial(fixed(3, LateMode::kDrop));
  trial.replicas.compute_ns[3] = 5 * kMillisecond;
  trial.run(40, 2 * kSecond);
  const Counters& slow = trial.world.session(3).counters();
  EXPECT_GT(slow.late_chunks, 0u);
  EXPECT_EQ(slow.late_chunks, slow.discarded_chunks);
  EXPECT_EQ(slow.requeued_chunks, 0u);
  EXPECT_GT(slow.cancelled_bytes, 0u);
  EXPECT_GT(trial.replicas.caught_up(3), 20u);
  EXPECT_EQ(trial.world.session(0).counters().late_chunks, 0u);
}

TEST(Stragglers, ContributeTheirLateGradientsToTheOpenStep) {
  Trial trial(fixed(3, LateMode::kRequeue));
  trial.replicas.compute_ns[3] = 5 * kMillisecond;
  trial.run(40, 2 * kSecond);
  const Counters& slow = trial.world.session(3).counters();
  EXPECT_GT(slow.requeued_chunks, 0u);
  EXPECT_EQ(slow.discarded_chunks, 0u);
}

TEST(Stragglers, OfDifferentSpeedStayIdenticalBesideLossAndReordering) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue})
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      WorldOptions options = fixed(static_cast<std::uint16_t>(1 + seed % 4), late);
      options.seed = seed;
      options.loss = 0.05;
      options.duplicates = 0.02;
      options.jitter_ns = 50 * kMicrosecond;
      options.shards = static_cast<std::uint16_t>(1 + seed % 3);
      options.tensors = {{"a", 6'000, Dtype::kFloat32}, {"b", 3, Dtype::kFloat32}};
      SCOPED_TRACE("seed " + std::to_string(seed) + " late " + name_of(late));
      Trial trial(options);
      for (std::size_t rank = 0; rank < 4; ++rank)
        trial.replicas.compute_ns[rank] =
            static_cast<DurationNs>(1 + rank * seed % 7) * kMillisecond;
      trial.run(30, 60 * kSecond);
      if (HasFailure()) return;
    }
}

TEST(Stragglers, ThatWereStoppedForManyStepsFetchTheStateOfAnother) {
  for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
    Trial trial(fixed(3, late));
    trial.replicas.last_step = 200;
    ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= 5; }, kSecond));
    trial.world.stop(3);
    ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(0) >= 40; }, kSecond));
    trial.world.resume(3);
    trial.run(80, 5 * kSecond);
    EXPECT_EQ(trial.replicas.resyncs(3), 1u);
    EXPECT_EQ(trial.world.count(3, Kind::kFellBehind), 1u);
    EXPECT_EQ(trial.world.session(3).counters().resyncs, 1u);
  }
}

TEST(Stragglers, ThatDieDoNotEndTheJobAndComeBackWithTheStateOfAnother) {
  Trial trial(fixed(3, LateMode::kRequeue));
  trial.options.member_timeout_ns = 3 * kSecond;
  trial.replicas.last_step = 10'000;
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= 5; }, kSecond));
  trial.world.stop(3);
  ASSERT_FALSE(trial.world.run([] { return false; }, 5 * kSecond));
  trial.replicas.compute_ns[3] = kMillisecond / 2;
  trial.replicas.forget(3);
  trial.world.restart(3);
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.resyncs(3) == 1; }, 10 * kSecond))
      << trial.describe();
  const Step back = trial.replicas.step(3);
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= back + 50; }, kSecond))
      << trial.describe();
  EXPECT_EQ(trial.replicas.difference(), "");
  EXPECT_EQ(trial.world.first_failure(), "");
  EXPECT_GT(trial.world.session(3).counters().delivered_chunks, 0u);
}

// Rank 3 does not run from when it has applied step 5 until `open` is the open step.
void sleep_until_open(Trial& trial, Step open) {
  trial.replicas.last_step = 5;
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.all_at(5); }, kSecond));
  trial.world.stop(3);
  trial.replicas.last_step = open - 1;
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(0) == open - 1; }, kSecond));
  trial.world.resume(3);
}

TEST(Stragglers, PullTheStepsThatTheWindowStillHas) {
  // Step 6 is the oldest of the four that are kept while step 9 is open.
  Trial trial(fixed(3, LateMode::kDrop));
  trial.options.receive_credit_packets = 8;
  sleep_until_open(trial, 9);
  trial.run(20, 5 * kSecond);
  EXPECT_EQ(trial.replicas.resyncs(3), 0u);
  EXPECT_EQ(trial.replicas.most_behind(3), 3u);
  EXPECT_GT(trial.world.session(3).counters().results_pulled, 0u);
}

TEST(Stragglers, OneStepFurtherBehindFetchTheStateOfAnother) {
  WorldOptions options = fixed(3, LateMode::kDrop);
  options.receive_credit_packets = 8;  // not even step 6 fits into its socket buffer
  Trial trial(options);
  sleep_until_open(trial, 10);
  trial.run(20, 5 * kSecond);
  EXPECT_EQ(trial.replicas.resyncs(3), 1u);
}

TEST(Stragglers, GetTheirStateWhateverIsLostOnEitherSide) {
  for (const bool lossy_source : {false, true}) {
    WorldOptions options = fixed(3, LateMode::kRequeue);
    options.tensors = {{"a", 100'000, Dtype::kFloat32}};  // 25 pieces
    Trial trial(options);
    trial.replicas.compute_ns.assign(4, 30 * kMillisecond);
    std::uint64_t packets = 0;
    trial.world.drop = [&](bool, std::uint16_t rank, const wire::Packet&) {
      return (rank == 3) != lossy_source && ++packets % 7 == 0;
    };
    trial.replicas.last_step = 1000;
    ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= 3; }, 10 * kSecond))
        << trial.describe();
    trial.world.stop(3);
    const Step from = trial.replicas.step(0);
    ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(0) >= from + 10; }, 10 * kSecond))
        << trial.describe();
    trial.world.resume(3);
    trial.run(trial.replicas.step(0) + 20, 30 * kSecond);
    EXPECT_GE(trial.replicas.resyncs(3), 1u);
  }
}

TEST(Stragglers, GetTheirStateFromAnotherRankWhenTheFirstOneDies) {
  WorldOptions options = fixed(2, LateMode::kDrop);
  options.member_timeout_ns = 3 * kSecond;
  options.tensors = {{"a", 100'000, Dtype::kFloat32}};
  Trial trial(options);
  trial.replicas.last_step = 30;
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= 3; }, kSecond));
  trial.world.stop(3);
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(0) >= 20; }, 5 * kSecond));
  int source = -1;
  int pieces = 0;
  trial.world.drop = [&](bool up, std::uint16_t rank, const wire::Packet& packet) {
    if (!up || packet.type() != wire::PacketType::kPiece) return rank == source;
    const auto& body = packet.body<wire::Piece>();
    if (body.operation.kind == CollectiveKind::kTransfer && rank != 3 && source < 0 &&
        ++pieces == 200)
      source = rank;  // its host has gone, in the middle of the transfer
    return rank == source;
  };
  trial.world.resume(3);
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.resyncs(3) == 1; }, 20 * kSecond))
      << trial.describe();
  EXPECT_GE(source, 0);
  EXPECT_EQ(trial.replicas.difference(), "");
  EXPECT_EQ(trial.world.first_failure(), "");
}

TEST(Stragglers, GetTheirStatesOneAfterTheOther) {
  Trial trial(fixed(2, LateMode::kRequeue));
  trial.replicas.last_step = 300;
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= 5; }, kSecond));
  trial.world.stop(2);
  trial.world.stop(3);
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(0) >= 30; }, kSecond));
  trial.world.resume(2);
  trial.world.resume(3);
  trial.run(300, 20 * kSecond);
  EXPECT_GE(trial.replicas.resyncs(2), 1u);
  EXPECT_GE(trial.replicas.resyncs(3), 1u);
}

TEST(Stragglers, AreRefusedWhenTheirStateTakesLongerThanTheWindowCanWait) {
  WorldOptions options = fixed(3, LateMode::kDrop);
  options.resync_hold_ns = 2 * kSecond;
  Trial trial(options);
  trial.replicas.gives_state = false;
  trial.replicas.last_step = 100'000;
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(3) >= 5; }, kSecond));
  trial.world.stop(3);
  ASSERT_TRUE(trial.world.run([&] { return trial.replicas.step(0) >= 30; }, kSecond));
  trial.world.resume(3);
  EXPECT_TRUE(
      trial.world.run([&] { return trial.world.count(3, Kind::kFailed) == 1; }, 5 * kSecond));
  EXPECT_THAT(trial.world.first_failure(), ::testing::HasSubstr("2.0 s"));
  const Step then = trial.replicas.step(0);
  EXPECT_TRUE(trial.world.run([&] { return trial.replicas.step(0) >= then + 100; }, kSecond));
}

}  // namespace
}  // namespace sluice::client
