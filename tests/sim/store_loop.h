// The application of a worker of a parameter store: the loop that a user would write. It pulls all
// layers, checks the values, computes, and pushes all layers, the last one first. When all ranks
// have ended it reads once more.
#pragma once

#include <cstdint>
#include <vector>

#include "client/core/session.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

class Worker;
class World;

class StoreLoop {
 public:
  StoreLoop(World& world, Worker& worker);

  void start();
  void on_event(const client::Event& event);
  // True: there may be more to do.
  bool advance(TimeNs now);
  // The store has counted everything that this worker will push.
  bool over() const { return over_ && counting_ == 0; }
  Step counted() const {
    const Step under_way = counting_ == 0 ? 1 : 2;
    return iteration_ < under_way ? 0 : iteration_ - under_way;
  }
  // After over(): reads all layers once more.
  void read_last();
  bool has_read_last() const { return reading_last_ && !asked_; }

 private:
  bool pull(std::uint32_t layer);
  void push(std::uint32_t layer);
  void check(std::uint32_t layer, Step iteration);
  bool begin_iteration(TimeNs now);
  template <class Pointer>
  std::vector<Pointer> pointers(std::vector<std::vector<float>>& memory, std::uint32_t layer);
  bool expect_ok(const Status& status, const char* what);
  std::uint32_t layer_count() const {
    return static_cast<std::uint32_t>(first_tensors_.size() - 1);
  }

  World& world_;
  Worker& worker_;
  std::vector<std::uint32_t> first_tensors_;  // of each layer, and the number of tensors
  std::vector<std::vector<float>> copies_, deltas_;
  Step iteration_ = 0;
  bool asked_ = false;  // its pulls are under way, or done
  bool over_ = false;
  bool reading_last_ = false;
  std::uint32_t pulling_ = 0;
  std::uint32_t counting_ = 0;  // pushes, and layers of initial values
  TimeNs due_ns_ = kNever;      // the end of the computation
};

}  // namespace sluice::sim
