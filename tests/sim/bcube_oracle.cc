#include "tests/sim/bcube_oracle.h"

#include <bit>

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

BcubeOracle::BcubeOracle(const JobPlan& plan) : plan_(plan), replicas_(plan.world_size()) {
  for (Replica& replica : replicas_) replica.averages.resize(plan.tensors.size());
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
  }
  average.absent = given.empty();
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
