// Visits every reachable state of a small job breadth first, and checks the invariants in each.
//
// From a state, every possible event is played to the production objects, whose answer is compared
// with the rules. No event leads back to an earlier state, which is checked. If, from every state
// but the ends, some event without a fault leads on, then every schedule without further faults
// comes to an end, from any state that faults have led to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/exhaustive/subject.h"

namespace sluice::exhaustive {

// Whether the search visits states that differ by names only once (kForget) or each (kKeep).
enum class Names : std::uint8_t { kForget, kKeep };

struct Report {
  std::size_t states = 0;
  std::uint64_t events = 0;       // played to the production objects
  std::size_t ends = 0;           // states in which every live worker has every result
  std::string violation;          // empty: none
  std::vector<Key> keys;          // of all states, in the order of their discovery
  std::vector<std::string> path;  // the states that led there; workers' names may change
};

Report explore(const Config& config, Names names = Names::kForget);

}  // namespace sluice::exhaustive
