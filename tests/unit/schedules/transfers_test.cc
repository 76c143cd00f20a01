// Schedules in which a transfer of state loses its source, its receiver, or both. No rank waits for
// a state that will not come, and a state goes to no other rank.
#include <bit>

#include "tests/unit/schedules/straggling.h"

namespace sluice::sim {
namespace {

class Transfers : public Straggling {
 protected:
  // Two ranks; the second one was replaced and takes 400,000 bytes of state from the first over a
  // slow link. Here in the middle of it.
  RunIndex run_with_one_source() {
    JobPlan plan = fastest(2, 1, 400, {64 * 40}, LateMode::kDrop);
    plan.state_bytes = 400'000;
    options.downlink.bytes_per_second = 2'000'000;
    const RunIndex run = world().add_run(plan);
    start_all(run);
    world().run_until(300 * kMillisecond);
    world().kill(world().worker(run, 1), false);
    world().add_worker(run, Rank{1}, 1500 * kMillisecond);
    const auto giving = [&] { return world().worker(run, 0).states_given() != 0; };
    EXPECT_TRUE(world().run_until(giving, 3 * kSecond));
    world().run_until(world().now() + 50 * kMillisecond);
    EXPECT_EQ(world().worker(run, 1).resyncs(), 0u) << "the transfer was over too soon";
    return run;
  }
  void count_empty_states() {
    world().set_filter([this](Passing& passing) {
      empty_states +=
          is_piece_result(passing, StreamId::kState) && passing.packet.payload().empty();
    });
  }
  std::size_t empty_states = 0;
};

TEST_F(Transfers, a_state_whose_only_source_dies_is_given_up_at_once_and_by_name) {
  const RunIndex run = run_with_one_source();
  count_empty_states();
  const std::uint64_t sent_before = world().oracle().totals().results_sent;
  const TimeNs death = world().now();
  world().kill(world().worker(run, 0), false);
  Worker& target = world().worker(run, 1);
  EXPECT_TRUE(world().run_until([&] { return target.failed(); }, death + 2 * kSecond))
      << "it waits for a state that will not come: "
      << target.session().describe_stall(world().now());
  expect_words(target.failure().message(), {"rank 1", "rank 0", "state", "checkpoint"});
  EXPECT_EQ(empty_states, 0u);
  EXPECT_LT(world().oracle().totals().results_sent - sent_before, 200u);
}

TEST_F(Transfers, a_process_that_takes_the_rank_of_a_source_is_not_asked_for_the_state) {
  const RunIndex run = run_with_one_source();
  count_empty_states();
  const TimeNs death = world().now();
  world().kill(world().worker(run, 0), false);
  Worker& next = world().add_worker(run, Rank{0}, death + 300 * kMillisecond);
  Worker& target = world().worker(run, 1);
  EXPECT_TRUE(
      world().run_until([&] { return target.failed() && next.failed(); }, death + 5 * kSecond));
  EXPECT_EQ(next.count(Kind::kStateWanted), 0u);
  EXPECT_EQ(empty_states, 0u);
  expect_words(next.failure().message(), {"rank 0", "state", "checkpoint"});
}

// Both fell out of the window while the others ended; one is asked for the other's state before it
// knows that it needs one itself.
TEST_F(Transfers, ranks_that_all_lack_the_state_at_the_end_of_a_job_are_told_at_once) {
  JobPlan plan = fastest(4, 2, 30, {64 * 40}, LateMode::kDrop);
  for (std::uint16_t rank : {0, 1}) plan.ranks[rank].ending = Ending::kLeave;
  for (std::uint16_t rank : {2, 3}) {
    plan.ranks[rank].hiccup_step = 3;
    plan.ranks[rank].hiccup_ns = kSecond;
  }
  const RunIndex run = world().add_run(plan);
  const auto told = [&] {
    return world().worker(run, 2).failed() && world().worker(run, 3).failed();
  };
  EXPECT_TRUE(world().run_until(told, 3 * kSecond))
      << world().worker(run, 2).session().describe_stall(world().now());
  // The second one to be told is alone by then.
  const std::string both = world().worker(run, 2).failure().message() + '\n' +
                           world().worker(run, 3).failure().message();
  expect_words(both, {"rank 2 at", "rank 3 at", "needs it as well", "nobody else is in the job"});
  EXPECT_EQ(both.find("none of the"), std::string::npos) << both;
}

// The source does not wait for what its receiver has lost, and sends the next piece. Were that
// piece not kept, the receiver would have to pull it, and lose the one after it, to the end of the
// state.
TEST_F(Transfers, a_receiver_that_loses_one_packet_pulls_one_piece) {
  JobPlan plan = fastest(2, 1, 60, {64 * 40}, LateMode::kDrop);
  plan.state_bytes = 1'000'000;
  plan.session.receive_credit_packets = 512;
  options.downlink.delay_ns = kMillisecond;
  const RunIndex run = world().add_run(plan);
  start_all(run);
  world().run_until(300 * kMillisecond);
  world().kill(world().worker(run, 1), false);
  world().add_worker(run, Rank{1}, 1500 * kMillisecond);
  Step piece = 0;
  std::size_t asked = 0, pulled = 0;
  world().set_filter([&](Passing& passing) {
    if (rank_of(passing) != 1) return;
    if (is_piece_result(passing, StreamId::kState)) {
      const auto& body = passing.packet.body<wire::PieceResult>();
      const bool fifth = piece == 0 && body.step >= 5 && body.chunk == 7;
      if (fifth) piece = body.step;
      passing.drop = fifth;
    } else if (is_probe(passing) && piece != 0) {
      const auto& body = passing.packet.body<wire::Probe>();
      if (body.stream != StreamId::kState) return;
      ++asked;
      pulled += static_cast<std::size_t>(std::popcount(body.want));
    }
  });
  expect_same_replicas(run, 60 * kSecond);
  EXPECT_EQ(world().worker(run, 1).resyncs(), 1u);
  const Step pieces = static_cast<Step>(plan.state_bytes / (kCollectiveChunks * plan.chunk_bytes));
  ASSERT_GT(pieces, 10u);
  ASSERT_NE(piece, 0u);
  EXPECT_GE(pulled, 1u);
  EXPECT_LE(pulled, 4u);
  EXPECT_LE(asked, 6u) << pieces << " pieces, lost in piece " << piece;
}

// Shard 0 is away while the appliance asks it again and again to open a transfer: it opens them all
// when it is back, and the source hears of several at once.
TEST_F(Transfers, a_source_that_is_asked_several_times_at_once_gives_one_state) {
  options.appliance.jobs.shard_count = 2;
  options.worker_delay_ns = 3 * kMillisecond;
  JobPlan plan = fastest(3, 2, 60, {64 * 100}, LateMode::kDrop);
  plan.state_bytes = 100'000;
  plan.ranks[2].hiccup_step = 3;
  plan.ranks[2].hiccup_ns = 400 * kMillisecond;
  const RunIndex run = world().add_run(plan);
  const auto asks = [&](Passing& passing) {
    if (passing.packet.type() != PacketType::kResync) return;
    world().appliance().pause_shard(0, passing.now + 3500 * kMillisecond);
    world().at(passing.now, [&] { world().set_filter(nullptr); });
  };
  world().set_filter(asks);
  expect_same_replicas(run, 60 * kSecond);
  EXPECT_EQ(world().worker(run, 2).resyncs(), 1u);
}

// The receiver dies before it is there for a piece that its source has sent. The next transfer is
// from another source, which has come further than the first.
TEST_F(Transfers, what_a_dead_receiver_left_behind_goes_to_nobody_else) {
  JobPlan plan = fastest(5, 2, 200, {64 * 40}, LateMode::kDrop);
  plan.state_bytes = 400'000;
  for (std::uint16_t rank : {3, 4}) {
    plan.ranks[rank].hiccup_step = 3;
    plan.ranks[rank].hiccup_ns = (rank - 2) * 300 * kMillisecond;
  }
  options.downlink.bytes_per_second = 2'000'000;
  const RunIndex run = world().add_run(plan);
  Worker* giver = nullptr;
  const auto given = [&] {
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      if (world().worker(run, rank).states_given() != 0) giver = &world().worker(run, rank);
    return giver != nullptr;
  };
  ASSERT_TRUE(world().run_until(given, 3 * kSecond));
  bool receiver_speaks = true;
  world().set_filter([&](Passing& passing) {
    if (passing.direction != Direction::kToAppliance || passing.port_offset == 0) return;
    const bool state =
        is_piece(passing, StreamId::kState) ||
        (is_probe(passing) && passing.packet.body<wire::Probe>().stream == StreamId::kState);
    passing.drop = passing.worker == giver ? !state : rank_of(passing) == 3 && !receiver_speaks;
  });
  world().run_until(world().now() + 50 * kMillisecond);
  ASSERT_EQ(world().worker(run, 3).resyncs(), 0u) << "the transfer was over too soon";
  receiver_speaks = false;
  world().run_until(world().now() + 50 * kMillisecond);  // the source sends its next piece
  world().kill(world().worker(run, 3), true);
  const auto another_gives = [&] {
    for (std::uint16_t rank = 0; rank < 3; ++rank)
      if (&world().worker(run, rank) != giver && world().worker(run, rank).states_given() != 0)
        return true;
    return false;
  };
  ASSERT_TRUE(world().run_until(another_gives, world().now() + 6 * kSecond)) << world().report();
  world().set_filter(nullptr);
  expect_same_replicas(run, 30 * kSecond);
}

}  // namespace
}  // namespace sluice::sim
