// What a seed decides about groups and their operations, in a world of their own.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/group_world.h"

namespace sluice::sim {

// One seed in four has groups.
bool has_groups(std::uint64_t seed) noexcept;
GroupWorldOptions draw_groups(std::uint64_t seed);
std::string describe(const GroupWorldOptions& options);

struct GroupOutcome {
  std::string violations;  // one a line; empty: it is sound
  std::uint64_t trace_hash = 0;
  std::uint64_t packets = 0;
  std::uint64_t results_checked = 0;
};
GroupOutcome run_groups(const GroupWorldOptions& options);

}  // namespace sluice::sim
