// The measuring half of the pipeline bench (pipeline.py runs it and explains it): one step of eight
// workers through the appliance's own stages, and through the least code that could do the sum.
// Each Google Benchmark iteration is one step: kFramesPerStep frames in, as many results out.
#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/appliance/arrivals.h"
#include "aggregator/appliance/rounds.h"
#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "bench/replay_port.h"
#include "dataplane/core/classifier.h"
#include "dataplane/core/egress_queue.h"
#include "dataplane/core/flow_cache.h"
#include "dataplane/core/forwarding.h"
#include "dataplane/core/mac_table.h"
#include "dataplane/core/steer.h"
#include "dataplane/host/paths.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kAhead = 2;  // frames

TimeNs clock_ns() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }

float expected_sum(std::size_t chunk, std::size_t elem) noexcept {
  float sum = 0;
  for (std::size_t rank = 0; rank < kWorkers; ++rank) sum += gradient(rank, chunk, elem);
  return sum;
}

// A side that dropped frames or summed wrongly must not report a speed.
void check_result(const std::uint8_t* payload, std::size_t chunk) {
  for (std::size_t i = 0; i < kChunkElems; ++i) {
    float value;
    std::memcpy(&value, payload + i * sizeof(value), sizeof(value));
    CHECK(value == expected_sum(chunk, i));
  }
}

agg::JobSpec job_spec() {
  return {.id = JobId{kJob},
          .name = "bench",
          .world_size = kWorkers,
          .chunk_bytes = kChunkBytes,
          .chunk_counts = {kChunks, 0, 0},
          .max_elems = {kChunkElems, 0, 0},
          .windows = {kSyncWindow, kSyncWindow, kSyncWindow}};
}

// The stages a frame passes in the appliance, in the order of its lcore worker.
class Appliance {
 public:
  explicit Appliance(wire::UdpChecksums checksums)
      : checksums_(checksums), job_(job_spec()), shard_(ShardId{0}), macs_(1024) {
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      job_.members[rank].cookie = cookie_of(rank);
      job_.members[rank].reachable = true;
      paths_.bind(JobId{kJob}, Rank{static_cast<std::uint16_t>(rank)},
                  {.udp = path_to_worker(rank),
                   .port = static_cast<dataplane::PortIndex>(rank),
                   .bound = true});
      queues_.emplace_back(dataplane::EgressQueue::Limits{});
    }
    job_.start(0);
    shard_.handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = &job_}, 0);
  }

  // One step. Returns the result frames sent.
  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    std::size_t sent = 0;
    while (const std::size_t count = port.rx_burst(frames)) {
      const TimeNs now = clock_ns();
      const auto in_port = static_cast<dataplane::PortIndex>(bursts_++ % kWorkers);
      receive({frames.data(), count}, in_port, now);
      sent += transmit(port, now);
    }
    return sent;
  }

  void check_last_result() const {
    const std::uint8_t* payload = last_result_ + sizeof(wire::CommonHeader) +
                                  sizeof(wire::ResultHeader) + sizeof(std::uint64_t);
    check_result(payload, kChunks - 1);
    CHECK(shard_.verdicts().read(Verdict::kFolded) ==
          (kWorkers - 1) * shard_.verdicts().read(Verdict::kCompleted));
  }

 private:
  void receive(std::span<const FrameBytes> frames, dataplane::PortIndex in_port, TimeNs now) {
    wire::Datagram datagram;
    for (std::size_t at = 0; at < frames.size(); ++at) {
      if (at + kAhead < frames.size()) wire::prefetch(frames[at + kAhead]);
      if (find(frames[at], in_port, now, datagram)) arrivals_.add(datagram, now);
    }
    arrivals_.flush(now);
  }

  bool find(FrameBytes bytes, dataplane::PortIndex in_port, TimeNs now, wire::Datagram& datagram) {
    ShardId shard;
    if (flows_.find(bytes, in_port, checksums_, macs_, now, datagram, shard)) return true;
    wire::Frame frame;
    if (!wire::parse_ethernet(bytes, frame.ethernet)) return false;
    const dataplane::ForwardContext context{in_port, (1u << kWorkers) - 1, own_.mac};
    const dataplane::ForwardDecision decision =
        dataplane::decide_forward(frame.ethernet, context, macs_, now);
    if (!decision.for_self) return false;
    Verdict why{};
    if (!wire::parse_content(checksums_, frame, why)) return false;
    const dataplane::Steering steering = dataplane::steer(frame, own_);
    if (steering.service != dataplane::Service::kShard) return false;
    flows_.remember(bytes, frame, in_port, steering.shard, decision.learned, macs_, now);
    datagram = wire::datagram_of(frame);
    return true;
  }

  // What the shard sends goes to its port's queue; then the ports send.
  struct Link {
    Appliance& self;
    ReplayPort& port;
    std::span<std::uint8_t> frame{};
    std::size_t results = 0;

    bool take_command(agg::ShardCommand&) { return false; }
    bool has_event_room() const { return true; }
    void give_event(const agg::ShardEvent&) {}
    std::span<std::uint8_t> room() {
      frame = port.tx_buffer();
      return frame.subspan(wire::kMaxUdpHeaderBytes);
    }
    void send(const agg::Transmit& out) {
      const dataplane::Routes::Route* route = self.routes_.find(out.job, out.rank);
      const std::size_t start = wire::kMaxUdpHeaderBytes - route->headers.size();
      CHECK(route->headers.encode(frame.subspan(start), out.bytes, out.sum));
      const dataplane::EgressQueue::Item item{
          frame.data() + start, static_cast<std::uint32_t>(route->headers.size() + out.bytes),
          self.classifier_.of_chunk(out.priority)};
      dataplane::EgressQueue& queue = self.queues_[route->port];
      CHECK(queue.push(item));
      if (out.bytes > kChunkBytes) {  // feedback is shorter
        ++results;
        self.last_result_ = frame.data() + wire::kMaxUdpHeaderBytes;
      }
      if (queue.packets() == kBurst) drain(queue);
    }
  };

  std::size_t transmit(ReplayPort& port, TimeNs now) {
    Link link{*this, port};
    while (agg::serve_shard(shard_, link, now) != 0) {
    }
    for (dataplane::EgressQueue& queue : queues_) drain(queue);
    return link.results;
  }

  static void drain(dataplane::EgressQueue& queue) {
    dataplane::EgressQueue::Item item;
    while (queue.pop(item)) benchmark::DoNotOptimize(item);
  }

  const wire::UdpChecksums checksums_;
  const dataplane::OwnAddress own_{
      .mac = appliance_mac(), .ipv4 = appliance_address(), .port = kControlPort};
  agg::Job job_;
  agg::Shard shard_;
  dataplane::MacTable macs_;
  dataplane::FlowCache flows_;
  VerdictCounters malformed_;
  agg::Arrivals arrivals_{shard_, malformed_};
  dataplane::Classifier classifier_;
  dataplane::PathTable paths_{kMaxJobs, kWorkers};
  dataplane::Routes routes_{paths_, kControlPort + 1};
  std::vector<dataplane::EgressQueue> queues_;
  std::size_t bursts_ = 0;
  const std::uint8_t* last_result_ = nullptr;
};

// The least that does the same sum: no checks, no queues, the chunk's number read in place, results
// from a header made beforehand. Same fold kernels, same bytes in and out.
class Bare {
 public:
  Bare() : counts_(kChunks), lines_(kChunks * kChunkElems / 16) {
    header_.resize(wire::udp_header_bytes(path_to_worker(0)) + sizeof(wire::CommonHeader) +
                   sizeof(wire::ResultHeader) + sizeof(std::uint64_t));
  }

  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    std::size_t sent = 0;
    while (const std::size_t count = port.rx_burst(frames)) {
      for (std::size_t i = 0; i < count; ++i) sent += receive(frames[i].data(), port);
    }
    return sent;
  }

  void check_last_result() const { check_result(last_result_ + header_.size(), kChunks - 1); }

 private:
  struct alignas(64) Line {
    float lanes[16];
  };

  std::size_t receive(const std::uint8_t* frame, ReplayPort& port) {
    constexpr std::size_t kBodyAt =
        wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes + sizeof(wire::CommonHeader);
    const auto& body = *reinterpret_cast<const wire::Contribution*>(frame + kBodyAt);
    const std::uint8_t* payload = frame + kBodyAt + sizeof(wire::Contribution);
    float* acc = lines_[body.chunk * (kChunkElems / 16)].lanes;
    if (counts_[body.chunk] == 0) {
      agg::fold_store(acc, payload, kChunkElems, Dtype::kFloat32);
    } else {
      agg::fold_add(acc, payload, kChunkElems, Dtype::kFloat32);
    }
    if (++counts_[body.chunk] != kWorkers) return 0;
    counts_[body.chunk] = 0;
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      std::uint8_t* out = port.tx_buffer().data();
      std::memcpy(out, header_.data(), header_.size());
      std::memcpy(out + header_.size(), acc, kChunkBytes);
      last_result_ = out;
    }
    benchmark::ClobberMemory();
    return kWorkers;
  }

  std::vector<std::uint8_t> header_;
  std::vector<std::uint8_t> counts_;
  std::vector<Line> lines_;
  const std::uint8_t* last_result_ = nullptr;
};

// The port's own cost: the frames are patched and looked at, nothing else.
struct PortAlone {
  std::size_t run_step(ReplayPort& port) {
    std::array<FrameBytes, kBurst> frames;
    while (port.rx_burst(frames) != 0) benchmark::DoNotOptimize(frames);
    return kFramesPerStep;
  }
  void check_last_result() const {}
};

template <class Side>
void bench_side(benchmark::State& state, ReplayPort& port, Side& side) {
  for (auto iteration : state) {
    port.next_step();
    const std::size_t results = side.run_step(port);
    CHECK(results == kFramesPerStep);
  }
  side.check_last_result();
  const auto rate = [&](double per_step) {
    return benchmark::Counter(static_cast<double>(state.iterations()) * per_step,
                              benchmark::Counter::kIsRate);
  };
  state.counters["contributions"] = rate(kFramesPerStep);
  state.counters["payload_bits"] = rate(8.0 * kFramesPerStep * kChunkBytes);
}

// Every side has a port of its own: a job's steps follow each other without a gap.
template <class Side>
struct Setup {
  ReplayPort port;
  Side side;
};

template <class Side, class... Arguments>
void add_bench(const char* name, Arguments... arguments) {
  auto setup = std::shared_ptr<Setup<Side>>(new Setup<Side>{{}, Side(arguments...)});
  benchmark::RegisterBenchmark(
      name, [setup](benchmark::State& state) { bench_side(state, setup->port, setup->side); });
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("fold_target", std::string(sluice::agg::fold_target()));
  add_bench<Appliance>("appliance_verify", sluice::wire::UdpChecksums::kVerify);
  add_bench<Appliance>("appliance_trust", sluice::wire::UdpChecksums::kTrust);
  add_bench<Bare>("bare");
  add_bench<PortAlone>("port_alone");
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
