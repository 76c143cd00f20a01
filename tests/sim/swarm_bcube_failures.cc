// Checks that a BCube's workers failed for the part that died, and soon enough.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "tests/sim/swarm_bcube.h"

namespace sluice::sim {
namespace {

using Part = BcubeWorld::Part;

// From a death to the error at a survivor, on top of member_timeout.
constexpr DurationNs kDeathBound = 5 * kSecond;

// A text says who or what made a worker fail: "... (level 1, switch 0, whose rank r is worker 2 + 4
// r): ... rank 1 ...". Of one that stands in for switch 0 "switch 1 for 0".
struct Cause {
  std::uint32_t level = 0, switch_index = 0;
  bool moved = false;                  // it stands in
  std::uint32_t host = 0;              // plain: who sums
  std::vector<std::uint32_t> workers;  // named as ranks
};

std::optional<Cause> cause_in(const std::string& text) {
  Cause cause;
  std::uint32_t first = 0, apart = 0, home = 0;
  const std::size_t place = text.find("(level ");
  const std::size_t who = text.find("whose rank r is worker", place);
  if (place == std::string::npos || who == std::string::npos) return {};
  const int places = std::sscanf(text.c_str() + place, "(level %u, switch %u for %u", &cause.level,
                                 &cause.switch_index, &home);
  cause.moved = places == 3;
  if (places < 2 ||
      std::sscanf(text.c_str() + who, "whose rank r is worker %u + %u r)", &first, &apart) != 2)
    return {};
  if (const std::size_t at = text.find("where rank ", place); at != std::string::npos)
    cause.host = first + apart * static_cast<std::uint32_t>(std::atoi(text.c_str() + at + 11));
  for (std::size_t at = text.find(')', place); (at = text.find("rank", at)) != std::string::npos;) {
    at += std::strlen(text[at + 4] == 's' ? "ranks " : "rank ");
    for (int used = 0, rank = 0; std::sscanf(text.c_str() + at, "%d%n", &rank, &used) == 1;
         at += static_cast<std::size_t>(used) + 2) {
      cause.workers.push_back(first + apart * static_cast<std::uint32_t>(rank));
      if (text.compare(at + static_cast<std::size_t>(used), 2, ", ") != 0) break;
    }
  }
  return cause;
}

class Verdicts {
 public:
  Verdicts(const BcubeSwarm& swarm, const BcubeWorld& world) : swarm_(swarm), world_(world) {}

  // Every survivor says whom it waited for, or what was silent: what died, or who failed before it.
  std::string check_failures() const {
    std::string wrong;
    for (std::uint32_t server = 0; server < world_.bcube().servers(); ++server) {
      const BcubeWorld::Failure& failure = world_.failure(server);
      if (failure.text.empty() || server == swarm_.death->then_server ||
          (swarm_.death->parts.front() == Part{Part::Kind::kServer, server}))
        continue;
      const std::string who = "bcube rank " + std::to_string(server) + ": ";
      if (is_survivable(world_.died_ns() + failure.after_ns))
        wrong += who + "a detour was there, but: " + failure.text + "\n";
      else if (std::set<std::uint32_t> seen; !someone_is_through() && !is_founded(server, seen))
        wrong += who + "the error names nobody who was lost: " + failure.text + "\n";
      if (world_.died_ns() + failure.after_ns > bound())
        wrong += who + "I4: learnt of a death " + std::to_string(failure.after_ns / kMillisecond) +
                 " ms after it: " + failure.text + "\n";
    }
    return wrong;
  }

 private:
  // A box or cable that dies before somebody has taken the last step, and no server yet.
  bool is_survivable(TimeNs failed_ns) const {
    return swarm_.options.levels > 1 && swarm_.death->parts.front().kind != Part::Kind::kServer &&
           !someone_is_through() &&
           (!swarm_.death->then_server || failed_ns < world_.then_died_ns());
  }
  // A server that has left gives nothing to others any more, and is missed.
  bool someone_is_through() const {
    for (std::uint32_t server = 0; server < world_.bcube().servers(); ++server)
      if (world_.is_through(server) && swarm_.death->parts.front().kind != Part::Kind::kServer)
        return true;
    return false;
  }

  TimeNs bound() const {
    const TimeNs died = swarm_.death->then_server ? world_.then_died_ns() : world_.died_ns();
    const TimeNs from = std::max(died, swarm_.faults_stop_at + 1500 * kMillisecond);
    return from +
           (world_.has_started() ? swarm_.options.member_timeout_ns
                                 : swarm_.options.join_timeout_ns) +
           kDeathBound;
  }

  // From one to the next that it names to what died. Who is named may say so later: its lanes leave
  // a switch before it knows that they have nowhere to go (seed 970013455).
  bool is_founded(std::uint32_t server, std::set<std::uint32_t>& seen) const {
    if (!seen.insert(server).second) return false;
    const std::optional<Cause> cause = cause_in(world_.failure(server).text);
    if (!cause) return false;
    for (const std::uint32_t worker : cause->workers) {
      if (is_lost(worker, *cause)) return true;
      if (is_founded(worker, seen)) return true;
    }
    return is_lost(server, *cause);  // its own way to the appliance, or the appliance itself
  }

  // Whether what died is on the way from this worker to an appliance at the place of the cause.
  bool is_lost(std::uint32_t worker, const Cause& cause) const {
    const Part& death = swarm_.death->parts.front();
    const client::Bcube& bcube = world_.bcube();
    const bool plain = swarm_.options.mode == client::BcubeMode::kPlain;
    const auto needs = [&](std::uint32_t server) {
      return worker == server || (plain && cause.host == server);
    };
    if (const auto forwarder = swarm_.death->then_server)
      if (needs(*forwarder) ||
          (cause.moved && bcube.detour_neighbour(worker, cause.level) == *forwarder))
        return true;
    switch (death.kind) {
      case Part::Kind::kServer: return needs(death.index);
      case Part::Kind::kBox:
        return death.index ==
               (plain ? cause.host : cause.level * bcube.switches_per_level() + cause.switch_index);
      case Part::Kind::kCable:
      case Part::Kind::kOut:
      case Part::Kind::kIn: return death.level == cause.level && needs(death.index);
    }
    return false;
  }

  const BcubeSwarm& swarm_;
  const BcubeWorld& world_;
};

}  // namespace

std::string check_failures(const BcubeSwarm& swarm, const BcubeWorld& world) {
  return Verdicts(swarm, world).check_failures();
}

}  // namespace sluice::sim
