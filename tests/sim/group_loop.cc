#include "tests/sim/group_loop.h"

#include <algorithm>
#include <cstring>

#include "tests/sim/random.h"
#include "tests/sim/worker.h"
#include "tests/sim/world.h"

namespace sluice::sim {
namespace {

using enum wire::OperationKind;

// Rounds whose operations are open at once.
constexpr std::size_t kDepth = 2;

}  // namespace

GroupLoop::GroupLoop(World& world, Worker& worker) : world_(world), worker_(worker) {
  for (std::uint16_t rank = 0; rank < worker.plan.world_size(); ++rank) {
    ranks_[0].push_back(Rank{rank});
    ranks_[1 + rank % 2].push_back(Rank{rank});
  }
}

void GroupLoop::violation(const std::string& text) {
  world_.oracle().violation("operations: job " + worker_.plan.name + " rank " +
                            std::to_string(worker_.identity.rank.value) + ": " + text);
}

void GroupLoop::start(TimeNs now) {
  for (std::uint32_t group = 0; group < kGroups; ++group) {
    if (!std::ranges::binary_search(ranks_[group], worker_.identity.rank)) continue;
    const Status made = worker_.session().groups()->make("group " + std::to_string(group),
                                                         ranks_[group], now, indices_[group]);
    if (!made.ok()) violation("a group was refused: " + made.message());
  }
}

// A float32's bits, or a byte, of what the rank contributes.
std::uint64_t GroupLoop::part_of(Rank rank, const Open& open, Step round, std::uint64_t at) const {
  const std::uint64_t kind = static_cast<std::uint64_t>(open.kind);
  return mix(worker_.plan.seed ^ round, open.group * 8 + kind, rank.value, at);
}

void GroupLoop::call(std::uint32_t group, wire::OperationKind kind, std::uint64_t bytes,
                     TimeNs now) {
  const std::vector<Rank>& ranks = ranks_[group];
  if (!std::ranges::binary_search(ranks, worker_.identity.rank)) return;
  auto open = std::make_unique<Open>();
  open->group = group;
  open->kind = kind;
  open->root = wire::has_root(kind) ? ranks[round_ % ranks.size()].value : wire::kNoRank;
  const std::uint64_t whole = bytes * (wire::has_parts(kind) ? ranks.size() : 1);
  open->input.resize(kind == kReduceScatter ? whole : bytes);
  open->output.assign(kind == kAllGather ? whole : bytes, kUntouched);
  const bool sums = wire::is_reduction(kind);
  for (std::uint64_t at = 0; at < open->input.size() / (sums ? 4 : 1); ++at) {
    const std::uint64_t drawn = part_of(worker_.identity.rank, *open, round_, at);
    const float value = static_cast<float>(static_cast<int>(drawn % 17) - 8);
    if (sums) std::memcpy(&open->input[4 * at], &value, 4);
    if (!sums) open->input[at] = static_cast<std::uint8_t>(drawn);
  }
  std::uint64_t number = 0;
  const Dtype dtype = sums ? Dtype::kFloat32 : Dtype::kBytes;
  const Status called = worker_.session().groups()->call(indices_[group],
                                                         {.kind = kind,
                                                          .dtype = dtype,
                                                          .wire = dtype,
                                                          .root = open->root,
                                                          .bytes = bytes,
                                                          .input = open->input.data(),
                                                          .output = open->output.data()},
                                                         now, number);
  if (!called.ok()) {
    if (!worker_.plan.loses_ranks) violation("a call was refused: " + called.message());
    return;
  }
  open_[round_].emplace(Number{indices_[group], number}, std::move(open));
}

void GroupLoop::check(const Open& open, Step round) {
  const std::vector<Rank>& ranks = ranks_[open.group];
  const std::uint16_t own = worker_.identity.rank.value;
  if (wire::has_root(open.kind) && (open.root == own) != (open.kind == kReduce)) return;
  std::vector<std::uint8_t> expected(open.output.size());
  const auto place =
      static_cast<std::uint64_t>(std::ranges::find(ranks, Rank{own}) - ranks.begin());
  const std::uint64_t bytes = open.kind == kAllGather ? open.input.size() : expected.size();
  const bool sums = wire::is_reduction(open.kind);
  for (std::uint64_t at = 0; at < expected.size() / (sums ? 4 : 1); ++at) {
    if (open.kind == kBroadcast) {
      expected[at] = static_cast<std::uint8_t>(part_of(Rank{open.root}, open, round, at));
    } else if (open.kind == kAllGather) {
      expected[at] = static_cast<std::uint8_t>(part_of(ranks[at / bytes], open, round, at % bytes));
    } else {
      const std::uint64_t from = open.kind == kReduceScatter ? place * bytes / 4 : 0;
      float sum = 0;
      for (const Rank rank : ranks)
        sum += static_cast<float>(static_cast<int>(part_of(rank, open, round, from + at) % 17) - 8);
      std::memcpy(&expected[4 * at], &sum, 4);
    }
  }
  if (expected != open.output)
    violation("operation of kind " + std::to_string(static_cast<int>(open.kind)) + " of group " +
              std::to_string(open.group) + " in round " + std::to_string(round) +
              " has another result");
}

void GroupLoop::on_event(const client::Event& event) {
  const Number number{event.tensor, event.operation};
  const auto round =
      std::ranges::find_if(open_, [&](const auto& one) { return one.second.contains(number); });
  if (round == open_.end()) return violation("an operation is over that was not called");
  if (event.status.ok()) check(*round->second.at(number), round->first);
  if (!event.status.ok() && !worker_.plan.loses_ranks)
    violation("an operation has failed: " + event.status.message());
  round->second.erase(number);
  if (round->second.empty()) open_.erase(round);
}

bool GroupLoop::over() const {
  return open_.empty() && round_ >= worker_.plan.ranks[worker_.identity.rank.value].last_step;
}

bool GroupLoop::advance(TimeNs now) {
  const JobPlan& plan = worker_.plan;
  if (round_ >= plan.ranks[worker_.identity.rank.value].last_step || open_.size() >= kDepth)
    return false;
  if (due_ns_ == kNever) {
    due_ns_ = now + plan.compute_ns(worker_.identity.rank, round_ + 1);
    if (due_ns_ > now) world_.events().push(due_ns_, EventKind::kWorkerApp, worker_.identity.index);
  }
  if (now < due_ns_) return false;
  due_ns_ = kNever;
  ++round_;
  const std::uint64_t chunk = plan.chunk_bytes;
  call(0, kAllReduce, 5 * chunk + 8, now);
  call(1, kAllReduce, 40, now);
  call(2, kReduceScatter, 2 * chunk, now);
  call(0, kBroadcast, 3 * chunk + 5, now);
  call(1, kAllGather, chunk + 3, now);
  call(0, round_ % 2 == 0 ? kReduce : kBarrier, round_ % 2 == 0 ? 2 * chunk : 0, now);
  return true;
}

}  // namespace sluice::sim
