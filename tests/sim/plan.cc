#include "tests/sim/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/sim/random.h"

namespace sluice::sim {
namespace {

// Keeps the streams of derived values apart.
enum class Salt : std::uint64_t {
  kGradient = 1,
  kNil,
  kWeight,
  kBroadcast,
  kOrder,
  kPriority,
  kJitter,
  kState
};

std::uint64_t salted(Salt salt, std::uint64_t seed) {
  return mix(static_cast<std::uint64_t>(salt), seed);
}

}  // namespace

Step JobPlan::steps() const {
  Step most = 0;
  for (const RankPlan& rank : ranks) most = std::max(most, rank.last_step);
  return most;
}

DurationNs JobPlan::compute_ns(Rank rank, Step step) const {
  const RankPlan& rank_plan = ranks[rank.value];
  DurationNs total_ns = rank_plan.step_delay_ns;
  if (step == rank_plan.hiccup_step) total_ns += rank_plan.hiccup_ns;
  if (rank_plan.jitter_ns == 0) return total_ns;
  // Close to an exponential distribution, in integers: the binary exponent times ln 2.
  const std::uint64_t drawn = mix(salted(Salt::kJitter, seed), step, rank.value);
  const int halvings = std::countl_zero(drawn | 1);
  const auto fraction = static_cast<std::int64_t>(drawn & 1023);
  return total_ns + rank_plan.jitter_ns * (1024 * halvings + fraction) / 1024 * 693 / 1000;
}

float JobPlan::gradient(Rank rank, Step step, std::uint32_t tensor, std::uint64_t elem) const {
  const std::uint64_t key = (std::uint64_t{rank.value} << 48) ^ (std::uint64_t{step} << 24) ^
                            (std::uint64_t{tensor} << 16);
  const std::uint64_t drawn = mix(seed ^ key, elem);
  const auto whole = static_cast<float>(static_cast<int>(drawn & 15) - 8);
  if (has_velocity(tensor)) return whole;
  if (is_pruned(tensor)) return static_cast<float>(static_cast<int>(drawn % 2048) - 1024);
  if (is_rounded(tensor)) return static_cast<float>(static_cast<int>(drawn % 8192) - 4096);
  if (!inexact) return whole;
  constexpr float kScales[] = {1, 1.0F / 3, 1.0F / 9, 1.0F / 27};
  std::uint8_t bytes[4] = {};
  store_element(tensors[tensor].dtype, whole * kScales[rank.value % 4], bytes);
  return load_element(tensors[tensor].dtype, bytes);
}

bool JobPlan::is_nil(Rank rank, Step step, std::uint32_t tensor) const {
  if (nil_rule) return nil_rule(rank, step, tensor);
  if (nil_ppm == 0) return false;
  // Now and then nobody uses the tensor.
  if (mix(salted(Salt::kNil, seed), step, tensor) % 8 == 0) return true;
  return mix(salted(Salt::kNil, seed), step, tensor, rank.value) % 1'000'000 < nil_ppm;
}

std::uint32_t JobPlan::weight(Rank rank, Step step) const {
  if (zero_weights) return rank.value + 1 == world_size() ? 0 : 2;
  return 1 + static_cast<std::uint32_t>(mix(salted(Salt::kWeight, seed), step, rank.value) % 4);
}

std::uint8_t JobPlan::broadcast_byte(std::size_t collective, std::size_t at) const {
  return static_cast<std::uint8_t>(mix(salted(Salt::kBroadcast, seed), collective, at));
}

std::vector<std::uint32_t> JobPlan::submission_order(Rank rank, Step step) const {
  std::vector<std::uint32_t> order;
  for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor)
    if (nil_output || !is_nil(rank, step, tensor)) order.push_back(tensor);
  if (random_order) Random(mix(salted(Salt::kOrder, seed), step, rank.value)).shuffle(order);
  if (!random_order && backward_order) std::reverse(order.begin(), order.end());
  return order;
}

Priority JobPlan::priority(Rank rank, Step step, std::uint32_t tensor) const {
  if (!random_priority) return static_cast<Priority>(std::min<std::uint32_t>(tensor, 255));
  return static_cast<Priority>(mix(salted(Salt::kPriority, seed), step, rank.value, tensor));
}

float JobPlan::sum(const RankSet& mask, Step step, std::uint32_t tensor, std::uint64_t elem) const {
  float total = 0;
  mask.for_each([&](Rank rank) {
    if (!is_nil(rank, step, tensor)) total += gradient(rank, step, tensor, elem);
  });
  return total;
}

std::vector<std::uint8_t> encode_state(const JobPlan& plan, std::uint64_t replica, Step step) {
  std::vector<std::uint8_t> state(std::max<std::size_t>(plan.state_bytes, sizeof(replica)));
  std::memcpy(state.data(), &replica, sizeof(replica));
  for (std::size_t i = sizeof(replica); i < state.size(); ++i)
    state[i] = static_cast<std::uint8_t>(mix(salted(Salt::kState, replica), step, i));
  return state;
}

bool decode_state(const JobPlan& plan, std::span<const std::uint8_t> state, Step step,
                  std::uint64_t& replica) {
  if (state.size() < sizeof(replica)) return false;
  std::memcpy(&replica, state.data(), sizeof(replica));
  const std::vector<std::uint8_t> expected = encode_state(plan, replica, step);
  return std::equal(state.begin(), state.end(), expected.begin(), expected.end());
}

JobPlan make_plan(std::uint16_t workers, Step steps,
                  const std::vector<std::uint64_t>& elem_counts) {
  JobPlan plan;
  for (std::size_t i = 0; i < elem_counts.size(); ++i)
    plan.tensors.push_back({.name = "t" + std::to_string(i), .elem_count = elem_counts[i]});
  plan.ranks.resize(workers);
  for (RankPlan& rank : plan.ranks) rank.last_step = steps;
  return plan;
}

void store_element(Dtype dtype, float value, std::uint8_t* to) {
  switch (dtype) {
    case Dtype::kFloat32: std::memcpy(to, &value, 4); return;
    case Dtype::kFloat16: {
      const auto narrow = static_cast<_Float16>(value);
      std::memcpy(to, &narrow, 2);
      return;
    }
    case Dtype::kBfloat16: {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const auto narrow = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
      std::memcpy(to, &narrow, 2);
      return;
    }
    case Dtype::kBytes:
    case Dtype::kInt8: *to = static_cast<std::uint8_t>(value); return;
  }
}

float load_element(Dtype dtype, const std::uint8_t* from) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, dtype_bytes(dtype));
  if (dtype == Dtype::kFloat32) return std::bit_cast<float>(bits);
  if (dtype == Dtype::kBfloat16) return std::bit_cast<float>(bits << 16);
  return std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits));
}

}  // namespace sluice::sim
