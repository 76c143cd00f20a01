// Checks that all servers of a BCube get what they must. Every average is recomputed from the
// plan's gradients, to the last bit. All servers are told the same weight, outputs that were handed
// out stay as they are, and after each step all replicas are equal.
//
// Of lossy tensors the oracle knows each server's residual. A server contributes gradient plus
// residual, pruned and rounded, whenever and wherever it is sent. The average is that of these
// values, or a neighbour of it in the wire format. The server keeps what it has not delivered.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/core/session.h"
#include "client/prune/threshold.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

class BcubeOracle {
 public:
  // `plan` outlives the oracle. `chunk_elems`: elements in a chunk, for tensors that are rounded.
  // `ordinary`: the oracle of a job at one appliance, whose bits the averages must have; outlives
  // this one; null for several levels.
  explicit BcubeOracle(const JobPlan& plan, std::uint32_t chunk_elems = 0,
                       const client::Layout* ordinary = nullptr);

  // A server sends these values of a lossy tensor.
  void contributed(std::uint32_t server, Step step, std::uint32_t tensor, std::uint64_t first_elem,
                   std::span<const float> values);
  // At rest after a step: the residual that the server reports.
  void check_residual(std::uint32_t server, std::uint32_t tensor, std::span<const float> values);

  // A server's tensor is done; `output` is the memory that it was given, read only if there is
  // data.
  void tensor_done(std::uint32_t server, Step step, const client::Event& event,
                   std::span<const float> output);
  // A server has all tensors of a step, and may write to its memory from now on.
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
  const std::vector<float>& leave(std::uint32_t server, Step step, std::uint32_t tensor);
  float limit_of(std::uint32_t server, std::uint32_t tensor, std::span<const float> gradient);
  bool is_rounded_average(const Average& due, std::uint32_t tensor, std::uint64_t weight,
                          std::span<const float> output) const;
  std::string place(std::uint32_t server, Step step, std::uint32_t tensor) const;

  // By tensor, the values that a server has not delivered.
  struct Books {
    std::vector<std::vector<float>> residuals;
    std::unique_ptr<client::Thresholds> thresholds;
  };

  const JobPlan& plan_;
  const std::uint32_t chunk_elems_;
  const client::Layout* const ordinary_;
  std::vector<Books> books_;
  std::map<std::pair<Step, std::uint32_t>, Average> known_;
  // The values of a lossy tensor that a server contributes, once it has begun the step.
  std::map<std::tuple<Step, std::uint32_t, std::uint32_t>, std::vector<float>> left_;
  std::vector<Replica> replicas_;
  std::map<Step, std::uint64_t> hashes_;  // of all replicas after a step
  std::uint64_t averages_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace sluice::sim
