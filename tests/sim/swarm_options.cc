#include "tests/sim/swarm_options.h"

#include <algorithm>
#include <array>
#include <bit>
#include <sstream>

namespace sluice::sim {
namespace {

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& choices) {
  return choices[random.below(N)];
}

LinkOptions draw_link(Random& random) {
  LinkOptions link;
  link.loss_ppm = pick(random, std::array{0u, 0u, 1'000u, 10'000u, 50'000u, 200'000u});
  link.duplicate_ppm = pick(random, std::array{0u, 0u, 10'000u, 100'000u});
  link.corrupt_ppm = pick(random, std::array{0u, 0u, 5'000u});
  link.reorder_ppm = pick(random, std::array{0u, 0u, 20'000u, 300'000u});
  link.reorder_delay_ns = pick(random, std::array{100 * kMicrosecond, 3 * kMillisecond});
  link.jitter_ns = pick(random, std::array{DurationNs{0}, 50 * kMicrosecond, 2 * kMillisecond});
  link.delay_ns = pick(random, std::array{5 * kMicrosecond, 100 * kMicrosecond, kMillisecond});
  link.bytes_per_second =
      pick(random, std::array{std::uint64_t{2'000'000}, std::uint64_t{12'500'000},
                              std::uint64_t{1'250'000'000}, std::uint64_t{1'250'000'000}});
  link.queue_frames = pick(random, std::array{64u, 256u, 4096u});
  if (random.one_in(3)) link.mark_above_frames = 32;
  return link;
}

// What a device with offloads makes of neighbours: 45 full frames are 64 KB.
void draw_trains(Random& random, LinkOptions& link) {
  if (!random.one_in(3)) return;
  link.train_frames = pick(random, std::array{2u, 8u, 45u});
  link.train_loss_ppm = pick(random, std::array{0u, 2'000u, 20'000u, 100'000u});
}

std::vector<client::TensorSpec> draw_tensors(Random& random, std::uint16_t chunk_bytes) {
  std::vector<client::TensorSpec> tensors;
  const std::uint64_t chunk_elems = chunk_bytes / 4;
  const std::uint64_t count = 1 + random.below(6);
  // Now and then enough chunks for every shard and for windows to fill.
  const std::uint64_t most_chunks = random.one_in(4) ? 120 : 12;
  for (std::uint64_t i = 0; i < count; ++i) {
    client::TensorSpec tensor{.name = "t" + std::to_string(i)};
    tensor.elem_count = 1 + random.below(chunk_elems * (1 + random.below(most_chunks)));
    tensor.dtype = pick(
        random, std::array{Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16});
    tensors.push_back(tensor);
  }
  return tensors;
}

void draw_collectives(Random& random, JobPlan& plan) {
  for (Step step = 1; step <= plan.steps() + 1; ++step) {
    while (random.one_in(3)) {
      CollectivePlan collective{.before_step = step};
      collective.kind = random.one_in(2) ? CollectiveKind::kBarrier : CollectiveKind::kBroadcast;
      do {
        collective.root.value = static_cast<std::uint16_t>(random.below(plan.world_size()));
      } while (plan.ranks[collective.root.value].last_step < plan.steps());
      collective.size_bytes = static_cast<std::uint32_t>(
          1 + random.below(random.one_in(4) ? std::uint64_t{plan.chunk_bytes} * 150
                                            : std::uint64_t{plan.chunk_bytes} * 3));
      plan.collectives.push_back(collective);
    }
  }
}

void draw_ranks(Random& random, JobPlan& plan, Step steps) {
  const DurationNs step_delay =
      pick(random, std::array{DurationNs{0}, 20 * kMillisecond, 300 * kMillisecond});
  const bool spread_start = random.one_in(4);
  for (RankPlan& rank : plan.ranks) {
    rank.last_step = steps;
    rank.start_at = random.between(0, spread_start ? kSecond : 20 * kMillisecond);
    rank.compute_max_ns =
        pick(random, std::array{DurationNs{0}, 100 * kMicrosecond, 5 * kMillisecond});
    rank.step_delay_ns = random.between(0, step_delay);
  }
}

// One rank ends before the others and does not say that this is meant.
void draw_early_end(std::uint64_t seed, SwarmJob& job, Step steps) {
  Random random(seed);
  JobPlan& plan = job.plan;
  if (plan.world_size() < 2 || steps < 2 || !random.one_in(8)) return;
  for (RankPlan& rank : plan.ranks) {
    rank.last_step = steps;
    rank.ending = Ending::kLeave;
  }
  job.fatality = Fatality::kEarlyEnd;
  job.victim.value = static_cast<std::uint16_t>(1 + random.below(plan.world_size() - 1));
  plan.ranks[job.victim.value].last_step = static_cast<Step>(random.below(steps));
}

// Units of a few chunks, and often a credit that stops and waits.
client::ScheduleOptions draw_schedule(Random& random, std::uint16_t chunk_bytes) {
  using client::Schedule;
  client::ScheduleOptions schedule;
  schedule.policy = pick(
      random, std::array{Schedule::kStrict, Schedule::kStrict, Schedule::kCredit, Schedule::kCredit,
                         Schedule::kProphet, Schedule::kProphet, Schedule::kFifo});
  schedule.unit_bytes = chunk_bytes * (1 + random.below(40));
  schedule.credit_bytes = random.one_in(3) ? 1 : chunk_bytes * (1 + random.below(80));
  return schedule;
}

// Prophet needs priorities that stay, and steps to learn from before it does anything.
void let_learn(JobPlan& plan) {
  plan.random_order = false;
  plan.backward_order = true;
  plan.random_priority = false;
  for (RankPlan& rank : plan.ranks) rank.last_step += 8;
}

// float32 that loses something on the way. A sum that travels as a mean is rounded once more.
void draw_wire(std::uint64_t seed, JobPlan& plan) {
  Random random(seed);
  if (!random.one_in(3)) return;
  plan.wire = pick(random, std::array{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8});
  for (client::TensorSpec& tensor : plan.tensors) tensor.exact = random.one_in(5);
  if (plan.averaging == AveragingChoice::kSum) plan.averaging = AveragingChoice::kDefault;
}

// What is small stays behind, in jobs whose policy reads no norms or signs.
void draw_pruning(std::uint64_t seed, JobPlan& plan) {
  Random random(seed);
  const bool has_policy = plan.session.has_policy;
  const bool reads = has_policy && plan.session.policy.kind != PolicyKind::kSync &&
                     plan.session.policy.kind != PolicyKind::kFixed;
  if (reads || !random.one_in(4)) return;
  using client::PruneRule;
  plan.session.prune = {
      .rule =
          pick(random, std::array{PruneRule::kStatic, PruneRule::kStatic, PruneRule::kSampled,
                                  PruneRule::kSigma, PruneRule::kDynamic, PruneRule::kDynamicRaw}),
      .fraction = pick(random, std::array{0.001, 0.01, 0.1, 0.5, 1.0}),
      .sigmas = pick(random, std::array{1.0, 2.0, 3.0}),
      .warmup_steps = pick(random, std::array{0u, 0u, 2u}),
      .min_elems = pick(random, std::array{1u, 1u, 200u})};
  for (client::TensorSpec& tensor : plan.tensors) tensor.dense = random.one_in(6);
  plan.flush_last = !plan.pipelined && random.one_in(3);
}

// Momentum of 1/2, in jobs of so few steps that velocities and their sums are exact: a velocity is
// less than 16 and has a binary place more at every step.
void draw_momentum(std::uint64_t seed, JobPlan& plan) {
  if (plan.session.prune.rule == client::PruneRule::kOff || !Random(seed).one_in(2)) return;
  const std::uint64_t greatest = std::uint64_t{16} * plan.steps() * plan.world_size();
  if (std::bit_width(greatest) + plan.steps() > 24) return;
  plan.session.prune.momentum = 0.5;
}

// Some lie in a device's memory.
void draw_far(std::uint64_t seed, JobPlan& plan) {
  Random random(seed);
  if (plan.is_store() || plan.session.prune.momentum > 0 || !random.one_in(2)) return;
  for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); ++tensor)
    plan.tensors[tensor].far = plan.is_lossy(tensor) && !random.one_in(4);
}

SwarmJob draw_job(Random& random, std::size_t index, std::uint64_t seed) {
  SwarmJob job;
  JobPlan& plan = job.plan;
  plan.seed = mix(seed, index, 77);
  plan.name = "job" + std::to_string(index);
  plan.run_id = 1 + random.below(1'000'000);
  plan.chunk_bytes = static_cast<std::uint16_t>(64 * pick(random, std::array{1, 2, 4, 16}));
  plan.tensors = draw_tensors(random, plan.chunk_bytes);
  plan.ranks.resize(1 + random.below(8));
  const auto steps = static_cast<Step>(1 + random.below(8));
  draw_ranks(random, plan, steps);
  Random scheduling(mix(seed, index, 0x5C4ED));
  plan.session.schedule = draw_schedule(scheduling, plan.chunk_bytes);
  const bool narrow = std::any_of(plan.tensors.begin(), plan.tensors.end(),
                                  [](const auto& t) { return t.dtype != Dtype::kFloat32; });
  if (!narrow && random.one_in(3))
    plan.averaging = pick(random, std::array{AveragingChoice::kSum, AveragingChoice::kWorld,
                                             AveragingChoice::kWeight});
  plan.in_place = random.one_in(3);
  plan.call_end_step = random.one_in(2);
  plan.random_order = !random.one_in(3);
  plan.random_priority = random.one_in(2);
  plan.pipelined = random.one_in(4);
  if (!plan.pipelined) {
    plan.nil_ppm = random.one_in(3) ? 300'000 : 0;
    plan.nil_output = random.one_in(2);
    // Who ever needs end_step() calls it after every step: after a step that ended by itself it
    // belongs to that one.
    plan.call_end_step = plan.call_end_step || plan.nil_ppm != 0;
    plan.allow_nil = plan.nil_ppm != 0 || random.one_in(2);
    if (plan.nil_ppm == 0 && plan.world_size() > 1) plan.zero_weights = random.one_in(6);
    Random ordering(mix(seed, index, 0x0B0E));
    plan.reproducible = plan.inexact = ordering.one_in(3);
    plan.reproducible_of_appliance = plan.reproducible && ordering.one_in(3);
    if (plan.world_size() > 1 && random.one_in(5))
      for (std::size_t rank = 1; rank < plan.ranks.size(); ++rank)
        if (random.one_in(2)) {
          plan.ranks[rank].last_step = 1 + random.below(steps);
          plan.ranks[rank].ending = Ending::kUneven;
        }
    draw_early_end(mix(seed, index, 0xE2D), job, steps);
    draw_collectives(random, plan);
  }
  draw_wire(mix(seed, index, 0x317E), plan);
  if (plan.world_size() > 1 && random.one_in(3)) {
    job.fatality = pick(
        random, std::array{Fatality::kProcessDies, Fatality::kHostDies, Fatality::kAbnormalLeave,
                           Fatality::kLongPause, Fatality::kLongPartition});
    job.victim.value = static_cast<std::uint16_t>(random.below(plan.world_size()));
    job.fatal_at = random.between(0, 2 * kSecond);
    job.returns = random.one_in(2);
    job.return_delay_ns = random.between(0, 2 * kSecond);
    // An early leaver would be gone before it can be missed.
    for (RankPlan& rank : plan.ranks) {
      rank.last_step = steps;
      rank.ending = Ending::kLeave;
    }
    if (job.fatality == Fatality::kAbnormalLeave) {
      plan.ranks[job.victim.value].last_step = static_cast<Step>(random.below(steps));
      plan.ranks[job.victim.value].ending = Ending::kAbnormal;
      std::erase_if(plan.collectives,
                    [&](const auto& c) { return c.root == job.victim || c.before_step > steps; });
    }
  }
  return job;
}

const char* name_of(client::Schedule schedule) {
  switch (schedule) {
    case client::Schedule::kStrict: return "strict";
    case client::Schedule::kCredit: return "credit";
    case client::Schedule::kProphet: return "prophet";
    case client::Schedule::kFifo: return "fifo";
  }
  return "?";
}

const char* name_of(BriefFault kind) {
  switch (kind) {
    case BriefFault::kPartition: return "partition";
    case BriefFault::kPause: return "pause";
    case BriefFault::kBlockedDownlink: return "blocked-downlink";
  }
  return "?";
}

const char* name_of(Fatality fatality) {
  switch (fatality) {
    case Fatality::kNone: return "none";
    case Fatality::kProcessDies: return "process-dies";
    case Fatality::kHostDies: return "host-dies";
    case Fatality::kAbnormalLeave: return "abnormal-leave";
    case Fatality::kEarlyEnd: return "early-end";
    case Fatality::kLongPause: return "long-pause";
    case Fatality::kLongPartition: return "long-partition";
  }
  return "?";
}

void describe_link(std::ostringstream& out, const char* name, const LinkOptions& link) {
  out << ' ' << name << "={loss=" << link.loss_ppm << " dup=" << link.duplicate_ppm
      << " burst=" << link.loss_burst << " corrupt=" << link.corrupt_ppm
      << " reorder=" << link.reorder_ppm << " train=" << link.train_frames
      << " train_loss=" << link.train_loss_ppm << " jitter_us=" << link.jitter_ns / kMicrosecond
      << " delay_us=" << link.delay_ns / kMicrosecond
      << " MBps=" << link.bytes_per_second / 1'000'000 << " queue=" << link.queue_frames
      << " mark=" << link.mark_above_frames << '}';
}

}  // namespace

SwarmOptions draw_swarm(std::uint64_t seed) {
  Random random(mix(seed, 0x5EED));
  SwarmOptions options;
  options.seed = seed;
  WorldOptions& world = options.world;
  world.seed = seed;
  world.ipv6 = random.one_in(4);
  world.appliance.jobs.shard_count = static_cast<std::uint16_t>(1 + random.below(4));
  world.appliance.jobs.member_timeout_ns = random.one_in(4) ? 8 * kSecond : 3 * kSecond;
  world.appliance.jobs.max_total_memory_bytes = std::size_t{64} << 20;
  world.appliance.jobs.max_job_memory_bytes = std::size_t{16} << 20;
  world.appliance.command_delay_ns =
      pick(random, std::array{2 * kMicrosecond, 200 * kMicrosecond, 5 * kMillisecond});
  world.appliance.service_delay_ns =
      pick(random, std::array{kMicrosecond, 20 * kMicrosecond, 500 * kMicrosecond});
  world.appliance.burst = pick(random, std::array{1u, 8u, 32u});
  world.worker_delay_ns =
      pick(random, std::array{kMicrosecond, 50 * kMicrosecond, 2 * kMillisecond});
  world.unreachable_hints = !random.one_in(4);
  world.uplink = draw_link(random);
  world.downlink = draw_link(random);
  Random offloads(mix(seed, 0x650));
  draw_trains(offloads, world.uplink);
  draw_trains(offloads, world.downlink);
  options.faults_stop_at = random.between(100 * kMillisecond, 3 * kSecond);
  const std::uint64_t job_count = 1 + random.below(4);
  std::uint64_t workers = 0;
  for (std::uint64_t i = 0; i < job_count; ++i) {
    options.jobs.push_back(draw_job(random, i, seed));
    workers += options.jobs.back().plan.world_size();
  }
  Random crowding(mix(seed, 0xC120D));
  let_be_many(crowding, options);
  Random straggling(mix(seed, 0x57A6));
  if (seed % 2 == 0)
    for (SwarmJob& job : options.jobs) {
      if (straggling.one_in(6)) continue;
      let_tolerate_stragglers(straggling, job, options.faults_stop_at);
      job.plan.policy_of_appliance = straggling.one_in(4);
      if (job.plan.policy_of_appliance)
        world.appliance.jobs.named_jobs.push_back({job.plan.name, job.plan.session.policy});
    }
  for (std::size_t i = 0; i < options.jobs.size(); ++i)
    draw_pruning(mix(seed, i, 0x9121), options.jobs[i].plan);
  for (const SwarmJob& job : options.jobs)
    if (job.plan.reproducible_of_appliance)
      world.appliance.jobs.named_jobs.push_back({.job_name = job.plan.name, .reproducible = true});
  for (SwarmJob& job : options.jobs)
    if (job.plan.session.schedule.policy == client::Schedule::kProphet && seed % 3 != 0)
      let_learn(job.plan);
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    SwarmFault fault;
    fault.kind = static_cast<BriefFault>(random.below(3));
    fault.worker = static_cast<std::uint32_t>(random.below(workers));
    fault.at = random.between(0, options.faults_stop_at);
    fault.duration_ns = random.between(kMillisecond, 1500 * kMillisecond);
    options.faults.push_back(fault);
  }
  for (std::size_t i = 0; i < options.jobs.size(); ++i)
    draw_momentum(mix(seed, i, 0x30E7), options.jobs[i].plan);
  for (std::size_t i = 0; i < options.jobs.size(); ++i)
    let_be_late_in_parts(mix(seed, i, 0x9A55), options.jobs[i].plan);
  draw_trials(seed, options);
  draw_store(seed, options);
  draw_restarts(seed, options);
  for (std::size_t i = 0; i < options.jobs.size(); ++i)
    draw_far(mix(seed, i, 0xFA2), options.jobs[i].plan);
  return options;
}

std::string describe(const SwarmOptions& options) {
  std::ostringstream out;
  const WorldOptions& world = options.world;
  out << "seed=" << options.seed << " shards=" << world.appliance.jobs.shard_count
      << " ipv6=" << world.ipv6 << " hints=" << world.unreachable_hints
      << " member_timeout_s=" << world.appliance.jobs.member_timeout_ns / kSecond
      << " faults_stop_ms=" << options.faults_stop_at / kMillisecond
      << " burst=" << world.appliance.burst
      << " service_us=" << world.appliance.service_delay_ns / kMicrosecond
      << " command_us=" << world.appliance.command_delay_ns / kMicrosecond
      << " worker_us=" << world.worker_delay_ns / kMicrosecond;
  describe_link(out, "up", world.uplink);
  describe_link(out, "down", world.downlink);
  for (const SwarmJob& job : options.jobs) {
    const JobPlan& plan = job.plan;
    std::uint64_t elems = 0;
    std::size_t far = 0;
    for (const auto& tensor : plan.tensors) {
      elems += tensor.elem_count;
      far += tensor.far;
    }
    out << "\n  " << plan.name << " workers=" << plan.world_size() << " steps=" << plan.steps()
        << " tensors=" << plan.tensors.size() << " elems=" << elems << " far=" << far
        << " chunk_bytes=" << plan.chunk_bytes << " nil_ppm=" << plan.nil_ppm
        << " pipelined=" << plan.pipelined << " collectives=" << plan.collectives.size()
        << " schedule=" << name_of(plan.session.schedule.policy)
        << " averaging=" << static_cast<int>(plan.averaging)
        << " wire=" << static_cast<int>(plan.wire)
        << " prune=" << static_cast<int>(plan.session.prune.rule) << '/'
        << plan.session.prune.fraction << " momentum=" << plan.session.prune.momentum
        << " fatality=" << name_of(job.fatality) << " victim=" << job.victim.value
        << " fatal_at_ms=" << job.fatal_at / kMillisecond << " returns=" << job.returns;
    if (plan.tolerates_stragglers()) out << "\n   " << describe_stragglers(job);
    if (plan.is_store()) out << "\n   " << describe_store(job);
  }
  for (const SwarmFault& fault : options.faults)
    out << "\n  worker " << fault.worker << ' ' << name_of(fault.kind)
        << " at_ms=" << fault.at / kMillisecond << " for_ms=" << fault.duration_ns / kMillisecond;
  return out.str() + describe_trials(options);
}

}  // namespace sluice::sim
