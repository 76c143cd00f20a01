// bench_request_scheduling: training over a parameter store under every policy, in virtual time.
//
// Standard input: a line a layer, in forward order: units, nanoseconds of a unit on a link, of the
// forward pass, of the backward pass. Standard output: a line of JSON for every policy with answers
// by layer, for fifo and filo, which have no priorities, with answers in order, all of these with
// each time to push; and one of the critical path.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

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
  app.add_flag("--ignores-first", options.ignores_first,
               "a mutant: clocks do not wait for the first worker, whose pushes are lost");
}

void play(const std::string& name, const std::vector<ReplayLayer>& layers,
          const ReplayOptions& options) {
  const auto result = sluice::bench::replay(layers, options);
  std::printf(
      "{\"run\": \"%s\", \"end_ns\": %lld, \"suspended_ns\": %lld, \"staleness\": %.6f, "
      "\"violations\": %llu}\n",
      name.c_str(), static_cast<long long>(result.end_ns),
      static_cast<long long>(result.suspended_ns),
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
  for (const auto& [name, policy] : {std::pair{"stalest", RequestPolicy::kStalest},
                                     {"fifo", RequestPolicy::kFifo},
                                     {"filo", RequestPolicy::kFilo}})
    for (const auto& [queue, by_layer] : {std::pair{"by layer", true}, {"in order", false}})
      for (const auto& [push_at, at_step] : {std::pair{"backward", false}, {"step", true}}) {
        if (policy == RequestPolicy::kStalest && !by_layer) continue;
        options.policy = policy;
        options.answers_by_layer = by_layer;
        options.push_at_step = at_step;
        play(std::string(name) + ", " + queue + ", " + push_at, layers, options);
      }
  std::printf("{\"run\": \"critical path\", \"end_ns\": %lld}\n",
              static_cast<long long>(sluice::bench::critical_path_ns(layers, options)));
  return 0;
}
