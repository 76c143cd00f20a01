// What happens to members: one dies, or aborts a group.
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
  member.operations->remove(*group);
  member.called[0] = options_.groups[0].operations.size();
  at(now_ + static_cast<DurationNs>(random_.below(100 * kMillisecond)), [this, rank] {
    agg::OperationsRequest broken{.kind = agg::OperationsRequest::Kind::kBreak,
                                  .group = groups_[0].get()};
    broken.rank = rank;
    command({.kind = agg::ShardCommand::Kind::kGroups, .job = job_.get(), .groups = broken});
  });
  wake_at(rank.value, now_);
}

}  // namespace sluice::sim
