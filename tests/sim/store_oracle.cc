#include "tests/sim/store_oracle.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "aggregator/store/optimizer.h"

namespace sluice::sim {

void StoreOracle::joined(const Party& party, const JobPlan& plan, Step first) {
  std::uint32_t layers = 0;
  for (const client::TensorSpec& tensor : plan.tensors) layers += tensor.begins_block;
  process(party) = {.rank = party.rank,
                    .first = first,
                    .pushed = std::vector<Step>(layers),
                    .counted = std::vector<Step>(layers)};
}

void StoreOracle::pushed(const Party& party, std::uint32_t layer, Step iteration) {
  process(party).pushed[layer] = iteration;
}

void StoreOracle::counted(const Party& party, std::uint32_t layer, Step iteration) {
  process(party).counted[layer] = iteration;
}

// How many pushes of the rank must be in what is read, and can be. Of who may be lost only what was
// counted is sure: but all of that, since a clock passes nobody who is a member, and of who is none
// nothing is counted any more.
StoreOracle::Limits StoreOracle::limits(const Run& run, const Read& read, Rank rank,
                                        const JobPlan& plan) {
  const Step bound = plan.session.store->bound;
  Limits limits;
  const bool last = read.iteration == kLastStep;
  const bool whole = last && (bound == 0 || !run.has_restarted);
  const bool loses = plan.loses_ranks || run.has_moved;
  const Step own =
      last ? run.processes.at(read.party.process).pushed[read.layer] : read.iteration - 1;
  const Step need = bound == kNoBound || own <= bound ? 0 : own - bound;
  for (const auto& [index, one] : run.processes) {
    if (one.rank != rank) continue;
    const auto count = [&](Step until) { return until < one.first ? 0 : until - one.first + 1; };
    const Step counted = one.counted[read.layer];
    const Step pushed = one.pushed[read.layer];
    limits.most += pushed == 0 ? 0 : count(pushed);
    if (whole || index == read.party.process)
      limits.least += counted == 0 ? 0 : count(counted);
    else if (loses)
      limits.least += counted == 0 ? 0 : count(std::min(counted, need));
    else
      limits.least += count(need);
  }
  return limits;
}

// An element of any rank after so many iterations of all, of which the mean is always the same.
float StoreOracle::expected_after(Step iterations, const JobPlan& plan) const {
  const UpdateOptions& update = plan.session.store->update;
  float value = 0;
  std::array<float, 2> states{};
  std::array<float*, 2> pointers{&states[0], &states[1]};
  const float pushed = kUnit;
  for (Step ordinal = 1; ordinal <= iterations; ++ordinal)
    agg::apply_update(
        update, {.divisor = static_cast<float>(plan.world_size()), .rate = -1, .ordinal = ordinal},
        &value, std::span(pointers).first(update.state_count()),
        reinterpret_cast<const std::uint8_t*>(&pushed), 1);
  return value;
}

void StoreOracle::check_rank(Run& run, const Read& read, ChunkIndex chunk, Rank rank, float found,
                             const JobPlan& plan) {
  const std::uint16_t world = plan.world_size();
  const auto wrong = [&](const std::string& what) {
    oracle_.violation("store: job " + plan.name + " rank " + std::to_string(read.party.rank.value) +
                      " reads " + std::to_string(found) + " of rank " + std::to_string(rank.value) +
                      " in chunk " + std::to_string(chunk) + " for iteration " +
                      std::to_string(read.iteration) + ": " + what);
  };
  const Limits due = limits(run, read, rank, plan);
  if (due.least > due.most)
    return wrong("it must hold " + std::to_string(due.least) + " pushes and only " +
                 std::to_string(due.most) + " were made");
  const float share = kUnit / static_cast<float>(world);
  const UpdateOptions& update = plan.session.store->update;
  const bool remembers = update.state_count() != 0;
  const bool loses = plan.loses_ranks || run.has_moved;
  const float greatest = (loses ? kUnit : share) * (remembers ? 2 : 1);
  if (remembers && plan.session.store->bound == 0 && !loses && !run.has_restarted) {
    const Step seen = read.iteration == kLastStep ? due.most : read.iteration - 1;
    if (const float expected = expected_after(seen, plan); found != expected)
      wrong("after " + std::to_string(seen) + " iterations it is " + std::to_string(expected));
  } else if (update.rule != UpdateRule::kAdam && !update.nesterov) {
    if (!remembers && (found != std::floor(found) || (!loses && std::fmod(found, share) != 0)))
      wrong("that is no number of pushes");
    // With bound 0, what a process pushed before it was lost may count beside what its successor
    // pushes in the same iteration: once a successor there are more than `world` of an iteration,
    // and both pushes are then a smaller share.
    const auto successors =
        static_cast<std::uint32_t>(std::max<std::size_t>(run.processes.size(), world) - world);
    const std::uint32_t thinned =
        plan.session.store->bound == 0 ? std::min(2 * successors, due.least) : 0;
    const float thin = kUnit / static_cast<float>(world + successors);
    if (found <
        share * static_cast<float>(due.least - thinned) + thin * static_cast<float>(thinned))
      wrong("less than " + std::to_string(due.least) + " pushes");
    // What remembers is rounded at every push of anybody; a push more is a hundred times that.
    const float rounding = remembers ? 1.0001f : 1.0f;
    if (found > greatest * static_cast<float>(due.most) * rounding)
      wrong("more than " + std::to_string(due.most) + " pushes");
  }
  double& before = run.read[{read.party.process, chunk, rank.value}];
  if (found < before) wrong("before it was " + std::to_string(before));
  before = found;
  const bool last = read.iteration == kLastStep;
  if (plan.session.store->bound != 0 && (!last || run.has_restarted)) return;
  const auto [same, fresh] = run.same.try_emplace({chunk, read.iteration, rank.value}, found);
  if (!fresh && same->second != found)
    wrong("another one has read " + std::to_string(same->second));
}

void StoreOracle::check(const Read& read, const JobPlan& plan, const client::Layout& layout) {
  Run& run = runs_[read.party.run];
  const std::uint16_t world = plan.world_size();
  for (ChunkIndex chunk = layout.first_chunk(read.tensor); chunk < layout.end_chunk(read.tensor);
       ++chunk) {
    const client::ChunkSpan span = layout.chunk(chunk);
    const std::span<const float> values = read.values.subspan(span.first_elem, span.elem_count);
    for (std::uint16_t i = 0; i < std::min(world, span.elem_count); ++i) {
      const auto rank = static_cast<std::uint16_t>((span.first_elem + i) % world);
      for (std::size_t at = i; at < values.size(); at += world)
        if (values[at] != values[i])
          return oracle_.violation("store: job " + plan.name + " rank " +
                                   std::to_string(read.party.rank.value) + " reads chunk " +
                                   std::to_string(chunk) + " with parts of a push of rank " +
                                   std::to_string(rank));
      check_rank(run, read, chunk, Rank{rank}, values[i], plan);
    }
    ++reads_checked_;
  }
}

}  // namespace sluice::sim
