// Gradients that are pruned or rounded on their way over a BCube: residuals keep what was not
// delivered, and replicas stay equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>

#include "aggregator/wire/sparse.h"
#include "client/prune/threshold.h"
#include "tests/sim/bcube_support.h"

namespace sluice::sim {
namespace {

using client::BcubeMode;
using Servers = std::vector<std::uint32_t>;

// What leaves of each server's gradients, and how many bytes a slice of a sum of them has.
class Entries {
 public:
  Entries(const BcubeOptions& options, std::uint32_t servers) : options_(options) {
    JobPlan plan = make_plan(static_cast<std::uint16_t>(servers), 1, options.elem_counts);
    plan.seed = options.seed;
    plan.session.prune = options.prune;
    std::vector<client::PruneTensor> tensors;
    for (std::uint32_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
      pruned_.push_back(plan.is_pruned(tensor));
      tensors.push_back({plan.tensors[tensor].elem_count, !pruned_[tensor]});
    }
    for (std::uint16_t rank = 0; rank < servers; ++rank) {
      client::Thresholds thresholds(options.prune, tensors);
      for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
        const std::vector<float> nothing(tensors[tensor].elem_count);
        std::vector<float> values(nothing);
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = plan.gradient(Rank{rank}, 1, tensor, i);
        const float limit = pruned_[tensor] ? thresholds.next(tensor, values, nothing) : 0;
        for (float& value : values)
          if (std::fabs(value) < limit) value = 0;
        leave_[rank].push_back(std::move(values));
      }
    }
  }
  // Of the sum of these contributions, each the sum of what some servers have.
  std::uint64_t bytes_of(const std::vector<Servers>& contributions,
                         const client::Slice& slice) const {
    const std::uint64_t chunk_elems = options_.chunk_bytes / sizeof(float);
    std::uint64_t bytes = 0;
    for (std::uint64_t at = 0; at < slice.elem_count; at += chunk_elems) {
      const std::uint64_t count = std::min(chunk_elems, slice.elem_count - at);
      std::vector<float> sum(count);
      bool sparse = false;  // somebody's: else the sum is not either
      for (const Servers& servers : contributions) {
        std::vector<float> part(count);
        for (const std::uint32_t server : servers)
          std::transform(part.begin(), part.end(),
                         &leave_.at(server)[slice.tensor][slice.first_elem + at], part.begin(),
                         std::plus<>());
        sparse |= is_sparse(slice.tensor, part);
        std::transform(sum.begin(), sum.end(), part.begin(), sum.begin(), std::plus<>());
      }
      bytes += sparse && is_sparse(slice.tensor, sum) ? entry(sum)
                                                      : payload_bytes(Dtype::kFloat32, count);
    }
    return bytes;
  }

 private:
  static std::size_t entry(std::span<const float> values) {
    const auto zeros = static_cast<std::size_t>(std::ranges::count(values, 0.0F));
    return wire::entry_bytes(values.size(), values.size() - zeros, Dtype::kFloat32);
  }
  // Where that is shorter and fits a packet.
  bool is_sparse(std::uint32_t tensor, std::span<const float> values) const {
    const std::size_t dense = payload_bytes(Dtype::kFloat32, values.size());
    return pruned_[tensor] && entry(values) < dense &&
           entry(values) <= options_.chunk_bytes - wire::kSparseHeadBytes;
  }

  const BcubeOptions options_;
  std::vector<bool> pruned_;
  std::map<std::uint32_t, std::vector<std::vector<float>>> leave_;  // by server, by tensor
};

class BcubeLosses : public testing::TestWithParam<BcubeShape> {};
INSTANTIATE_TEST_SUITE_P(All, BcubeLosses, testing::ValuesIn(bcube_shapes()), name_of);

// What a server contributes, when and wherever it is sent again, is its gradient and residual,
// rounded; what it keeps is what it has not delivered; the averages of one level have the bits of
// an ordinary job's.
TEST_P(BcubeLosses, WireFormatsLoseNothing) {
  BcubeOptions options = options_of(GetParam());
  options.elem_counts = {4'000, 7, 6'000, 400};
  options.last_exact = true;
  for (const Dtype wire : kNarrow) {
    options.wire = wire;
    BcubeWorld world(options);
    expect_clean(world);
  }
}

TEST_P(BcubeLosses, WireFormatsLoseNothingUnderFaultsOfCables) {
  BcubeOptions options = options_of(GetParam());
  options.link = {.loss_ppm = 20'000, .duplicate_ppm = 5'000, .reorder_ppm = 20'000};
  options.nil_ppm = 200'000;
  options.elem_counts = {4'000, 7, 3'000};
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    options.wire = kNarrow[options.seed - 1];
    options.in_place = options.seed == 2;
    options.averaging = options.seed == 3 ? AveragingChoice::kSum : AveragingChoice::kDefault;
    BcubeWorld world(options);
    expect_clean(world);
  }
}

TEST_P(BcubeLosses, WhatIsPrunedIsDeliveredLater) {
  BcubeOptions options = options_of(GetParam());
  options.prune = {.rule = client::PruneRule::kStatic, .fraction = 0.02, .min_elems = 1'000};
  options.link = {.loss_ppm = 5'000, .duplicate_ppm = 5'000, .reorder_ppm = 20'000};
  options.elem_counts = {8'000, 7, 6'000, 2'000};
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    options.wire = options.seed == 3 ? Dtype::kBfloat16 : Dtype::kFloat32;
    options.nil_ppm = options.seed == 2 ? 200'000 : 0;
    options.last_exact = options.seed == 2;
    BcubeWorld world(options);
    expect_clean(world);
  }
}

// Of half-way sums and of those that come down too.
TEST_P(BcubeLosses, EveryPortCarriesTheEntriesOfWhatIsPruned) {
  BcubeOptions options = options_of(GetParam());
  options.elem_counts = {8'000, 7, 6'000, 2'000};
  options.steps = 1;
  const auto bcube = client::Bcube::create(options.switch_ports, options.levels).value();
  const bool plain = options.mode == BcubeMode::kPlain;
  for (const double fraction : {0.02, 0.5, 0.95}) {  // listed, in bitmaps, some chunks dense
    options.prune = {.rule = client::PruneRule::kStatic, .fraction = fraction, .min_elems = 1'000};
    BcubeWorld world(options);
    expect_clean(world);
    EXPECT_EQ(world.dropped_frames(), 0u);
    const Entries entries(options, bcube.servers());
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::uint64_t, std::uint64_t>> due;
    const auto layout = client::Layout::create(
        make_plan(static_cast<std::uint16_t>(bcube.servers()), 1, options.elem_counts).tensors,
        options.chunk_bytes);
    for (const client::Slice& slice : client::cut(bcube, layout.value())) {
      // Whose gradients are in what `who` has before the stage.
      const auto summed_by = [&](std::uint32_t who, std::uint32_t stage) {
        Servers servers{who};
        for (std::uint32_t passed = 0; passed < stage; ++passed) {
          const std::uint32_t level = bcube.level_of(slice.thread, passed);
          Servers more;
          for (const std::uint32_t each : servers)
            std::ranges::copy(servers_of(bcube, level, bcube.switch_of(each, level)),
                              std::back_inserter(more));
          servers = std::move(more);
        }
        return servers;
      };
      const std::uint64_t whole = entries.bytes_of({summed_by(0, bcube.levels())}, slice);
      for (std::uint32_t server = 0; server < bcube.servers(); ++server) {
        const std::uint32_t owned = bcube.stages_owned(server, slice.owner, slice.thread);
        for (std::uint32_t stage = 0; stage < bcube.levels() && stage <= owned; ++stage) {
          const std::uint32_t level = bcube.level_of(slice.thread, stage);
          std::vector<Servers> all;
          std::vector<Servers> others;
          for (const std::uint32_t each : servers_of(bcube, level, bcube.switch_of(server, level)))
            all.push_back(summed_by(each, stage));
          std::ranges::copy_if(all, std::back_inserter(others), [&](const Servers& each) {
            return each != summed_by(server, stage);
          });
          const std::uint64_t up = entries.bytes_of({summed_by(server, stage)}, slice);
          const bool turn = stage + 1 == bcube.levels();
          const bool owns = bcube.digit(server, level) == bcube.digit(slice.owner, level);
          auto& [sent, received] = due[{server, level}];
          if (plain && owns) {  // it sums for the others
            sent += others.size() * (turn ? entries.bytes_of(all, slice) : whole);
            for (const Servers& other : others) received += entries.bytes_of({other}, slice);
          } else if (turn) {
            sent += up;
            received += entries.bytes_of(all, slice);
          } else {
            sent += owns ? whole : up;
            received += owns ? entries.bytes_of(others, slice) : whole;
          }
        }
      }
    }
    for (const auto& [port, bytes] : due) {
      EXPECT_EQ(world.sent_bytes(port.first, port.second), bytes.first) << fraction;
      EXPECT_EQ(world.received_bytes(port.first, port.second), bytes.second) << fraction;
    }
  }
}

// The application's calls wait for a slice at most.
TEST(BcubeLosses, ATensorIsRoundedASliceAtATime) {
  BcubeOptions options = options_of({2, 2, BcubeMode::kAggregated});
  const std::uint64_t count = 8 * 100 * 336;
  options.elem_counts = {count};
  options.wire = Dtype::kBfloat16;
  BcubeWorld world(options);
  // Who runs before all do, after which the world submits.
  client::Relay* relay = nullptr;
  for (TimeNs until = 0; relay == nullptr && until < kSecond; until += 10) {
    world.run(until);
    for (std::uint32_t server = 0; server < 4 && !world.has_started(); ++server)
      if (world.relay(server).state() == client::SessionState::kRunning)
        relay = &world.relay(server);
  }
  ASSERT_NE(relay, nullptr);
  ASSERT_FALSE(relay->has_call());
  const std::vector<float> input(count, 1.0F + 1.0F / 1024);  // no bfloat16
  std::vector<float> output(count);
  ASSERT_TRUE(
      relay->submit({.tensor = 0, .input = input.data(), .output = output.data()}, world.now())
          .ok());
  std::int64_t before = 0;
  while (relay->has_call()) {
    relay->act_on_call(world.now());
    const std::int64_t now = std::ranges::count_if(output, [](float each) { return each != 0; });
    EXPECT_LE(now - before, client::kSliceChunks * 336);
    before = now;
  }
  EXPECT_EQ(before, static_cast<std::int64_t>(count));
}

}  // namespace
}  // namespace sluice::sim
