// bench_prophet: iterations of one model under one schedule, in virtual time.
//
// Standard input: a line a tensor, in forward order: bytes, nanoseconds after the start of backward
// when its gradient is ready, nanoseconds of its layer's forward pass. Standard output: one JSON
// object with the nanoseconds of each iteration, of the busy link and of compute in it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "bench/papers/prophet/replay.h"

namespace {

using sluice::bench::ReplayOptions;
using sluice::bench::ReplayTensor;
using sluice::client::Schedule;

std::string listed(const std::vector<sluice::DurationNs>& values) {
  std::string out = "[";
  for (const sluice::DurationNs ns : values)
    out += (out.size() == 1 ? "" : ", ") + std::to_string(ns);
  return out + ']';
}

void add_options(CLI::App& app, ReplayOptions& options) {
  static const std::map<std::string, Schedule> kSchedules{{"strict", Schedule::kStrict},
                                                          {"credit", Schedule::kCredit},
                                                          {"prophet", Schedule::kProphet},
                                                          {"fifo", Schedule::kFifo}};
  app.add_option("--schedule", options.schedule.policy, "strict, credit, prophet or fifo")
      ->required()
      ->transform(CLI::CheckedTransformer(kSchedules));
  app.add_option("--unit-bytes", options.schedule.unit_bytes, "credit: most bytes of a unit");
  app.add_option("--credit-bytes", options.schedule.credit_bytes,
                 "credit: a unit begins while fewer bytes are in flight");
  app.add_option("--rate-bps", options.bits_per_second, "payload bits per second of a link")
      ->required();
  app.add_option("--change-after", options.change_after,
                 "iterations after which --changed-rate-bps is the rate");
  app.add_option("--changed-rate-bps", options.changed_bits_per_second, "0: no change");
  app.add_option("--store-bytes", options.store_bytes,
                 "results leave when so many bytes of a tensor are summed; 0: at once");
  app.add_option("--latency-ns", options.latency_ns, "from a packet sent to its feedback")
      ->required();
  app.add_option("--chunk-bytes", options.chunk_bytes, "payload of a packet")->required();
  app.add_option("--iterations", options.iterations, "iterations to report")->required();
  app.add_option("--workers", options.workers, "workers, 1 to 64")->check(CLI::Range(1, 64));
  app.add_option("--jitter-permille", options.jitter_permille,
                 "compute of a worker's iteration varies by at most this, both ways")
      ->check(CLI::Range(0, 999));
  app.add_option("--seed", options.seed, "of the jitter");
  app.add_flag("--equal-priorities", options.equal_priorities, "all tensors have priority 0");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Iterations of one model under one schedule, in virtual time.");
  ReplayOptions options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  std::vector<ReplayTensor> tensors;
  for (ReplayTensor tensor; std::cin >> tensor.bytes >> tensor.ready_ns >> tensor.forward_ns;)
    tensors.push_back(tensor);
  if (tensors.empty() || !std::cin.eof()) {
    std::fprintf(stderr,
                 "bench_prophet: %zu tensors before the first line that is not 'bytes ready_ns "
                 "forward_ns' on standard input: at least 1 is needed\n",
                 tensors.size());
    return 2;
  }
  const sluice::bench::ReplayResult result = sluice::bench::replay(tensors, options);
  std::printf("{\"iteration_ns\": %s, \"link_busy_ns\": %s, \"compute_ns\": %s}\n",
              listed(result.iteration_ns).c_str(), listed(result.link_busy_ns).c_str(),
              listed(result.compute_ns).c_str());
  return 0;
}
