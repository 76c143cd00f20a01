// Sums over long, lossy links, in virtual time: production sessions, jobs and shards over the
// simulator's cables, one for each worker, which lose frames in each direction.
//
// Options are --NAME=N, see Options. Prints one line: the seconds that a link takes for the frames
// of a sum, the seconds of each step, then shares of the contributions: sent again, arrived
// although another copy had, found a full queue; and of the results those that found one.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace {

using namespace sluice;  // NOLINT

// Round trip and rate of a cable, its loss in each direction, and its queue in frames; megabytes of
// a sum; the receive credit in packets, 0: twice what the path carries.
struct Options {
  std::map<std::string, std::uint64_t> values{
      {"rtt_us", 200}, {"mbps", 200}, {"loss_ppm", 0}, {"mbytes", 25}, {"queue", 1000},
      {"credit", 0},   {"mtu", 1500}, {"workers", 4},  {"steps", 2},   {"seed", 1}};
  std::uint64_t operator[](const char* name) const { return values.at(name); }
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals - 2);
    if (equals == std::string::npos || !options.values.contains(name)) {
      std::fprintf(stderr, "bench_pipe: unknown argument %s\n", argument.c_str());
      std::exit(2);
    }
    options.values[name] = std::strtoull(argument.c_str() + equals + 1, nullptr, 10);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const std::uint64_t bytes_per_second = options["mbps"] * 1'000'000 / 8;
  const std::size_t datagram_bytes = options["mtu"] - 28;
  const std::uint64_t bdp_packets =
      bytes_per_second * options["rtt_us"] / 1'000'000 / (options["mtu"] + 14) + 1;
  const auto credit = static_cast<std::uint32_t>(
      options["credit"] != 0 ? options["credit"] : std::max<std::uint64_t>(256, 2 * bdp_packets));

  sim::WorldOptions world_options;
  world_options.seed = options["seed"];
  world_options.appliance.jobs.shard_count = 1;
  world_options.appliance.max_datagram_bytes = datagram_bytes;
  sim::LinkOptions link;
  link.bytes_per_second = bytes_per_second;
  link.delay_ns = static_cast<DurationNs>(options["rtt_us"]) * kMicrosecond / 2;
  link.loss_ppm = static_cast<std::uint32_t>(options["loss_ppm"]);
  link.queue_frames = static_cast<std::uint32_t>(options["queue"]);
  world_options.uplink = world_options.downlink = link;
  // The narrow place is somebody else's switch.
  world_options.uplink.by_priority = world_options.downlink.by_priority = false;
  world_options.socket_frames = 2 * credit;
  world_options.max_events = UINT64_MAX;
  sim::World world(world_options);

  const std::uint64_t elems = options["mbytes"] * 1'000'000 / 4;
  std::vector<std::uint64_t> elem_counts(10, elems / 10);
  const auto workers = static_cast<std::uint16_t>(options["workers"]);
  const auto steps = static_cast<Step>(options["steps"]);
  sim::JobPlan plan = sim::make_plan(workers, steps, elem_counts);
  constexpr std::size_t kHeaders =
      sizeof(wire::CommonHeader) +
      std::max(sizeof(wire::Contribution), sizeof(wire::ResultHeader) + sizeof(std::uint64_t));
  plan.chunk_bytes = static_cast<std::uint16_t>((datagram_bytes - kHeaders) / 64 * 64);
  plan.check_values = false;
  plan.random_order = false;
  plan.random_priority = false;
  plan.session.receive_credit_packets = credit;
  plan.session.path_datagram_bytes = datagram_bytes;
  plan.session.stall_report_ns = 100 * kSecond;
  for (sim::RankPlan& rank : plan.ranks) {
    rank.ending = sim::Ending::kStay;
    rank.compute_max_ns = 0;
  }
  const double chunk_bytes = plan.chunk_bytes;
  const double payload = static_cast<double>(elems) * 4;
  const std::uint64_t chunks = 10 * (elems / 10 * 4 / plan.chunk_bytes + 1);
  const sim::RunIndex run = world.add_run(std::move(plan));

  std::vector<TimeNs> ends(steps + 1, 0);
  std::vector<TimeNs> begins(steps + 1, 0);
  const auto done = [&](Step step) {
    for (std::uint16_t rank = 0; rank < workers; ++rank)
      if (world.worker(run, rank).steps_done() < step) return false;
    return true;
  };
  for (Step step = 1; step <= steps; ++step) {
    begins[step] = world.now();
    while (!done(step))
      if (!world.step()) {
        std::fprintf(stderr, "bench_pipe: %s\n", world.report().c_str());
        return 1;
      }
    ends[step] = world.now();
  }
  double contributions = 0, again = 0;
  for (std::uint16_t rank = 0; rank < workers; ++rank) {
    again += static_cast<double>(world.worker(run, rank).session().counters().retransmissions);
    contributions += static_cast<double>(chunks) * static_cast<double>(steps);
  }
  // Of contributions, then of results.
  double dropped[2] = {};
  for (sim::HostIndex host = 0; host < workers; ++host)
    for (std::size_t way = 0; way < 2; ++way) {
      const sim::Link& cable = way == 0 ? world.uplink(host) : world.downlink(host);
      dropped[way] += static_cast<double>(
          cable.counters().dropped[static_cast<std::size_t>(sim::LinkDrop::kQueueFull)]);
    }
  // A contribution's frame, or a result's with its mask: the longer one.
  const double frame_bytes =
      static_cast<double>(wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes + kHeaders) +
      chunk_bytes;
  std::printf("%.6f ", payload / chunk_bytes * frame_bytes / static_cast<double>(bytes_per_second));
  for (Step step = 1; step <= steps; ++step)
    std::printf("%.6f ", static_cast<double>(ends[step] - begins[step]) / 1e9);
  std::printf("%.6f %.6f %.6f %.6f\n", again / contributions,
              static_cast<double>(world.appliance().count(Verdict::kDuplicate)) / contributions,
              dropped[0] / contributions, dropped[1] / contributions);
  return 0;
}
