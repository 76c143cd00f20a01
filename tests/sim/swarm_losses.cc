#include "tests/sim/swarm_losses.h"

#include <algorithm>
#include <string_view>

namespace sluice::sim {
namespace {

constexpr DurationNs kRetry = 500 * kMillisecond;  // of a launcher whose process was refused
constexpr std::uint32_t kAttempts = 40;
constexpr std::string_view kNeedsState = "needs the state of another rank";

bool needs_state(const Worker& worker) {
  return worker.failed() && worker.failure().message().find(kNeedsState) != std::string::npos;
}

}  // namespace

Losses::Losses(World& world, const SwarmJob& job, RunIndex run)
    : world_(world), job_(job), run_(run) {}

// Not before all ranks have begun. Where every rank will be lost, not before each has counted an
// iteration, for which the store needs all of its initial values; then without regard to who is
// back.
bool Losses::may_strike() const {
  if (job_.loses_all && struck_ != 0) return true;
  for (std::uint16_t rank = 0; rank < job_.plan.world_size(); ++rank) {
    const Worker& worker = world_.worker(run_, rank);
    if (!worker.started() || (job_.loses_all && worker.steps_done() == 0)) return false;
  }
  return true;
}

const Loss* Losses::loss_of(Rank rank) const {
  for (const Loss& loss : job_.losses)
    if (loss.rank == rank) return &loss;
  return nullptr;
}

void Losses::schedule() {
  for (const Loss& loss : job_.losses) world_.at(loss.at, [this, &loss] { strike(loss); });
}

void Losses::strike(const Loss& loss) {
  if (!may_strike()) {
    if (world_.now() < 20 * kSecond)
      world_.at(world_.now() + 50 * kMillisecond, [this, &loss] { strike(loss); });
    return;
  }
  Worker& victim = world_.worker(run_, loss.rank);
  if (victim.over()) return;
  ++struck_;
  unseen_ = world_.appliance().control_is_away(world_.now()) ? unseen_ + 1 : 0;
  most_unseen_ = std::max(most_unseen_, unseen_);
  const HostIndex host = victim.identity.host;
  const TimeNs over = world_.now() + loss.away_ns;
  switch (loss.kind) {
    case LossKind::kKilled: return come_back(loss, false);
    case LossKind::kHostDown: return come_back(loss, true);
    case LossKind::kFrozen:
      victim.freeze(true);  // a brief pause of the same process ends before
      world_.pause(victim);
      // Now and then its rank is given to a new process meanwhile.
      if (!loss.returns && !victim.leaving()) {
        Worker& other = world_.add_worker(run_, loss.rank, world_.now() + loss.away_ns / 2);
        other.retries = true;
        watch(loss.rank, kAttempts);
      }
      return world_.at(over, [this, &victim] {
        victim.freeze(false);
        world_.resume(victim);
      });
    case LossKind::kCutOff:
      world_.partition(host, true);
      return world_.at(over, [this, host] { world_.partition(host, false); });
  }
}

void Losses::come_back(const Loss& loss, bool host_too) {
  Worker& victim = world_.worker(run_, loss.rank);
  // The appliance may have heard it already that the rank leaves, and gives it to nobody else then.
  if (loss.returns && !victim.leaving()) {
    Worker& next = world_.add_worker(run_, loss.rank, world_.now() + loss.away_ns);
    next.retries = true;
    if (host_too)
      world_.at(world_.now() + loss.away_ns, [this, host = victim.identity.host, &loss] {
        world_.start_host(host);
        watch(loss.rank, kAttempts);
      });
    else
      watch(loss.rank, kAttempts);
  }
  world_.kill(victim, host_too);
}

// The launcher starts a process again that could not join.
void Losses::watch(Rank rank, std::uint32_t attempts) {
  world_.at(world_.now() + kRetry, [this, rank, attempts] {
    Worker& process = world_.worker(run_, rank);
    if (process.started() || process.state() == ProcessState::kDead) return;
    if (given_up()) return world_.kill(process, false);
    if (!process.failed()) return watch(rank, attempts);
    process.retries = false;
    if (attempts == 0)
      return world_.oracle().violation("rank " + std::to_string(rank.value) + " of job " +
                                       job_.plan.name +
                                       " cannot return: " + process.failure().message());
    world_.add_worker(run_, rank, world_.now()).retries = true;
    watch(rank, attempts - 1);
  });
}

// The last rank of the job ended for want of a state that nobody has any more. Its launcher starts
// all ranks anew, from a checkpoint: a rank that returned before would found the job and wait.
bool Losses::given_up() const {
  bool wanting = false;
  for (std::uint16_t rank = 0; rank < job_.plan.world_size(); ++rank) {
    const Worker& worker = world_.worker(run_, rank);
    if (worker.started() && !worker.over()) return false;
    wanting = wanting || needs_state(worker);
  }
  return wanting;
}

DurationNs Losses::longest_ns() const {
  DurationNs longest_ns = 0;
  for (const Loss& loss : job_.losses) longest_ns += loss.away_ns + 5 * kSecond;
  for (const RankPlan& rank : job_.plan.ranks) longest_ns += 2 * rank.hiccup_ns;
  return longest_ns;
}

// All other ranks are gone for good, and the appliance has restarted since: a rank does not go on
// alone then, as the others may have gone on without it. Or a rank has ended, and another one that
// has not heard of it has moved, with all others behind it.
bool Losses::waited_in_vain(const Worker& worker) const {
  if (worker.failure().code() != StatusCode::kTimedOut) return false;
  if (worker.failure().message().find("ranks joined within") == std::string::npos) return false;
  bool alone = true;
  bool one_has_left = false;
  for (std::uint16_t index = 0; index < job_.plan.world_size(); ++index) {
    const Worker& other = world_.worker(run_, index);
    alone &= &other == &worker || other.state() == ProcessState::kDead;
    one_has_left |= other.left();
  }
  return worker.started() && (alone || (world_.options().standby && one_has_left));
}

// Every rank that is not dead has failed for the same reason.
bool Losses::nobody_has_the_state() const {
  for (std::uint16_t rank = 0; rank < job_.plan.world_size(); ++rank) {
    const Worker& worker = world_.worker(run_, rank);
    if (worker.started() && worker.state() != ProcessState::kDead && !needs_state(worker))
      return false;
  }
  return true;
}

// Whether a failure is right. A rank that was cut off for long gives the appliance up. A frozen
// rank whose place another process took is told so. A rank that is behind and alone has nobody to
// ask.
bool Losses::excused(const Worker& worker) const {
  if (waited_in_vain(worker)) return true;
  // The others end together with the process that has taken its rank, and do not wait for it.
  if (needs_state(worker) && &world_.worker(run_, worker.identity.rank) != &worker) return true;
  // Two ranks always have the last steps: one loss never takes them. Two do that
  // strike before the control side has seen the first (seed 970010710).
  if (needs_state(worker))
    return most_unseen_ >= 2 ||
           (struck_ >= 2 &&
            (job_.losses.size() + 1 >= job_.plan.world_size() || nobody_has_the_state()));
  const Loss* loss = loss_of(worker.identity.rank);
  if (loss == nullptr) return false;
  // Of a store: a process that was given up is out.
  if (worker.plan.is_store())
    return loss->kind == LossKind::kCutOff || loss->kind == LossKind::kFrozen;
  // Collectives have no resync: a rank that was away for more of them than are kept cannot go on.
  const bool away = loss->kind == LossKind::kCutOff || loss->kind == LossKind::kFrozen;
  if (away && worker.failure().message().find("went on without it") != std::string::npos)
    return true;
  if (loss->kind == LossKind::kCutOff) return worker.failure().code() == StatusCode::kUnreachable;
  // The frozen process was first at an appliance that has come back, and the job goes on with it.
  if (away && worker.started() && worker.failure().message().find("held by") != std::string::npos)
    return true;
  return loss->kind == LossKind::kFrozen && !loss->returns &&
         &world_.worker(run_, worker.identity.rank) != &worker;
}

void Losses::check() {
  for (const auto& process : world_.workers()) {
    const Worker& worker = *process;
    if (worker.identity.run != run_) continue;
    const std::string who =
        "job " + worker.plan.name + " rank " + std::to_string(worker.identity.rank.value) + ": ";
    const bool latest = &world_.worker(run_, worker.identity.rank) == &worker;
    if (worker.failed() && !worker.started() && !latest) continue;  // it was refused, another came
    if (worker.state() == ProcessState::kDead) continue;
    if (worker.failed()) {
      if (!excused(worker))
        world_.oracle().violation(who +
                                  "I4: failed without a reason: " + worker.failure().message());
      continue;
    }
    if (!latest) continue;  // it may not have woken up to learn of its end
    const RankPlan& rank_plan = job_.plan.ranks[worker.identity.rank.value];
    // The state of another rank may be of a later step than that with which this one wants to end.
    if (worker.steps_done() < rank_plan.last_step)
      world_.oracle().violation(who + "I4: ended after step " +
                                std::to_string(worker.steps_done()) + " of " +
                                std::to_string(rank_plan.last_step));
  }
}

}  // namespace sluice::sim
