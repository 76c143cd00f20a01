// A seed's choices about parameter stores: every third seed has one.
#include <algorithm>
#include <array>
#include <sstream>

#include "tests/sim/swarm_options.h"

namespace sluice::sim {
namespace {

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& choices) {
  return choices[random.below(N)];
}

// Layers of one or two tensors, now and then of more than a block.
void draw_layers(Random& random, JobPlan& plan) {
  const std::uint64_t chunk_elems = plan.chunk_bytes / 4;
  for (std::uint64_t layer = 1 + random.below(4); layer > 0; --layer)
    for (std::uint64_t part = 0, parts = 1 + random.below(2); part < parts; ++part) {
      const std::uint64_t chunks = random.one_in(5) ? 150 : 1 + random.below(12);
      plan.tensors.push_back({.name = "l" + std::to_string(plan.tensors.size()),
                              .elem_count = 1 + random.below(chunk_elems * chunks),
                              .begins_block = part == 0});
    }
}

void draw_pace(Random& random, JobPlan& plan) {
  const DurationNs pace =
      pick(random, std::array{DurationNs{0}, kMillisecond, 5 * kMillisecond, 40 * kMillisecond});
  for (RankPlan& rank : plan.ranks) {
    rank.start_at = random.between(0, 20 * kMillisecond);
    rank.step_delay_ns = random.one_in(4) ? 4 * pace : pace;
    rank.jitter_ns = pick(random, std::array{DurationNs{0}, pace / 4, pace});
    rank.compute_max_ns = 0;
    rank.ending = Ending::kTogether;
  }
}

// Any rank but one may go: that one keeps the job.
void draw_losses(Random& random, SwarmJob& job, TimeNs faults_stop_at) {
  const std::uint16_t workers = job.plan.world_size();
  if (workers < 2 || random.one_in(2)) return;
  const std::uint64_t keeper = random.below(workers);
  for (std::uint64_t i = 1 + random.below(2); i > 0; --i) {
    Loss loss;
    loss.rank.value =
        static_cast<std::uint16_t>((keeper + 1 + random.below(workers - 1)) % workers);
    loss.kind = static_cast<LossKind>(random.below(4));
    loss.at = random.between(0, faults_stop_at + kSecond);
    loss.away_ns = pick(random, std::array{200 * kMillisecond, 2 * kSecond, 6 * kSecond}) +
                   random.between(0, kSecond);
    loss.returns = loss.kind == LossKind::kFrozen || !random.one_in(3);
    const auto earlier = [&](const Loss& other) { return other.rank == loss.rank; };
    if (std::none_of(job.losses.begin(), job.losses.end(), earlier)) job.losses.push_back(loss);
  }
}

// Now and then all go within a moment, and others come to what the appliance has kept.
void draw_loss_of_all(Random& random, SwarmJob& job) {
  if (!random.one_in(4)) return;
  job.loses_all = true;
  job.losses.clear();
  const TimeNs at = random.between(0, kSecond);
  for (std::uint16_t rank = 0; rank < job.plan.world_size(); ++rank)
    job.losses.push_back({.kind = random.one_in(3) ? LossKind::kHostDown : LossKind::kKilled,
                          .rank = Rank{rank},
                          .at = at + random.between(0, 200 * kMillisecond),
                          .away_ns = random.between(200 * kMillisecond, 6 * kSecond),
                          .returns = true});
}

// Optimizers that remember what was pushed before.
void draw_memory(Random& random, StoreOptions& store) {
  if (store.update.rule != UpdateRule::kSgd || random.one_in(3)) return;
  if (store.bound == 0 && random.one_in(2)) {
    store.update.rule = UpdateRule::kAdam;
    store.update.interpolates = random.one_in(2);
  } else {
    store.update.momentum = 0.5;
    store.update.nesterov = store.bound == 0 && random.one_in(3);
  }
}

// Of the processes of the store alone, which are the last.
void draw_faults(Random& random, SwarmOptions& options) {
  std::uint64_t before = 0;
  for (const SwarmJob& job : options.jobs) before += job.plan.world_size();
  const std::uint16_t workers = options.jobs.back().plan.world_size();
  for (std::uint64_t i = random.below(3); i > 0; --i)
    options.faults.push_back(
        {.kind = static_cast<BriefFault>(random.below(3)),
         .worker = static_cast<std::uint32_t>(before - workers + random.below(workers)),
         .at = random.between(0, options.faults_stop_at),
         .duration_ns = random.between(kMillisecond, 1500 * kMillisecond)});
}

}  // namespace

void draw_store(std::uint64_t seed, SwarmOptions& options) {
  if (seed % 3 != 0) return;
  Random random(mix(seed, 0x5704E));
  SwarmJob job;
  JobPlan& plan = job.plan;
  plan.seed = mix(seed, 0x5704E, 1);
  plan.name = "store";
  plan.run_id = 1 + random.below(1'000'000);
  plan.chunk_bytes = static_cast<std::uint16_t>(64 * pick(random, std::array{1, 2, 4, 16}));
  draw_layers(random, plan);
  plan.ranks.resize(1 + random.below(StoreOracle::kMostRanks));
  const auto steps = static_cast<Step>(2 + random.below(24));
  for (RankPlan& rank : plan.ranks) rank.last_step = steps;
  draw_pace(random, plan);
  StoreOptions store;
  store.bound = pick(random, std::array{0u, 0u, 1u, 3u, 10u, kNoBound});
  store.update.rule = random.one_in(3) ? UpdateRule::kSgd : UpdateRule::kDelta;
  Random more(mix(seed, 0x5704E, 2));
  draw_memory(more, store);
  plan.session.store = store;
  Random order(mix(seed, 0x5704E, 3));
  plan.session.requests =
      pick(order, std::array{client::RequestPolicy::kStalest, client::RequestPolicy::kStalest,
                             client::RequestPolicy::kFifo, client::RequestPolicy::kFilo});
  plan.reproducible = store.bound == 0 && random.one_in(3);
  plan.check_values = true;
  draw_losses(random, job, options.faults_stop_at);
  draw_loss_of_all(more, job);
  plan.loses_ranks = !job.losses.empty();
  plan.session.connect_timeout_ns += options.absent_ns();
  plan.session.silence_timeout_ns += options.absent_ns();
  options.jobs.push_back(std::move(job));
  draw_faults(random, options);
}

std::string describe_store(const SwarmJob& job) {
  const StoreOptions& store = *job.plan.session.store;
  std::ostringstream out;
  out << " bound=" << (store.bound == kNoBound ? "none" : std::to_string(store.bound))
      << " rule=" << static_cast<int>(store.update.rule) << " momentum=" << store.update.momentum
      << " nesterov=" << static_cast<int>(store.update.nesterov)
      << " requests=" << static_cast<int>(job.plan.session.requests)
      << " reproducible=" << job.plan.reproducible << " losses=" << describe_losses(job)
      << (job.loses_all ? " of all" : "");
  return out.str();
}

}  // namespace sluice::sim
