// Convergence detection from the contributions on the wire to the job's gauge, against a reference
// that works on whole gradients, one bit at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aggregator/appliance/shards.h"

namespace sluice::agg {
namespace {

constexpr std::uint16_t kWorkers = 3;
constexpr std::uint16_t kElems = 100;     // a whole word of signs and a part of one
constexpr std::uint16_t kLastElems = 33;  // of the last chunk: two samples of one in 32
constexpr std::uint32_t kChunks = 3 * kChunksPerBlock + 5;  // four blocks for up to three shards
constexpr std::uint32_t kRoundSteps = 2;

using Gradient = std::vector<float>;

std::uint16_t elems_of(std::uint32_t chunk) { return chunk + 1 < kChunks ? kElems : kLastElems; }

// Small integers of both signs and both zeros, whose sums are zero or -0.0 often.
Gradient gradient_of(std::uint16_t rank, Step step) {
  std::mt19937 random(1000 * step + rank);
  Gradient gradient((kChunks - 1) * kElems + kLastElems);
  for (float& value : gradient) {
    value = static_cast<float>(static_cast<int>(random() % 5) - 2);
    if (value == 0 && random() % 2 == 0) value = -0.0f;
  }
  return gradient;
}

Gradient sum_of(Step step) {
  Gradient sum = gradient_of(0, step);
  for (std::uint16_t rank = 1; rank < kWorkers; ++rank) {
    const Gradient gradient = gradient_of(rank, step);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  return sum;
}

// The signs that one round looks at, in order.
std::vector<bool> sampled_signs(const Gradient& sum, std::uint16_t stride) {
  std::vector<bool> signs;
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk)
    for (std::size_t i = 0; i < elems_of(chunk); i += stride)
      signs.push_back(std::signbit(sum[chunk * kElems + i]));
  return signs;
}

double flipped_reference(Step step, std::uint16_t stride) {
  const std::vector<bool> before = sampled_signs(sum_of(step - kRoundSteps), stride);
  const std::vector<bool> now = sampled_signs(sum_of(step), stride);
  double flipped = 0;
  for (std::size_t i = 0; i < now.size(); ++i) flipped += now[i] != before[i];
  return flipped / static_cast<double>(now.size());
}

struct Appliance {
  Appliance(std::uint16_t stride, std::uint16_t shard_count) : shards(shard_count) {
    JobSpec spec{.id = JobId{0},
                 .name = "signs",
                 .world_size = kWorkers,
                 .chunk_bytes = kElems * sizeof(float),
                 .shard_count = shard_count,
                 .policy = {.kind = PolicyKind::kSaina,
                            .k = kWorkers,
                            .sign_stride = stride,
                            .round_steps = kRoundSteps},
                 .chunk_counts = {kChunks, 0, 0},
                 .max_elems = {kElems, 0, 0},
                 .windows = {kAsyncWindow, 0, 0}};
    job = std::make_unique<Job>(spec);
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank) job->members[rank].cookie = 1 + rank;
    job->start(0);
    for (std::uint16_t id = 0; id < shard_count; ++id)
      shards.shard(id).handle_command({.kind = ShardCommand::Kind::kAddJob, .job = job.get()}, 0);
  }

  void contribute(std::uint16_t rank, Step step) {
    const Gradient gradient = gradient_of(rank, step);
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const std::size_t payload_bytes = elems_of(chunk) * sizeof(float);
      const wire::Contribution body{.step = step,
                                    .chunk = chunk,
                                    .base_step = step,
                                    .weight = 1,
                                    .elem_count = elems_of(chunk),
                                    .dtype = Dtype::kFloat32};
      std::uint8_t out[512];
      const auto* payload = reinterpret_cast<const std::uint8_t*>(&gradient[chunk * kElems]);
      const std::size_t bytes = wire::encode(out, {.rank = rank, .cookie = Cookie{1} + rank}, body,
                                             {}, {payload, payload_bytes});
      wire::Packet packet;
      ASSERT_EQ(wire::parse({out, bytes}, packet), Verdict::kAccepted);
      const Verdict verdict =
          shards.shard(shard_of(chunk, job->spec.shard_count)).handle(packet, false, 0);
      ASSERT_TRUE(verdict == Verdict::kFolded || verdict == Verdict::kCompleted);
    }
  }

  std::unique_ptr<Job> job;
  Shards shards;
};

struct Case {
  std::uint16_t stride;
  std::uint16_t shards;
};

class Sfcd : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(StridesAndShards, Sfcd,
                         testing::Values(Case{kAllSigns, 1}, Case{kAllSigns, 3},
                                         Case{kOneSignIn32, 1}, Case{kOneSignIn32, 3}),
                         [](const auto& instance) {
                           return std::string(instance.param.stride == kAllSigns ? "all"
                                                                                 : "one_in_32") +
                                  "_" + std::to_string(instance.param.shards) + "_shards";
                         });

TEST_P(Sfcd, MatchesABitLevelReferenceOverSeveralRounds) {
  Appliance appliance(GetParam().stride, GetParam().shards);
  double expected = -1;  // until two rounds can be compared
  for (Step step = 1; step <= 5 * kRoundSteps; ++step) {
    for (std::uint16_t rank = 0; rank < kWorkers; ++rank)
      ASSERT_NO_FATAL_FAILURE(appliance.contribute(rank, step));
    if (step % kRoundSteps == 0 && step > kRoundSteps)
      expected = flipped_reference(step, GetParam().stride);
    ASSERT_EQ(appliance.job->gauges.signs_flipped.load(), expected) << "step " << step;
  }
  EXPECT_GT(expected, 0.3);  // the vectors do flip
  EXPECT_LT(expected, 0.7);
}

}  // namespace
}  // namespace sluice::agg
