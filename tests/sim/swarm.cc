// swarm --seed N [--runs M] [--jobs J] [--verbose]: runs the seeds N .. N + M - 1 through the
// simulator, in J processes. Prints each seed with its options when it fails (always with
// --verbose), how far it is when somebody watches, and exits 1 if any seed failed.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>

#include "tests/sim/swarm_bcube.h"
#include "tests/sim/swarm_groups.h"
#include "tests/sim/swarm_run.h"

namespace sluice::sim {
namespace {

constexpr std::size_t kMaxJobs = 256;

struct Range {
  std::uint64_t seed = 1;
  std::uint64_t runs = 1;
  std::uint64_t jobs = 1;
  bool verbose = false;
  bool keep_going = false;
  bool log = false;

  bool tells_all() const { return verbose || runs == 1; }
};

// Shared by the processes of a range; each takes the next seed that nobody has.
struct Tally {
  std::atomic<std::uint64_t> taken{0};
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> events{0};
  std::atomic<std::uint64_t> trace{0};        // in whatever order seeds are done
  std::atomic<std::uint64_t> at[kMaxJobs]{};  // the seed that each process is busy with
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string figures(std::uint64_t seed, const SwarmOutcome& outcome) {
  char text[512];
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::snprintf(
      text, sizeof(text),
      "seed=%llu %s trace=%016llx events=%llu virtual_ms=%lld results=%llu "
      "sent=%llu/%llu contributions=%llu/%llu retransmissions=%llu probes=%llu "
      "reads=%llu partial=%llu empty=%llu requeued=%llu caught_up=%llu resyncs=%llu "
      "restarts=%llu handed_over=%llu completed=%u failed=%u\n",
      number(seed), outcome.ok ? "ok" : "BROKEN", number(outcome.trace_hash),
      number(outcome.events), static_cast<long long>(outcome.virtual_time_ns / kMillisecond),
      number(outcome.results_checked), number(outcome.results_sent), number(outcome.results_due),
      number(outcome.contributions), number(outcome.contributions_due),
      number(outcome.retransmissions), number(outcome.probes), number(outcome.reads_checked),
      number(outcome.partial_results), number(outcome.empty_results), number(outcome.requeued),
      number(outcome.caught_up), number(outcome.resyncs), number(outcome.restarts),
      number(outcome.handed_over), outcome.jobs_completed, outcome.jobs_failed_as_promised);
  return text;
}

// One write, so that processes do not mix their lines.
void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void add(const GroupOutcome& groups, SwarmOutcome& outcome) {
  outcome.ok &= groups.violations.empty();
  outcome.violations += groups.violations;
  outcome.trace_hash = mix(outcome.trace_hash, groups.trace_hash);
  outcome.events += groups.packets;
  outcome.results_checked += groups.results_checked;
}

void run_seed(const Range& range, std::uint64_t seed, Tally& tally) {
  SwarmOptions options = draw_swarm(seed);
  options.keep_log = range.log;
  // Before the run, in case that it never ends.
  const BcubeSwarm bcube = draw_bcube(seed);
  const GroupWorldOptions groups = draw_groups(seed);
  const std::string drawn = describe(options) + "\n" +
                            (has_bcube(seed) ? describe(bcube) + "\n" : "") +
                            (has_groups(seed) ? describe(groups) + "\n" : "");
  if (range.tells_all()) print(drawn);
  SwarmOutcome outcome = run_swarm(options);
  if (has_bcube(seed)) run_bcube(bcube, outcome);
  if (has_groups(seed)) add(run_groups(groups), outcome);
  std::string text = outcome.log;
  if (!outcome.ok && !range.tells_all()) text += drawn;
  if (!outcome.ok) {
    const std::string number = std::to_string(seed);
    text += outcome.violations + "VIOLATION seed=" + number + "; replay with: ./run swarm --seed " +
            number + "\n";
  }
  if (!outcome.ok || range.tells_all()) text += figures(seed, outcome);
  if (!text.empty()) print(text);
  tally.trace += mix(seed, outcome.trace_hash);
  tally.events += outcome.events;
  tally.failures += !outcome.ok;
  ++tally.done;
}

void run_some(const Range& range, std::uint64_t job, Tally& tally, Clock::time_point begin) {
  const bool watched = isatty(STDERR_FILENO) && !range.tells_all();
  for (std::uint64_t i = tally.taken++; i < range.runs; i = tally.taken++) {
    if (tally.failures != 0 && !range.keep_going) return;
    tally.at[job] = range.seed + i;
    run_seed(range, range.seed + i, tally);
    if (!watched) continue;
    const std::uint64_t done = tally.done;
    std::fprintf(stderr, "\r%llu of %llu seeds, %llu failed, %.0f a second \r",
                 static_cast<unsigned long long>(done), static_cast<unsigned long long>(range.runs),
                 static_cast<unsigned long long>(tally.failures),
                 static_cast<double>(done) / seconds_since(begin));
  }
}

// False: a process ended in the middle of a seed, by a CHECK or a signal.
bool run_all(const Range& range, Tally& tally, Clock::time_point begin) {
  if (range.jobs == 1) return run_some(range, 0, tally, begin), true;
  std::vector<pid_t> children;
  for (std::uint64_t job = 0; job < range.jobs; ++job) {
    const pid_t child = fork();
    if (child < 0) std::perror("fork");
    if (child < 0) break;
    children.push_back(child);
    if (child != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever kills the first process means all
    run_some(range, job, tally, begin);
    std::_Exit(0);
  }
  bool all_ended_well = !children.empty();
  for (std::size_t job = 0; job < children.size(); ++job) {
    int status = 0;
    if (waitpid(children[job], &status, 0) == children[job] && status == 0) continue;
    all_ended_well = false;
    print("CRASHED seed=" + std::to_string(tally.at[job]) + "\n");
  }
  return all_ended_well;
}

}  // namespace
}  // namespace sluice::sim

int main(int argc, char** argv) {
  using namespace sluice::sim;
  Range range;
  CLI::App app("Runs the production session and aggregator over a seeded faulty network.");
  app.add_option("--seed,--from", range.seed, "the first seed")->capture_default_str();
  app.add_option("--runs,--count", range.runs, "how many seeds, counting up")
      ->capture_default_str();
  app.add_option("--jobs", range.jobs, "in how many processes")
      ->check(CLI::Range(std::size_t{1}, kMaxJobs))
      ->capture_default_str();
  app.add_flag("--verbose", range.verbose, "print every seed's options and figures");
  app.add_flag("--keep-going", range.keep_going, "go on after a seed that fails");
  app.add_flag("--log", range.log, "print what every session told its application");
  CLI11_PARSE(app, argc, argv);

  void* shared =
      mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return std::perror("mmap"), 2;
  Tally& tally = *new (shared) Tally;
  const auto begin = Clock::now();
  const bool ended_well = run_all(range, tally, begin);
  std::printf(
      "RESULT swarm first_seed=%llu runs=%llu failures=%llu events=%llu trace=%016llx "
      "seconds=%.1f\n",
      static_cast<unsigned long long>(range.seed), static_cast<unsigned long long>(tally.done),
      static_cast<unsigned long long>(tally.failures),
      static_cast<unsigned long long>(tally.events), static_cast<unsigned long long>(tally.trace),
      seconds_since(begin));
  return ended_well && tally.failures == 0 ? 0 : 1;
}
