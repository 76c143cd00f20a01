// bench_prophet: iterations of one model under one schedule, in virtual time.
//
// Standard input: a line a tensor, in forward order: bytes, nanoseconds after the start of backward
// when its gradient is ready, nanoseconds of its layer's forward pass. Standard output: one JSON
// object with the nanoseconds of each iteration and the scheduler's plan.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "bench/papers/prophet/replay.h"

namespace {

using sluice::bench::ReplayOptions;
using sluice::bench::ReplayTensor;
using sluice::client::Schedule;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '"' || c == '\\')
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out + '"';
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
  std::string out = "{\"iteration_ns\": [";
  for (const sluice::DurationNs ns : result.iteration_ns)
    out += (out.back() == '[' ? "" : ", ") + std::to_string(ns);
  std::printf("%s], \"plan\": %s}\n", out.c_str(), quoted(result.plan).c_str());
  return 0;
}
