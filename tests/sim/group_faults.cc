#include "tests/sim/group_faults.h"

#include "aggregator/base/check.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kDelay = 20 * kMillisecond;  // of a member's joins and positions, up to

}  // namespace

// ---- members ----

void GroupFaults::kill(Rank rank) {
  world_.members_[rank.value]->alive = false;
  const auto after_ns = static_cast<DurationNs>(world_.random_.below(100 * kMillisecond));
  world_.at(world_.now_ + after_ns, [this, rank] {
    world_.buried_.insert(rank.value);
    if (!world_.up_) return;
    agg::Member& member = world_.job_->members[rank.value];
    for (auto& left : member.left_from) left = 0;
    member.reachable = false;
    world_.command(
        {.kind = agg::ShardCommand::Kind::kMemberGone, .job = world_.job_.get(), .rank = rank});
    resume_groups();
  });
}

void GroupFaults::abort(Rank rank) {
  GroupWorld::Member& member = *world_.members_[rank.value];
  client::Group* const group = member.groups[0];
  if (!member.alive || group == nullptr) return;
  group->give_up({StatusCode::kClosed, "this rank has aborted the group"});
  world_.take_events(rank.value);
  depart(rank, {.kind = agg::OperationsRequest::Kind::kBreak});
}

void GroupFaults::leave_if_done(Rank rank) {
  GroupWorld::Member& member = *world_.members_[rank.value];
  const auto& plan = world_.options_.leave;
  if (!plan || plan->rank != rank || !member.open[0].empty() || member.groups[0] == nullptr ||
      !member.groups[0]->is_made() || member.called[0] < world_.calls_of(rank.value, 0))
    return;
  if (member.groups[0]->owes()) return depart(rank, {.kind = agg::OperationsRequest::Kind::kBreak});
  depart(rank, {.kind = agg::OperationsRequest::Kind::kLeave,
                .first = static_cast<std::uint32_t>(member.called[0])});
}

void GroupFaults::depart(Rank rank, agg::OperationsRequest request) {
  GroupWorld::Member& member = *world_.members_[rank.value];
  member.operations->remove(*member.groups[0]);
  member.groups[0] = nullptr;
  member.called[0] = world_.options_.groups[0].operations.size();
  request.rank = rank;
  const auto after_ns = static_cast<DurationNs>(world_.random_.below(100 * kMillisecond));
  world_.at(world_.now_ + after_ns, [this, request] {
    gone_ = request.rank;
    if (!world_.up_) return;
    const bool known = world_.groups_[0] != nullptr;
    resume_groups();
    if (!known) return;
    agg::OperationsRequest told = request;
    told.group = world_.groups_[0].get();
    world_.command(
        {.kind = agg::ShardCommand::Kind::kGroups, .job = world_.job_.get(), .groups = told});
  });
  world_.wake_at(rank.value, world_.now_);
}

// ---- the appliance ----

void GroupFaults::count_packet() {
  const auto& plan = world_.options_.restarts;
  if (!world_.up_ || count_ == plan.size() || ++since_boot_ <= plan[count_].after_packets) return;
  since_boot_ = 0;
  world_.up_ = false;
  world_.at(world_.now_ + plan[count_++].down_ns, [this] { start_appliance(); });
}

// All members join it, then tell it where they are in each group.
void GroupFaults::start_appliance() {
  CHECK(!world_.up_);
  world_.up_ = true;
  ++world_.boot_;
  world_.groups_.clear();
  world_.groups_.resize(world_.options_.groups.size());
  positions_.assign(world_.groups_.size(), {});
  world_.make_job();
  for (std::uint16_t rank = 0; rank < world_.options_.world_size; ++rank)
    world_.at(world_.now_ + static_cast<DurationNs>(world_.random_.below(kDelay)),
              [this, rank, boot = world_.boot_] { join_again(rank, boot); });
}

void GroupFaults::join_again(std::uint16_t rank, std::uint64_t boot) {
  GroupWorld::Member& member = *world_.members_[rank];
  if (!world_.up_ || boot != world_.boot_ || !member.alive) return;
  member.join(boot, rank, world_.options_);
  member.operations->lose_appliance();
  for (std::size_t group = 0; group < member.groups.size(); ++group)
    world_.at(world_.now_ + static_cast<DurationNs>(world_.random_.below(kDelay)),
              [this, rank, group, boot] { tell_position(rank, group, boot); });
  world_.wake(rank);
}

void GroupFaults::tell_position(std::uint16_t rank, std::size_t group, std::uint64_t boot) {
  const GroupWorld::Member& member = *world_.members_[rank];
  if (!world_.up_ || boot != world_.boot_ || !member.alive || member.groups[group] == nullptr)
    return;
  positions_[group][rank] = member.groups[group]->position();
  resume_groups();
}

void GroupFaults::resume_groups() {
  for (std::uint16_t group = 0; group < positions_.size(); ++group)
    if (world_.groups_[group] == nullptr && !positions_[group].empty()) go_on(group);
}

void GroupFaults::go_on(std::uint16_t group) {
  const std::vector<Rank>& ranks = world_.options_.groups[group].ranks;
  GroupWorld::Positions positions;
  for (const Rank rank : ranks) {
    const bool gone = world_.buried_.contains(rank.value) || (group == 0 && gone_ == rank);
    const auto told = positions_[group].find(rank.value);
    if (!gone && told == positions_[group].end()) return;
    positions.push_back(gone ? std::nullopt : std::optional(told->second));
  }
  world_.add_group(group, &positions);
  const auto floors = world_.groups_[group]->begins_at;
  for (const Rank rank : ranks)
    world_.at(world_.now_ + static_cast<DurationNs>(world_.random_.below(kDelay)),
              [this, rank, group, floors, boot = world_.boot_] {
                GroupWorld::Member& member = *world_.members_[rank.value];
                client::Group* const one = member.groups[group];
                if (!world_.up_ || boot != world_.boot_ || !member.alive || one == nullptr) return;
                if (!one->resume(group, static_cast<std::uint32_t>(boot), floors, world_.now_))
                  world_.violated("a group cannot go on with its floors");
                world_.wake(rank.value);
              });
}

}  // namespace sluice::sim
