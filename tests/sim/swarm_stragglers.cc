// A seed's choices about jobs that tolerate stragglers.
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

PolicyOptions draw_policy(Random& random, std::uint16_t workers, Step steps) {
  PolicyOptions policy;
  policy.kind = pick(random, std::array{PolicyKind::kFixed, PolicyKind::kFixed, PolicyKind::kSaina,
                                        PolicyKind::kRamp, PolicyKind::kGoodput});
  policy.late = random.one_in(3) ? LateMode::kDrop : LateMode::kRequeue;
  policy.k = static_cast<std::uint16_t>(1 + random.below(workers));
  policy.sign_threshold_permille = static_cast<std::uint16_t>(300 + random.below(400));
  policy.count_threshold = static_cast<std::uint16_t>(random.below(4));
  policy.sign_stride = random.one_in(2) ? kAllSigns : kOneSignIn32;
  policy.round_steps = 1 + static_cast<std::uint32_t>(random.below(3));
  policy.planned_steps = steps;
  if (policy.late == LateMode::kRequeue)
    policy.max_staleness = pick(random, std::array{0u, 0u, 1u, 2u, 5u});
  return policy;
}

// A steady pace with jitter, up to two ranks three times slower, now and then one that takes long.
void draw_pace(Random& random, JobPlan& plan) {
  const DurationNs pace =
      pick(random, std::array{kMillisecond, 5 * kMillisecond, 40 * kMillisecond});
  const DurationNs jitter = pick(random, std::array{DurationNs{0}, pace / 4, pace});
  for (RankPlan& rank : plan.ranks) {
    rank.step_delay_ns = pace;
    rank.jitter_ns = jitter;
    rank.compute_max_ns = pick(random, std::array{DurationNs{0}, 100 * kMicrosecond, kMillisecond});
  }
  for (std::uint64_t i = random.below(3); i > 0; --i) {
    RankPlan& slow = plan.ranks[random.below(plan.ranks.size())];
    slow.step_delay_ns = 3 * pace;
    slow.jitter_ns = 3 * jitter;
  }
  if (random.one_in(3)) {
    RankPlan& late = plan.ranks[random.below(plan.ranks.size())];
    late.hiccup_step = static_cast<Step>(1 + random.below(plan.steps()));
    late.hiccup_ns = pick(random, std::array{100 * kMillisecond, kSecond, 10 * kSecond});
  }
}

// Any rank but one may go: that one keeps the job.
void draw_losses(Random& random, SwarmJob& job, TimeNs faults_stop_at) {
  const std::uint16_t workers = job.plan.world_size();
  if (workers < 2 || random.one_in(3)) return;
  const std::uint64_t keeper = random.below(workers);
  for (std::uint64_t i = 1 + random.below(3); i > 0; --i) {
    Loss loss;
    loss.rank.value =
        static_cast<std::uint16_t>((keeper + 1 + random.below(workers - 1)) % workers);
    const auto earlier = [&](const Loss& other) { return other.rank == loss.rank; };
    loss.kind = static_cast<LossKind>(random.below(4));
    loss.at = random.between(0, faults_stop_at + kSecond);
    loss.away_ns = pick(random, std::array{200 * kMillisecond, 2 * kSecond, 6 * kSecond}) +
                   random.between(0, kSecond);
    loss.returns = !random.one_in(3);
    if (loss.kind == LossKind::kFrozen && !loss.returns) loss.away_ns += 6 * kSecond;
    if (std::none_of(job.losses.begin(), job.losses.end(), earlier)) job.losses.push_back(loss);
  }
}

}  // namespace

void let_tolerate_stragglers(Random& random, SwarmJob& job, TimeNs faults_stop_at) {
  JobPlan& plan = job.plan;
  auto steps = static_cast<Step>(4 + random.below(27));
  if (plan.world_size() > 64) steps = std::min<Step>(steps, 6);
  plan.session.has_policy = true;
  plan.session.policy = draw_policy(random, plan.world_size(), steps);
  plan.pipelined = false;
  plan.nil_output = true;  // every replica wants every average
  plan.zero_weights = false;
  plan.reproducible = plan.reproducible_of_appliance = plan.inexact = false;
  plan.state_bytes = pick(random, std::array{8u, 500u, 20'000u, 200'000u});
  // Hundreds of ranks that wait ask 40 times a second each, which is what a slow shard can answer:
  // a state travels one chunk a turn of all ranks, and the window waits for it for 30 s.
  if (plan.world_size() > 64) plan.state_bytes = std::min(plan.state_bytes, 20'000u);
  job.fatality = Fatality::kNone;
  for (RankPlan& rank : plan.ranks) {
    rank.last_step = steps;
    rank.ending = Ending::kTogether;
  }
  draw_pace(random, plan);
  draw_losses(random, job, faults_stop_at);
  // Before the losses the job may have had ranks that leave in order.
  if (job.losses.empty() && plan.collectives.empty() && random.one_in(4))
    for (std::size_t rank = 1; rank < plan.ranks.size(); ++rank) {
      if (!random.one_in(3)) continue;
      plan.ranks[rank].last_step = static_cast<Step>(1 + random.below(steps));
      plan.ranks[rank].ending = random.one_in(3) ? Ending::kAbnormal : Ending::kLeave;
    }
}

// Between two tensors the ranks take about as long as for a step, in an order of their own: each is
// late in other chunks than the others. Now and then all of them wait for a step with something
// late, and some chunk has nobody's.
void let_be_late_in_parts(std::uint64_t seed, JobPlan& plan) {
  Random random(seed);
  const bool learns = plan.session.schedule.policy == client::Schedule::kProphet;
  if (!plan.requeues() || learns || plan.world_size() < 3 || plan.world_size() > 64 ||
      !random.one_in(2))
    return;
  plan.random_order = true;
  for (RankPlan& rank : plan.ranks) {
    rank.compute_max_ns = pick(random, std::array{kMillisecond, 5 * kMillisecond});
    rank.step_delay_ns = kMillisecond;
    rank.jitter_ns = 0;
  }
}

std::string describe_stragglers(const SwarmJob& job) {
  const PolicyOptions& policy = job.plan.session.policy;
  std::ostringstream out;
  out << " policy=" << name_of(policy.kind) << " k=" << policy.k << " late=" << name_of(policy.late)
      << " max_staleness=" << policy.max_staleness << " state_bytes=" << job.plan.state_bytes
      << " losses=" << describe_losses(job);
  for (std::size_t rank = 0; rank < job.plan.ranks.size(); ++rank) {
    const RankPlan& rank_plan = job.plan.ranks[rank];
    out << (rank == 0 ? " pace_ms=" : ",") << rank_plan.step_delay_ns / kMillisecond;
    if (rank_plan.hiccup_step != 0)
      out << '(' << rank_plan.hiccup_step << ":+" << rank_plan.hiccup_ns / kMillisecond << ')';
  }
  return out.str();
}

std::string describe_losses(const SwarmJob& job) {
  std::ostringstream out;
  for (const Loss& loss : job.losses) {
    const char* kinds[] = {"killed", "host-down", "frozen", "cut-off"};
    out << kinds[static_cast<int>(loss.kind)] << ':' << loss.rank.value << '@'
        << loss.at / kMillisecond << "ms+" << loss.away_ns / kMillisecond << "ms"
        << (loss.returns ? " " : "(for good) ");
  }
  return out.str();
}

}  // namespace sluice::sim
