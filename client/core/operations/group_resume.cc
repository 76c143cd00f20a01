// A group whose appliance is lost: what its member tells another one, or the same one without its
// memory, and how it goes on there.
#include <algorithm>

#include "aggregator/base/check.h"
#include "client/core/operations/group.h"

namespace sluice::client {

// Of a completed call: whether all its chunks are known to be complete, and not only what this
// member wants.
wire::OutcomeCode Group::completed_code(const Called& called) const noexcept {
  const bool owner = called.what.root == facts_.members[facts_.place].value;
  const bool of_all = called.what.kind == wire::OperationKind::kReduce
                          ? owner
                          : called.what.kind != wire::OperationKind::kReduceScatter;
  return of_all ? wire::OutcomeCode::kCompleted : wire::OutcomeCode::kOpen;
}

wire::GroupPosition Group::position() const noexcept {
  wire::GroupPosition position;
  for (std::size_t id = 0; id < sequences_.size(); ++id) {
    position.floors[id] = sequences_[id].floor();
    position.group_floors[id] = sequences_[id].group_floor();
  }
  position.first_number = called_.empty() ? next_ - waiting_.size() : called_.front().number;
  position.over_number = position.first_number;
  for (const Called& called : called_)
    if (called.done) position.over_number = called.number + 1;
  if (!broken_) return position;
  position.broken = broken_by_.code;
  position.rank = broken_by_.rank;
  position.other = broken_by_.other;
  position.expected = broken_by_.expected;
  position.actual = broken_by_.actual;
  return position;
}

void Group::lose_appliance() {
  made_ = false;
  for (Called& called : called_) called.unsure = false;
  for (Sequence& sequence : sequences_) sequence.lose_appliance();
}

bool Group::owes() const noexcept {
  return std::ranges::any_of(
      sequences_, [](const Sequence& one) { return one.owes(one.group_floor(), UINT64_MAX); });
}

bool Group::resume(std::uint16_t id, std::uint32_t generation,
                   std::span<const std::uint64_t, wire::kSequenceCount> floors, TimeNs now) {
  CHECK(!made_ && facts_.survives);
  const wire::GroupPosition told = position();
  facts_.id = id;
  facts_.generation = generation;
  for (std::size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].resume(floors[i], now)) return false;
  made_ = true;
  ended_ = 0;
  noted_ = told.first_number;
  retold_to_ = told.over_number;
  told_count_ = 0;
  quiet_until_ns_ = 0;
  for (Called& called : called_) {
    called.sent = false;
    called.asked = 0;
    called.next_ns = now;
  }
  collect_done();
  begin_waiting(now);
  return true;
}

}  // namespace sluice::client
