#include "tests/sim/swarm_trials.h"

#include <algorithm>

namespace sluice::sim {
namespace {

constexpr DurationNs kDrained = 1500 * kMillisecond;
constexpr DurationNs kLookAgain = 50 * kMillisecond;
constexpr TimeNs kNeverStarts = 3600 * kSecond;
constexpr TimeNs kGiveUpAt = 20 * kSecond;  // a job that has not started by then has no misfit

bool all_steps_are_done(World& world, RunIndex run) {
  const JobPlan& plan = world.plan(run);
  for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
    if (world.worker(run, rank).steps_done() < plan.ranks[rank].last_step) return false;
  return true;
}

}  // namespace

Trials::Trials(World& world, const SwarmOptions& options, std::vector<RunIndex> runs)
    : world_(world), options_(options), runs_(std::move(runs)) {}

void Trials::schedule(std::set<std::uint32_t>& hit) {
  for (const Absence& absence : options_.absences)
    world_.at(absence.at, [this, absence] {
      const TimeNs until = world_.now() + absence.duration_ns;
      if (absence.control)
        world_.appliance().pause_control(until);
      else
        world_.appliance().pause_shard(absence.shard, until);
    });
  for (const Flap& flap : options_.flaps)
    if (hit.insert(flap.worker).second) schedule(flap);
  for (const RateChange& change : options_.rate_changes)
    world_.at(change.at, [this, change] {
      if (world_.now() >= options_.faults_stop_at) return;
      LinkOptions up = options_.world.uplink, down = options_.world.downlink;
      up.bytes_per_second = down.bytes_per_second = change.bytes_per_second;
      world_.set_link_options(up, down);
    });
  for (const Cut& cut : options_.cuts) {
    const auto set = [this, cut](bool on) {
      world_.cut(world_.workers()[cut.worker]->identity.host, cut.box, on);
    };
    world_.at(cut.at, [set] { set(true); });
    world_.at(cut.at + cut.duration_ns, [set] { set(false); });
  }
  if (!options_.restarts.empty())
    world_.at(options_.restarts.front().at, [this] { schedule_restart(0); });
  for (const Rebind& rebind : options_.rebinds)
    world_.at(rebind.at, [this, rebind] { world_.rebind(*world_.workers()[rebind.worker]); });
  for (const Misfit& misfit : options_.misfits)
    world_.at(misfit.at, [this, &misfit] { schedule(misfit); });
}

// Before a job has started, a process may be new to the next appliance that the last one knew.
void Trials::schedule_restart(std::size_t index) {
  for (const RunIndex run : runs_)
    for (std::uint16_t rank = 0; rank < world_.plan(run).world_size(); ++rank)
      if (!world_.worker(run, rank).started())
        return world_.at(world_.now() + kLookAgain, [this, index] { schedule_restart(index); });
  // A rank of a store that leaves takes along what nobody else has read.
  for (const RunIndex run : runs_)
    if (world_.plan(run).is_store() && all_steps_are_done(world_, run)) return;
  const Restart& restart = options_.restarts[index];
  if (restart.drains) world_.appliance(restart.box).drain(world_.now());
  const TimeNs stop_at = world_.now() + (restart.drains ? kDrained : 0);
  world_.at(stop_at, [this, box = restart.box] { world_.stop_appliance(box); });
  world_.at(stop_at + restart.down_ns, [this, index] {
    world_.start_appliance(mix(options_.seed, 0xB007, index), options_.restarts[index].box);
    if (index + 1 < options_.restarts.size())
      world_.at(world_.now() + options_.restarts[index + 1].at,
                [this, index] { schedule_restart(index + 1); });
  });
}

void Trials::schedule(const Flap& flap) {
  TimeNs at = flap.at;
  for (const auto& [down_ns, up_ns] : flap.times) {
    const auto set = [this, &flap](bool down) {
      Worker& worker = *world_.workers()[flap.worker];
      world_.partition(worker.identity.host, down);
      if (flap.seen) world_.show_port_change(worker);
    };
    world_.at(at, [set] { set(true); });
    world_.at(at + down_ns, [set] { set(false); });
    at += down_ns + up_ns;
  }
}

// A twin or another run comes while all ranks of the job are there: before, it would be the first,
// and after, it would be welcome.
bool Trials::may_begin(const Misfit& misfit) const {
  if (misfit.kind == MisfitKind::kStorm || misfit.kind == MisfitKind::kIdle) return true;
  const RunIndex run = runs_[misfit.job];
  for (std::uint16_t rank = 0; rank < world_.plan(run).world_size(); ++rank)
    if (!world_.worker(run, rank).started()) return false;
  return true;
}

void Trials::schedule(const Misfit& misfit) {
  if (may_begin(misfit)) return begin(misfit);
  if (world_.now() < kGiveUpAt)
    world_.at(world_.now() + kLookAgain, [this, &misfit] { schedule(misfit); });
}

void Trials::begin(const Misfit& misfit) {
  const RunIndex run = runs_[misfit.job];
  switch (misfit.kind) {
    case MisfitKind::kStorm: return begin_storm(misfit);
    case MisfitKind::kIdle: return begin_idle(misfit);
    // To the oracle both are jobs of their own: what they get done once the job is over is theirs.
    case MisfitKind::kTwin:
    case MisfitKind::kOtherRun: {
      JobPlan plan = world_.plan(run);
      for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank)
        if (world_.worker(run, rank).over()) return;
      if (misfit.kind == MisfitKind::kOtherRun) plan.run_id += 1'000'000'007;
      for (RankPlan& rank : plan.ranks) rank.start_at = kNeverStarts;
      plan.ranks[misfit.rank.value].start_at = 0;
      world_.add_run(std::move(plan));
      return;
    }
  }
}

// A job of its own, whose rank probes for every result in a loop once it has some.
void Trials::begin_storm(const Misfit& misfit) {
  JobPlan plan = make_plan(1, 2, {1500});
  plan.name = "storm";
  plan.ranks[0].ending = Ending::kStay;
  plan.check_values = false;
  const RunIndex run = world_.add_run(std::move(plan));
  world_.oracle().note(run, Oracle::Trait::kGreedy);
  const auto probes = static_cast<std::uint32_t>(misfit.duration_ns / misfit.interval_ns);
  world_.at(world_.now() + misfit.interval_ns,
            [this, &misfit, run, probes] { probe(misfit, run, probes); });
}

// The packet's number is one that was used: to its session it is a copy that the network made.
void Trials::probe(const Misfit& misfit, RunIndex run, std::uint32_t left) {
  Worker& worker = world_.worker(run, 0);
  if (left == 0 || worker.failed()) return;
  if (worker.steps_done() != 0) {
    const wire::Probe probe{
        .flow = {.number = 1}, .step = worker.steps_done(), .want = ~std::uint64_t{0}};
    std::vector<std::uint8_t> bytes(kMaxDatagramBytes);
    const wire::CommonHeader& as = worker.credentials;
    bytes.resize(wire::encode(bytes, {as.job, as.rank, as.cookie}, probe));
    world_.inject(world_.path_to_appliance(worker, 1), bytes);
    --left;
  }
  world_.at(world_.now() + misfit.interval_ns,
            [this, &misfit, run, left] { probe(misfit, run, left); });
}

// One rank of three joins and never goes on; another process takes its place again and again.
void Trials::begin_idle(const Misfit& misfit) {
  JobPlan plan = make_plan(3, 1, {100});
  plan.name = "idle" + std::to_string(misfit.at);
  for (RankPlan& rank : plan.ranks) rank.start_at = kNeverStarts;
  plan.ranks[0].start_at = 0;
  join_again(misfit, world_.add_run(std::move(plan)), misfit.times);
}

void Trials::join_again(const Misfit& misfit, RunIndex run, std::uint32_t times) {
  if (times == 0) return;
  world_.at(world_.now() + misfit.interval_ns, [this, &misfit, run, times] {
    world_.kill(world_.worker(run, 0), false);
    world_.add_worker(run, Rank{0}, world_.now());
    join_again(misfit, run, times - 1);
  });
}

}  // namespace sluice::sim
