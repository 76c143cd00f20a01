// What happens to members: one dies, aborts a group, or leaves it.
#include "tests/sim/group_world.h"

namespace sluice::sim {

void GroupWorld::kill(Rank rank) {
  members_[rank.value]->alive = false;
  at(now_ + static_cast<DurationNs>(random_.below(100 * kMillisecond)), [this, rank] {
    agg::Member& member = job_->members[rank.value];
    for (auto& left : member.left_from) left = 0;
    member.reachable = false;
    command({.kind = agg::ShardCommand::Kind::kMemberGone, .job = job_.get(), .rank = rank});
  });
}

// It ends what it has called in group 0 and calls nothing more there; the others hear of it.
void GroupWorld::abort(Rank rank) {
  Member& member = *members_[rank.value];
  client::Group* const group = member.operations->find(0);
  if (!member.alive || group == nullptr) return;
  group->give_up({StatusCode::kClosed, "this rank has aborted the group"});
  take_events(rank.value);
  depart(rank, {.kind = agg::OperationsRequest::Kind::kBreak});
}

void GroupWorld::leave_if_done(Rank rank) {
  Member& member = *members_[rank.value];
  if (!options_.leave || options_.leave->rank != rank || !member.open[0].empty() ||
      member.operations->find(0) == nullptr || member.called[0] < calls_of(rank.value, 0))
    return;
  depart(rank, {.kind = agg::OperationsRequest::Kind::kLeave,
                .first = static_cast<std::uint32_t>(member.called[0])});
}

void GroupWorld::depart(Rank rank, agg::OperationsRequest request) {
  Member& member = *members_[rank.value];
  member.operations->remove(*member.operations->find(0));
  member.called[0] = options_.groups[0].operations.size();
  request.group = groups_[0].get();
  request.rank = rank;
  at(now_ + static_cast<DurationNs>(random_.below(100 * kMillisecond)), [this, request] {
    command({.kind = agg::ShardCommand::Kind::kGroups, .job = job_.get(), .groups = request});
  });
  wake_at(rank.value, now_);
}

}  // namespace sluice::sim
