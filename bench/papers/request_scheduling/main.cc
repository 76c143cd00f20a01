// bench_request_scheduling: training over a parameter store under every policy, in virtual time.
//
// Standard input: a line a layer, in forward order: units, nanoseconds of a unit on a link, of the
// forward pass, of the backward pass. Standard output: a line of JSON a policy, one of the
// critical path (links without limit), and one of `thesis` where pushes wait for the step.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "bench/papers/request_scheduling/replay.h"

namespace {

using sluice::bench::ReplayLayer;
using sluice::bench::ReplayOptions;
using sluice::client::RequestPolicy;

void add_options(CLI::App& app, ReplayOptions& options) {
  app.add_option("--bound", options.bound, "staleness bound")->required();
  app.add_option("--iterations", options.iterations, "of each worker")->required();
  app.add_option("--workers", options.workers, "1 to 64")->required()->check(CLI::Range(1, 64));
  app.add_option("--slow-workers", options.slow_workers, "how many compute slowly");
  app.add_option("--slow-permille", options.slow_permille, "of the others' compute times");
  app.add_option("--jitter-permille", options.jitter_permille,
                 "compute of a worker's iteration varies by at most this, both ways")
      ->check(CLI::Range(0, 999));
  app.add_option("--seed", options.seed, "of the jitter");
  app.add_option("--latency-ns", options.latency_ns, "one way")->required();
}

void play(const char* name, const std::vector<ReplayLayer>& layers, const ReplayOptions& options) {
  const auto result = sluice::bench::replay(layers, options);
  std::printf(
      "{\"policy\": \"%s\", \"end_ns\": %lld, \"suspended_ns\": %lld, \"staleness\": %.6f, "
      "\"violations\": %llu}\n",
      name, static_cast<long long>(result.end_ns), static_cast<long long>(result.suspended_ns),
      static_cast<double>(result.staleness_sum) / static_cast<double>(result.reads),
      static_cast<unsigned long long>(result.violations));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Training over a parameter store under every policy, in virtual time.");
  ReplayOptions options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  std::vector<ReplayLayer> layers;
  for (ReplayLayer layer;
       std::cin >> layer.units >> layer.unit_ns >> layer.forward_ns >> layer.backward_ns;)
    layers.push_back(layer);
  if (layers.empty() || !std::cin.eof()) {
    std::fprintf(stderr, "bench_request_scheduling: %zu layers on standard input\n", layers.size());
    return 2;
  }
  for (const auto& [name, policy] : {std::pair{"fifo", RequestPolicy::kFifo},
                                     {"filo", RequestPolicy::kFilo},
                                     {"thesis", RequestPolicy::kStalest}}) {
    options.policy = policy;
    play(name, layers, options);
  }
  options.unlimited_links = true;
  play("critical", layers, options);
  options.unlimited_links = false;
  options.push_at_step = true;
  play("at_step", layers, options);
  return 0;
}
