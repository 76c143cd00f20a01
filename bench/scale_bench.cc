// What a contribution costs a shard, and a chunk its memory, as work grows: the measuring half of
// the scale bench. Prints a line a pass: side, nanoseconds a contribution, bytes a chunk.
#include <time.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/appliance/arrivals.h"
#include "aggregator/appliance/rounds.h"
#include "aggregator/base/check.h"

using namespace sluice;

namespace {

constexpr std::uint16_t kChunkBytes = 1024;
constexpr std::uint32_t kBurst = 32;  // chunks of one worker, as a port hands them over

struct Size {
  const char* name;
  std::uint16_t workers;
  std::uint16_t jobs;
  std::uint64_t gradient_bytes;  // of all jobs
};

DurationNs cpu_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

Cookie cookie_of(std::uint16_t rank) { return 0x5ca1e000u + rank; }

// The memory that a port receives into: the same for both sizes, and used in turn. Its datagrams
// are ready but for their headers.
class Received {
 public:
  Received() {
    const std::vector<std::uint8_t> payload(kChunkBytes);
    const wire::Contribution body{.weight = 1, .elem_count = kChunkBytes / 4};
    for (auto& buffer : buffers_)
      CHECK(wire::encode(buffer, {}, body, {}, payload) == buffer.size());
  }
  wire::Datagram next(std::uint16_t job, std::uint16_t rank, std::uint32_t number, Step step,
                      std::uint32_t chunk) noexcept {
    auto& buffer = buffers_[next_++ % buffers_.size()];
    auto& common = *reinterpret_cast<wire::CommonHeader*>(buffer.data());
    common.job = job;
    common.rank = rank;
    common.cookie = cookie_of(rank);
    auto& body = *reinterpret_cast<wire::Contribution*>(buffer.data() + sizeof common);
    body.flow.number = number;
    body.flow.credit = UINT32_MAX / 2;
    body.step = body.base_step = step;
    body.chunk = chunk;
    return {buffer};
  }

 private:
  using Buffer =
      std::array<std::uint8_t, wire::packet_bytes(sizeof(wire::Contribution), 0, kChunkBytes)>;
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
                        .max_elems = {kChunkBytes / 4, 0, 0},
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
  struct Link {
    Side& side;
    std::uint64_t results = 0;
    bool take_command(agg::ShardCommand&) { return false; }
    bool has_event_room() const { return true; }
    void give_event(const agg::ShardEvent&) {}
    std::span<agg::Transmit> rooms() {
      for (agg::Transmit& transmit : side.burst_)
        transmit.room = side.out_[side.next_out_++ % side.out_.size()];
      return side.burst_;
    }
    void send(std::span<const agg::Transmit> burst) {
      for (const agg::Transmit& transmit : burst)
        results += transmit.datagram().size() > kChunkBytes;
    }
  };

  std::uint64_t burst(std::uint16_t job, std::uint32_t first) {
    for (std::uint16_t rank = 0; rank < size_.workers; ++rank) {
      std::uint32_t& number = numbers_[std::size_t{job} * size_.workers + rank];
      for (std::uint32_t chunk = first; chunk < first + kBurst; ++chunk)
        arrivals_.add(received_.next(job, rank, ++number, step_, chunk), kSecond);
      arrivals_.flush(kSecond);
    }
    Link link{*this};
    while (agg::serve_shard(shard_, link, kSecond) != 0) {
    }
    return link.results;
  }

  const Size size_;
  const std::uint32_t chunks_;  // of a job
  std::size_t memory_bytes_ = 0;
  agg::Shard shard_{ShardId{0}};
  VerdictCounters malformed_;
  agg::Arrivals arrivals_{shard_, malformed_};
  std::vector<std::unique_ptr<agg::Job>> jobs_;
  std::vector<std::uint32_t> numbers_;  // of the packets of every worker of every job
  Received received_;
  std::vector<std::array<std::uint8_t, 2048>> out_{512};
  std::size_t next_out_ = 0;
  std::array<agg::Transmit, kBurst> burst_;
  Step step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int passes = argc > 1 ? std::atoi(argv[1]) : 5;
  const std::uint64_t large_mib = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  const Size sizes[] = {{"small", 4, 1, 25'000'000}, {"large", 64, 16, large_mib << 20}};
  Side small(sizes[0]);
  Side large(sizes[1]);
  small.pass(1);
  for (int pass = 0; pass < passes; ++pass) {
    for (Side* side : {&small, &large}) {
      const bool is_small = side == &small;
      const double ns = side->pass(is_small ? 2'000'000 : 1);
      std::printf("%s %.2f %.1f\n", sizes[is_small ? 0 : 1].name, ns, side->bytes_per_chunk());
      std::fflush(stdout);
    }
  }
}
