#include "tests/sim/bcube_oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "tests/sim/random.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kNothing = 1;  // the hash of an average that nobody had data for

std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = values.size();
  for (const float value : values) hash = mix(hash ^ std::bit_cast<std::uint32_t>(value));
  return hash;
}

}  // namespace

BcubeOracle::BcubeOracle(const JobPlan& plan, std::uint32_t chunk_elems,
                         const client::Layout* ordinary)
    : plan_(plan),
      chunk_elems_(chunk_elems),
      ordinary_(ordinary),
      books_(plan.world_size()),
      replicas_(plan.world_size()) {
  for (Replica& replica : replicas_) replica.averages.resize(plan.tensors.size());
  for (Books& books : books_) books.residuals.resize(plan.tensors.size());
}

// Where nothing is pruned all of it leaves.
float BcubeOracle::limit_of(std::uint32_t server, std::uint32_t tensor,
                            std::span<const float> gradient) {
  Books& books = books_[server];
  if (!plan_.is_pruned(tensor)) return 0;
  if (books.thresholds == nullptr) {
    std::vector<client::PruneTensor> tensors;
    for (std::uint32_t i = 0; i < plan_.tensors.size(); ++i)
      tensors.push_back({plan_.tensors[i].elem_count, !plan_.is_pruned(i)});
    books.thresholds = std::make_unique<client::Thresholds>(plan_.session.prune, tensors);
  }
  return books.thresholds->next(tensor, gradient, books.residuals[tensor]);
}

// Asked in the order of steps: what of gradient and residual leaves; the rest stays.
const std::vector<float>& BcubeOracle::leave(std::uint32_t server, Step step,
                                             std::uint32_t tensor) {
  const auto [found, is_new] = left_.try_emplace({step, tensor, server});
  std::vector<float>& left = found->second;
  if (!is_new) return left;
  std::erase_if(left_, [step](const auto& each) { return std::get<0>(each.first) + 2 < step; });
  const std::size_t count = plan_.tensors[tensor].elem_count;
  std::vector<float>& residual = books_[server].residuals[tensor];
  residual.resize(count);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = plan_.gradient(Rank{static_cast<std::uint16_t>(server)}, step, tensor, i);
  const float limit = limit_of(server, tensor, values);
  for (std::size_t i = 0; i < count; ++i) values[i] += residual[i];
  left = values;
  for (float& value : left)
    if (std::fabs(value) < limit) value = 0;
  const std::vector<float> nothing(chunk_elems_);
  std::vector<std::uint8_t> packed(payload_bytes(plan_.wire, chunk_elems_));
  for (std::size_t first = 0; plan_.is_rounded(tensor) && first < count; first += chunk_elems_) {
    const std::size_t elems = std::min<std::size_t>(chunk_elems_, count - first);
    agg::pack(&left[first], nothing.data(), elems, plan_.wire, packed.data());
    agg::fold_store(&left[first], packed.data(), elems, plan_.wire);
  }
  for (std::size_t i = 0; i < count; ++i) residual[i] = values[i] - left[i];
  return left;
}

void BcubeOracle::contributed(std::uint32_t server, Step step, std::uint32_t tensor,
                              std::uint64_t first_elem, std::span<const float> values) {
  if (plan_.is_nil(Rank{static_cast<std::uint16_t>(server)}, step, tensor))
    return violation(place(server, step, tensor) + "was contributed without a gradient");
  const std::span<const float> due = leave(server, step, tensor);
  if (!std::ranges::equal(values, due.subspan(first_elem, values.size())))
    violation(place(server, step, tensor) + "from element " + std::to_string(first_elem) +
              " on is not gradient and residual, pruned and rounded");
}

void BcubeOracle::check_residual(std::uint32_t server, std::uint32_t tensor,
                                 std::span<const float> values) {
  std::vector<float>& due = books_[server].residuals[tensor];
  due.resize(values.size());
  if (!std::ranges::equal(values, due))
    violation("rank " + std::to_string(server) + " tensor " + std::to_string(tensor) +
              ": the residual is not what was not delivered");
}

// The switches round without bias; only one level's have the ordinary job's chunks, and dice.
bool BcubeOracle::is_rounded_average(const Average& due, std::uint32_t tensor, std::uint64_t weight,
                                     std::span<const float> output) const {
  const Dtype wire = plan_.wire;
  const float factor =
      plan_.averaged_by() == AveragingChoice::kSum ? static_cast<float>(weight) : 1;
  const std::vector<float> nothing(chunk_elems_);
  for (std::size_t first = 0; first < output.size(); first += chunk_elems_) {
    const std::size_t count = std::min<std::size_t>(chunk_elems_, output.size() - first);
    std::vector<float> means(&due.sums[first], &due.sums[first] + count);
    std::vector<float> rounded(count);
    std::vector<std::uint8_t> packed(payload_bytes(wire, count));
    if (ordinary_ != nullptr) {
      const auto chunk =
          static_cast<ChunkIndex>(ordinary_->first_chunk(tensor) + first / chunk_elems_);
      (void)agg::finish_unbiased(means.data(), count, weight, wire,
                                 agg::rounding_seed(means.data(), count, chunk), packed.data());
    } else {
      for (float& mean : means) mean /= static_cast<float>(weight);
      agg::pack(means.data(), nothing.data(), count, wire, packed.data());
    }
    agg::fold_store(rounded.data(), packed.data(), count, wire);
    float scale = 0;
    if (wire == Dtype::kInt8) std::memcpy(&scale, &packed[count], sizeof scale);
    const float relative = wire == Dtype::kBfloat16 ? 0x1p-7f : 0x1p-10f;
    for (std::size_t i = 0; i < count; ++i) {
      const float value = output[first + i] / factor;
      const float quantum = scale != 0 ? scale : std::fabs(means[i]) * relative;
      const bool exact = ordinary_ != nullptr || rounded[i] == means[i];
      if (exact ? value != rounded[i] : std::fabs(value - means[i]) >= quantum) return false;
    }
  }
  return true;
}

std::string BcubeOracle::place(std::uint32_t server, Step step, std::uint32_t tensor) const {
  return "rank " + std::to_string(server) + " step " + std::to_string(step) + " tensor " +
         std::to_string(tensor) + ": ";
}

// Old steps are forgotten: no server is two steps behind another.
BcubeOracle::Average& BcubeOracle::average(Step step, std::uint32_t tensor) {
  const auto [found, is_new] = known_.try_emplace({step, tensor});
  Average& average = found->second;
  if (!is_new) return average;
  std::erase_if(known_, [step](const auto& each) { return each.first.first + 2 < step; });
  RankSet given;
  for (std::uint16_t rank = 0; rank < plan_.world_size(); ++rank) {
    const std::uint32_t weight = plan_.weight(Rank{rank}, step);
    average.all_weight += weight;
    if (plan_.is_nil(Rank{rank}, step, tensor)) continue;
    average.least_weight += weight;
    given.add(Rank{rank});
    if (!plan_.is_lossy(tensor)) continue;
    average.sums.resize(plan_.tensors[tensor].elem_count);
    const std::vector<float>& values = leave(rank, step, tensor);
    std::ranges::transform(average.sums, values, average.sums.begin(), std::plus<>());
  }
  average.absent = given.empty();
  if (plan_.is_lossy(tensor)) return average;
  for (std::uint64_t i = 0; !average.absent && i < plan_.tensors[tensor].elem_count; ++i)
    average.sums.push_back(plan_.sum(given, step, tensor, i));
  return average;
}

void BcubeOracle::tensor_done(std::uint32_t server, Step step, const client::Event& event,
                              std::span<const float> output) {
  const std::string where = place(server, step, event.tensor);
  Average& due = average(step, event.tensor);
  ++averages_;
  if (event.step != step) violation(where + "is of step " + std::to_string(event.step));
  if (event.absent != due.absent) violation(where + "absent");
  if (!due.told) {
    due.told = true;
    due.weight = event.weight;
    // Who leaves a tensor out contributes its last weight.
    if (plan_.nil_ppm == 0 && event.weight != due.all_weight)
      violation(where + "weight " + std::to_string(event.weight));
    if (event.weight < due.least_weight)
      violation(where + "weight " + std::to_string(event.weight) + " is less than that of data");
  }
  if (event.weight != due.weight)
    violation(where + "weight " + std::to_string(event.weight) + ", another server was told " +
              std::to_string(due.weight));
  if (event.absent || due.absent) return void(replicas_[server].averages[event.tensor] = kNothing);
  replicas_[server].averages[event.tensor] = hash_of(output);
  const bool sum = plan_.averaged_by() == AveragingChoice::kSum;
  if (plan_.is_rounded(event.tensor)) {
    if (!is_rounded_average(due, event.tensor, event.weight, output))
      violation(where + "is not the average, rounded");
    return;
  }
  for (std::uint64_t i = 0; i < output.size(); ++i) {
    const float expected = sum ? due.sums[i] : due.sums[i] / static_cast<float>(event.weight);
    if (output[i] == expected) continue;
    return violation(where + "element " + std::to_string(i) + " is " + std::to_string(output[i]) +
                     ", not " + std::to_string(expected));
  }
}

// A server left out what it has no hash of: it did not ask for the average.
void BcubeOracle::step_done(std::uint32_t server, Step step,
                            std::span<const std::vector<float>> outputs) {
  Replica& replica = replicas_[server];
  if (step != replica.step + 1)
    violation("rank " + std::to_string(server) + ": step " + std::to_string(step) + " after " +
              std::to_string(replica.step));
  bool has_all = true;
  std::uint64_t hash = 0;
  for (std::uint32_t tensor = 0; tensor < outputs.size(); ++tensor) {
    const std::uint64_t told = std::exchange(replica.averages[tensor], 0);
    if (told == 0 && !plan_.is_nil(Rank{static_cast<std::uint16_t>(server)}, step, tensor))
      violation(place(server, step, tensor) + "was not done when its step was");
    if (!plan_.pipelined && told > kNothing && told != hash_of(outputs[tensor]))
      violation(place(server, step, tensor) + "has changed after it was done");
    has_all &= told != 0;
    hash = mix(hash ^ told);
  }
  replica.step = step;
  if (!has_all) return;
  const auto [other, is_first] = hashes_.emplace(step, hash);
  if (!is_first && other->second != hash)
    violation("rank " + std::to_string(server) + " step " + std::to_string(step) +
              ": its replica differs from another server's");
}

void BcubeOracle::collective_done(std::uint32_t server, std::size_t collective,
                                  std::span<const std::uint8_t> buffer) {
  for (std::size_t at = 0; at < buffer.size(); ++at)
    if (buffer[at] != plan_.broadcast_byte(collective, at))
      return violation("rank " + std::to_string(server) + " broadcast " +
                       std::to_string(collective) + ": byte " + std::to_string(at) + " is wrong");
}

}  // namespace sluice::sim
