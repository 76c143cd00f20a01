// The measuring half of the sfcd bench (sfcd.py runs it and explains it): the cost of the policies'
// statistics of a sum, beside the sum. One line a sample: PATH CHUNK_BYTES CHUNKS SIDE ALONE WITH,
// the last two nanoseconds of CPU time for one chunk of eight contributions.
//
//     bench_sfcd [--rounds=N]
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/base/check.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/signs.h"
#include "aggregator/wire/packet.h"

namespace sluice::bench {
namespace {

constexpr std::uint16_t kWorkers = 8;
constexpr std::uint32_t kSampleChunks = 1024;  // completed a sample, or a step: a few milliseconds

std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

struct Shape {
  std::uint16_t chunk_bytes;
  std::uint32_t chunks;
  std::uint16_t elems() const { return static_cast<std::uint16_t>(chunk_bytes / sizeof(float)); }
};

// Small integers, whose sum is exact, and whose sign changes from element to element. They are the
// same in every step: XOR and popcount do not take longer for bits that differ.
float gradient(std::size_t rank, std::size_t chunk, std::size_t elem) {
  return static_cast<float>((rank * 5 + chunk * 3 + elem * 7) % 17) - 8.0f;
}

// One way to spend a step. Sides differ in what they do beside the sum.
class Side {
 public:
  virtual ~Side() = default;
  virtual void prepare_step() {}  // not timed
  // Timed: eight contributions to every chunk. Returns how many were completed.
  virtual std::size_t run_step() = 0;
  virtual void check() const = 0;
};

// One step, prepared, timed and checked.
double sample_ns(Side& side) {
  side.prepare_step();
  const std::int64_t start_ns = thread_cpu_ns();
  const std::size_t chunks = side.run_step();
  const std::int64_t spent_ns = thread_cpu_ns() - start_ns;
  side.check();
  return static_cast<double>(spent_ns) / static_cast<double>(chunks);
}

// The workers' datagrams of one step, as they lie in receive buffers: payloads are not aligned.
class Datagrams {
 public:
  explicit Datagrams(const Shape& shape) : shape_(shape) {
    stride_bytes_ = (kHeaderBytes + shape.chunk_bytes + 63) / 64 * 64 + 64;
    memory_.resize(std::size_t{kWorkers} * shape.chunks * stride_bytes_);
    std::vector<float> values(shape.elems());
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {
      for (std::uint32_t chunk = 0; chunk < shape.chunks; ++chunk) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient(rank, chunk, i);
        const wire::Contribution body{
            .chunk = chunk, .weight = 1, .elem_count = shape.elems(), .dtype = Dtype::kFloat32};
        const std::size_t bytes = wire::encode(
            {at(rank, chunk), kHeaderBytes + shape.chunk_bytes}, {0, rank, cookie_of(rank)}, body,
            {}, {reinterpret_cast<const std::uint8_t*>(values.data()), shape.chunk_bytes});
        CHECK(bytes == kHeaderBytes + shape.chunk_bytes);
      }
    }
  }

  static Cookie cookie_of(std::uint16_t rank) { return 0x5eed0000u + rank; }
  const std::uint8_t* payload(std::uint16_t rank, std::uint32_t chunk) {
    return at(rank, chunk) + kHeaderBytes;
  }
  std::span<const std::uint8_t> datagram(std::uint16_t rank, std::uint32_t chunk) {
    return {at(rank, chunk), kHeaderBytes + shape_.chunk_bytes};
  }
  // Makes them the contributions to `step`.
  void patch(Step step) {
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {
      for (std::uint32_t chunk = 0; chunk < shape_.chunks; ++chunk) {
        auto& body =
            *reinterpret_cast<wire::Contribution*>(at(rank, chunk) + sizeof(wire::CommonHeader));
        body.flow.number = (step - 1) * shape_.chunks + chunk + 1;
        body.step = body.base_step = step;
      }
    }
  }

 private:
  static constexpr std::size_t kHeaderBytes =
      sizeof(wire::CommonHeader) + sizeof(wire::Contribution);

  std::uint8_t* at(std::uint16_t rank, std::uint32_t chunk) {
    return memory_.data() + (std::size_t{rank} * shape_.chunks + chunk) * stride_bytes_;
  }

  const Shape shape_;
  std::size_t stride_bytes_ = 0;
  std::vector<std::uint8_t> memory_;
};

void check_sum(const float* sum, const Shape& shape, std::size_t chunk) {
  for (std::size_t i = 0; i < shape.elems(); ++i) {
    float expected = 0;
    for (std::size_t rank = 0; rank < kWorkers; ++rank) expected += gradient(rank, chunk, i);
    CHECK(sum[i] == expected);
  }
}

// The kernels alone, called as a slot calls them.
class Kernels final : public Side {
 public:
  struct Extras {
    std::uint16_t sign_stride = 0;  // 0: no signs
    bool norms = false;
  };
  Kernels(Datagrams& datagrams, const Shape& shape, Extras extras)
      : datagrams_(datagrams), shape_(shape), extras_(extras) {
    acc_floats_ = (shape.elems() + 15u) / 16 * 16;
    sums_.reset(
        static_cast<float*>(std::aligned_alloc(64, shape.chunks * acc_floats_ * sizeof(float))));
    CHECK(sums_ != nullptr);
    if (extras.sign_stride != 0) sign_words_ = sign_words_of(shape, extras.sign_stride);
    signs_.resize(shape.chunks * sign_words_);
  }

  std::size_t run_step() override {
    const std::uint32_t laps = std::max(1u, kSampleChunks / shape_.chunks);
    flipped_ = 0;
    ++steps_;
    for (std::uint32_t lap = 0; lap < laps; ++lap)
      for (std::uint32_t chunk = 0; chunk < shape_.chunks; ++chunk) run_chunk(chunk);
    return laps * shape_.chunks;
  }

  void check() const override {
    check_sum(sums_.get() + (shape_.chunks - 1) * acc_floats_, shape_, shape_.chunks - 1);
    if (extras_.sign_stride != 0 && steps_ > 1)
      CHECK(flipped_ == 0);  // the same gradients every step
    if (extras_.norms) CHECK(norm_ > 0);
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  static std::size_t sign_words_of(const Shape& shape, std::uint16_t stride) {
    return agg::sign_words(shape.elems(), stride);
  }

  void run_chunk(std::uint32_t chunk) {
    float* acc = sums_.get() + chunk * acc_floats_;
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {
      const std::uint8_t* payload = datagrams_.payload(rank, chunk);
      if (extras_.norms)
        norm_ += agg::fold_with_norm(acc, rank != 0, payload, shape_.elems(), Dtype::kFloat32);
      else
        (rank == 0 ? agg::fold_store : agg::fold_add)(acc, payload, shape_.elems(),
                                                      Dtype::kFloat32);
    }
    const bool all_signs = extras_.sign_stride == kAllSigns;
    if (extras_.sign_stride != 0 && !all_signs)
      flipped_ += agg::exchange_signs(acc, shape_.elems(), extras_.sign_stride,
                                      &signs_[chunk * sign_words_]);
    const agg::Finished found = agg::finish(
        acc, shape_.elems(), kWorkers, Dtype::kFloat32, reinterpret_cast<std::uint8_t*>(acc),
        {.signs = all_signs ? &signs_[chunk * sign_words_] : nullptr, .norm = extras_.norms});
    CHECK(found.finite);
    flipped_ += found.signs_flipped;
    norm_ += found.squared_norm;
  }

  Datagrams& datagrams_;
  const Shape shape_;
  const Extras extras_;
  std::size_t acc_floats_ = 0;
  std::size_t sign_words_ = 0;
  std::unique_ptr<float, Free> sums_;
  std::vector<std::uint64_t> signs_;
  std::uint64_t flipped_ = 0;
  std::uint64_t steps_ = 0;
  double norm_ = 0;
};

// The production path of a contribution: a shard with one job, from the parsed packet to the
// completed slot, the closed step and the policy's answer. Nobody is reachable, so that no result
// leaves: sending is the same on every side.
class SlotPath final : public Side {
 public:
  SlotPath(Datagrams& datagrams, const Shape& shape, PolicyOptions policy)
      : datagrams_(datagrams), shape_(shape), job_(spec_of(shape, policy)) {
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank)
      job_.members[rank].cookie = Datagrams::cookie_of(rank);
    job_.start(0);
    shard_.handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = &job_}, 0);
    for (std::uint32_t chunk = 0; chunk < shape.chunks; ++chunk)
      for (std::uint16_t rank = 0; rank < kWorkers; ++rank) {
        CHECK(ok(wire::parse(datagrams.datagram(rank, chunk), packets_.emplace_back())));
      }
  }

  void prepare_step() override {
    shards_.drain(0, [](const agg::Transmit&, std::span<const std::uint8_t>) {});
    datagrams_.patch(++step_);
  }

  std::size_t run_step() override {
    // The clock stands still: one reading a burst is no part of this.
    for (const wire::Packet& packet : packets_) shard_.handle(packet, false, 0);
    return shape_.chunks;
  }

  void check() const override {
    CHECK(shard_.verdicts().read(Verdict::kCompleted) == std::uint64_t{step_} * shape_.chunks);
    CHECK(shard_.verdicts().read(Verdict::kFolded) ==
          std::uint64_t{step_} * shape_.chunks * (kWorkers - 1));
    const agg::StreamSlice& slice = job_.slices[0].gradients;
    const std::size_t last =
        step_ % job_.spec.windows[0] * slice.chunk_count + slice.chunk_count - 1;
    CHECK(slice.slots[last].complete_for(step_));
    check_sum(slice.data_of(last), shape_, shape_.chunks - 1);
    // A round of one step: the second step is the first to be compared with one before it.
    if (job_.spec.policy.kind == PolicyKind::kSaina && step_ > 2)
      CHECK(job_.gauges.signs_flipped.load() == 0);
  }

 private:
  static agg::JobSpec spec_of(const Shape& shape, PolicyOptions policy) {
    return {.id = JobId{0},
            .name = "bench",
            .world_size = kWorkers,
            .chunk_bytes = shape.chunk_bytes,
            .policy = policy,
            .chunk_counts = {shape.chunks, 0, 0},
            .max_elems = {shape.elems(), 0, 0},
            .windows = {kAsyncWindow, kSyncWindow, kSyncWindow}};
  }

  Datagrams& datagrams_;
  const Shape shape_;
  agg::Job job_;
  agg::Shards shards_{1};
  agg::Shard& shard_ = shards_.shard(0);
  std::vector<wire::Packet> packets_;  // chunk after chunk, all workers of each
  Step step_ = 0;
};

// Sides to compare with the first one, over the same datagrams, so that all read the same memory.
struct Group {
  const char* path;
  Shape shape;
  std::unique_ptr<Side> alone;
  std::vector<std::pair<const char*, std::unique_ptr<Side>>> sides;
};

Group kernel_group(Datagrams& datagrams, const Shape& shape) {
  const auto make = [&](Kernels::Extras extras) {
    return std::make_unique<Kernels>(datagrams, shape, extras);
  };
  Group group{"kernels", shape, make({}), {}};
  group.sides.emplace_back("all", make({.sign_stride = kAllSigns}));
  group.sides.emplace_back("one_in_32", make({.sign_stride = kOneSignIn32}));
  group.sides.emplace_back("norms", make({.norms = true}));
  return group;
}

Group slot_group(Datagrams& datagrams, const Shape& shape) {
  const auto make = [&](PolicyOptions policy) {
    return std::make_unique<SlotPath>(datagrams, shape, policy);
  };
  PolicyOptions saina{.kind = PolicyKind::kSaina, .k = kWorkers, .round_steps = 1};
  Group group{"slots", shape, make({.kind = PolicyKind::kFixed, .k = kWorkers}), {}};
  group.sides.emplace_back("all", make(saina));
  saina.sign_stride = kOneSignIn32;
  group.sides.emplace_back("one_in_32", make(saina));
  return group;
}

// Four steps, the sums alone at both ends or in the middle: what drifts hits both. The steps before
// only bring the datagrams into the caches, whatever was measured last.
void compare(Group& group, const char* name, Side& side, bool alone_outside) {
  for (int warm_up = 0; warm_up < 3; ++warm_up) {
    sample_ns(side);
    sample_ns(*group.alone);
  }
  Side& outer = alone_outside ? *group.alone : side;
  Side& inner = alone_outside ? side : *group.alone;
  double outer_ns = sample_ns(outer);
  const double inner_ns = sample_ns(inner) + sample_ns(inner);
  outer_ns += sample_ns(outer);
  const double alone_ns = alone_outside ? outer_ns : inner_ns;
  const double with_ns = alone_outside ? inner_ns : outer_ns;
  std::printf("%s %u %u %s %.2f %.2f\n", group.path, unsigned{group.shape.chunk_bytes},
              group.shape.chunks, name, alone_ns / 2, with_ns / 2);
}

int run(int argc, char** argv) {
  constexpr std::string_view kFlag = "--rounds=";
  std::size_t rounds = 20;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const char* text = argument.data() + kFlag.size();
    const char* end = argument.data() + argument.size();
    if (!argument.starts_with(kFlag) || std::from_chars(text, end, rounds).ptr != end ||
        rounds < 1 || rounds > 10'000) {
      std::fprintf(stderr, "%s: give --rounds=N with N from 1 to 10000\n", argv[i]);
      return 2;
    }
  }
  std::printf("target %s\n", std::string(agg::fold_target()).c_str());
  // A gradient of 1.4 MB, eight times that in receive buffers; and one that stays in the first
  // caches, where the sum is cheapest and anything beside it dearest.
  const Shape small{1344, 1024};
  const Shape jumbo{8832, 160};
  const Shape cached{1344, 2};
  Datagrams small_datagrams(small);
  Datagrams jumbo_datagrams(jumbo);
  Datagrams cached_datagrams(cached);
  std::vector<Group> groups;
  groups.push_back(slot_group(small_datagrams, small));
  groups.push_back(slot_group(jumbo_datagrams, jumbo));
  groups.push_back(kernel_group(small_datagrams, small));
  groups.push_back(kernel_group(jumbo_datagrams, jumbo));
  groups.push_back(kernel_group(cached_datagrams, cached));
  for (std::size_t round = 0; round < rounds; ++round)
    for (Group& group : groups)
      for (auto& [name, side] : group.sides) compare(group, name, *side, round % 2 == 0);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::run(argc, argv); }
