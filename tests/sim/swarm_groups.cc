#include "tests/sim/swarm_groups.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace sluice::sim {
namespace {

constexpr std::uint64_t kTag = 0x6A0095;  // of this draw's randomness
constexpr DurationNs kBound = 120 * kSecond;

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& choices) {
  return choices[random.below(N)];
}

std::vector<Rank> draw_ranks(Random& random, std::uint16_t world_size, bool all) {
  std::vector<Rank> ranks;
  for (std::uint16_t rank = 0; rank < world_size; ++rank)
    if (all || random.one_in(2)) ranks.push_back(Rank{rank});
  if (ranks.empty()) ranks.push_back(Rank{static_cast<std::uint16_t>(random.below(world_size))});
  return ranks;
}

PlannedOperation draw_operation(Random& random, const std::vector<Rank>& ranks,
                                std::uint16_t chunk_bytes) {
  PlannedOperation operation{.kind = static_cast<wire::OperationKind>(random.below(6))};
  const std::uint64_t chunks = random.one_in(6)   ? 600 + random.below(600)
                               : random.one_in(3) ? random.below(60)
                                                  : 0;
  operation.bytes = random.below(chunks * chunk_bytes + 2 * chunk_bytes);
  if (wire::is_reduction(operation.kind)) {
    operation.dtype = pick(
        random, std::array{Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16});
    operation.wire = operation.dtype;
    if (operation.dtype == Dtype::kFloat32)
      operation.wire = pick(
          random, std::array{Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16});
    if (operation.wire == Dtype::kFloat32 && random.one_in(3))
      operation.reduction = wire::Reduction::kMean;
    operation.bytes -= operation.bytes % 4;
  }
  if (operation.kind == wire::OperationKind::kBarrier) operation.bytes = 0;
  if (wire::has_root(operation.kind)) operation.root = ranks[random.below(ranks.size())].value;
  if (random.one_in(4)) operation.priority = static_cast<Priority>(random.below(256));
  return operation;
}

}  // namespace

bool has_groups(std::uint64_t seed) noexcept { return Random(mix(seed, kTag, 1)).one_in(4); }

GroupWorldOptions draw_groups(std::uint64_t seed) {
  Random random(mix(seed, kTag));
  GroupWorldOptions options{.seed = seed};
  options.world_size = static_cast<std::uint16_t>(1 + random.below(6));
  options.shard_count = pick(random, std::array<std::uint16_t, 5>{1, 1, 2, 3, 4});
  options.chunk_bytes = pick(random, std::array<std::uint16_t, 2>{64, 192});
  options.page_count = pick(random, std::array<std::uint32_t, 2>{256, 64});
  options.credit_packets = pick(random, std::array<std::uint32_t, 3>{16, 64, 256});
  const std::uint64_t group_count = 1 + random.below(3);
  for (std::uint64_t group = 0; group < group_count; ++group) {
    PlannedGroup plan{.ranks = draw_ranks(random, options.world_size, group == 0)};
    for (std::uint64_t i = 1 + random.below(30); i > 0; --i)
      plan.operations.push_back(draw_operation(random, plan.ranks, options.chunk_bytes));
    if (random.one_in(4)) plan.first_chunk = (std::uint64_t{1} << 32) - random.below(400);
    options.groups.push_back(std::move(plan));
  }
  for (std::uint16_t rank = 0; rank < options.world_size; ++rank) {
    Pace pace{
        .start_ns = random.between(0, 20 * kMillisecond),
        .pause_ns = pick(random, std::array<DurationNs, 3>{0, kMillisecond, 20 * kMillisecond}),
        .depth = pick(random, std::array<std::size_t, 3>{1, 4, 16})};
    if (random.one_in(8)) pace.start_ns += kSecond;  // late
    if (random.one_in(8)) pace.patience_ns = random.between(kMillisecond, kSecond);
    options.paces.push_back(pace);
  }
  options.loss_ppm = pick(random, std::array<std::uint64_t, 4>{0, 1'000, 20'000, 100'000});
  options.twice_ppm = pick(random, std::array<std::uint64_t, 3>{0, 1'000, 50'000});
  options.delay_ns = pick(random, std::array{20 * kMicrosecond, 100 * kMicrosecond, kMillisecond});
  options.jitter_ns = pick(random, std::array{DurationNs{0}, 50 * kMicrosecond, 3 * kMillisecond});
  options.control_delay_ns =
      pick(random, std::array{DurationNs{0}, kMillisecond, 30 * kMillisecond});
  options.faults_stop_ns = kSecond + random.between(0, 3 * kSecond);
  if (options.world_size > 1 && random.one_in(4))
    options.death = GroupWorldOptions::Death{
        .rank = Rank{static_cast<std::uint16_t>(random.below(options.world_size))},
        .at_ns = kSecond + random.between(0, 500 * kMillisecond)};
  if (options.world_size > 1 && random.one_in(6)) {
    auto& operations = options.groups[0].operations;
    const std::uint64_t number = random.below(operations.size());
    if (operations[number].kind == wire::OperationKind::kBarrier)
      operations[number].kind = wire::OperationKind::kAllGather;
    options.disagreement = GroupWorldOptions::Disagreement{
        .rank = Rank{static_cast<std::uint16_t>(random.below(options.world_size))},
        .number = number};
  }
  if (options.world_size > 1 && !options.death && random.one_in(6))
    options.abort = GroupWorldOptions::Death{
        .rank = Rank{static_cast<std::uint16_t>(random.below(options.world_size))},
        .at_ns = kSecond + random.between(0, 500 * kMillisecond)};
  if (options.world_size > 1 && !options.abort && random.one_in(6))
    options.leave = GroupWorldOptions::Leave{
        .rank = Rank{static_cast<std::uint16_t>(random.below(options.world_size))},
        .after = random.below(options.groups[0].operations.size() + 1)};
  if (random.one_in(3))
    for (std::uint64_t i = 1 + random.below(2); i > 0; --i)
      options.restarts.push_back({.after_packets = random.below(random.one_in(2) ? 100 : 3'000),
                                  .down_ns = random.between(0, 500 * kMillisecond)});
  options.reproducible = random.one_in(3);
  return options;
}

std::string describe(const GroupWorldOptions& options) {
  std::ostringstream text;
  text << "groups: ranks=" << options.world_size << " shards=" << options.shard_count
       << " chunk=" << options.chunk_bytes << " pages=" << options.page_count
       << " credit=" << options.credit_packets << " loss_ppm=" << options.loss_ppm
       << " twice_ppm=" << options.twice_ppm << " delay_us=" << options.delay_ns / kMicrosecond
       << " jitter_us=" << options.jitter_ns / kMicrosecond
       << " control_us=" << options.control_delay_ns / kMicrosecond
       << " faults_stop_ms=" << options.faults_stop_ns / kMillisecond;
  if (options.reproducible) text << " reproducible";
  for (const PlannedGroup& group : options.groups)
    text << " group(ranks=" << group.ranks.size() << " operations=" << group.operations.size()
         << " first=" << group.first_chunk << ")";
  if (options.death)
    text << " death(rank=" << options.death->rank.value
         << " ms=" << options.death->at_ns / kMillisecond << ")";
  for (const auto& restart : options.restarts)
    text << " restart(packets=" << restart.after_packets
         << " down_ms=" << restart.down_ns / kMillisecond << ")";
  if (options.abort)
    text << " abort(rank=" << options.abort->rank.value
         << " ms=" << options.abort->at_ns / kMillisecond << ")";
  if (options.leave)
    text << " leave(rank=" << options.leave->rank.value << " after=" << options.leave->after << ")";
  if (options.disagreement)
    text << " disagreement(rank=" << options.disagreement->rank.value
         << " operation=" << options.disagreement->number << ")";
  return text.str();
}

GroupOutcome run_groups(const GroupWorldOptions& options) {
  GroupWorld world(options);
  const bool finished = world.run(options.faults_stop_ns + kBound);
  GroupOutcome outcome{.violations = world.violations(),
                       .trace_hash = world.trace(),
                       .packets = world.packets(),
                       .results_checked = world.checked()};
  if (!finished)
    outcome.violations +=
        "groups: an operation has no event within the bound\n" + world.unfinished();
  return outcome;
}

}  // namespace sluice::sim
