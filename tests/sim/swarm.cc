// swarm --seed N [--runs M] [--verbose]: runs the seeds N .. N + M - 1 through the simulator.
// Prints each seed with its options when it fails (always with --verbose) and exits 1 then.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "tests/sim/swarm_run.h"

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t runs = 1;
  bool verbose = false;
  bool keep_going = false;
  bool log = false;
  CLI::App app("Runs the production session and aggregator over a seeded faulty network.");
  app.add_option("--seed", seed, "the first seed")->capture_default_str();
  app.add_option("--runs", runs, "how many seeds, counting up")->capture_default_str();
  app.add_flag("--verbose", verbose, "print every seed's options and figures");
  app.add_flag("--keep-going", keep_going, "go on after a seed that fails");
  app.add_flag("--log", log, "print what every session told its application");
  CLI11_PARSE(app, argc, argv);

  const bool single = runs == 1;
  std::uint64_t failures = 0;
  std::uint64_t combined_hash = 0;
  std::uint64_t events = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < runs; ++i) {
    sluice::sim::SwarmOptions options = sluice::sim::draw_swarm(seed + i);
    options.keep_log = log;
    if (verbose || single) std::printf("%s\n", sluice::sim::describe(options).c_str());
    std::fflush(stdout);
    const sluice::sim::SwarmOutcome outcome = sluice::sim::run_swarm(options);
    std::printf("%s", outcome.log.c_str());
    combined_hash = sluice::sim::mix(combined_hash ^ outcome.trace_hash);
    events += outcome.events;
    if (!outcome.ok && !verbose && !single)
      std::printf("%s\n", sluice::sim::describe(options).c_str());
    if (!outcome.ok)
      std::printf("%sVIOLATION seed=%llu; replay with: ./run swarm --seed %llu\n",
                  outcome.violations.c_str(), static_cast<unsigned long long>(seed + i),
                  static_cast<unsigned long long>(seed + i));
    if (!outcome.ok || verbose || single)
      std::printf(
          "seed=%llu %s trace=%016llx events=%llu virtual_ms=%lld results=%llu "
          "sent=%llu/%llu contributions=%llu/%llu retransmissions=%llu probes=%llu "
          "partial=%llu requeued=%llu caught_up=%llu resyncs=%llu completed=%u failed=%u\n",
          static_cast<unsigned long long>(seed + i), outcome.ok ? "ok" : "BROKEN",
          static_cast<unsigned long long>(outcome.trace_hash),
          static_cast<unsigned long long>(outcome.events),
          static_cast<long long>(outcome.virtual_time_ns / sluice::kMillisecond),
          static_cast<unsigned long long>(outcome.results_checked),
          static_cast<unsigned long long>(outcome.results_sent),
          static_cast<unsigned long long>(outcome.results_due),
          static_cast<unsigned long long>(outcome.contributions),
          static_cast<unsigned long long>(outcome.contributions_due),
          static_cast<unsigned long long>(outcome.retransmissions),
          static_cast<unsigned long long>(outcome.probes),
          static_cast<unsigned long long>(outcome.partial_results),
          static_cast<unsigned long long>(outcome.requeued),
          static_cast<unsigned long long>(outcome.caught_up),
          static_cast<unsigned long long>(outcome.resyncs), outcome.jobs_completed,
          outcome.jobs_failed_as_promised);
    std::fflush(stdout);
    if (outcome.ok) continue;
    ++failures;
    if (!keep_going) break;
  }
  const double elapsed_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "RESULT swarm first_seed=%llu runs=%llu failures=%llu events=%llu trace=%016llx "
      "seconds=%.1f\n",
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(runs),
      static_cast<unsigned long long>(failures), static_cast<unsigned long long>(events),
      static_cast<unsigned long long>(combined_hash), elapsed_s);
  return failures == 0 ? 0 : 1;
}
