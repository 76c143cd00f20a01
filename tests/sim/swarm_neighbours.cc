// A seed's choices about big jobs, slow allocation, absences of the appliance, flapping links,
// changed addresses and misfits. Each choice has its own source of randomness, so that a seed's
// other choices stay as they are.
#include <algorithm>
#include <array>
#include <sstream>

#include "client/core/link/congestion.h"
#include "tests/sim/swarm_options.h"

namespace sluice::sim {
namespace {

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& choices) {
  return choices[random.below(N)];
}

void draw_absences(Random& random, SwarmOptions& options) {
  if (!random.one_in(6)) return;
  for (std::uint64_t i = 1 + random.below(2); i > 0; --i) {
    Absence absence;
    absence.control = !random.one_in(3);
    absence.shard =
        static_cast<std::uint16_t>(random.below(options.world.appliance.jobs.shard_count));
    absence.at = random.between(0, options.faults_stop_at);
    absence.duration_ns = pick(random, std::array{20 * kMillisecond, kSecond, 10 * kSecond});
    absence.duration_ns = random.between(absence.duration_ns / 4, absence.duration_ns);
    options.absences.push_back(absence);
  }
  // A session with a timeout below the appliance's absence would give it up, and rightly so.
  for (SwarmJob& job : options.jobs) {
    job.plan.session.connect_timeout_ns += options.absent_ns();
    job.plan.session.silence_timeout_ns += options.absent_ns();
    // A frozen process may go on before anybody could notice: then it keeps its rank.
    for (Loss& loss : job.losses) loss.returns = loss.returns || loss.kind == LossKind::kFrozen;
  }
}

// Never silent for as long as a member may be: two seconds in all.
void draw_flaps(Random& random, SwarmOptions& options, std::uint64_t workers) {
  if (!random.one_in(5)) return;
  Flap flap;
  flap.worker = static_cast<std::uint32_t>(random.below(workers));
  flap.at = random.between(0, options.faults_stop_at);
  DurationNs left_ns = 2 * kSecond;
  for (std::uint64_t i = 2 + random.below(5); i > 0; --i) {
    const DurationNs longest_ns =
        pick(random, std::array{5 * kMillisecond, 300 * kMillisecond, 2 * kSecond});
    const DurationNs down_ns = std::min(left_ns, random.between(kMillisecond, longest_ns));
    if (down_ns == 0) break;
    left_ns -= down_ns;
    flap.times.push_back({down_ns, random.between(kMillisecond, 700 * kMillisecond)});
  }
  options.flaps.push_back(flap);
}

// What the appliance sees is no proof, so it asks; three answers must not be lost by bad luck.
void let_be_seen(Random& random, SwarmOptions& options) {
  constexpr std::uint32_t kRarePpm = 10'000;
  if (options.world.uplink.loss_ppm > kRarePpm || options.world.downlink.loss_ppm > kRarePpm)
    return;
  for (Flap& flap : options.flaps) {
    flap.seen = random.one_in(2);
    if (!flap.seen) continue;
    for (auto& [down_ns, up_ns] : flap.times) down_ns = std::min(down_ns, 100 * kMillisecond);
  }
}

std::uint32_t worker_of(const SwarmOptions& options, std::size_t job, Rank rank) {
  std::uint32_t worker = rank.value;
  for (std::size_t i = 0; i < job; ++i) worker += options.jobs[i].plan.world_size();
  return worker;
}

// Nobody can say that a process is gone whose address has changed since it was heard.
void draw_rebinds(Random& random, SwarmOptions& options, std::uint64_t workers) {
  if (!random.one_in(6)) return;
  for (std::uint64_t i = 1 + random.below(4); i > 0; --i) {
    const Rebind rebind{.worker = static_cast<std::uint32_t>(random.below(workers)),
                        .at = random.between(0, options.faults_stop_at + kSecond)};
    bool is_victim = false;
    for (std::size_t job = 0; job < options.jobs.size(); ++job)
      is_victim |= options.jobs[job].fatality != Fatality::kNone &&
                   worker_of(options, job, options.jobs[job].victim) == rebind.worker;
    if (!is_victim) options.rebinds.push_back(rebind);
  }
}

// Jobs of some MB at most, so up to some seconds each, one after the other.
void draw_making(Random& random, SwarmOptions& options) {
  if (!random.one_in(8)) return;
  options.world.appliance.memory_bytes_per_second =
      pick(random, std::array{1'000'000u, 5'000'000u, 50'000'000u});
}

void draw_misfits(Random& random, SwarmOptions& options) {
  if (!random.one_in(5)) return;
  for (std::uint64_t i = 1 + random.below(2); i > 0; --i) {
    Misfit misfit;
    misfit.kind = static_cast<MisfitKind>(random.below(4));
    misfit.job = random.below(options.jobs.size());
    const SwarmJob& job = options.jobs[misfit.job];
    misfit.rank.value = static_cast<std::uint16_t>(random.below(job.plan.world_size()));
    misfit.at = random.between(0, options.faults_stop_at);
    misfit.duration_ns = random.between(50 * kMillisecond, 300 * kMillisecond);
    misfit.interval_ns = pick(random, std::array{100 * kMicrosecond, kMillisecond});
    if (misfit.kind == MisfitKind::kIdle) {
      misfit.interval_ns = random.between(5 * kMillisecond, 500 * kMillisecond);
      misfit.times = static_cast<std::uint32_t>(random.below(12));
    }
    // Where a rank is lost on purpose, a newcomer may be welcome; and a second process takes the
    // place of one that cannot answer when it is asked.
    const bool rank_stays = job.fatality == Fatality::kNone && job.losses.empty();
    const bool needs_it = misfit.kind == MisfitKind::kTwin || misfit.kind == MisfitKind::kOtherRun;
    // One whose rank has left by the time the control side reads its request is a newcomer as well.
    const bool rank_may_go = options.is_hit(worker_of(options, misfit.job, misfit.rank)) ||
                             job.plan.ranks[misfit.rank.value].last_step < job.plan.steps();
    if (misfit.kind == MisfitKind::kTwin && rank_may_go) continue;
    const auto same = [&](const Misfit& other) { return other.kind == misfit.kind; };
    if ((rank_stays || !needs_it) &&
        std::none_of(options.misfits.begin(), options.misfits.end(), same))
      options.misfits.push_back(misfit);
  }
}

// Round trips of up to 200 ms, losses in a row, and a route that becomes ten times as slow or fast.
void draw_long_paths(Random& random, SwarmOptions& options) {
  if (!random.one_in(5)) return;
  const DurationNs delay_ns =
      pick(random, std::array{5 * kMillisecond, 15 * kMillisecond, 100 * kMillisecond});
  const std::uint32_t burst = pick(random, std::array{1u, 4u, 16u});
  for (LinkOptions* link : {&options.world.uplink, &options.world.downlink}) {
    link->delay_ns = delay_ns;
    link->loss_burst = burst;
    // What is lost costs a round trip each time, and the bounds are for as many as short paths
    // need.
    link->loss_ppm = std::min(link->loss_ppm, 10'000u);
  }
  // A credit that stops and waits for each unit takes a round trip a unit. A state takes one for
  // each window of chunks, perhaps twice, and others wait for it for limits.resync_hold_s.
  const auto chunks =
      static_cast<std::uint32_t>(client::Congestion::kFloor * 5 * kSecond / (2 * delay_ns));
  for (SwarmJob& job : options.jobs) {
    job.plan.state_bytes =
        std::min(job.plan.state_bytes, std::min(1'000u, chunks) * job.plan.chunk_bytes);
    client::ScheduleOptions& schedule = job.plan.session.schedule;
    schedule.credit_bytes = std::max<decltype(schedule.credit_bytes)>(schedule.credit_bytes,
                                                                      80u * job.plan.chunk_bytes);
  }
  const std::uint64_t rate = options.world.uplink.bytes_per_second;
  for (std::uint64_t i = random.below(3); i > 0; --i)
    options.rate_changes.push_back({.at = random.between(0, options.faults_stop_at),
                                    .bytes_per_second = random.one_in(2) ? rate / 10 : rate * 10});
}

const char* name_of(MisfitKind kind) {
  switch (kind) {
    case MisfitKind::kStorm: return "storm";
    case MisfitKind::kIdle: return "idle";
    case MisfitKind::kTwin: return "twin";
    case MisfitKind::kOtherRun: return "other-run";
  }
  return "?";
}

}  // namespace

DurationNs SwarmOptions::absent_ns() const {
  DurationNs total_ns = 0;
  for (const Absence& absence : absences) total_ns += absence.duration_ns;
  return total_ns;
}

bool SwarmOptions::is_hit(std::uint32_t worker) const {
  const auto hits = [worker](const auto& fault) { return fault.worker == worker; };
  return std::any_of(faults.begin(), faults.end(), hits) ||
         std::any_of(flaps.begin(), flaps.end(), hits);
}

// More ranks than a word has bits; so few chunks and steps that the seed costs no more than others.
void let_be_many(Random& random, SwarmOptions& options) {
  if (!random.one_in(16)) return;
  SwarmJob& job = options.jobs[random.below(options.jobs.size())];
  JobPlan& plan = job.plan;
  const std::size_t few = plan.ranks.size();
  plan.ranks.resize(65 + random.below(random.one_in(8) ? 400 : 100));
  for (std::size_t rank = few; rank < plan.ranks.size(); ++rank) {
    plan.ranks[rank] = plan.ranks[rank % few];
    if (job.fatality == Fatality::kNone || rank % few != job.victim.value) continue;
    // The one that fails the job stays the only one.
    plan.ranks[rank].ending = Ending::kLeave;
    plan.ranks[rank].last_step = plan.steps();
  }
  plan.tensors.resize(1 + random.below(std::min<std::size_t>(2, plan.tensors.size())));
  for (client::TensorSpec& tensor : plan.tensors)
    tensor.elem_count = 1 + random.below(plan.chunk_bytes);  // four chunks, or eight narrow ones
  if (plan.collectives.size() > 2) plan.collectives.resize(2);
  for (CollectivePlan& collective : plan.collectives)
    collective.size_bytes = std::min<std::uint32_t>(collective.size_bytes, 2 * plan.chunk_bytes);
  options.world.appliance.burst = 32;  // one lcore that serves hundreds of ranks one by one is slow
}

void draw_trials(std::uint64_t seed, SwarmOptions& options) {
  std::uint64_t workers = 0;
  for (const SwarmJob& job : options.jobs) workers += job.plan.world_size();
  Random absent(mix(seed, 0xAB5E17));
  draw_absences(absent, options);
  Random flapping(mix(seed, 0xF1A95));
  draw_flaps(flapping, options, workers);
  Random sight(mix(seed, 0x5EE4));
  let_be_seen(sight, options);
  Random rebinding(mix(seed, 0x4EB14D));
  draw_rebinds(rebinding, options, workers);
  Random making(mix(seed, 0x3A4146));
  draw_making(making, options);
  Random misfits(mix(seed, 0x315F17));
  draw_misfits(misfits, options);
  Random paths(mix(seed, 0x9A745));
  draw_long_paths(paths, options);
}

// Two appliances, and the jobs are at one of them. Either may die or be drained, and a host may
// lose one of them.
void draw_standby(Random& random, SwarmOptions& options) {
  options.world.standby = true;
  for (Restart& restart : options.restarts) {
    restart.box = random.below(2);
    restart.drains = random.one_in(3);
  }
  std::uint64_t workers = 0;
  for (const SwarmJob& job : options.jobs) workers += job.plan.world_size();
  // A rank that no appliance hears for member_timeout ends its job, and so does one that was seen
  // to lose its port and answers no ping.
  const DurationNs most_ns =
      options.world.appliance.jobs.member_timeout_ns - 2 * kKeepaliveInterval;
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    const Cut cut{.worker = static_cast<std::uint32_t>(random.below(workers)),
                  .box = random.below(2),
                  .at = random.between(0, options.faults_stop_at),
                  .duration_ns = random.between(0, 3 * kSecond)};
    DurationNs silent_ns = cut.duration_ns;
    for (const SwarmFault& fault : options.faults)
      if (fault.worker == cut.worker) silent_ns += fault.duration_ns;
    for (const Cut& other : options.cuts)
      if (other.worker == cut.worker) silent_ns += other.duration_ns;
    const bool asked = std::ranges::any_of(
        options.flaps, [&](const Flap& flap) { return flap.worker == cut.worker && flap.seen; });
    if (silent_ns <= most_ns && !asked) options.cuts.push_back(cut);
  }
}

// A job of operations beside the others, in a third of the seeds in which the appliance restarts.
void draw_operations(Random& random, SwarmOptions& options) {
  if (!random.one_in(3)) return;
  SwarmJob job;
  JobPlan& plan = job.plan;
  plan.seed = mix(options.seed, 0x09E5);
  plan.name = "operations";
  plan.run_id = 1 + random.below(1'000'000);
  plan.chunk_bytes = static_cast<std::uint16_t>(64 * pick(random, std::array{1, 2, 4}));
  plan.ranks.resize(2 + random.below(3));
  const auto rounds = static_cast<Step>(2 + random.below(20));
  for (RankPlan& rank : plan.ranks) {
    rank.start_at = random.between(0, 20 * kMillisecond);
    rank.last_step = rounds;
    rank.step_delay_ns = pick(random, std::array{DurationNs{0}, kMillisecond, 40 * kMillisecond});
    rank.ending = Ending::kTogether;
  }
  plan.session.operations = true;
  plan.session.connect_timeout_ns += options.absent_ns();
  plan.session.silence_timeout_ns += options.absent_ns();
  plan.session.restart_timeout_ns = 30 * kSecond;
  options.jobs.push_back(std::move(job));
}

// Where another kind of job, or a fault that ends one, is drawn, there is none.
void draw_restarts(std::uint64_t seed, SwarmOptions& options) {
  Random random(mix(seed, 0x4E57A4));
  // What a lost rank of a store had pushed is lost with the appliance, if nobody has read it.
  const bool loses_of_store = std::ranges::any_of(
      options.jobs, [](const SwarmJob& job) { return job.plan.is_store() && !job.losses.empty(); });
  if (loses_of_store || !random.one_in(3)) return;
  options.misfits.clear();  // a twin or another run would be the first at the next appliance
  for (SwarmJob& job : options.jobs) {
    job.fatality = Fatality::kNone;
    job.plan.session.restart_timeout_ns = 30 * kSecond;
    // Whoever has left is not there to say what it has.
    const Step steps = job.plan.steps();
    for (RankPlan& rank : job.plan.ranks) {
      rank.last_step = steps;
      rank.ending = Ending::kTogether;
    }
    // A process that is new where steps of collectives begin anew does not know which is next.
    if (!job.losses.empty()) job.plan.collectives.clear();
    // A state travels a block a round trip, and the window waits for 30 s.
    if (options.world.uplink.delay_ns >= 10 * kMillisecond)
      job.plan.state_bytes = std::min(job.plan.state_bytes, 20'000u);
  }
  for (std::uint64_t i = 1 + random.below(3); i > 0; --i) {
    Restart restart;
    // The next one while the ranks join, state what they know, hand over, or long after.
    restart.at = options.restarts.empty()
                     ? random.between(0, options.faults_stop_at)
                     : random.between(0, pick(random, std::array{20 * kMillisecond, kSecond}));
    restart.down_ns = random.between(0, 2 * kSecond);
    options.restarts.push_back(restart);
  }
  Random groups(mix(seed, 0x09E5A7));
  draw_operations(groups, options);
  Random second(mix(seed, 0x57A4DB));
  if (!second.one_in(2)) return;
  // A job that has lost a rank waits where it has moved to for another process of it.
  for (SwarmJob& job : options.jobs) job.losses.clear();
  draw_standby(second, options);
}

DurationNs SwarmOptions::restart_ns() const {
  DurationNs total_ns = 0;
  // The ranks state what they have one after the other, perhaps twice: a round trip each.
  std::size_t ranks = 0;
  for (const SwarmJob& job : jobs) ranks = std::max(ranks, job.plan.ranks.size());
  const DurationNs states_ns = static_cast<DurationNs>(2 * ranks) * 2 * world.uplink.delay_ns;
  // With k < n a rank that is dead is waited for.
  const bool loses =
      std::ranges::any_of(jobs, [](const SwarmJob& job) { return !job.losses.empty(); });
  const DurationNs lost_ns = loses ? 2 * world.appliance.jobs.member_timeout_ns : 0;
  for (const Restart& restart : restarts)
    total_ns += restart.at + restart.down_ns + 3 * kSecond + states_ns + lost_ns;
  // Ranks that do not meet at one place try the other after ever longer times.
  return world.standby ? 3 * total_ns + 10 * kSecond : total_ns;
}

std::string describe_trials(const SwarmOptions& options) {
  std::ostringstream out;
  for (const Absence& absence : options.absences) {
    out << "\n  away: " << (absence.control ? "control" : "shard");
    if (!absence.control) out << ' ' << absence.shard;
    out << " at_ms=" << absence.at / kMillisecond << " ms=" << absence.duration_ns / kMillisecond;
  }
  for (const Flap& flap : options.flaps) {
    out << "\n  flaps" << (flap.seen ? " (seen)" : "") << ": worker " << flap.worker
        << " at_ms=" << flap.at / kMillisecond;
    for (const auto& [down_ns, up_ns] : flap.times)
      out << " -" << down_ns / kMillisecond << "+" << up_ns / kMillisecond;
  }
  for (const Rebind& rebind : options.rebinds)
    out << "\n  rebind: worker " << rebind.worker << " at_ms=" << rebind.at / kMillisecond;
  if (const std::uint64_t speed = options.world.appliance.memory_bytes_per_second; speed != 0)
    out << "\n  making: " << speed / 1'000'000 << " MB/s";
  for (const RateChange& change : options.rate_changes)
    out << "\n  rate: at_ms=" << change.at / kMillisecond
        << " kBps=" << change.bytes_per_second / 1000;
  for (const Restart& restart : options.restarts)
    out << "\n  restart: at_ms=" << restart.at / kMillisecond
        << " down_ms=" << restart.down_ns / kMillisecond << " box=" << restart.box
        << (restart.drains ? " drained" : "");
  if (options.world.standby) out << "\n  standby";
  for (const Cut& cut : options.cuts)
    out << "\n  cut: worker " << cut.worker << " box=" << cut.box
        << " at_ms=" << cut.at / kMillisecond << " ms=" << cut.duration_ns / kMillisecond;
  for (const Misfit& misfit : options.misfits)
    out << "\n  misfit: " << name_of(misfit.kind) << " job=" << misfit.job
        << " rank=" << misfit.rank.value << " at_ms=" << misfit.at / kMillisecond
        << " ms=" << misfit.duration_ns / kMillisecond
        << " interval_us=" << misfit.interval_ns / kMicrosecond << " times=" << misfit.times;
  return out.str();
}

}  // namespace sluice::sim
