// The application of a worker of a job of operations. It makes a group of all ranks, and two of
// some, and calls the same operations in each round: sums, gathers and broadcasts, of a few bytes
// and of many chunks. Every output is compared with what the plan says.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client/core/session.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

class Worker;
class World;

class GroupLoop {
 public:
  GroupLoop(World& world, Worker& worker);

  void start(TimeNs now);
  void on_event(const client::Event& event);
  // True: there may be more to do.
  bool advance(TimeNs now);
  // Rounds of which all operations are over, completed or not.
  Step rounds_done() const { return open_.empty() ? round_ : open_.begin()->first - 1; }
  bool over() const;

 private:
  static constexpr std::size_t kGroups = 3;
  struct Open {
    std::uint32_t group = 0;
    wire::OperationKind kind{};
    std::uint16_t root = 0;
    std::vector<std::uint8_t> input, output;
  };
  using Number = std::pair<std::uint32_t, std::uint64_t>;  // group and operation

  void call(std::uint32_t group, wire::OperationKind kind, std::uint64_t bytes, TimeNs now);
  void check(const Open& open, Step round);
  std::uint64_t part_of(Rank rank, const Open& open, Step round, std::uint64_t at) const;
  void violation(const std::string& text);

  World& world_;
  Worker& worker_;
  std::array<std::vector<Rank>, kGroups> ranks_;
  std::array<std::uint32_t, kGroups> indices_{};
  std::map<Step, std::map<Number, std::unique_ptr<Open>>> open_;  // by round
  Step round_ = 0;          // the newest one whose operations are called
  TimeNs due_ns_ = kNever;  // the end of the computation before the next round
};

}  // namespace sluice::sim
