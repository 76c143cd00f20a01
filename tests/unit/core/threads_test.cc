// Shards on threads of their own, as lcores run them, with a control and a metrics thread beside
// them. The thread sanitizer shows that no thread reads another's plain fields.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/core/harness.h"

namespace sluice::agg {
namespace {

constexpr std::uint16_t kShards = 3;
constexpr std::uint16_t kRanks = 4;
constexpr std::uint16_t kMortal = 3;  // dies in the middle
constexpr Step kHalf = 40;
constexpr Step kTold = kHalf + 10;  // goes on only where the death is known, however late that is
constexpr Step kLast = 2 * kHalf;
constexpr DurationNs kStepNs = 10 * kMillisecond;

// One shard's lcore, and all ranks' flows with it.
class Lcore {
 public:
  Lcore(Harness& harness, std::uint16_t id) : harness_(harness), job_(*harness.job), id_(id) {}

  // Until step kLast is closed everywhere.
  void run(const std::atomic<bool>& died) {
    for (Step step = 1; step <= kLast; ++step) {
      now_ = kSecond + step * kStepNs;
      while (job_.open_step(StreamId::kGradients) < step) serve(died);
      while (step >= kTold && !told_) serve(died);
      for (std::uint16_t rank = 0; id_ == 0 && rank < kRanks; ++rank)
        handle(rank, wire::Finished{.flow = flow(rank), .step = step});
      for (ChunkIndex chunk = id_ * kChunksPerBlock; chunk < job_.spec.chunk_counts[0]; ++chunk) {
        if (job_.owner_of(chunk).value != id_) break;
        for (std::uint16_t turn = 0; turn < kRanks; ++turn) contribute(step, chunk, turn);
        serve(died);
      }
    }
    while (job_.open_step(StreamId::kGradients) <= kLast) serve(died);
  }
  // What the results of each step said; 0: there were none.
  const std::array<std::uint16_t, kLast + 1>& ks() const { return ks_; }

 private:
  wire::FlowHeader flow(std::uint16_t rank) {
    return {.number = ++numbers_[rank], .credit = 1u << 30};
  }
  template <class Body>
  void handle(std::uint16_t rank, const Body& body, std::span<const std::uint8_t> payload = {}) {
    std::uint8_t out[256];
    wire::Packet packet;
    const std::size_t size = wire::encode(out, harness_.sender(rank), body, {}, payload);
    ASSERT_EQ(wire::parse({out, size}, packet), Verdict::kAccepted);
    harness_.shard(id_).handle(packet, false, now_);
  }
  // Ranks take turns to be late. The first also asks who is missing, and when they were heard.
  void contribute(Step step, ChunkIndex chunk, std::uint16_t turn) {
    const auto rank = static_cast<std::uint16_t>((turn + step) % kRanks);
    std::array<float, 4> values;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((step * 7 + chunk * 3 + rank * 5 + i) % 11) - 5;
    handle(rank,
           wire::Contribution{.flow = flow(rank),
                              .step = step,
                              .chunk = chunk,
                              .base_step = step,
                              .weight = 1,
                              .elem_count = values.size(),
                              .dtype = Dtype::kFloat32},
           {reinterpret_cast<const std::uint8_t*>(values.data()), sizeof values});
    if (turn == 0)
      handle(rank, wire::Probe{.flow = flow(rank), .step = step, .block = chunk / kChunksPerBlock});
  }
  void serve(const std::atomic<bool>& died) {
    if (!told_ && died.load(std::memory_order_acquire)) {
      told_ = true;
      harness_.shard(id_).handle_command(
          {.kind = ShardCommand::Kind::kMemberGone, .job = &job_, .rank = Rank{kMortal}}, now_);
    }
    const auto look = [this](const Transmit&, std::span<const std::uint8_t> bytes) {
      wire::Packet packet;
      ASSERT_EQ(wire::parse(bytes, packet), Verdict::kAccepted);
      if (packet.type() != wire::PacketType::kResult) return;
      const auto& body = packet.body<wire::ResultHeader>();
      EXPECT_TRUE(ks_[body.step] == 0 || ks_[body.step] == body.k || told_);
      ks_[body.step] = body.k;
    };
    SendTo<decltype(look)> out{look};
    if (harness_.shards.serve(id_, out, now_) == 0) std::this_thread::yield();
  }

  Harness& harness_;
  Job& job_;
  const std::uint16_t id_;
  TimeNs now_ = kSecond;
  std::array<std::uint32_t, kRanks> numbers_{};
  std::array<std::uint16_t, kLast + 1> ks_{};
  bool told_ = false;
};

// What the control and the metrics threads read while shards work.
std::uint64_t look_at(const Job& job) {
  std::uint64_t all = job.gauges.k.load() + job.gauges.noise_scale_valid.load();
  for (const JobSlice& slice : job.slices) {
    all += slice.steps_closed.read() + slice.results_sent.read() + slice.contributions.read() +
           slice.slots_in_use.read() + slice.awaited.chunk.load();
    for (const Flow& flow : slice.flows)
      all += static_cast<std::uint64_t>(flow.last_heard_ns.load()) + flow.included.read() +
             flow.late.read() + flow.last_contribution_step.load();
  }
  return all;
}

class ShardThreads : public testing::TestWithParam<PolicyOptions> {};

TEST_P(ShardThreads, CloseEveryStepWithOneK) {
  // A block of 64 for each but the last, which has two.
  Harness harness({.world_size = kRanks,
                   .chunk_count = 2 * kChunksPerBlock + 2,
                   .shard_count = kShards,
                   .policy = GetParam()});
  std::vector<Lcore> lcores;
  for (std::uint16_t id = 0; id < kShards; ++id) lcores.emplace_back(harness, id);
  std::atomic<bool> died{false};
  std::atomic<std::uint16_t> running{kShards};
  std::vector<std::thread> threads;
  for (Lcore& lcore : lcores)
    threads.emplace_back([&] {
      lcore.run(died);
      --running;
    });
  Job& job = *harness.job;
  std::uint64_t seen = 0;
  while (running != 0) {
    seen += look_at(job);
    if (!died && job.open_step(StreamId::kGradients) > kHalf) {
      for (auto& left : job.members[kMortal].left_from) left = 0;
      job.members[kMortal].reachable = false;
      died.store(true, std::memory_order_release);
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(seen, 0u);
  for (const Lcore& lcore : lcores)
    for (Step step = 1; step <= kHalf; ++step) {
      EXPECT_NE(lcore.ks()[step], 0) << step;
      EXPECT_EQ(lcore.ks()[step], lcores[0].ks()[step]) << step;
    }
  EXPECT_LE(job.gauges.k, kRanks - 1);
}

INSTANTIATE_TEST_SUITE_P(Policies, ShardThreads,
                         testing::Values(PolicyOptions{}, fixed_k(2),
                                         PolicyOptions{.kind = PolicyKind::kGoodput},
                                         PolicyOptions{.kind = PolicyKind::kSaina,
                                                       .sign_threshold_permille = 0,
                                                       .count_threshold = 1,
                                                       .round_steps = 1}),
                         [](const auto& test) { return name_of(test.param.kind); });

}  // namespace
}  // namespace sluice::agg
