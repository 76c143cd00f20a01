// The measuring half of the pipeline bench (pipeline.py runs it and explains it): one step of eight
// workers through the appliance's own stages, and through the least code that could do the sum, on
// one core or on two that have a shard and a port each. Each Google Benchmark iteration is one
// step: kFramesPerStep frames in, as many results out.
#include <benchmark/benchmark.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/appliance/arrivals.h"
#include "aggregator/appliance/rounds.h"
#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "bench/bare_loop.h"
#include "bench/replay_port.h"
#include "dataplane/core/classifier.h"
#include "dataplane/core/egress.h"
#include "dataplane/core/flow_cache.h"
#include "dataplane/core/forwarding.h"
#include "dataplane/core/mac_table.h"
#include "dataplane/core/steer.h"
#include "dataplane/host/paths.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kAhead = 2;  // frames

TimeNs clock_ns() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }

agg::JobSpec job_spec(std::uint16_t shard_count, bool reproducible) {
  return {.id = JobId{kJob},
          .name = "bench",
          .world_size = kWorkers,
          .chunk_bytes = kChunkBytes,
          .shard_count = shard_count,
          .reproducible = reproducible,
          .chunk_counts = {static_cast<std::uint32_t>(kChunks * shard_count), 0, 0},
          .max_elems = {kChunkElems, 0, 0},
          .windows = {kSyncWindow, kSyncWindow, kSyncWindow}};
}

// A job that has started.
struct StartedJob {
  StartedJob(std::uint16_t shard_count, bool reproducible)
      : job(job_spec(shard_count, reproducible)) {
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      job.members[rank].cookie = cookie_of(rank);
      job.members[rank].reachable = true;
    }
    job.start(0);
  }
  agg::Job job;
};

// Whether the results of a sum each have a copy of its payload, or end in one buffer: as on ports
// that send frames in parts.
enum class Payloads : std::uint8_t { kCopied, kShared };

// The stages a frame passes in the appliance, in the order of its lcore worker.
class Appliance {
 public:
  Appliance(wire::UdpChecksums checksums, Payloads payloads, std::shared_ptr<StartedJob> started,
            std::uint16_t shard)
      : checksums_(checksums),
        shares_(payloads == Payloads::kShared),
        started_(std::move(started)),
        own_{.mac = appliance_mac(),
             .ipv4 = appliance_address(),
             .port = kControlPort,
             .shard_count = started_->job.spec.shard_count},
        shard_(ShardId{shard}),
        macs_(1024),
        routes_(paths_, static_cast<std::uint16_t>(kControlPort + 1 + shard)) {
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      paths_.bind(JobId{kJob}, Rank{static_cast<std::uint16_t>(rank)},
                  {.udp = path_to_worker(rank),
                   .port = static_cast<dataplane::PortIndex>(rank),
                   .bound = true});
      outs_.push_back(std::make_unique<Out>());
    }
    shard_.handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = &started_->job}, 0);
  }

  // One step. Returns the result frames sent.
  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    std::size_t sent = 0;
    while (const std::size_t count = port.rx_burst(frames)) {
      const TimeNs now = clock_ns();
      receive({frames.data(), count}, now,
              [&](FrameBytes, const wire::Datagram& datagram) { arrivals_.add(datagram, now); });
      arrivals_.flush(now);
      sent += transmit(port, now);
    }
    return sent;
  }

  // The stages in front of the shard alone: each datagram of a burst is found and given to `take`.
  template <class Take>
  void receive(std::span<const FrameBytes> frames, TimeNs now, Take take) {
    const auto in_port = static_cast<dataplane::PortIndex>(kWorkers - 1 - bursts_++ % kWorkers);
    wire::Datagram datagram;
    for (std::size_t at = 0; at < frames.size(); ++at) {
      if (at + kAhead < frames.size()) wire::prefetch(frames[at + kAhead]);
      if (find(frames[at], in_port, now, datagram)) take(frames[at], datagram);
    }
  }

  void check_last_result() const {
    check_result<Floats>(last_payload_, kChunks - 1);
    CHECK(shard_.verdicts().read(Verdict::kFolded) ==
          (kWorkers - 1) * shard_.verdicts().read(Verdict::kCompleted));
  }

 private:
  bool find(FrameBytes bytes, dataplane::PortIndex in_port, TimeNs now, wire::Datagram& datagram) {
    ShardId shard;
    return flows_.find(bytes, in_port, checksums_, macs_, now, datagram, shard) ||
           find_anew(bytes, in_port, now, datagram);
  }
  // As Worker::handle_frame(), which is not inlined either.
  [[gnu::noinline]] bool find_anew(FrameBytes bytes, dataplane::PortIndex in_port, TimeNs now,
                                   wire::Datagram& datagram) {
    wire::Frame frame;
    if (!ok(wire::parse_ethernet(bytes, frame.ethernet))) return false;
    const dataplane::ForwardContext context{in_port, (1u << kWorkers) - 1, own_.mac};
    const dataplane::ForwardDecision decision =
        dataplane::decide_forward(frame.ethernet, context, macs_, now);
    if (!decision.for_self) return false;
    if (!ok(wire::parse_content(checksums_, frame))) return false;
    const dataplane::Steering steering = dataplane::steer(frame, own_);
    if (steering.service != dataplane::Service::kShard) return false;
    flows_.remember(bytes, frame, in_port, steering.shard, decision.learned, macs_, now);
    datagram = wire::datagram_of(frame);
    return true;
  }

  // What the shard sends goes to its port's queue; then the ports send.
  struct Driver {
    Appliance& self;
    ReplayPort& port;
    std::size_t results = 0;

    bool take_command(agg::ShardCommand&) { return false; }
    bool has_event_room() const { return true; }
    void give_event(const agg::ShardEvent&) {}
    // Buffers for those that were sent; the others wait for the next burst.
    std::span<agg::Transmit> tx_buffers() {
      for (agg::Transmit& out : std::span(self.burst_).first(std::exchange(self.used_, 0)))
        out.buffer = port.tx_buffer().subspan(wire::kMaxUdpHeaderBytes);
      return self.burst_;
    }
    void send(std::span<const agg::Transmit> burst) {
      self.used_ = burst.size();
      const std::uint8_t* shared = nullptr;
      for (const agg::Transmit& out : burst) {
        if (!self.shares_) {
          (void)out.datagram();
        } else if (!out.shared.empty() && out.shared.data() != shared) {
          shared = out.shared.data();
          std::uint8_t* to = port.tx_buffer().data();
          std::memcpy(to, shared, out.shared.size());
          self.last_payload_ = to;
          benchmark::DoNotOptimize(to);
        }
        send(out);
      }
    }
    void send(const agg::Transmit& out) {
      dataplane::Routes::Route* route = self.routes_.find(out.job, out.rank);
      const std::size_t header_bytes = route->headers.size();
      std::uint8_t* frame = out.buffer.data() - header_bytes;
      CHECK(route->headers.encode({frame, header_bytes}, out.datagram_bytes(), out.sum));
      const dataplane::Egress::Item item{
          .packet = frame,
          .bytes = static_cast<std::uint32_t>(header_bytes + out.datagram_bytes()),
          .egress_class = self.classifier_.of_chunk(out.priority),
          .queued_at = self.now_};
      dataplane::Egress& egress = self.outs_[route->port]->egress;
      egress.enqueue(
          item, [](void*) { CHECK(false); }, [](void*) { return false; });
      if (!out.shared.empty()) {  // feedback has none
        ++results;
        if (!self.shares_) self.last_payload_ = out.buffer.data() + out.bytes;
      }
    }
  };

  std::size_t transmit(ReplayPort& port, TimeNs now) {
    now_ = now;
    Driver driver{*this, port};
    while (agg::serve_shard(shard_, driver, now) != 0)
      for (const auto& out : outs_) flush(out->egress, now);
    return driver.results;
  }

  // As Port::flush() does, to a device that takes everything.
  static void flush(dataplane::Egress& egress, TimeNs now) {
    if (egress.empty()) return;
    egress.begin_flush(now);
    for (std::span burst = egress.take(); !burst.empty(); burst = egress.take()) {
      benchmark::DoNotOptimize(burst.data());
      egress.accept(burst.size(), now);
    }
    egress.publish_depth();
  }

  struct Out {
    dataplane::PortCounters counters;
    dataplane::Egress egress{{}, counters, 0};
  };

  const wire::UdpChecksums checksums_;
  const bool shares_;
  const std::shared_ptr<StartedJob> started_;
  const dataplane::OwnAddress own_;
  agg::Shard shard_;
  dataplane::MacTable macs_;
  dataplane::FlowCache flows_;
  VerdictCounters malformed_;
  agg::Arrivals arrivals_{shard_, malformed_};
  dataplane::Classifier classifier_;
  dataplane::PathTable paths_{kMaxJobs, kWorkers};
  dataplane::Routes routes_;
  std::vector<std::unique_ptr<Out>> outs_;
  std::array<agg::Transmit, kBurst> burst_;
  std::size_t used_ = kBurst;  // of their buffers
  TimeNs now_ = 0;
  std::size_t bursts_ = 0;
  const std::uint8_t* last_payload_ = nullptr;
};

// The bare loop behind the stages that find a frame's datagram: what they cost, without a shard.
class FoundBare {
 public:
  explicit FoundBare(wire::UdpChecksums checksums)
      : appliance_(checksums, Payloads::kCopied, std::make_shared<StartedJob>(1, false), 0) {}

  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    std::size_t sent = 0;
    while (const std::size_t count = port.rx_burst(frames))
      appliance_.receive({frames.data(), count}, clock_ns(),
                         [&](FrameBytes frame, const wire::Datagram& datagram) {
                           benchmark::DoNotOptimize(&datagram);
                           sent += bare_.receive(frame.data(), port);
                         });
    return sent;
  }

  void check_last_result() const { bare_.check_last_result(); }

 private:
  Appliance appliance_;
  Bare<Floats> bare_{1};
};

// A side with a port of its own for each core: a job's steps follow each other without a gap.
template <class Side>
class Cores {
 public:
  // make(shard) makes the side of a core.
  template <class Make>
  Cores(std::uint16_t count, Make make) : all_here_(count) {
    for (std::uint16_t shard = 0; shard < count; ++shard)
      cores_.push_back(std::make_unique<Core>(Core{ReplayPort(shard, count), make(shard)}));
  }

  // On the thread of each core. None begins a step before all have ended the one before it.
  void run(benchmark::State& state) {
    Core& core = *cores_[static_cast<std::size_t>(state.thread_index())];
    for (auto iteration : state) {
      if (cores_.size() > 1) all_here_.arrive_and_wait();
      core.port.next_step();
      CHECK(core.side->run_step(core.port) == kFramesPerStep);
    }
    core.side->check_last_result();
    const auto rate = [&](double per_step) {
      return benchmark::Counter(static_cast<double>(state.iterations()) * per_step,
                                benchmark::Counter::kIsRate);
    };
    state.counters["contributions"] = rate(kFramesPerStep);
    state.counters["payload_bits"] = rate(8.0 * kFramesPerStep * kChunkBytes);
  }

 private:
  struct Core {
    ReplayPort port;
    std::unique_ptr<Side> side;
  };
  std::barrier<> all_here_;
  std::vector<std::unique_ptr<Core>> cores_;
};

template <class Side, class Make>
benchmark::internal::Benchmark* add_bench(const char* name, std::uint16_t cores, Make make) {
  auto sides = std::make_shared<Cores<Side>>(cores, make);
  return benchmark::RegisterBenchmark(name,
                                      [sides](benchmark::State& state) { sides->run(state); });
}

void add_appliance(const char* name, std::uint16_t cores, wire::UdpChecksums checksums,
                   Payloads payloads, bool reproducible = false) {
  auto job = std::make_shared<StartedJob>(cores, reproducible);
  auto* bench = add_bench<Appliance>(name, cores, [=](std::uint16_t shard) {
    return std::make_unique<Appliance>(checksums, payloads, job, shard);
  });
  if (cores > 1) bench->Threads(cores)->UseRealTime();
}

template <class Side>
void add_bare(const char* name, std::uint16_t cores) {
  auto* bench =
      add_bench<Side>(name, cores, [=](std::uint16_t) { return std::make_unique<Side>(cores); });
  if (cores > 1) bench->Threads(cores)->UseRealTime();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  using sluice::wire::UdpChecksums;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("fold_target", std::string(sluice::agg::fold_target()));
  add_appliance("appliance_verify", 1, UdpChecksums::kVerify, Payloads::kCopied);
  add_appliance("appliance_trust", 1, UdpChecksums::kTrust, Payloads::kCopied);
  add_appliance("appliance_shared", 1, UdpChecksums::kVerify, Payloads::kShared);
  add_appliance("appliance_reproducible", 1, UdpChecksums::kVerify, Payloads::kCopied, true);
  add_bare<Bare<Floats>>("bare", 1);
  for (const auto& [name, checksums] : {std::pair{"found_trust", UdpChecksums::kTrust},
                                        std::pair{"found_verify", UdpChecksums::kVerify}})
    add_bench<FoundBare>(name, 1, [checksums = checksums](std::uint16_t) {
      return std::make_unique<FoundBare>(checksums);
    });
  add_bare<Bare<BigEndianIntegers>>("integers", 1);
  add_bench<PortAlone>("port_alone", 1,
                       [](std::uint16_t) { return std::make_unique<PortAlone>(); });
  add_appliance("appliance_two_cores", 2, UdpChecksums::kVerify, Payloads::kCopied);
  add_bare<Bare<Floats>>("bare_two_cores", 2);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
