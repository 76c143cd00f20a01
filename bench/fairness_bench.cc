// The latency of a small job's chunk beside a member of another job that probes at line rate, in
// virtual time, for the fairness bench: one line a row. fairness.py explains the figures.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/base/check.h"

namespace sluice::bench {
namespace {

using namespace agg;

// As dataplane/dpdk/worker.cc: a loop receives a burst from each port, serves the shard, and then
// flushes the ports.
constexpr std::uint64_t kBurst = 32;
constexpr std::uint64_t kRingPackets = 1024;
// Of the lcore, a packet received or sent, whatever it is: together what `pipeline` measures for a
// contribution and its result. A look at an empty port is not free either.
constexpr DurationNs kPacketNs = 100;
constexpr DurationNs kLookNs = 10;
constexpr std::uint64_t kWireOverheadBytes = 66;  // Ethernet, preamble, gap, IPv4, UDP

constexpr std::uint16_t kWorkers = 8;
constexpr std::uint32_t kChunks = 64;  // of a step
constexpr std::uint16_t kChunkBytes = 1344;
constexpr std::uint32_t kBlocks = 32;  // that the prober asks about in turn: as many as it may
constexpr std::uint32_t kResults = 32'000;
constexpr std::uint32_t kMuchCredit = 1u << 30;
constexpr Cookie kCookie = 7;
constexpr TimeNs kStart = kSecond;

enum class Neighbour { kNone, kRefused, kProber };

std::unique_ptr<Job> make_job(Shard& shard, std::uint16_t id, std::uint16_t ranks,
                              std::uint32_t chunks) {
  JobSpec spec{.id = JobId{id}, .name = "bench", .world_size = ranks, .chunk_bytes = kChunkBytes};
  spec.chunk_counts = {chunks, 0, 0};
  spec.max_elems = {kChunkBytes / 4, 0, 0};
  spec.windows = {kSyncWindow, 0, 0};
  auto job = std::make_unique<Job>(spec);
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    job->members[rank].cookie = kCookie;
    job->members[rank].reachable = true;
  }
  shard.handle_command({.kind = ShardCommand::Kind::kAddJob, .job = job.get()}, kStart);
  job->start(kStart);
  return job;
}

class Model {
 public:
  Model(std::uint64_t gbps, std::uint32_t chunks_at_once, Neighbour neighbour, std::uint32_t seed)
      : gbps_(gbps),
        group_(chunks_at_once),
        neighbour_(neighbour),
        random_(seed),
        first_chunk_(kChunks - chunks_at_once) {
    // The prober's job has a step complete, of which it has taken nothing.
    for (std::uint32_t chunk = 0; chunk < kBlocks * kChunksPerBlock; ++chunk)
      CHECK(contribute(kProberJob, 0, 1, chunk, 0) == Verdict::kCompleted);
    shards_.drain(now_, [](const Transmit&, std::span<const std::uint8_t>) {});
    latencies_.reserve(kResults + kChunks * kWorkers);
    begin_group();
  }

  void run() {
    while (latencies_.size() < kResults) {
      loop();
      if (results_left_ == 0) begin_group();
    }
    std::sort(latencies_.begin(), latencies_.end());
  }
  double percentile_us(double share) const {
    return static_cast<double>(latencies_[static_cast<std::size_t>(
               share * static_cast<double>(latencies_.size()))]) /
           kMicrosecond;
  }
  double prober_out_per_in() const {
    return neighbour_ == Neighbour::kProber
               ? static_cast<double>(prober_out_) / static_cast<double>(prober_in_)
               : 0;
  }

 private:
  static constexpr std::uint16_t kSmallJob = 5, kProberJob = 6;

  DurationNs wire_ns(std::size_t bytes) const {
    return static_cast<DurationNs>((bytes + kWireOverheadBytes) * 8 / gbps_);
  }

  Verdict handle(std::size_t bytes) {
    wire::Packet packet;
    CHECK(ok(wire::parse({out_.data(), bytes}, packet)));
    return shard_.handle(packet, false, now_);
  }
  Verdict contribute(std::uint16_t job, std::uint16_t rank, Step step, ChunkIndex chunk,
                     std::uint32_t credit) {
    std::uint32_t& number = job == kSmallJob ? numbers_[rank] : prober_number_;
    const wire::Contribution body{.flow = {.number = ++number, .credit = credit},
                                  .step = step,
                                  .chunk = chunk,
                                  .base_step = step,
                                  .weight = 1,
                                  .elem_count = kChunkBytes / 4};
    contribution_bytes_ =
        wire::encode(out_, {.job = job, .rank = rank, .cookie = kCookie}, body, {}, payload_);
    return handle(contribution_bytes_);
  }
  std::size_t write_probe() {
    const wire::Probe body{.flow = {.number = ++prober_number_, .credit = kMuchCredit},
                           .step = 1,
                           .block = prober_number_ % kBlocks,
                           .want = ~std::uint64_t{0}};
    const Cookie cookie = neighbour_ == Neighbour::kProber ? kCookie : kCookie + 1;
    return wire::encode(out_, {.job = kProberJob, .rank = 0, .cookie = cookie}, body);
  }

  // Every worker sends the next chunks of the step, one after the other, all at about the same
  // time, some time after the last result has left.
  void begin_group() {
    TimeNs begin = now_;
    for (const Port& port : ports_) begin = std::max(begin, port.link_free);
    begin += static_cast<DurationNs>(gap_(random_));
    first_chunk_ = (first_chunk_ + group_) % kChunks;
    if (first_chunk_ == 0) ++step_;
    for (std::uint32_t chunk = 0; chunk < group_; ++chunk) kth_arrival_[first_chunk_ + chunk] = 0;
    for (Port& port : ports_) {
      port.received = 0;
      port.first_arrival = begin + static_cast<DurationNs>(random_() % (5 * kMicrosecond));
      for (std::uint32_t chunk = 0; chunk < group_; ++chunk) {
        TimeNs& last = kth_arrival_[first_chunk_ + chunk];
        last = std::max(last, port.first_arrival + chunk * wire_ns(contribution_bytes_));
      }
    }
    results_left_ = group_ * kWorkers;
  }

  void loop() {
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {
      Port& port = ports_[rank];
      const TimeNs look = now_ += kLookNs;
      for (std::uint64_t count = 0; count < kBurst && port.received < group_; ++count) {
        if (port.first_arrival + port.received * wire_ns(contribution_bytes_) > look) break;
        now_ += kPacketNs;
        const Verdict verdict =
            contribute(kSmallJob, rank, step_, first_chunk_ + port.received++, kMuchCredit);
        CHECK(verdict == Verdict::kFolded || verdict == Verdict::kCompleted);
      }
    }
    receive_probes();
    std::array<std::uint32_t, kWorkers> count{};
    std::array<std::array<ChunkIndex, SendBudget::kDatagrams>, kWorkers> results;
    const auto send = [&](const Transmit& transmit, std::span<const std::uint8_t> bytes) {
      now_ += kPacketNs;
      if (transmit.job.value == kProberJob) {
        prober_out_ += bytes.size();  // over its own port: what does not fit there is dropped
        return;
      }
      wire::Packet packet;
      CHECK(ok(wire::parse(bytes, packet)));
      const std::uint16_t rank = transmit.rank.value;
      results[rank][count[rank]++] = packet.body<wire::ResultHeader>().chunk;
      result_bytes_ = bytes.size();
    };
    SendTo out{send};
    shards_.serve(0, out, now_);
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {  // the flush
      for (std::uint32_t at = 0; at < count[rank]; ++at, --results_left_) {
        TimeNs& link_free = ports_[rank].link_free;
        link_free = std::max(link_free, now_) + wire_ns(result_bytes_);
        latencies_.push_back(link_free - kth_arrival_[results[rank][at]]);
      }
    }
  }

  void receive_probes() {
    now_ += kLookNs;
    if (neighbour_ == Neighbour::kNone) return;
    const auto arrived = static_cast<std::uint64_t>((now_ - kStart) / wire_ns(kProbeBytes));
    const std::uint64_t waiting = std::min(kRingPackets, arrived - probes_gone_);
    const std::uint64_t count = std::min(kBurst, waiting);
    for (std::uint64_t at = 0; at < count; ++at, now_ += kPacketNs) {
      CHECK(write_probe() == kProbeBytes);
      const Verdict verdict = handle(kProbeBytes);
      CHECK((verdict == Verdict::kProbe) == (neighbour_ == Neighbour::kProber));
    }
    prober_in_ += count * kProbeBytes;
    probes_gone_ = arrived - waiting + count;  // what found the ring full is gone as well
  }

  struct Port {
    TimeNs first_arrival = 0;
    std::uint32_t received = 0;  // chunks of this group
    TimeNs link_free = 0;        // when the last bit handed to it will have left
  };
  static constexpr std::size_t kProbeBytes = sizeof(wire::CommonHeader) + sizeof(wire::Probe);

  const std::uint64_t gbps_;
  const std::uint32_t group_;
  const Neighbour neighbour_;
  std::mt19937 random_;
  std::exponential_distribution<double> gap_{1.0 / (50.0 * kMicrosecond)};
  TimeNs now_ = kStart;
  Shards shards_{1};
  Shard& shard_ = shards_.shard(0);
  std::unique_ptr<Job> small_ = make_job(shard_, kSmallJob, kWorkers, kChunks);
  std::unique_ptr<Job> prober_ = make_job(shard_, kProberJob, 1, kBlocks* kChunksPerBlock);
  std::array<std::uint8_t, 2048> out_{};
  std::array<std::uint8_t, kChunkBytes> payload_{};
  std::array<std::uint32_t, kWorkers> numbers_{};
  std::uint32_t prober_number_ = 0;
  std::array<Port, kWorkers> ports_;
  std::array<TimeNs, kChunks> kth_arrival_{};
  std::size_t contribution_bytes_ = 0;
  std::size_t result_bytes_ = 0;
  Step step_ = 0;
  std::uint32_t first_chunk_;  // of the group
  std::uint32_t results_left_ = 0;
  std::uint64_t probes_gone_ = 0;
  std::uint64_t prober_in_ = 0;
  std::uint64_t prober_out_ = 0;
  std::vector<DurationNs> latencies_;
};

}  // namespace
}  // namespace sluice::bench

// Columns: link Gb/s, chunks at once, neighbour, seed, p50 and p99 (us), the prober's bytes out a
// byte in.
int main() {
  using namespace sluice::bench;
  for (const std::uint64_t gbps : {1, 2, 5, 10})
    for (const std::uint32_t chunks : {1u, 64u})
      for (std::uint32_t seed = 1; seed <= 5; ++seed)
        for (const auto& [neighbour, name] :
             {std::pair{Neighbour::kNone, "alone"}, std::pair{Neighbour::kRefused, "refused"},
              std::pair{Neighbour::kProber, "prober"}}) {
          Model model(gbps, chunks, neighbour, seed);
          model.run();
          std::printf("%d %u %s %u %.4f %.4f %.3f\n", static_cast<int>(gbps), chunks, name, seed,
                      model.percentile_us(0.5), model.percentile_us(0.99),
                      model.prober_out_per_in());
        }
  return 0;
}
