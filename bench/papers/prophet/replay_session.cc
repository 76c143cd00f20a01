// replay() over the simulator of the tests: production sessions, switch queues, jobs and shards,
// real packets with their headers and feedback, congestion windows, wake-ups of threads. It checks
// replay.cc, which has none of these, and is some 100 times as slow.
//
// The links carry the payload at the same rate: they are faster by the share of a full packet's
// headers. Half of the latency is the cable's, each way; threads add up to 7 microseconds.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "aggregator/base/check.h"
#include "bench/papers/prophet/replay.h"
#include "tests/sim/world.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kPathBytes = 8972;  // UDP payload of a jumbo frame
constexpr std::uint32_t kCreditPackets = 256;
constexpr std::uint32_t kMarkAboveFrames = 32;
// Of headers, from Ethernet on.
constexpr std::size_t kFrameBytes =
    wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes + sizeof(wire::CommonHeader);
constexpr std::size_t kContributionBytes = kFrameBytes + sizeof(wire::Contribution);
constexpr std::size_t kResultBytes =
    kFrameBytes + sizeof(wire::ResultHeader) + sizeof(std::uint64_t);

sim::LinkOptions link_options(const ReplayOptions& options, std::size_t header_bytes) {
  sim::LinkOptions link;
  link.bytes_per_second =
      options.bits_per_second / 8 * (options.chunk_bytes + header_bytes) / options.chunk_bytes;
  link.delay_ns = options.latency_ns / 2;
  link.queue_frames = 2 * kCreditPackets;
  link.mark_above_frames = kMarkAboveFrames;
  return link;
}

sim::WorldOptions world_options(const ReplayOptions& options) {
  sim::WorldOptions world;
  world.seed = options.seed;
  world.appliance.jobs.shard_count = 1;
  world.appliance.max_datagram_bytes = kPathBytes;
  world.uplink = link_options(options, kContributionBytes);
  world.downlink = link_options(options, kResultBytes);
  world.socket_frames = 2 * kCreditPackets;
  world.max_events = UINT64_MAX;
  return world;
}

sim::JobPlan job_plan(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options) {
  std::vector<std::uint64_t> elem_counts;
  for (const ReplayTensor& tensor : tensors) elem_counts.push_back(tensor.bytes / sizeof(float));
  sim::JobPlan plan = sim::make_plan(options.workers, options.iterations + 1, elem_counts);
  plan.chunk_bytes = static_cast<std::uint16_t>(options.chunk_bytes);
  plan.manual = true;
  plan.check_values = false;
  plan.averaging = AveragingChoice::kSum;
  plan.session.schedule = options.schedule;
  plan.session.receive_credit_packets = kCreditPackets;
  plan.session.path_datagram_bytes = kPathBytes;
  for (sim::RankPlan& rank : plan.ranks) rank.ending = sim::Ending::kStay;
  return plan;
}

// A worker's training loop; the world's process beside it owns the session.
struct Loop {
  std::size_t log_read = 0;  // events of the session that were seen
  Step step = 0;
  TimeNs backward_at = 0;
  std::size_t ready_count = 0;
  std::size_t forward = 0;
  bool computing = false;
  std::vector<Step> landed;  // per tensor
};

class SessionReplay {
 public:
  SessionReplay(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options)
      : tensors_(tensors),
        options_(options),
        world_(world_options(options)),
        run_(world_.add_run(job_plan(tensors, options))),
        order_(tensors.size()),
        loops_(options.workers) {
    std::iota(order_.rbegin(), order_.rend(), 0u);
    std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t left, std::uint32_t right) {
      return tensors_[left].ready_ns < tensors_[right].ready_ns;
    });
    for (Loop& loop : loops_) loop.landed.resize(tensors.size());
  }

  ReplayResult run() {
    while (result_.iteration_ns.size() < options_.iterations) {
      if (!world_.step()) {
        std::fprintf(stderr, "bench_prophet: %s\n", world_.report().c_str());
        CHECK(world_.healthy());
      }
      for (std::uint16_t i = 0; i < options_.workers; ++i) read_log(i);
    }
    return std::move(result_);
  }

 private:
  sim::Worker& worker(std::uint16_t index) { return world_.worker(run_, index); }

  void read_log(std::uint16_t index) {
    const std::vector<sim::LoggedEvent>& log = worker(index).log();
    Loop& loop = loops_[index];
    while (loop.log_read < log.size()) {
      const sim::LoggedEvent& event = log[loop.log_read++];
      if (event.kind == client::Event::Kind::kStarted) begin_backward(index);
      if (event.kind != client::Event::Kind::kTensorDone) continue;
      loop.landed[event.tensor] = event.step;
      go_forward(index);
    }
  }

  void begin_backward(std::uint16_t index) {
    Loop& loop = loops_[index];
    if (index == 0 && loop.step != 0)
      result_.iteration_ns.push_back(world_.now() - loop.backward_at);
    ++loop.step;
    loop.backward_at = world_.now();
    loop.ready_count = loop.forward = 0;
    wait_ready(index);
  }

  void wait_ready(std::uint16_t index) {
    const Loop& loop = loops_[index];
    world_.at(loop.backward_at + tensors_[order_[loop.ready_count]].ready_ns,
              [this, index] { submit_ready(index); });
  }

  void submit_ready(std::uint16_t index) {
    Loop& loop = loops_[index];
    const DurationNs ready_ns = tensors_[order_[loop.ready_count]].ready_ns;
    while (loop.ready_count < order_.size() &&
           tensors_[order_[loop.ready_count]].ready_ns == ready_ns) {
      const std::uint32_t tensor = order_[loop.ready_count++];
      const Status status = worker(index).session().submit(
          {.tensor = tensor,
           .input = worker(index).input(tensor),
           .output = worker(index).output(tensor),
           .priority =
               options_.equal_priorities ? Priority{0} : priority_of(tensor, tensors_.size())},
          world_.now());
      CHECK(status.ok());
      world_.oracle().on_submitted(worker(index).party(), loop.step, tensor, true);
    }
    worker(index).pump(world_.now());
    if (loop.ready_count < order_.size()) return wait_ready(index);
    go_forward(index);
  }

  void go_forward(std::uint16_t index) {
    Loop& loop = loops_[index];
    while (!loop.computing && loop.ready_count == tensors_.size() &&
           loop.landed[loop.forward] == loop.step) {
      const DurationNs forward_ns = tensors_[loop.forward].forward_ns;
      if (forward_ns != 0) {
        loop.computing = true;
        return world_.at(world_.now() + forward_ns, [this, index] { end_layer(index); });
      }
      if (++loop.forward == tensors_.size()) return begin_backward(index);
    }
  }

  void end_layer(std::uint16_t index) {
    Loop& loop = loops_[index];
    loop.computing = false;
    if (++loop.forward == tensors_.size()) return begin_backward(index);
    go_forward(index);
  }

  const std::vector<ReplayTensor>& tensors_;
  const ReplayOptions options_;
  sim::World world_;
  const sim::RunIndex run_;
  std::vector<std::uint32_t> order_;  // of the gradients
  std::vector<Loop> loops_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options) {
  CHECK(options.jitter_permille == 0 && options.changed_bits_per_second == 0);
  CHECK(options.store_bytes == 0);
  return SessionReplay(tensors, options).run();
}

}  // namespace sluice::bench
