// Enqueue and dequeue at a port's egress against DPDK's rte_sched and a plain rte_ring, for the
// queue bench. queues.py explains the comparison.
//
// All sides move the same buffers in bursts of 32, on one thread. A fixed number of packets stands
// in the queue while as many go in as come out.

#include <benchmark/benchmark.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <rte_sched.h>
#include <sched.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aggregator/base/check.h"
#include "dataplane/core/egress.h"

namespace sluice::bench {
namespace {

using dataplane::ClassIndex;
using dataplane::Egress;

constexpr std::size_t kBurst = Egress::kBurstPackets;
constexpr std::size_t kPackets = 4096;  // that may wait; power of two, as rte_sched demands
constexpr std::size_t kBuffers = 8192;
constexpr std::uint32_t kFrameBytes = 64;
constexpr std::size_t kBurstsPerTurn = 64;
constexpr std::uint64_t kBytesPerSecond = 12'500'000'000;  // 100 Gb/s: never the limit here

using Burst = std::array<rte_mbuf*, kBurst>;

// Buffers in a circle, and the class of each packet by its place in a fixed random sequence: the
// class belongs to the packet, not to the buffer, or the most urgent buffers alone would circulate.
class Traffic {
 public:
  explicit Traffic(rte_mempool* pool) : buffers_(kBuffers) {
    CHECK(rte_pktmbuf_alloc_bulk(pool, buffers_.data(), kBuffers) == 0);
    for (rte_mbuf* buffer : buffers_) buffer->pkt_len = buffer->data_len = kFrameBytes;
    std::mt19937 random(1);
    for (std::size_t classes = 1; classes <= dataplane::kClassCount; ++classes)
      for (std::size_t at = 0; at < kSequence; ++at)
        sequence_[classes - 1][at] = static_cast<ClassIndex>(random() % classes);
  }
  ~Traffic() { rte_pktmbuf_free_bulk(buffers_.data(), kBuffers); }

  void start(std::size_t classes) {
    classes_ = &sequence_[classes - 1];
    next_class_ = 0;
  }
  void get(Burst& burst) noexcept {
    for (rte_mbuf*& buffer : burst) buffer = buffers_[head_++ % kBuffers];
  }
  void give_back(const Burst& burst) noexcept {
    for (rte_mbuf* buffer : burst) buffers_[tail_++ % kBuffers] = buffer;
  }
  ClassIndex next_class() noexcept { return (*classes_)[next_class_++ % kSequence]; }

 private:
  static constexpr std::size_t kSequence = 4096;
  std::vector<rte_mbuf*> buffers_;
  std::array<std::array<ClassIndex, kSequence>, dataplane::kClassCount> sequence_;
  const std::array<ClassIndex, kSequence>* classes_ = nullptr;
  std::size_t next_class_ = 0;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

// As dataplane/dpdk/port.cc does it, counters and waiting times included, and no device.
class OurPort {
 public:
  explicit OurPort(std::size_t) {}

  void enqueue(const Burst& burst, Traffic& traffic) noexcept {
    for (rte_mbuf* packet : burst)
      egress_.enqueue(
          {packet, packet->pkt_len, traffic.next_class(), now_}, [](void*) { CHECK(false); },
          [](void*) { return false; });
  }
  void dequeue(Burst& burst) noexcept {
    now_ += kMicrosecond;
    egress_.begin_flush(now_);
    const std::span<const Egress::Item> items = egress_.take();
    CHECK(items.size() == kBurst);
    for (std::size_t at = 0; at < kBurst; ++at)
      burst[at] = static_cast<rte_mbuf*>(items[at].packet);
    egress_.accept(kBurst, now_);
    egress_.publish_depth();
  }

 private:
  TimeNs now_ = 0;
  dataplane::PortCounters counters_;
  Egress egress_{{.queue = {.packets = kPackets}}, counters_, 0};
};

// One subport whose rates never limit. Up to 13 classes are the strict classes of one pipe; 64 are
// 8 in each of 8 pipes, which take turns.
class Sched {
 public:
  explicit Sched(std::size_t classes) : classes_(classes), pipes_(classes <= kStrict ? 1 : 8) {
    rte_sched_subport_profile_params profile{
        .tb_rate = kBytesPerSecond, .tb_size = 1'000'000, .tc_rate = {}, .tc_period = 10};
    rte_sched_pipe_params pipe{.tb_rate = kBytesPerSecond,
                               .tb_size = 1'000'000,
                               .tc_rate = {},
                               .tc_period = 10,
                               .tc_ov_weight = 1,
                               .wrr_weights = {1, 1, 1, 1}};
    rte_sched_subport_params subport{.n_pipes_per_subport_enabled = pipes_,
                                     .qsize = {},
                                     .pipe_profiles = &pipe,
                                     .n_pipe_profiles = 1,
                                     .n_max_pipe_profiles = 1,
                                     .cman_params = nullptr};
    for (std::size_t one = 0; one < kStrict; ++one) {
      profile.tc_rate[one] = pipe.tc_rate[one] = kBytesPerSecond;
      subport.qsize[one] = kPackets;
    }
    rte_sched_port_params params{.name = "bench",
                                 .socket = 0,
                                 .rate = kBytesPerSecond,
                                 .mtu = 1522,
                                 .frame_overhead = Egress::kWireOverheadBytes,
                                 .n_subports_per_port = 1,
                                 .subport_profiles = &profile,
                                 .n_subport_profiles = 1,
                                 .n_max_subport_profiles = 1,
                                 .n_pipes_per_subport = pipes_};
    port_ = rte_sched_port_config(&params);
    CHECK(port_ != nullptr && rte_sched_subport_config(port_, 0, &subport, 0) == 0);
    for (std::uint32_t one = 0; one < pipes_; ++one)
      CHECK(rte_sched_pipe_config(port_, 0, one, 0) == 0);
  }
  ~Sched() { rte_sched_port_free(port_); }
  Sched(const Sched&) = delete;
  Sched& operator=(const Sched&) = delete;

  void enqueue(Burst& burst, Traffic& traffic) noexcept {
    for (rte_mbuf* packet : burst) {
      const std::uint32_t one = traffic.next_class();
      const std::uint32_t pipe = pipes_ == 1 ? 0 : one / 8;
      const std::uint32_t level = pipes_ == 1 ? one : one % 8;
      rte_sched_port_pkt_write(port_, packet, 0, pipe, level, 0, RTE_COLOR_GREEN);
    }
    CHECK(rte_sched_port_enqueue(port_, burst.data(), kBurst) == kBurst);
  }
  void dequeue(Burst& burst) noexcept {
    std::size_t count = 0;
    for (std::uint32_t tries = 0; count < kBurst; ++tries) {
      CHECK(tries < 1'000'000);
      count += static_cast<std::size_t>(rte_sched_port_dequeue(
          port_, burst.data() + count, static_cast<std::uint32_t>(kBurst - count)));
    }
  }

 private:
  static constexpr std::size_t kStrict = RTE_SCHED_TRAFFIC_CLASSES_PER_PIPE;
  std::size_t classes_;
  std::uint32_t pipes_;
  rte_sched_port* port_ = nullptr;
};

// No classes: what it costs to queue a pointer.
class Ring {
 public:
  explicit Ring(std::size_t) {
    ring_ = rte_ring_create("bench", kBuffers, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
    CHECK(ring_ != nullptr);
  }
  ~Ring() { rte_ring_free(ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void enqueue(Burst& burst, Traffic&) noexcept {
    CHECK(rte_ring_sp_enqueue_bulk(ring_, reinterpret_cast<void**>(burst.data()), kBurst,
                                   nullptr) == kBurst);
  }
  void dequeue(Burst& burst) noexcept {
    CHECK(rte_ring_sc_dequeue_bulk(ring_, reinterpret_cast<void**>(burst.data()), kBurst,
                                   nullptr) == kBurst);
  }

 private:
  rte_ring* ring_ = nullptr;
};

// Argument 0: classes; 1: packets that stand in the queue.
template <class Side>
void bench_side(benchmark::State& state, Traffic& traffic) {
  const auto classes = static_cast<std::size_t>(state.range(0));
  const auto depth = static_cast<std::size_t>(state.range(1));
  Side side(classes);
  traffic.start(classes);
  Burst burst;
  const auto in = [&] {
    traffic.get(burst);
    side.enqueue(burst, traffic);
  };
  const auto out = [&] {
    side.dequeue(burst);
    traffic.give_back(burst);
  };
  for (std::size_t standing = 0; standing < depth; standing += kBurst) in();
  for (auto iteration : state) {
    for (std::size_t turn = 0; turn < kBurstsPerTurn; ++turn) {
      in();
      out();
    }
  }
  for (std::size_t standing = 0; standing < depth; standing += kBurst) out();
  state.counters["s_per_packet"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kBurstsPerTurn * kBurst,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

template <class Side>
void add_bench(const char* name, Traffic& traffic) {
  auto* bench = benchmark::RegisterBenchmark(
      name, [&traffic](benchmark::State& state) { bench_side<Side>(state, traffic); });
  bench->ArgsProduct({{1, 4, 13, 64}, {0, 256, 3840}});
}

rte_mempool* start_environment() {
  const std::string here = "--lcores=0@" + std::to_string(sched_getcpu());
  std::array<const char*, 9> words{
      "bench_queue", here.c_str(),     "--no-huge",          "-m", "256", "--no-pci",
      "--no-shconf", "--no-telemetry", "--log-level=*:error"};
  if (rte_eal_init(static_cast<int>(words.size()), const_cast<char**>(words.data())) < 0)
    return nullptr;
  return rte_pktmbuf_pool_create("bench", kBuffers, 0, 0, 256, SOCKET_ID_ANY);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  rte_mempool* pool = start_environment();
  if (pool == nullptr) {
    std::fprintf(stderr, "bench_queue: DPDK did not start: %s\n", rte_strerror(rte_errno));
    return 1;
  }
  const auto traffic = std::make_unique<Traffic>(pool);
  add_bench<OurPort>("ours", *traffic);
  add_bench<Sched>("rte_sched", *traffic);
  add_bench<Ring>("rte_ring", *traffic);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
