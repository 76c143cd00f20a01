// Whether all threads of the box still make their rounds: what the service manager's watchdog is
// told.
//
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "dataplane/core/counters.h"

namespace sluice::dataplane {

class Pulse {
 public:
  // `answers`: waits for the control thread's next round; false: it has ended. The blocks outlive
  // the object.
  Pulse(CounterBlocks blocks, std::function<bool()> answers)
      : blocks_(std::move(blocks)), answers_(std::move(answers)), loops_(blocks_.lcores.size()) {}

  // Whether every lcore has made a round since the last call, and the control thread answers. A
  // control thread that hangs holds up the caller, which is what a watchdog is there for.
  bool beats() {
    bool all = answers_();
    for (std::size_t index = 0; index < loops_.size(); ++index) {
      const std::uint64_t loops = blocks_.lcores[index].counters->loops.read();
      all &= loops != std::exchange(loops_[index], loops);
    }
    return all;
  }

 private:
  const CounterBlocks blocks_;
  const std::function<bool()> answers_;
  std::vector<std::uint64_t> loops_;  // of each lcore, at the last call
};

}  // namespace sluice::dataplane
