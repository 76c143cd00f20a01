// The simulator about itself: it replays, and it finds what it claims to find.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>

#include "tests/sim/swarm_run.h"

namespace sluice::sim {
namespace {

TEST(Simulator, replays_a_seed_bit_for_bit) {
  for (const std::uint64_t seed : {3, 14, 15}) {
    const SwarmOutcome first = run_swarm(draw_swarm(seed));
    const SwarmOutcome second = run_swarm(draw_swarm(seed));
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
    EXPECT_EQ(first.violations, second.violations) << "seed " << seed;
    EXPECT_GT(first.results_checked, 0u) << "seed " << seed;
  }
}

// Section 7 of the protocol: of a step that all ranks wait for with late gradients, a chunk that
// none of them has anything for. In these seeds some step's first chunk is one.
TEST(Simulator, draws_chunks_that_every_rank_passes) {
  for (const std::uint64_t seed : {106, 490}) {
    const SwarmOutcome outcome = run_swarm(draw_swarm(seed));
    EXPECT_TRUE(outcome.ok) << "seed " << seed << ": " << outcome.violations;
    EXPECT_GT(outcome.empty_results, 10u) << "seed " << seed;
  }
}

TEST(Simulator, other_seeds_take_other_paths) {
  EXPECT_NE(run_swarm(draw_swarm(3)).trace_hash, run_swarm(draw_swarm(4)).trace_hash);
}

// A second process rightly takes the place of one whose link is down when it is asked: to the
// oracle it would be another run (seed 5506). So it does of one that has left a job which goes on
// without it (seed 990006884).
TEST(Simulator, draws_every_trial_and_no_twin_of_a_process_that_may_not_answer) {
  std::size_t twins = 0;
  std::size_t flaps_seen = 0;
  std::size_t rebinds = 0;
  std::size_t slow_makings = 0;
  std::size_t trains_to_shards = 0;
  std::map<Dtype, std::size_t> requeued;  // jobs that requeue, by how float32 travels
  for (std::uint64_t seed = 5000; seed < 6000; ++seed) {
    const SwarmOptions options = draw_swarm(seed);
    for (const Flap& flap : options.flaps) flaps_seen += flap.seen;
    for (const Cut& cut : options.cuts)
      for (const Flap& flap : options.flaps)
        EXPECT_FALSE(flap.seen && flap.worker == cut.worker) << "seed " << seed;
    rebinds += options.rebinds.size();
    slow_makings += options.world.appliance.memory_bytes_per_second != 0;
    trains_to_shards +=
        options.world.uplink.train_loss_ppm != 0 && options.world.appliance.jobs.shard_count > 1 &&
        std::ranges::any_of(options.jobs,
                            [](const SwarmJob& job) { return job.plan.wire != Dtype::kFloat32; });
    for (const SwarmJob& job : options.jobs)
      if (job.plan.requeues()) ++requeued[job.plan.wire];
    for (const Misfit& misfit : options.misfits) {
      if (misfit.kind != MisfitKind::kTwin) continue;
      ++twins;
      const JobPlan& plan = options.jobs[misfit.job].plan;
      EXPECT_EQ(plan.ranks[misfit.rank.value].last_step, plan.steps()) << "seed " << seed;
      std::uint32_t worker = misfit.rank.value;
      for (std::size_t job = 0; job < misfit.job; ++job)
        worker += options.jobs[job].plan.world_size();
      for (const Flap& flap : options.flaps) EXPECT_NE(flap.worker, worker) << "seed " << seed;
      for (const SwarmFault& fault : options.faults)
        EXPECT_NE(fault.worker, worker) << "seed " << seed;
    }
  }
  EXPECT_GT(twins, 10u);
  EXPECT_GT(flaps_seen, 10u);
  EXPECT_GT(rebinds, 100u);
  EXPECT_GT(slow_makings, 50u);
  for (const Dtype wire : {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8})
    EXPECT_GT(requeued[wire], 10u) << static_cast<int>(wire);
  EXPECT_GT(trains_to_shards, 50u) << "lossy wire formats, several shards, trains that are lost";
}

TEST(Simulator, draws_a_store_with_every_third_seed_and_each_bound_with_all_that_may_happen) {
  struct Drawn {
    std::size_t runs = 0, shards = 0, deaths = 0, returns = 0, losses_of_all = 0;
    std::size_t at_store = 0, faulty_links = 0;
  };
  std::map<Step, Drawn> by_bound;
  for (std::uint64_t seed = 3000; seed < 6000; ++seed) {
    const SwarmOptions options = draw_swarm(seed);
    std::size_t stores = 0;
    for (const SwarmJob& job : options.jobs) {
      if (!job.plan.session.store) continue;
      ++stores;
      Drawn& drawn = by_bound[job.plan.session.store->bound];
      ++drawn.runs;
      drawn.shards += options.world.appliance.jobs.shard_count > 1;
      drawn.deaths += !job.losses.empty();
      drawn.returns += std::ranges::any_of(job.losses, &Loss::returns);
      drawn.losses_of_all += job.loses_all;
      drawn.at_store += job.plan.session.store->update.rule != UpdateRule::kDelta;
      const LinkOptions& link = options.world.uplink;
      drawn.faulty_links += link.loss_ppm != 0 && link.duplicate_ppm != 0 && link.reorder_ppm != 0;
    }
    EXPECT_EQ(stores, seed % 3 == 0 ? 1u : 0u) << "seed " << seed;
  }
  EXPECT_EQ(by_bound.size(), 5u);
  for (const Step bound : {0u, 1u, 3u, 10u, kNoBound}) {
    SCOPED_TRACE(bound);
    const Drawn& drawn = by_bound[bound];
    EXPECT_GT(drawn.runs, 100u);
    for (const std::size_t count : {drawn.shards, drawn.deaths, drawn.returns, drawn.losses_of_all,
                                    drawn.at_store, drawn.faulty_links})
      EXPECT_GT(count, 10u);
  }
}

TEST(Simulator, catches_every_corrupted_frame_by_its_checksums) {
  Random random(7);
  wire::UdpPath path;
  path.src_mac.bytes = {2, 0, 0, 0, 0, 1};
  path.dst_mac.bytes = {2, 0, 0, 0, 0, 2};
  path.src_port = 1;
  path.dst_port = 2;
  for (const bool ipv6 : {false, true}) {
    path.src = wire::ipv4_address(10, 0, 0, 1);
    path.dst = wire::ipv4_address(10, 0, 0, 2);
    if (ipv6) path.src.family = path.dst.family = wire::Family::kIpv6;
    for (int i = 0; i < 20'000; ++i) {
      std::vector<std::uint8_t> payload(random.below(100), 0);
      for (std::uint8_t& byte : payload) byte = static_cast<std::uint8_t>(random.next() % 3);
      std::vector<std::uint8_t> bytes(200);
      bytes.resize(wire::encode_udp_frame(bytes, path, payload));
      wire::Frame frame;
      ASSERT_EQ(wire::parse_frame(bytes, wire::UdpChecksums::kVerify, frame), Verdict::kAccepted);
      corrupt_frame(bytes, random);
      ASSERT_FALSE(ok(wire::parse_frame(bytes, wire::UdpChecksums::kVerify, frame)));
    }
  }
}

// A cable by itself, and what comes out of it.
struct Cable {
  explicit Cable(const LinkOptions& options) : link(0, options) {}

  // A frame to `port` whose payload is `number` and zeros.
  void send(std::uint8_t port, std::uint8_t number, std::size_t bytes = 100) {
    wire::UdpPath path{.src_mac = {{2, 0, 0, 0, 0, 1}},
                       .dst_mac = {{2, 0, 0, 0, 0, 2}},
                       .src = wire::ipv4_address(10, 0, 0, 1),
                       .dst = wire::ipv4_address(10, 0, 0, 2),
                       .src_port = 1,
                       .dst_port = port};
    std::vector<std::uint8_t> payload(bytes, 0);
    payload[0] = number;
    const FrameIndex frame = pool.take();
    pool[frame].bytes.resize(200);
    pool[frame].bytes.resize(wire::encode_udp_frame(pool[frame].bytes, path, payload));
    link.send(frame, pool, random, events, 0);
  }
  // (when, number) of all that arrives.
  std::vector<std::pair<TimeNs, int>> arrivals() {
    std::vector<std::pair<TimeNs, int>> found;
    while (!events.empty()) {
      const SimEvent event = events.pop();
      if (event.kind == EventKind::kLinkReady) {
        link.ready(pool, random, events, event.at);
        continue;
      }
      link.arrived();
      found.emplace_back(event.at, pool[event.argument].bytes[42]);
      pool.give_back(event.argument);
    }
    EXPECT_TRUE(link.counters().balanced());
    EXPECT_EQ(pool.in_use(), 0u);
    return found;
  }

  FramePool pool;
  Random random{1};
  EventQueue events;
  Link link;
};

// A microsecond a frame of 142 bytes.
LinkOptions with_trains(std::uint32_t frames, std::uint32_t loss_ppm = 0) {
  return {.train_frames = frames,
          .train_loss_ppm = loss_ppm,
          .bytes_per_second = 142'000'000,
          .delay_ns = 0};
}

TEST(Trains, NeighboursOfOneFlowArriveTogetherAndInOrder) {
  using Arrivals = std::vector<std::pair<TimeNs, int>>;
  Cable cable(with_trains(3));
  for (std::uint8_t number = 0; number < 5; ++number) cable.send(7, number);
  EXPECT_EQ(cable.arrivals(),
            (Arrivals{{3'000, 0}, {3'000, 1}, {3'000, 2}, {5'000, 3}, {5'000, 4}}));
  EXPECT_EQ(cable.link.counters().trains, 2u);
  Cable single(with_trains(0));
  for (std::uint8_t number = 0; number < 2; ++number) single.send(7, number);
  EXPECT_EQ(single.arrivals(), (Arrivals{{1'000, 0}, {2'000, 1}}));
}

TEST(Trains, EndBehindAShorterFrameAndWithTheFlow) {
  Cable cable(with_trains(45));
  cable.send(7, 0);
  cable.send(7, 1, 50);
  cable.send(7, 2, 50);
  cable.send(8, 3, 50);
  cable.send(8, 4);
  std::vector<TimeNs> times;
  for (const auto& [at, number] : cable.arrivals()) {
    EXPECT_EQ(number, static_cast<int>(times.size()));
    times.push_back(at);
  }
  ASSERT_EQ(times.size(), 5u);
  EXPECT_EQ(times[0], times[1]);
  EXPECT_LT(times[1], times[2]) << "behind a shorter one";
  EXPECT_LT(times[2], times[3]) << "another flow";
  EXPECT_LT(times[3], times[4]) << "a longer one";
}

TEST(Trains, AreLostAsAWhole) {
  Cable cable(with_trains(8, 1'000'000));
  for (std::uint8_t number = 0; number < 9; ++number) cable.send(7, number);
  const auto left = cable.arrivals();
  ASSERT_EQ(left.size(), 1u) << "what is alone is no train";
  EXPECT_EQ(left.front().second, 8);
}

TEST(Simulator, completes_a_job_of_more_ranks_than_a_word_has_bits) {
  World world({.seed = 5});
  const RunIndex run = world.add_run(make_plan(130, 3, {100, 7}));
  EXPECT_TRUE(world.run_until_done(run, 10 * kSecond)) << world.report();
  EXPECT_EQ(world.oracle().result(run, StreamId::kGradients, 3, 0)->mask, RankSet::below(130));
}

// The largest world that the protocol has: masks of 16 words, and every list of ranks at its end.
TEST(Simulator, completes_a_job_of_1024_ranks) {
  World world({.seed = 8});
  const RunIndex run = world.add_run(make_plan(1024, 3, {700, 7}));
  EXPECT_TRUE(world.run_until_done(run, 30 * kSecond)) << world.report();
  for (Step step = 1; step <= 3; ++step)
    EXPECT_EQ(world.oracle().result(run, StreamId::kGradients, step, 1)->mask,
              RankSet::below(1024));
}

// 42 of 338 ranks, who fell behind at once: the last one waits for all the others' transfers.
TEST(Simulator, lets_ranks_wait_for_states_that_are_given_one_at_a_time) {
  const SwarmOutcome outcome = run_swarm(draw_swarm(31017644));
  EXPECT_TRUE(outcome.ok) << outcome.violations;
}

TEST(Simulator, finds_that_the_last_of_70_ranks_is_missing) {
  World world({.seed = 6});
  const RunIndex run = world.add_run(make_plan(70, 1, {4}));
  // The appliance's own result of the step, less the last rank.
  RankSet lied = RankSet::below(69);
  world.set_filter([&](Passing& passing) { passing.drop = passing.port_offset != 0; });
  ASSERT_FALSE(world.run_until_done(run, 2 * kSecond));
  wire::ResultHeader result{.feedback = {.number = 1},
                            .k = 69,
                            .step = 1,
                            .may_count = 70,
                            .elem_count = 4,
                            .mask_words = 2};
  const JobPlan& plan = world.plan(run);
  float sums[4] = {};
  for (std::uint16_t rank = 0; rank < 69; ++rank) result.weight += plan.weight(Rank{rank}, 1);
  for (std::uint64_t i = 0; i < 4; ++i) sums[i] = static_cast<float>(plan.sum(lied, 1, 0, i));
  const std::uint64_t words[2] = {lied.word(0), lied.word(1)};
  std::vector<std::uint8_t> bytes(500);
  bytes.resize(wire::encode(bytes, wire::Sender{}, result, words,
                            {reinterpret_cast<const std::uint8_t*>(sums), sizeof(sums)}));
  world.on_shard_sent(0, world.worker(run, 0).identity.port, bytes);
  EXPECT_NE(world.report().find("rank 69 is missing"), std::string::npos) << world.report();
}

class OracleTest : public testing::Test {
 protected:
  // Two workers send one chunk of four elements; returns the datagram of a correct result.
  std::vector<std::uint8_t> correct_result() {
    for (std::uint16_t rank = 0; rank < 2; ++rank) {
      wire::Contribution body;
      body.flow.number = 1;
      body.flow.credit = 10;
      body.step = body.base_step = 1;
      body.weight = plan.weight(Rank{rank}, 1);
      body.elem_count = 4;
      float values[4];
      for (std::uint64_t i = 0; i < 4; ++i)
        values[i] = static_cast<float>(plan.gradient(Rank{rank}, 1, 0, i));
      oracle.on_submitted({run, Rank{rank}, rank}, 1, 0, true);
      oracle.on_worker_packet({run, Rank{rank}, rank}, 0, 1, parsed(encoded(body, {}, values)));
    }
    result.feedback.number = 1;
    result.may_count = 2;
    result.step = 1;
    result.weight = plan.weight(Rank{0}, 1) + plan.weight(Rank{1}, 1);
    result.elem_count = 4;
    result.k = 2;
    result.mask_words = 1;
    for (std::uint64_t i = 0; i < 4; ++i) sums[i] = static_cast<float>(plan.sum(3, 1, 0, i));
    return encoded(result, std::uint64_t{3}, sums);
  }
  template <class Body>
  static std::vector<std::uint8_t> encoded(const Body& body, std::optional<std::uint64_t> mask,
                                           const float (&values)[4]) {
    std::vector<std::uint8_t> bytes(500);
    const std::uint64_t word = mask.value_or(0);
    bytes.resize(wire::encode(bytes, wire::Sender{}, body, {&word, mask ? 1u : 0u},
                              {reinterpret_cast<const std::uint8_t*>(values), sizeof(values)}));
    return bytes;
  }
  wire::Packet parsed(std::vector<std::uint8_t> bytes) {
    kept.push_back(std::move(bytes));
    wire::Packet packet;
    EXPECT_EQ(wire::parse(kept.back(), packet), Verdict::kAccepted);
    return packet;
  }
  void deliver(std::vector<std::uint8_t> bytes, std::uint16_t rank = 0) {
    oracle.on_appliance_packet({run, Rank{rank}, rank}, 0, parsed(std::move(bytes)));
  }

  JobPlan plan = make_plan(2, 1, {4});
  client::Layout layout = client::Layout::create(plan.tensors, plan.chunk_bytes).value();
  Oracle oracle;
  RunIndex run = oracle.add_run(plan, layout);
  wire::ResultHeader result;
  float sums[4] = {};
  std::list<std::vector<std::uint8_t>> kept;
};

TEST_F(OracleTest, accepts_the_right_sum) {
  deliver(correct_result());
  EXPECT_TRUE(oracle.violations().empty()) << oracle.violations().front();
  EXPECT_EQ(oracle.totals().results_checked, 1u);
}
TEST_F(OracleTest, refuses_a_wrong_sum) {
  correct_result();
  sums[2] += 1;
  deliver(encoded(result, 3, sums));
  EXPECT_FALSE(oracle.violations().empty());
}
TEST_F(OracleTest, refuses_a_result_without_a_member_who_must_be_in_it) {
  correct_result();
  result.k = 1;
  result.weight = plan.weight(Rank{0}, 1);
  for (std::uint64_t i = 0; i < 4; ++i) sums[i] = static_cast<float>(plan.sum(1, 1, 0, i));
  deliver(encoded(result, 1, sums));
  EXPECT_FALSE(oracle.violations().empty());
}
TEST_F(OracleTest, refuses_a_wrong_weight) {
  correct_result();
  result.weight += 1;
  deliver(encoded(result, 3, sums));
  EXPECT_FALSE(oracle.violations().empty());
}
TEST_F(OracleTest, refuses_two_different_results_for_two_workers) {
  deliver(correct_result(), 0);
  result.feedback.priority = 7;  // may differ
  deliver(encoded(result, 3, sums), 1);
  EXPECT_TRUE(oracle.violations().empty());
  result.feedback.number = 2;
  sums[0] += 1;
  deliver(encoded(result, 3, sums), 1);
  EXPECT_FALSE(oracle.violations().empty());
}
TEST_F(OracleTest, refuses_a_result_beyond_the_credit) {
  correct_result();
  for (result.feedback.number = 1; result.feedback.number <= 10; ++result.feedback.number)
    deliver(encoded(result, 3, sums));
  EXPECT_TRUE(oracle.violations().empty());
  deliver(encoded(result, 3, sums));
  EXPECT_FALSE(oracle.violations().empty());
}
TEST_F(OracleTest, refuses_the_sum_of_another_step) {
  correct_result();
  for (std::uint64_t i = 0; i < 4; ++i) sums[i] = static_cast<float>(plan.sum(3, 2, 0, i));
  deliver(encoded(result, 3, sums));
  EXPECT_FALSE(oracle.violations().empty());
}

}  // namespace
}  // namespace sluice::sim
