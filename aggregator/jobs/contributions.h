// How far the ranks of a synchronous job have come, as the shards' counters say.
//
// A rank whose LEAVE was lost looks like one that died between two steps, and a rank that ended in
// order is no loss as long as the others begin no further step. The steps that the others have
// begun tell the two apart, and the shards keep that number for every rank. So no end of a rank is
// judged by the order in which packets came. Pure; one of each job; control thread only.
#pragma once

#include <cstdint>
#include <optional>

#include "aggregator/core/job.h"

namespace sluice::agg {

class Contributions {
 public:
  struct Furthest {
    Rank rank{};
    Step step = 0;  // 0: no rank has contributed to any
  };

  // `searches` counts the searches of all jobs.
  explicit Contributions(std::uint64_t& searches) noexcept : searches_(searches) {}

  // The rank that has contributed to the newest gradient step. A search reads world size x shards
  // counters, so its result stands until forget().
  const Furthest& furthest(const Job& job) noexcept;
  void forget() noexcept { furthest_.reset(); }

  // Whether the job waits for the rank: a step or a collective has begun that is not complete
  // without it, or the rank is not where one finishes, which is after a contribution to every step
  // that is closed, and to one at least.
  bool is_awaited(const Job& job, Rank rank) noexcept;

 private:
  std::uint64_t& searches_;
  std::optional<Furthest> furthest_;
};

}  // namespace sluice::agg
