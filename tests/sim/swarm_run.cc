#include "tests/sim/swarm_run.h"

#include <algorithm>
#include <list>
#include <optional>
#include <set>

#include "tests/sim/swarm_losses.h"
#include "tests/sim/swarm_trials.h"

namespace sluice::sim {
namespace {

// After faults stop: how long a rank may take for a step on top of its own computing, and for what
// was under way when they stopped (time-outs that had backed off, a join, a leave).
constexpr DurationNs kStepBound = kSecond;
constexpr int kStepTrips = 40;  // and so many round trips
constexpr DurationNs kRecoveryBound = 10 * kSecond;
// For a state to be given: 200 KB in chunks of 64 bytes take 1.1 s.
constexpr DurationNs kStateBound = 2 * kSecond;
// From a death to the error at every survivor (member_timeout comes on top when nobody tells).
constexpr DurationNs kDeathBound = 5 * kSecond;

LinkOptions healed(const LinkOptions& faulty) {
  LinkOptions link = faulty;
  link.loss_ppm = link.duplicate_ppm = link.corrupt_ppm = link.reorder_ppm = 0;
  link.train_loss_ppm = 0;
  return link;
}

class Swarm {
 public:
  explicit Swarm(const SwarmOptions& options) : options_(options), world_(options.world) {}

  SwarmOutcome run() {
    for (const SwarmJob& job : options_.jobs) start(job);
    for (const SwarmFault& fault : options_.faults) schedule(fault);
    std::vector<RunIndex> runs;
    for (const State& state : states_) runs.push_back(state.run);
    trials_.emplace(world_, options_, std::move(runs)).schedule(hit_);
    world_.at(options_.faults_stop_at, [this] {
      world_.set_link_options(healed(options_.world.uplink), healed(options_.world.downlink));
    });
    for (State& state : states_) finish(state);
    if (world_.healthy()) world_.run_until(world_.now() + 100 * kMillisecond);
    if (world_.healthy()) world_.check_at_end();
    if (world_.healthy()) check_traffic();
    if (world_.healthy()) check_losses();
    return outcome();
  }

 private:
  struct State {
    const SwarmJob* job;
    RunIndex run;
    Losses* losses = nullptr;  // of a job that tolerates stragglers, or a store
    bool struck = false;       // the fatality has happened
    TimeNs struck_at = 0;
  };

  void start(const SwarmJob& job) {
    states_.push_back({.job = &job, .run = world_.add_run(job.plan)});
    if (job.plan.tolerates_stragglers() || job.plan.is_store()) {
      losses_.emplace_back(world_, job, states_.back().run);
      states_.back().losses = &losses_.back();
      losses_.back().schedule();
    }
    if (job.fatality == Fatality::kNone || ends_by_itself(job)) return;
    const std::size_t index = states_.size() - 1;
    world_.at(job.fatal_at, [this, index] { strike(index); });
  }

  // The victim's application does it, and not the world.
  static bool ends_by_itself(const SwarmJob& job) {
    return job.fatality == Fatality::kAbnormalLeave || job.fatality == Fatality::kEarlyEnd;
  }

  void strike(std::size_t index) {
    State& state = states_[index];
    const JobPlan& plan = world_.plan(state.run);
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
      if (world_.worker(state.run, rank).started()) continue;
      if (world_.now() < 20 * kSecond)
        world_.at(world_.now() + 50 * kMillisecond, [this, index] { strike(index); });
      return;
    }
    Worker& victim = world_.worker(state.run, state.job->victim);
    if (victim.done()) return;
    state.struck = true;
    state.struck_at = world_.now();
    const HostIndex host = victim.identity.host;
    const TimeNs over = world_.now() + member_timeout() + 3 * kSecond;
    switch (state.job->fatality) {
      case Fatality::kProcessDies: return world_.kill(victim, false);
      case Fatality::kHostDies: return world_.kill(victim, true);
      case Fatality::kLongPause:
        world_.pause(victim);
        return world_.at(over, [this, &victim] { world_.resume(victim); });
      case Fatality::kLongPartition:
        world_.partition(host, true);
        return world_.at(over, [this, host] { world_.partition(host, false); });
      default: return;
    }
  }

  // One a process: two could add up to more than it survives.
  void schedule(const SwarmFault& fault) {
    if (!hit_.insert(fault.worker).second) return;
    world_.at(fault.at, [this, fault] {
      Worker& worker = *world_.workers()[fault.worker];
      const HostIndex host = worker.identity.host;
      const TimeNs over = world_.now() + fault.duration_ns;
      switch (fault.kind) {
        case BriefFault::kPartition:
          world_.partition(host, true);
          return world_.at(over, [this, host] { world_.partition(host, false); });
        case BriefFault::kPause:
          world_.pause(worker);
          return world_.at(over, [this, &worker] { world_.resume(worker); });
        case BriefFault::kBlockedDownlink:
          world_.block_downlink(host, true);
          return world_.at(over, [this, host] { world_.block_downlink(host, false); });
      }
    });
  }

  // Recovery must not feed on itself: slow links with short queues and 20 % loss take 2.3 times the
  // packets of a network without faults, a collapse takes a hundred times.
  void check_traffic() {
    const Oracle& oracle = world_.oracle();
    const auto too_many = [&](const char* what, std::uint64_t sent, std::uint64_t due) {
      if (sent > 3 * due + 300)
        world_.oracle().violation("I4: " + std::to_string(sent) + " " + what + " were sent for " +
                                  std::to_string(due) + " that were needed");
    };
    too_many("results", oracle.totals().results_sent, oracle.totals().results_due);
    too_many("contributions", oracle.totals().contributions_seen,
             oracle.totals().first_contributions);
  }

  DurationNs member_timeout() const { return options_.world.appliance.jobs.member_timeout_ns; }

  // A run without faults would be over by then, whatever happened before.
  TimeNs deadline(const State& state) const {
    const JobPlan& plan = world_.plan(state.run);
    DurationNs longest = 0;
    for (const RankPlan& rank : plan.ranks) {
      const DurationNs compute = rank.step_delay_ns + 10 * rank.jitter_ns +
                                 rank.compute_max_ns * static_cast<DurationNs>(plan.tensors.size());
      longest = std::max(longest, compute);
    }
    const auto rounds = static_cast<DurationNs>(plan.steps() + plan.collectives.size() + 1);
    const TimeNs from = std::max(options_.faults_stop_at + 1500 * kMillisecond, world_.now());
    const DurationNs lost_ns = state.losses != nullptr ? state.losses->longest_ns() : 0;
    const DurationNs path_ns = kStepTrips * 2 * options_.world.uplink.delay_ns;
    return from + options_.absent_ns() + options_.restart_ns() + lost_ns + kRecoveryBound +
           rounds * (longest + kStepBound + path_ns) + 2 * member_timeout();
  }

  // What others may have to wait for: memory that is ordered, and states, of which one travels at a
  // time. A rank that asks for one again and again is not waited for.
  DurationNs allowed_ns(const State& state) {
    std::uint32_t states = 0;
    for (std::uint16_t rank = 0; rank < world_.plan(state.run).world_size(); ++rank)
      states += std::min(world_.worker(state.run, rank).resyncs(), 2u);
    return world_.appliance().making_ns() + states * kStateBound;
  }

  bool run_to_end(const State& state) {
    const TimeNs bound = deadline(state);
    DurationNs allowed = -1;
    while (world_.healthy() && allowed != allowed_ns(state)) {
      allowed = allowed_ns(state);
      if (world_.run_until_done(state.run, bound + allowed)) return true;
    }
    return false;
  }

  void finish(State& state) {
    if (!world_.healthy()) return;
    if (!run_to_end(state) && world_.healthy()) return report_stuck(state);
    if (!world_.healthy() || state.losses != nullptr) return;
    if (state.struck || ends_by_itself(*state.job))
      check_failed(state);
    else
      check_completed(state.run);
    // When all others had finished before, nothing has ended the job: its last rank holds the name.
    if (world_.healthy() && state.job->returns && any_survivor_failed(state)) run_again(state);
  }

  // Once everything is over: a process that was replaced learns of it last. A store counts what is
  // out of order so too, and a group whose members are far apart.
  void check_losses() {
    for (Losses& losses : losses_) losses.check();
    const JobPlan& last = options_.jobs.back().plan;
    if (last.is_store() || last.is_operations()) return;
    const std::uint64_t too_new = world_.appliance().count(Verdict::kTooNew);
    if (too_new != 0)
      world_.oracle().violation("I3: " + std::to_string(too_new) +
                                " contributions came before their step was open");
  }

  void check_completed(RunIndex run) {
    const JobPlan& plan = world_.plan(run);
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
      const Worker& worker = world_.worker(run, rank);
      if (worker.failed())
        violation(worker, "I4: failed without a reason: " + worker.failure().message());
      else if (worker.steps_done() != plan.ranks[rank].last_step)
        violation(worker, "I4: ended after step " + std::to_string(worker.steps_done()));
    }
    ++outcome_.jobs_completed;
  }

  void check_failed(const State& state) {
    const JobPlan& plan = world_.plan(state.run);
    const bool told =
        (state.job->fatality == Fatality::kProcessDies && options_.world.unreachable_hints) ||
        (ends_by_itself(*state.job) && may_say_that_it_leaves(state));
    const TimeNs struck_at = ends_by_itself(*state.job) ? left_at(state) : state.struck_at;
    const TimeNs bound = options_.absent_ns() +
                         std::max(struck_at, options_.faults_stop_at + 1500 * kMillisecond) +
                         (told ? kDeathBound : member_timeout() + kSecond + kSecond);
    const std::string culprit = "rank " + std::to_string(state.job->victim.value);
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
      const Worker& worker = world_.worker(state.run, rank);
      if (Rank{rank} == state.job->victim) continue;
      if (!worker.failed()) {
        if (state.job->fatality == Fatality::kEarlyEnd)
          violation(worker, "did not fail although " + culprit + " ended before it");
        continue;
      }
      if (worker.failure().message().find(culprit) == std::string::npos)
        violation(worker, "the error does not name " + culprit + ": " + worker.failure().message());
      if (worker.failed_at() > bound)
        violation(worker, "I4: learnt of the death of " + culprit + " " +
                              std::to_string((worker.failed_at() - struck_at) / kMillisecond) +
                              " ms after it");
    }
    ++outcome_.jobs_failed_as_promised;
  }

  bool any_survivor_failed(const State& state) {
    for (std::uint16_t rank = 0; rank < world_.plan(state.run).world_size(); ++rank)
      if (Rank{rank} != state.job->victim && world_.worker(state.run, rank).failed()) return true;
    return false;
  }

  TimeNs left_at(const State& state) {
    return world_.worker(state.run, state.job->victim).progressed_at();
  }

  // A process that gives up says so for half a second, and then its socket is closed: behind a link
  // that is down meanwhile, only its silence tells.
  bool may_say_that_it_leaves(const State& state) {
    const Worker& victim = world_.worker(state.run, state.job->victim);
    const TimeNs from = left_at(state);
    return std::none_of(options_.faults.begin(), options_.faults.end(), [&](const auto& fault) {
      return fault.kind == BriefFault::kPartition &&
             world_.workers()[fault.worker].get() == &victim && fault.at < from + kSecond &&
             from < fault.at + fault.duration_ns;
    });
  }

  // The launcher starts all ranks again, on the same hosts.
  void run_again(State& state) {
    JobPlan plan = state.job->plan;
    plan.run_id += 1;
    plan.seed = mix(plan.seed, 2);
    for (RankPlan& rank : plan.ranks) {
      rank.last_step = state.job->plan.steps();
      rank.ending = Ending::kLeave;
      rank.start_at += state.job->return_delay_ns;
    }
    Worker& victim = world_.worker(state.run, state.job->victim);
    world_.kill(victim, false);
    world_.partition(victim.identity.host, false);
    const RunIndex again = world_.add_run_on(std::move(plan), state.run);
    State returned{.job = state.job, .run = again};
    if (!run_to_end(returned) && world_.healthy()) return report_stuck(returned);
    if (world_.healthy()) check_completed(again);
  }

  void report_stuck(const State& state) {
    const JobPlan& plan = world_.plan(state.run);
    for (std::uint16_t rank = 0; rank < plan.world_size(); ++rank) {
      Worker& worker = world_.worker(state.run, rank);
      if (worker.done() || worker.state() == ProcessState::kDead) continue;
      std::string text = "I4: not done " +
                         std::to_string((world_.now() - options_.faults_stop_at) / kMillisecond) +
                         " ms after the faults stopped, " + std::to_string(worker.steps_done()) +
                         " of " + std::to_string(plan.ranks[rank].last_step) + " steps";
      if (worker.state() == ProcessState::kRunning)
        text += ", state " + std::to_string(static_cast<int>(worker.session().state())) + ": " +
                worker.session().describe_stall(world_.now());
      violation(worker, text);
    }
  }

  void violation(const Worker& worker, const std::string& text) {
    world_.oracle().violation(worker.plan.name + " rank " +
                              std::to_string(worker.identity.rank.value) + ": " + text);
  }

  SwarmOutcome outcome() {
    outcome_.ok = world_.healthy();
    outcome_.violations = world_.report();
    outcome_.trace_hash = world_.trace_hash();
    outcome_.events = world_.event_count();
    outcome_.virtual_time_ns = world_.now();
    outcome_.results_checked = world_.oracle().totals().results_checked;
    outcome_.reads_checked = world_.stores().reads_checked();
    outcome_.results_sent = world_.oracle().totals().results_sent;
    outcome_.results_due = world_.oracle().totals().results_due;
    outcome_.contributions = world_.oracle().totals().contributions_seen;
    if (options_.keep_log)
      for (std::size_t i = 0; i < kVerdictCount; ++i)
        if (const auto count = world_.appliance().count(static_cast<Verdict>(i)); count != 0)
          outcome_.log +=
              std::string(kVerdictInfo[i].label) + ": " + std::to_string(count) + " packets\n";
    outcome_.requeued = world_.oracle().totals().requeued_counted;
    outcome_.partial_results = world_.oracle().totals().results_without_somebody;
    outcome_.empty_results = world_.oracle().totals().results_of_nobody;
    outcome_.handed_over = world_.oracle().totals().handed_over;
    outcome_.contributions_due = world_.oracle().totals().first_contributions;
    for (const auto& worker : world_.workers()) {
      if (options_.keep_log) outcome_.log += worker->describe_log();
      if (worker->state() == ProcessState::kWaiting) continue;
      outcome_.caught_up += worker->steps_caught_up();
      outcome_.resyncs += worker->resyncs();
      outcome_.restarts += worker->session().counters().appliance_restarts;
      outcome_.retransmissions += worker->session().counters().retransmissions;
      outcome_.probes += worker->session().counters().probes;
    }
    return outcome_;
  }

  const SwarmOptions& options_;
  World world_;
  std::vector<State> states_;
  std::list<Losses> losses_;
  std::optional<Trials> trials_;
  std::set<std::uint32_t> hit_;  // workers that a brief fault is for
  SwarmOutcome outcome_;
};

}  // namespace

SwarmOutcome run_swarm(const SwarmOptions& options) { return Swarm(options).run(); }

}  // namespace sluice::sim
