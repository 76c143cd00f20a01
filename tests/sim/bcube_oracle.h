// Whether all servers of a BCube get what they must: every average is recomputed from the plan's
// gradients, to the last bit; all servers are told the same weight; what was handed out stays; and
// after each step every replica is the same.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/core/session.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

class BcubeOracle {
 public:
  // The plan outlives it.
  explicit BcubeOracle(const JobPlan& plan);

  // A server's tensor is done: `output` is what it was given. Read only if there is data.
  void tensor_done(std::uint32_t server, Step step, const client::Event& event,
                   std::span<const float> output);
  // It has all tensors of a step, and may write to its memory from now on.
  void step_done(std::uint32_t server, Step step, std::span<const std::vector<float>> outputs);
  void collective_done(std::uint32_t server, std::size_t collective,
                       std::span<const std::uint8_t> buffer);
  std::uint64_t averages() const { return averages_; }
  const std::vector<std::string>& violations() const { return violations_; }
  void violation(std::string text) { violations_.push_back(std::move(text)); }

 private:
  struct Average {
    std::vector<float> sums;
    std::uint64_t weight = 0;  // as the first server was told
    std::uint64_t least_weight = 0, all_weight = 0;
    bool absent = false;
    bool told = false;
  };
  struct Replica {
    Step step = 0;
    std::uint64_t hash = 0;
    std::vector<std::uint64_t> averages;  // by tensor: hashes of the step under way
  };

  Average& average(Step step, std::uint32_t tensor);
  std::string place(std::uint32_t server, Step step, std::uint32_t tensor) const;

  const JobPlan& plan_;
  std::map<std::pair<Step, std::uint32_t>, Average> known_;
  std::vector<Replica> replicas_;
  std::map<Step, std::uint64_t> hashes_;  // of all replicas after a step
  std::uint64_t averages_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace sluice::sim
