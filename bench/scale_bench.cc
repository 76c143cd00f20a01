// A contribution's time in a shard, and a chunk's memory, as work grows, and as gradients are
// pruned: the measuring half of the scale bench. Prints a line a pass: side, nanoseconds for a
// worker's contribution to a chunk, bytes a chunk.
#include <time.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aggregator/appliance/arrivals.h"
#include "aggregator/appliance/rounds.h"
#include "aggregator/base/check.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/packet.h"

using namespace sluice;

namespace {

constexpr std::uint16_t kChunkBytes = 1024;
constexpr std::size_t kChunkElems = kChunkBytes / sizeof(float);
constexpr std::uint32_t kBurst = 32;  // chunks of one worker, as a port hands them over
constexpr double kDensity = 0.01;     // of the sparse side: the share of elements that leave

struct Size {
  const char* name;
  std::uint16_t workers;
  std::uint16_t jobs;
  std::uint64_t gradient_bytes;  // of all jobs
  bool sparse = false;           // a burst is one packet
};

DurationNs cpu_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

Cookie cookie_of(std::uint16_t rank) { return 0x5ca1e000u + rank; }

// The memory that a port receives into: the same for all sizes, and used in turn. Its datagrams
// are ready but for their headers.
class Received {
 public:
  explicit Received(bool sparse) : sparse_(sparse) {
    const std::vector<std::uint8_t> payload(kChunkBytes);
    const wire::Contribution body{.weight = 1, .elem_count = kChunkElems};
    std::mt19937 random;
    for (Buffer& buffer : buffers_) {
      buffer.size = sparse ? encode_sparse(random, buffer)
                           : wire::encode(buffer.bytes, {}, body, {}, payload);
      CHECK(buffer.size != 0);
    }
  }
  // A sparse one speaks of `chunk` and those behind it.
  wire::Datagram next(std::uint16_t job, std::uint16_t rank, std::uint32_t number, Step step,
                      std::uint32_t chunk) noexcept {
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    auto& common = *reinterpret_cast<wire::CommonHeader*>(buffer.bytes.data());
    common.job = job;
    common.rank = rank;
    common.cookie = cookie_of(rank);
    std::uint8_t* behind = buffer.bytes.data() + sizeof common;
    auto& body = *reinterpret_cast<wire::Contribution*>(behind);
    body.flow.number = number;
    body.flow.credit = UINT32_MAX / 2;
    body.step = body.base_step = step;
    body.chunk = chunk;
    if (sparse_) {
      const int place = static_cast<int>(chunk % kChunksPerBlock);
      const std::uint64_t lists[] = {((std::uint64_t{1} << kBurst) - 1) << place,
                                     buffer.filled << place};
      std::memcpy(behind + sizeof body, lists, sizeof lists);
    }
    return {{buffer.bytes.data(), buffer.size}};
  }

 private:
  struct Buffer {
    std::array<std::uint8_t, wire::packet_bytes(sizeof(wire::Contribution), 0, kChunkBytes)> bytes;
    std::size_t size = 0;
    std::uint64_t filled = 0;  // of kBurst chunks: those with an entry
  };

  // The chunks of a burst with values at random places.
  std::size_t encode_sparse(std::mt19937& random, Buffer& buffer) {
    std::bernoulli_distribution leaves(kDensity);
    std::array<std::uint8_t, kChunkBytes - wire::kSparseHeadBytes> entries;
    std::size_t bytes = 0;
    for (std::uint32_t chunk = 0; chunk < kBurst; ++chunk) {
      std::array<float, kChunkElems> values{};
      for (float& value : values) value = leaves(random) ? 1 : 0;
      const std::size_t added =
          agg::compress(reinterpret_cast<const std::uint8_t*>(values.data()), kChunkElems,
                        Dtype::kFloat32, std::span(entries).subspan(bytes));
      CHECK(added != agg::kNotCompressed);
      bytes += added;
      if (added != 0) buffer.filled |= std::uint64_t{1} << chunk;
    }
    const wire::Contribution body{
        .flow = {.flags = wire::kFlagSparse}, .weight = 1, .elem_count = kChunkElems};
    const std::uint64_t lists[] = {0, 0};  // next() writes them
    return wire::encode(buffer.bytes, {}, body, lists, std::span(entries).first(bytes));
  }

  const bool sparse_;
  std::vector<Buffer> buffers_{4096};
  std::size_t next_ = 0;
};

class Side {
 public:
  explicit Side(const Size& size)
      : size_(size),
        chunks_(static_cast<std::uint32_t>(size.gradient_bytes / size.jobs / kChunkBytes / kBurst *
                                           kBurst)) {
    for (std::uint16_t id = 0; id < size.jobs; ++id) {
      agg::JobSpec spec{.id = JobId{id},
                        .name = "bench",
                        .world_size = size.workers,
                        .chunk_bytes = kChunkBytes,
                        .chunk_counts = {chunks_, 0, 0},
                        .max_elems = {kChunkElems, 0, 0},
                        .windows = {kSyncWindow, 0, 0}};
      memory_bytes_ += agg::Job::memory_bytes(spec);
      jobs_.push_back(std::make_unique<agg::Job>(spec));
      for (std::uint16_t rank = 0; rank < size.workers; ++rank) {
        jobs_.back()->members[rank].cookie = cookie_of(rank);
        jobs_.back()->members[rank].reachable = true;
      }
      numbers_.resize(numbers_.size() + size.workers);
      shard_.handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = jobs_.back().get()},
                            kSecond);
      jobs_.back()->start(kSecond);
    }
  }

  double bytes_per_chunk() const {
    return static_cast<double>(memory_bytes_) / chunks_ / size_.jobs;
  }

  // One step of every job, a burst of each in turn; at least `least` contributions.
  double pass(std::uint64_t least) {
    std::uint64_t contributions = 0;
    std::uint64_t results = 0;
    const DurationNs begin = cpu_ns();
    while (contributions < least) {
      ++step_;
      for (std::uint32_t first = 0; first < chunks_; first += kBurst)
        for (std::uint16_t job = 0; job < size_.jobs; ++job) results += burst(job, first);
      contributions += std::uint64_t{chunks_} * size_.jobs * size_.workers;
    }
    const DurationNs spent = cpu_ns() - begin;
    CHECK(results == contributions);  // as many leave as came, each to its member
    return static_cast<double>(spent) / static_cast<double>(contributions);
  }

 private:
  struct Driver {
    Side& side;
    std::uint64_t results = 0;
    bool take_command(agg::ShardCommand&) { return false; }
    bool has_event_room() const { return true; }
    void give_event(const agg::ShardEvent&) {}
    std::span<agg::Transmit> tx_buffers() {
      for (agg::Transmit& transmit : side.burst_)
        transmit.buffer = side.out_[side.next_out_++ % side.out_.size()];
      return side.burst_;
    }
    void send(std::span<const agg::Transmit> burst) {
      for (const agg::Transmit& transmit : burst) results += chunks_in(transmit.datagram());
    }
    // Chunks that it has the result of.
    std::uint64_t chunks_in(wire::Bytes datagram) const {
      if (!side.size_.sparse) return datagram.size() > kChunkBytes;
      wire::Packet packet;
      CHECK(ok(wire::parse(datagram, packet)));
      return packet.type() == wire::PacketType::kResult
                 ? static_cast<std::uint64_t>(std::popcount(packet.chunks()))
                 : 0;
    }
  };

  std::uint64_t burst(std::uint16_t job, std::uint32_t first) {
    for (std::uint16_t rank = 0; rank < size_.workers; ++rank) {
      std::uint32_t& number = numbers_[std::size_t{job} * size_.workers + rank];
      const std::uint32_t packets = size_.sparse ? 1 : kBurst;
      for (std::uint32_t chunk = first; chunk < first + packets; ++chunk)
        arrivals_.add(received_.next(job, rank, ++number, step_, chunk), kSecond);
      arrivals_.flush(kSecond);
    }
    Driver driver{*this};
    while (agg::serve_shard(shard_, driver, kSecond) != 0) {
    }
    return driver.results;
  }

  const Size size_;
  const std::uint32_t chunks_;  // of a job
  std::size_t memory_bytes_ = 0;
  agg::Shard shard_{ShardId{0}};
  VerdictCounters malformed_;
  agg::Arrivals arrivals_{shard_, malformed_};
  std::vector<std::unique_ptr<agg::Job>> jobs_;
  std::vector<std::uint32_t> numbers_;  // of the packets of every worker of every job
  Received received_{size_.sparse};
  std::vector<std::array<std::uint8_t, 2048>> out_{512};
  std::size_t next_out_ = 0;
  std::array<agg::Transmit, kBurst> burst_;
  Step step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int passes = argc > 1 ? std::atoi(argv[1]) : 5;
  const std::uint64_t large_mib = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  const Size sizes[] = {{"small", 4, 1, 25'000'000},
                        {"sparse", 4, 1, 25'000'000, true},
                        {"large", 64, 16, large_mib << 20}};
  constexpr std::uint64_t kLeast = 2'000'000;  // but for the large side, which has more in a step
  Side small(sizes[0]);
  Side sparse(sizes[1]);
  Side large(sizes[2]);
  small.pass(1);
  sparse.pass(1);
  for (int pass = 0; pass < passes; ++pass) {
    const auto report = [&](const Size& size, Side& side, std::uint64_t least) {
      const double ns = side.pass(least);
      std::printf("%s %.2f %.1f\n", size.name, ns, side.bytes_per_chunk());
      std::fflush(stdout);
    };
    report(sizes[0], small, kLeast);
    report(sizes[1], sparse, kLeast);
    report(sizes[2], large, 1);
  }
}
