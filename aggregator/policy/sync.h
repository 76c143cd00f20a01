// The policy `sync`: every live member, k = n. The baseline of all published comparisons.
#pragma once

#include "aggregator/core/record.h"

namespace sluice::agg {

// The record of `step` when `alive` are the members that contribute to it.
inline StepRecord sync_record(Step step, const MemberMask& alive) noexcept {
  StepRecord record{.step = step, .may = alive, .must = alive};
  record.k = static_cast<std::uint16_t>(alive.count());
  return record;
}

}  // namespace sluice::agg
