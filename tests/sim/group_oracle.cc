// What must hold of operations: every output is what the plan says, and members are told the same.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "tests/sim/group_world.h"

namespace sluice::sim {
namespace {

// Small integers, so that sums are exact in any order and format. `ordered`: of many magnitudes, so
// that only one order of ranks gives the expected bits.
float value_of(std::size_t group, std::uint64_t number, std::uint16_t rank, std::uint64_t elem,
               bool ordered) {
  const std::uint64_t drawn = mix(group, number, rank, elem);
  const auto small = static_cast<float>(static_cast<int>(drawn % 17) - 8);
  return ordered ? std::ldexp(small, static_cast<int>(drawn / 17 % 48)) : small;
}
std::uint8_t byte_of(std::size_t group, std::uint64_t number, std::uint16_t rank,
                     std::uint64_t index) {
  return static_cast<std::uint8_t>(mix(group + 1000, number, rank, index));
}

void store(Dtype dtype, float value, std::uint8_t* out) {
  if (dtype == Dtype::kFloat32) {
    std::memcpy(out, &value, sizeof value);
    return;
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  std::uint16_t narrow = static_cast<std::uint16_t>(bits >> 16);  // bfloat16: exact, as it is small
  if (dtype == Dtype::kFloat16 && value != 0) {
    const auto exponent = static_cast<std::uint32_t>((bits >> 23 & 0xFF) - 127 + 15);
    narrow =
        static_cast<std::uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3FF));
  }
  std::memcpy(out, &narrow, sizeof narrow);
}

// Whether whoever is done with such an operation knows that it is complete everywhere.
bool is_global(wire::OperationKind kind) {
  return kind != wire::OperationKind::kReduce && kind != wire::OperationKind::kReduceScatter;
}

}  // namespace

PlannedOperation GroupWorld::planned(std::uint16_t rank, std::size_t group,
                                     std::uint64_t number) const {
  PlannedOperation plan = options_.groups[group].operations[number];
  const auto& other = options_.disagreement;
  if (other && group == 0 && other->rank.value == rank && other->number == number) plan.bytes += 4;
  return plan;
}

void GroupWorld::fill_input(std::uint16_t rank, std::size_t group, std::uint64_t number,
                            Buffers& buffers) {
  const PlannedOperation plan = planned(rank, group, number);
  const std::uint64_t whole =
      plan.bytes * (wire::has_parts(plan.kind) ? options_.groups[group].ranks.size() : 1);
  buffers.input.resize(plan.kind == wire::OperationKind::kReduceScatter ? whole : plan.bytes);
  buffers.output.assign(plan.kind == wire::OperationKind::kAllGather ? whole : plan.bytes, 0xEE);
  const std::size_t size = dtype_bytes(plan.dtype);
  for (std::uint64_t i = 0; i < buffers.input.size() / size; ++i)
    if (plan.dtype == Dtype::kBytes)
      buffers.input[i] = byte_of(group, number, rank, i);
    else
      store(plan.dtype, value_of(group, number, rank, i, is_ordered(plan)),
            &buffers.input[i * size]);
}

void GroupWorld::check_output(std::uint16_t rank, std::size_t group, std::uint64_t number,
                              const Buffers& buffers) {
  using enum wire::OperationKind;
  const PlannedOperation plan = planned(rank, group, number);
  const std::vector<Rank>& ranks = options_.groups[group].ranks;
  ++checked_;
  if (wire::has_root(plan.kind) && (plan.root == rank) != (plan.kind == kReduce)) return;
  std::vector<std::uint8_t> expected(buffers.output.size());
  const auto place =
      static_cast<std::uint64_t>(std::ranges::find(ranks, Rank{rank}) - ranks.begin());
  const std::size_t size = dtype_bytes(plan.dtype);
  for (std::uint64_t i = 0; i < expected.size() / size; ++i) {
    if (plan.kind == kBroadcast) {
      expected[i] = byte_of(group, number, plan.root, i);
    } else if (plan.kind == kAllGather) {
      expected[i] = byte_of(group, number, ranks[i / plan.bytes].value, i % plan.bytes);
    } else {
      const std::uint64_t from = plan.kind == kReduceScatter ? place * plan.bytes / size : 0;
      float sum = 0;
      for (const Rank one : ranks)
        sum += value_of(group, number, one.value, from + i, is_ordered(plan));
      if (plan.reduction == wire::Reduction::kMean) sum /= static_cast<float>(ranks.size());
      store(plan.dtype, sum, &expected[i * size]);
    }
  }
  if (expected != buffers.output)
    violated("rank " + std::to_string(rank) + " has another result of operation " +
             std::to_string(number) + " of group " + std::to_string(group));
}

// An operation is completed for all or ended for all, but for the one that members disagree about
// and for later broadcasts, which need their root alone.
void GroupWorld::check_agreement() {
  for (std::size_t group = 0; group < options_.groups.size(); ++group) {
    const auto& plan = options_.groups[group];
    for (std::uint64_t number = 0; number < plan.operations.size(); ++number) {
      // A member that has left its group has nothing to give to an appliance that has restarted.
      const bool forgets = group == 0 && options_.leave && !options_.restarts.empty();
      std::set<StatusCode> codes;
      std::string text;
      for (const Rank rank : plan.ranks) {
        const Told* const one = told(rank, group, number);
        if (one == nullptr || !members_[rank.value]->alive) continue;
        if (group == 0 && options_.abort && options_.abort->rank == rank) continue;
        if (forgets && options_.leave->rank == rank) continue;
        codes.insert(one->code);
        text += " rank " + std::to_string(rank.value) + ": " +
                (one->text.empty() ? "ok" : one->text) + ";";
      }
      const bool disputed = options_.disagreement && group == 0 &&
                            (options_.disagreement->number == number ||
                             (options_.disagreement->number < number &&
                              plan.operations[number].kind == wire::OperationKind::kBroadcast));
      if (codes.size() > 1 && is_global(plan.operations[number].kind) && !disputed)
        violated("members are told different things of operation " + std::to_string(number) +
                 " of group " + std::to_string(group) + ":" + text);
      const bool disturbed = options_.death || options_.disagreement || options_.abort;
      const bool patient = std::ranges::all_of(
          options_.paces, [](const Pace& pace) { return pace.patience_ns == kNever; });
      if (disturbed || forgets || !patient || codes.empty()) continue;
      const auto kind = plan.operations[number].kind;
      const bool lacks = group == 0 && options_.leave && options_.leave->after <= number;
      // A broadcast may be complete all the same, and a member's part of a reduction over.
      if (lacks && is_global(kind) && kind != wire::OperationKind::kBroadcast &&
          codes != std::set{StatusCode::kPeerLost})
        violated("operation " + std::to_string(number) + " lacks a member that has left:" + text);
      const bool leaves = group == 0 && options_.leave && (lacks || !is_global(kind));
      if (!leaves && *codes.rbegin() != StatusCode::kOk)
        violated("operation " + std::to_string(number) + " fails for nothing:" + text);
    }
  }
}

// ---- what members were told, and wait for ----

bool GroupWorld::finished() const {
  for (std::size_t group = 0; group < options_.groups.size(); ++group)
    for (const Rank rank : options_.groups[group].ranks) {
      const Member& member = *members_[rank.value];
      if (member.alive && (member.called[group] < options_.groups[group].operations.size() ||
                           !member.open[group].empty()))
        return false;
    }
  return true;
}

const GroupWorld::Told* GroupWorld::told(Rank rank, std::size_t group, std::uint64_t number) const {
  const auto found = told_.find({rank.value, group, number});
  return found == told_.end() ? nullptr : &found->second;
}

std::string GroupWorld::unfinished() const {
  std::string text;
  for (std::size_t group = 0; group < options_.groups.size(); ++group)
    for (const Rank rank : options_.groups[group].ranks) {
      const Member& member = *members_[rank.value];
      if (!member.alive) continue;
      if (member.called[group] < options_.groups[group].operations.size())
        text += "rank " + std::to_string(rank.value) + " has called " +
                std::to_string(member.called[group]) + " operations of group " +
                std::to_string(group) + "\n";
      for (const auto& [number, buffers] : member.open[group])
        text += "rank " + std::to_string(rank.value) + " waits for operation " +
                std::to_string(number) + " of group " + std::to_string(group) + "\n";
      text += describe_stall(rank, group, kSecond) + "\n";
    }
  return text;
}

std::string GroupWorld::describe_stall(Rank rank, std::size_t group, DurationNs patience_ns) const {
  const client::Group* const one =
      members_[rank.value]->operations->find(static_cast<std::uint16_t>(group));
  return one == nullptr ? "" : one->describe_stall(patience_ns, now_);
}

}  // namespace sluice::sim
