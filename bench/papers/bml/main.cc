// bench_bml: steps of a BCube job in virtual time, over production sessions and appliances.
//
// Standard output: a line of JSON with the time of the second step and of all steps, the theory's
// bytes a port for it, and the bytes of a full frame beside its gradient's.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "aggregator/wire/packet.h"
#include "tests/sim/bcube_world.h"

using namespace sluice;

namespace {

std::string seconds_of(DurationNs time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9f", static_cast<double>(time) / kSecond);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Steps of a BCube job in virtual time.");
  sim::BcubeOptions options;
  options.steps = 2;           // the first one finds out about the windows
  options.steps_apart = true;  // computing lies between them
  options.link.queue_frames = 8192;
  options.link.delay_ns = 2 * kMicrosecond;
  options.check_values = false;
  bool plain = false;
  double rate_gbps = 10;
  app.add_option("--ports", options.switch_ports, "of a switch")->required();
  app.add_option("--levels", options.levels, "and ports of a server")->required();
  app.add_option("--elems", options.elem_counts, "of each tensor")->required();
  app.add_option("--gbps", rate_gbps, "of a port, each way");
  app.add_flag("--plain", plain, "switches only forward");
  app.add_option("--steps", options.steps, "taken one after the other")->check(CLI::Range(2, 1000));
  app.add_option("--loss-ppm", options.link.loss_ppm, "of a cable's frames")
      ->check(CLI::Range(0, 500'000));
  app.add_option("--credit", options.receive_credit_packets, "that a lane has receive buffers for")
      ->check(CLI::Range(1, 65'535));
  app.add_option("--seed", options.seed, "of losses");
  CLI11_PARSE(app, argc, argv);
  options.mode = plain ? client::BcubeMode::kPlain : client::BcubeMode::kAggregated;
  options.link.bytes_per_second = static_cast<std::uint64_t>(rate_gbps * 1e9 / 8);
  sim::BcubeWorld world(options);
  if (!world.run(3600 * kSecond)) {
    for (const std::string& text : world.violations()) std::fprintf(stderr, "%s\n", text.c_str());
    std::fprintf(stderr, "bench_bml: the steps did not end\n");
    return 1;
  }
  const std::size_t frame_bytes =
      42 + wire::packet_bytes(sizeof(wire::ResultHeader), 1, options.chunk_bytes);
  std::uint64_t most = 0;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    for (std::uint32_t level = 0; level < world.bcube().levels(); ++level)
      most = std::max({most, world.sent_bytes(server, level), world.received_bytes(server, level)});
  std::string steps;
  for (Step step = 1; step <= options.steps; ++step)
    steps += (steps.empty() ? "" : ", ") + seconds_of(world.step_ns(step));
  std::printf(
      "{\"step_s\": %s, \"steps_s\": [%s], \"port_bytes\": %llu, \"frame_bytes\": %zu, "
      "\"chunk_bytes\": %u}\n",
      seconds_of(world.step_ns(2)).c_str(), steps.c_str(),
      static_cast<unsigned long long>(most / options.steps), frame_bytes, options.chunk_bytes);
  return 0;
}
