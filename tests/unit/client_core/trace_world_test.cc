// Sessions' notes for the trace, against a network and an appliance with known times.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/unit/client_core/replicas.h"
#include "tests/unit/client_core/small_world.h"

namespace sluice::client {
namespace {

constexpr DurationNs kDelay = 100 * kMicrosecond;
// Three times are cut to microseconds: the round trip's, the age's at the appliance, the echo's.
constexpr DurationNs kRounding = 3 * kMicrosecond;

WorldOptions options_for(std::uint16_t workers) {
  WorldOptions options;
  options.workers = workers;
  options.delay_ns = kDelay;
  options.appliance_ahead_ns = 4'567 * kSecond + 89;  // the clocks have nothing in common
  options.trace = true;
  return options;
}

// When contributions reached the appliance, on the workers' clock.
class Arrivals {
 public:
  Arrivals(SmallWorld& world, const WorldOptions& options)
      : layout_(Layout::create(options.tensors, options.chunk_bytes).value()) {
    world.arrived = [this, &world](std::uint16_t rank, const wire::Packet& packet) {
      if (packet.type() != wire::PacketType::kContribution) return;
      const auto& body = packet.body<wire::Contribution>();
      first_[{body.step, body.chunk}].try_emplace(rank, world.now());
    };
  }
  // The first to any chunk of the tensor.
  TimeNs first(const TensorTimes& times) const {
    TimeNs first_ns = kNever;
    for_each_chunk(times, [&](const std::vector<TimeNs>& in_order) {
      first_ns = std::min(first_ns, in_order.front());
    });
    return first_ns;
  }
  // The k-th to the chunk where it came last.
  TimeNs kth(const TensorTimes& times) const {
    TimeNs kth_ns = 0;
    for_each_chunk(times, [&](const std::vector<TimeNs>& in_order) {
      kth_ns = std::max(kth_ns, in_order.at(times.k - 1u));
    });
    return kth_ns;
  }

 private:
  template <class Visit>
  void for_each_chunk(const TensorTimes& times, Visit visit) const {
    for (ChunkIndex chunk = layout_.first_chunk(times.tensor);
         chunk < layout_.first_chunk(times.tensor + 1); ++chunk) {
      std::vector<TimeNs> in_order;
      for (const auto& [rank, at_ns] : first_.at({times.step, chunk})) in_order.push_back(at_ns);
      std::sort(in_order.begin(), in_order.end());
      visit(in_order);
    }
  }

  Layout layout_;
  std::map<std::pair<Step, ChunkIndex>, std::map<std::uint16_t, TimeNs>> first_;
};

void expect_order(const TensorTimes& times) {
  EXPECT_LE(times.ready_ns, times.queued_ns);
  if (times.packets != 0) {
    EXPECT_LE(times.queued_ns, times.first_sent_ns);
    EXPECT_LE(times.first_sent_ns, times.last_sent_ns);
  }
  EXPECT_LE(times.first_contribution_ns, times.kth_contribution_ns);
  EXPECT_LE(times.kth_contribution_ns, times.result_ns);
  EXPECT_LE(times.queued_ns, times.result_ns);
}

struct Error {
  DurationNs least = kNever, most = -kNever;
  void note(DurationNs error) {
    least = std::min(least, error);
    most = std::max(most, error);
  }
};

// How far the noted times at the appliance are from the true ones.
Error check(const SmallWorld& world, const WorldOptions& options, const Arrivals& arrivals) {
  Error error;
  for (std::size_t rank = 0; rank < options.workers; ++rank)
    for (const TensorTimes& times : world.traces(rank)) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " tensor " + std::to_string(times.tensor) +
                   " step " + std::to_string(times.step));
      expect_order(times);
      error.note(times.first_contribution_ns - arrivals.first(times));
      error.note(times.kth_contribution_ns - arrivals.kth(times));
    }
  return error;
}

TEST(TraceWorld, TimesAtTheApplianceAreRightToMicrosecondsWhenBothWaysTakeTheSameTime) {
  const WorldOptions options = options_for(3);
  SmallWorld world(options);
  const Arrivals arrivals(world, options);
  Replicas replicas(world, options);
  replicas.compute_ns = {kMillisecond, 7 * kMillisecond, 3 * kMillisecond};
  ASSERT_TRUE(world.run([&] { return replicas.all_at(20); }, 10 * kSecond))
      << world.first_failure();
  for (std::size_t rank = 0; rank < 3; ++rank)
    ASSERT_EQ(world.traces(rank).size(), 20 * options.tensors.size());
  const Error error = check(world, options, arrivals);
  EXPECT_GE(error.least, -kRounding);
  EXPECT_LE(error.most, kRounding);

  // The fastest rank waits for the slowest at the appliance.
  const TensorTimes& last = world.traces(0).back();
  EXPECT_EQ(last.k, 3);
  EXPECT_NEAR(static_cast<double>(last.kth_contribution_ns - last.first_contribution_ns),
              6 * kMillisecond, 10.0 * kDelay);
}

TEST(TraceWorld, TimesAtTheApplianceAreOffByTheJitterAtMostUnderLossAndReordering) {
  WorldOptions options = options_for(4);
  options.shards = 2;
  options.jitter_ns = 80 * kMicrosecond;
  options.loss = 0.05;
  options.duplicates = 0.02;
  options.tensors = {{"a", 20'000, Dtype::kFloat32}, {"b", 10, Dtype::kFloat32}};
  SmallWorld world(options);
  const Arrivals arrivals(world, options);
  Replicas replicas(world, options);
  ASSERT_TRUE(world.run([&] { return replicas.all_at(20); }, 100 * kSecond))
      << world.first_failure();
  const Error error = check(world, options, arrivals);
  EXPECT_GE(error.least, -options.jitter_ns - kRounding);
  EXPECT_LE(error.most, options.jitter_ns + kRounding);
  std::uint32_t sent_again = 0;
  for (std::size_t rank = 0; rank < 4; ++rank)
    for (const TensorTimes& times : world.traces(rank)) sent_again += times.sent_again;
  EXPECT_GT(sent_again, 20u);
}

TEST(TraceWorld, AStragglerSeesStepsThatWereCompleteBeforeItHadAGradient) {
  WorldOptions options = options_for(3);
  options.policy = {.kind = PolicyKind::kFixed, .late = LateMode::kDrop, .k = 2};
  SmallWorld world(options);
  const Arrivals arrivals(world, options);
  Replicas replicas(world, options);
  replicas.compute_ns = {kMillisecond, kMillisecond, 4 * kMillisecond};
  ASSERT_TRUE(world.run([&] { return replicas.all_at(20); }, 10 * kSecond))
      << world.first_failure();
  const Error error = check(world, options, arrivals);
  EXPECT_GE(error.least, -kRounding);
  EXPECT_LE(error.most, kRounding);
  std::size_t before = 0, caught_up = 0;
  for (const TensorTimes& times : world.traces(2)) {
    caught_up += !times.contributes;
    if (times.kth_contribution_ns >= times.ready_ns) continue;
    ++before;
    EXPECT_EQ(times.packets, 0u);  // nothing is sent for a step that is complete
  }
  EXPECT_GT(before, 0u);
  EXPECT_GT(caught_up, 0u);
}

TEST(TraceWorld, NothingIsNotedUnlessAskedFor) {
  WorldOptions options = options_for(2);
  options.trace = false;
  SmallWorld world(options);
  Replicas replicas(world, options);
  ASSERT_TRUE(world.run([&] { return replicas.all_at(3); }, 10 * kSecond));
  EXPECT_TRUE(world.traces(0).empty());
}

}  // namespace
}  // namespace sluice::client
